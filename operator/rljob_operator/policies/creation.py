"""Creation: a pod that a plan makes.

A job may have a thousand pods of 256 KiB each, so a plan holds no manifests but what they have in common, once a role.
Each manifest is made when it is asked for, and shares that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.gang import pod_groups
from rljob_operator.policies.kueue import admission as kueue_admission
from rljob_operator.policies.pods import manifests

Json = dict[str, Any]


@dataclass(frozen=True)
class Drafts:
    """What the manifests of a plan's pods are made from."""

    job: RLJob
    observed: Observed
    machines: tuple[str, ...]
    """Rollout machines of the target."""
    roles: Mapping[Role, Json]
    """What the pods of each role have in common."""

    def manifest(self, new: NewPod) -> Json:
        """The manifest of one pod. Nobody may change it in place."""
        pod = manifests.named(self.roles[new.role], self.job, new)
        placed = kueue_admission.placed(self.job, new, pod, self.observed)
        return pod_groups.joined(self.job, self.machines, new.machine, placed)


@dataclass(frozen=True)
class Creation:
    """A pod to create."""

    new: NewPod
    drafts: Drafts

    @property
    def manifest(self) -> Json:
        """Made anew at each call."""
        return self.drafts.manifest(self.new)
