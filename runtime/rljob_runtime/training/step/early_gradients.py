"""Early gradients: raw sums of groups that are computed before their step is trained.

RollPacker §4.4. Sums of several groups cannot be taken apart, so they are used completely or not at all. If one group
is not trained in the step, or has other contents, everything is recomputed. The result is always exact; a refusal would
stop a trainer that can recompute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.training.batch.delivery import Outline
from rljob_runtime.training.step.contribution import Contribution, combine


@dataclass(frozen=True)
class EarlyGradients:
    """The groups whose sums are held, and the combined contribution.

    `groups` holds everything that `total` depends on, besides the weights before its step.
    """

    groups: Mapping[PromptKey, Outline]
    total: Contribution

    @classmethod
    def of(cls, groups: Iterable[Outline], total: Contribution) -> EarlyGradients:
        """Start the sums of a step."""
        return cls({group.prompt: group for group in groups}, total)

    def part_of(self, groups: Iterable[Outline]) -> bool:
        """Return whether `groups` contains all held groups, with the same contents."""
        return self.groups.items() <= {group.prompt: group for group in groups}.items()

    def has(self, groups: Iterable[Outline]) -> bool:
        """Return whether all `groups` are held, with the same contents."""
        return all(self.groups.get(group.prompt) == group for group in groups)

    def missing(self, groups: Iterable[Outline]) -> list[Outline]:
        """Return the groups that are not held."""
        return [group for group in groups if group.prompt not in self.groups]

    def plus(self, groups: Iterable[Outline], contribution: Contribution) -> EarlyGradients:
        """Return these sums with those of further groups, added in place.

        Raises `ValueError` for a group that is already held and for sums of another step.
        """
        more = {group.prompt: group for group in groups}
        return EarlyGradients({**self.groups, **more}, combine([self.total, contribution]))
