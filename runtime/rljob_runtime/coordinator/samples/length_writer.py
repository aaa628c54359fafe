"""Length writer: writes the lengths of each closed round, from which `rljob trace export` makes a trace.

As samples, it runs beside the rounds. A round whose file cannot be written has no lengths, and the job goes on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from rljob_runtime.coordinator.core.async_utils import Apart, in_daemon_thread
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.samples import LengthFolder, PromptLengths

log = logging.getLogger(__name__)

PromptTokens = Callable[[Sequence[PromptKey]], Awaitable[list[int]]]
"""Returns the tokens of each prompt."""


class LengthWriter:
    """Writes the lengths of one job; `apart` reads and writes files."""

    def __init__(self, folder: Path, store: StoreAccess, apart: Apart = in_daemon_thread) -> None:
        self._folder = LengthFolder(folder)
        self._apart = apart
        self._store = store
        self._first: int | None = None
        """The lowest round that closed since all files were written: after a rewind, files of later ones are old."""
        self._resumes = True
        """Whether this writer has written nothing yet. A former one may have ended between `end` and its file."""

    def closed(self, round_: int) -> None:
        """Write this round at the next `write_due`."""
        self._first = round_ if self._first is None else min(self._first, round_)

    async def end(self) -> None:
        """Have the last round written again if groups were filtered after it: they are in no other file."""
        last = await self._store.do(lambda store: store.experience.count_late())
        if last is not None:
            self.closed(last)

    async def write_due(self, prompt_tokens: PromptTokens, keep: int) -> None:
        """Write the rounds that closed since the last call, or that a former coordinator has left."""
        first, self._first = self._first, None
        try:
            written = await self._apart(self._folder.rounds, "lengths")
            closed = await self._store.do(lambda store: store.boundaries.steps())
            for step in unwritten(closed, written, first, keep, self._resumes):
                await self._write(step, prompt_tokens, keep)
            self._resumes = False
        except Exception as error:  # a bad folder, a full disk, a prompt that cannot be read
            log.warning("the lengths of the last rounds are not written: %s", error)
            if first is not None:
                self.closed(first)

    async def _write(self, step: int, prompt_tokens: PromptTokens, keep: int) -> None:
        found = await self._store.do(lambda store: store.lengths(step))
        tokens = await prompt_tokens([one.prompt for one in found])
        rows = [PromptLengths(prompt, one.tokens, one.kept) for prompt, one in zip(tokens, found, strict=True)]
        await self._apart(partial(self._folder.write, step, rows, keep), "lengths")


def unwritten(
    closed: Sequence[int], written: Sequence[int], first: int | None, keep: int, resumes: bool = False
) -> list[int]:
    """Return the rounds to write, rising: of the newest `keep`, those without a file, and those from `first` on.

    Files of rounds above the newest closed one are of an abandoned history. Then the newest round is written again. A
    writer that `resumes` writes the round before `first` again too: groups may count in it that its file lacks.
    """
    if not closed:
        return []
    newest = closed[-1]
    if resumes:
        first = max((step for step in closed if first is None or step < first), default=first)
    elif written and written[-1] > newest:
        first = newest if first is None else min(first, newest)
    known = {step for step in written if first is None or step < first}
    return [step for step in closed if step > newest - keep and step not in known]
