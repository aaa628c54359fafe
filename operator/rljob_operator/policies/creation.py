"""Creation: a pod that a plan creates.

A job may have a thousand pods of 256 KiB each. So a plan holds what the pods of a role share, once a role, and each
manifest is rendered on demand from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_kube.manifests.pods import Pod, SharedPod
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.gang import pod_groups
from rljob_operator.policies.kueue import admission as kueue_admission
from rljob_operator.policies.pods import manifests


@dataclass(frozen=True)
class Drafts:
    """Input of the manifests of a plan's pods."""

    job: RLJob
    observed: Observed
    machines: tuple[str, ...]
    """Rollout machines of the target."""
    roles: Mapping[Role, SharedPod]
    """Shared part of each role's pods."""

    def manifest(self, new: NewPod) -> Pod:
        """Render the manifest of one pod. Callers must not change it in place."""
        pod = manifests.named(self.roles[new.role], self.job, new)
        placed = kueue_admission.placed(self.job, new, pod, self.observed)
        return pod_groups.joined(self.job, self.machines, new.machine, placed)


@dataclass(frozen=True)
class Creation:
    """A pod to create."""

    new: NewPod
    drafts: Drafts

    @property
    def manifest(self) -> Pod:
        """Render the manifest. Each call renders it again."""
        return self.drafts.manifest(self.new)
