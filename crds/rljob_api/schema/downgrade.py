"""Downgrade: the policy by which a server refuses an older CRD in the place of a newer one.

The server would drop unknown fields from every RLJob that is written. It decides itself, so the policy holds for every
client: an older chart, `helm rollback`, `kubectl apply`, a GitOps tool.
"""

from __future__ import annotations

from typing import Any

from rljob_api import constants as c

NAME = f"downgrade.{c.CRD_NAME}"

# A manager that never wrote the annotation leaves it in place, though it replaces the schema.
_KEEPS_FIELDS = (
    "oldObject.spec.versions.all(installed, object.spec.versions.exists(proposed, proposed.name == installed.name && "
    "installed.schema.openAPIV3Schema.properties.spec.properties.all(field, "
    "field in proposed.schema.openAPIV3Schema.properties.spec.properties)))"
)


def downgrade_policy() -> list[dict[str, Any]]:
    """Make the ValidatingAdmissionPolicy and its binding as plain objects."""
    return [_policy(), _binding()]


def _policy() -> dict[str, Any]:
    rule = {
        "apiGroups": ["apiextensions.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["customresourcedefinitions"],
        "resourceNames": [c.CRD_NAME],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "variables": [
                {"name": "installed", "expression": _revision("oldObject")},
                {"name": "proposed", "expression": _revision("object")},
            ],
            "validations": [
                {
                    "expression": "variables.proposed >= variables.installed",
                    "messageExpression": _refusal("string(variables.proposed)"),
                },
                {
                    "expression": f"variables.proposed > variables.installed || {_KEEPS_FIELDS}",
                    "messageExpression": _refusal("'fewer fields'"),
                },
            ],
        },
    }


def _revision(version: str) -> str:
    """CEL: the schema revision of `object` or `oldObject`. The first release's CRD has none."""
    return f"int({version}.metadata.?annotations[?'{c.SCHEMA_REVISION_ANNOTATION}'].orValue('0'))"


def _refusal(proposed: str) -> str:
    """CEL: the message, with what the proposed CRD has."""
    return (
        f"'the installed CRD has schema revision ' + string(variables.installed) + ', this one has ' + {proposed} + "
        "': RLJobs would lose fields. Use a chart or a CRD of revision ' + string(variables.installed) + ' or above "
        f"(annotation {c.SCHEMA_REVISION_ANNOTATION} of the CRD); or, to give those fields up, first kubectl delete "
        f"validatingadmissionpolicybinding {NAME}'"
    )


def _binding() -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }
