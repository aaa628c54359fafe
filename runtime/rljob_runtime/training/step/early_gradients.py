"""Groups whose raw gradient sums are in before the step they belong to is trained (RollPacker, section 4.4).

Sums of several groups cannot be taken apart again. So what came early is used as a whole or not at all: if a group of
it is not among those the step is trained on, or is there with other contents, everything is computed anew. That is
always exact, and to refuse would lose a trainer that can do better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.training.batch.delivery import Outline
from rljob_runtime.training.step.contribution import Contribution, combine


@dataclass(frozen=True)
class EarlySums:
    """`groups`: all that the sums in `total` depend on, besides the weights before its step."""

    groups: Mapping[PromptKey, Outline]
    total: Contribution

    @classmethod
    def of(cls, groups: Iterable[Outline], total: Contribution) -> EarlySums:
        """The first ones of a step."""
        return cls({group.prompt: group for group in groups}, total)

    def part_of(self, groups: Iterable[Outline]) -> bool:
        """Whether all that is here is among `groups`, with the same contents."""
        return self.groups.items() <= {group.prompt: group for group in groups}.items()

    def has(self, groups: Iterable[Outline]) -> bool:
        """Whether all of `groups` are here, with the same contents."""
        return all(self.groups.get(group.prompt) == group for group in groups)

    def missing(self, groups: Iterable[Outline]) -> list[Outline]:
        """Those of `groups` that are not here."""
        return [group for group in groups if group.prompt not in self.groups]

    def plus(self, groups: Iterable[Outline], contribution: Contribution) -> EarlySums:
        """With the sums of further groups, added in place. Raises `ValueError` for a group that is here already and for
        sums of another step."""
        more = {group.prompt: group for group in groups}
        return EarlySums({**self.groups, **more}, combine([self.total, contribution]))
