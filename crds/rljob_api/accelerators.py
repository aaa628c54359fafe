"""Accelerators: the way in which a pod gets those that its role counts."""

from __future__ import annotations

from enum import StrEnum

from rljob_api.fields import ClaimTemplateName, DnsName, Model, QualifiedName

DEFAULT_RESOURCE = "nvidia.com/gpu"
"""What pods ask for where the spec names nothing."""


class AcceleratorKind(StrEnum):
    """The way that needs no name."""

    NONE = "None"


class Accelerator(Model):
    """The way in which pods get their accelerators: exactly one of these. How many a pod gets is said by
    acceleratorsPerReplica and acceleratorsPerMachine."""

    resource: QualifiedName | None = None
    """An extended resource that a device plugin offers, e.g. nvidia.com/gpu or amd.com/gpu."""
    device_class: DnsName | None = None
    """A DeviceClass. The operator makes a ResourceClaimTemplate of it for each role, and Kubernetes a claim for each
    pod."""
    claim_template: ClaimTemplateName | None = None
    """An existing ResourceClaimTemplate in the job's namespace. Kubernetes makes a claim of it for each pod. It must
    ask for as many devices as acceleratorsPerReplica or acceleratorsPerMachine says."""
    kind: AcceleratorKind | None = None
    """None: pods ask for nothing. Their accelerators come another way, e.g. by the template's own resourceClaims."""

    @property
    def given(self) -> list[str]:
        """Names of the fields that are set."""
        return list(self.to_dict())

    @property
    def claims(self) -> bool:
        """Whether the accelerators are claimed by Dynamic Resource Allocation."""
        return self.device_class is not None or self.claim_template is not None
