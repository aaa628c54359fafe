"""Evaluation prompts: the prompts of one evaluation, tokenised as those of training are, and the same each time."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rljob_runtime.data.errors import BadRecord, DataError
from rljob_runtime.data.held_out import NO_EPOCH
from rljob_runtime.data.order import DrawOrder
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.data.prompts import PromptSet
from rljob_runtime.data.records import RecordSource
from rljob_runtime.data.rows import Record
from rljob_runtime.protocols.trajectory import PromptKey

HASH_BYTES = 16


class OnAccess:
    """A source whose records are checked when they are read: an evaluation reads some of them only."""

    checked_ahead = False

    def __init__(self, source: RecordSource) -> None:
        self.name = source.name
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Record | BadRecord:
        return self._source[index]


@dataclass(frozen=True)
class Part:
    """The records of one source that an evaluation may take, in order. `prompts` is a set over an `OnAccess` source."""

    prompts: PromptSet
    candidates: Iterable[int]


class EvaluationPrompts:
    """The prompts of one evaluation, by number: that of a record, or record x parts + part where there are several.

    They are the first usable records of permutations: fewer prompts are a part of those of more.
    """

    def __init__(self, parts: Sequence[Part], places: Iterable[int], name: str) -> None:
        """Choose a prompt for each of `places`, which are numbers of parts, until the part of one has no more.

        `name` is shown in errors. Raises `DataError` for a bad record that must not be skipped, and if no record can
        be used.
        """
        self._parts = parts
        self._bad: list[BadRecord] = []
        usable = [self._usable(part) for part in parts]
        chosen = []
        for place in places:
            index = next(usable[place], None)
            if index is None:
                break
            chosen.append(index * len(parts) + place)
        if not chosen:
            raise DataError(f"{name}: not one of {len(self._bad)} records can be used; {self._bad[0]}")
        self.records: tuple[int, ...] = tuple(chosen)
        self.skipped = len(self._bad)
        """Records that were skipped on the way to these."""

    def prompt(self, number: int) -> Prompt:
        """Return a prompt. Raises `DataError` for one that cannot be used."""
        index, place = divmod(number, len(self._parts))
        return self._parts[place].prompts.prompt(PromptKey(0, index))

    def messages(self, number: int) -> tuple[Mapping[str, str], ...]:
        """Return a prompt as chat messages."""
        index, place = divmod(number, len(self._parts))
        return self._parts[place].prompts.messages(PromptKey(0, index))

    def _usable(self, part: Part) -> Iterator[int]:
        for index in part.candidates:
            found = part.prompts.record_or_fault(index)
            if isinstance(found, BadRecord):
                self._bad.append(found)
            else:
                yield index

    def __len__(self) -> int:
        return len(self.records)


def in_seeded_order(size: int, seed: int) -> Iterable[int]:
    """Return the numbers of all records of an evaluation's own source, in the order in which it takes them."""
    order = DrawOrder(size, seed)
    return (order.index(NO_EPOCH, position) for position in range(size))


class Overlap:
    """Counts evaluation prompts whose tokens equal those of a training record.

    It keeps a hash of each evaluation prompt, and nothing of training.
    """

    def __init__(self, evaluations: Mapping[str, EvaluationPrompts]) -> None:
        self._hashes = {
            name: [_hash(prompts.prompt(index).token_ids) for index in prompts.records]
            for name, prompts in evaluations.items()
        }
        self._all = frozenset(one for hashes in self._hashes.values() for one in hashes)
        self._met: set[bytes] = set()

    def watching(self, problem: Callable[[Prompt], str | None]) -> Callable[[Prompt], str | None]:
        """Return `problem` for the training set, so that each of its records is compared when it is checked."""

        def compare(prompt: Prompt) -> str | None:
            if (found := _hash(prompt.token_ids)) in self._all:
                self._met.add(found)
            return problem(prompt)

        return compare

    def counts(self) -> dict[str, int]:
        """Return the number of equal prompts by evaluation, for those that have some."""
        counts = {name: sum(one in self._met for one in hashes) for name, hashes in self._hashes.items()}
        return {name: count for name, count in counts.items() if count}


def _hash(token_ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("i", token_ids).tobytes(), digest_size=HASH_BYTES).digest()
