"""Accelerators: how pods get theirs."""

from __future__ import annotations

from enum import StrEnum

from rljob_api.fields import ClaimTemplateName, DnsName, Model, QualifiedName

DEFAULT_RESOURCE = "nvidia.com/gpu"
"""Requested where the spec names nothing."""


class AcceleratorKind(StrEnum):
    """A way without a name."""

    NONE = "None"


class Accelerator(Model):
    """Source of the pods' accelerators: exactly one of these fields.

    acceleratorsPerReplica and acceleratorsPerMachine are the numbers.
    """

    resource: QualifiedName | None = None
    """An extended resource that a device plugin offers, e.g. nvidia.com/gpu or amd.com/gpu."""
    device_class: DnsName | None = None
    """A DeviceClass. The operator creates a ResourceClaimTemplate of it for each role, and Kubernetes a claim for each
    pod."""
    claim_template: ClaimTemplateName | None = None
    """An existing ResourceClaimTemplate in the job's namespace. Kubernetes creates a claim of it for each pod. It must
    request as many devices as acceleratorsPerReplica or acceleratorsPerMachine says."""
    kind: AcceleratorKind | None = None
    """None: pods request nothing. They get their accelerators in another way, e.g. by the template's own
    resourceClaims."""

    @property
    def given(self) -> list[str]:
        """Name the fields that are set."""
        return list(self.to_dict())

    @property
    def claims(self) -> bool:
        """Tell whether the accelerators are claimed by Dynamic Resource Allocation."""
        return self.device_class is not None or self.claim_template is not None
