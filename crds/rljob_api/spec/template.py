"""Pod template: changes and additions to the pods of a role."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from rljob_api.constants import MAIN_CONTAINER
from rljob_api.fields import Model
from rljob_api.parsing.pod_schema import without_nulls

_CONTAINER = {
    "type": "object",
    "description": "A container, as in a Pod.",
    "required": ["name"],
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "name": {
            "type": "string",
            "description": f"Its name: `{MAIN_CONTAINER}` for ours, anything else is a sidecar.",
            "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            "maxLength": 63,
        }
    },
}
_POD_SPEC = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        **{
            field: {
                "type": "boolean",
                "enum": [False],
                "description": "Not supported: pods have addresses of their own.",
            }
            for field in ("hostNetwork", "hostPID", "hostIPC")
        },
        "restartPolicy": {
            "type": "string",
            "enum": ["Never"],
            "description": "Never: the operator replaces a pod that failed, under a new name. For the runners of "
            "environments it must be left out.",
        },
        "containers": {
            "type": "array",
            "description": f"Merged by name: `{MAIN_CONTAINER}` is ours, any other is a sidecar.",
            "maxItems": 16,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": _CONTAINER,
        },
    },
}
PodSpec = Annotated[dict[str, Any], BeforeValidator(without_nulls), WithJsonSchema(_POD_SPEC)]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64)]


class TemplateMetadata(Model):
    """Labels and annotations of the pods besides the operator's."""

    labels: Labels = Field(default_factory=dict)
    """Labels. Those under rljob.dev/ are the operator's."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations. Those under rljob.dev/ are the operator's."""


class PodTemplate(Model):
    """Changes and additions to the pods of a role, written as a pod template.

    The operator fills in the rest, so an empty template is complete.
    """

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations."""
    spec: PodSpec = Field(default_factory=dict)
    """A partial PodSpec: containers, volumes, nodeSelector, tolerations, affinity, imagePullSecrets and so on.
    Containers are merged by name: `main` overrides image, command, args, env, resources, volumeMounts, probes and
    securityContext of the operator's; every other one is a sidecar. In the coordinator's pod, `ray-head` belongs to the
    operator too, and so does `rewards`, if a reward is of kind Code, or of kind Python with a function that is not
    built in. In a job with environments, `gateway` does."""

    def container(self, name: str = MAIN_CONTAINER) -> dict[str, Any]:
        """Return the container of that name as the user wrote it, or an empty one.

        The template may be unchecked.
        """
        containers = self.spec.get("containers")
        found = containers if isinstance(containers, list) else []
        return next((one for one in found if isinstance(one, dict) and one.get("name") == name), {})

    def sidecars(self, ours: Collection[str] = (MAIN_CONTAINER,)) -> list[dict[str, Any]]:
        """Return the containers that are not the operator's."""
        return [container for container in self.spec.get("containers", []) if container.get("name") not in ours]
