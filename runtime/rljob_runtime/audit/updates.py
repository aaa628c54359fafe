"""Updates of a history, and the common check of both modes: every prompt before the cursor was drawn."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rljob_runtime.audit.findings import Finding, Rule
from rljob_runtime.audit.pruned import Pruned
from rljob_runtime.audit.stored_keys import cursor_of, prompt_of
from rljob_runtime.protocols.trajectory import Cursor, PromptKey


@dataclass(frozen=True)
class Updates:
    """Updates of a history.

    `steps`: those with a boundary, and pruned ones. The history begins at the first, which is 0 or was made elsewhere.

    `first` and `last`: the cursors there. `waited` and `waits`: queued long prompts at the first remaining and at the
    last boundary. `skipped`: unusable records."""

    pruned: Pruned
    kept: int
    """The first remaining boundary: rows tell everything after it."""
    steps: tuple[int, ...]
    first: Cursor
    last: Cursor
    waited: frozenset[PromptKey]
    waits: frozenset[PromptKey]
    skipped: int

    @classmethod
    def of(cls, db: sqlite3.Connection) -> Updates | None:
        """Read the updates; None for a store without a history."""
        rows = db.execute(
            "SELECT step, epoch, position, long_queue, totals, sources FROM boundaries ORDER BY step"
        ).fetchall()
        if not rows:
            return None
        (first, waited), (last, waits) = (
            (cursor_of(row[1], row[2], row[5]), frozenset(PromptKey.parse(text) for text in json.loads(row[3])))
            for row in (rows[0], rows[-1])
        )
        skipped = int(json.loads(rows[-1][4]).get("skippedPrompts") or 0)
        pruned, kept = Pruned.of(db), tuple(row[0] for row in rows)
        if pruned.began is None:
            return cls(pruned, kept[0], kept, first, last, waited, waits, skipped)
        # The first remaining boundary is the one of the last pruned round.
        steps = (pruned.began, *pruned.steps, *(step for step in kept if step not in pruned.steps))
        return cls(pruned, kept[0], steps, pruned.first, last, waited, waits, skipped)

    @property
    def began(self) -> int:
        """Step at which the history begins."""
        return self.steps[0]

    @property
    def ended(self) -> int:
        """Last closed step."""
        return self.steps[-1]

    def gaps(self, trained: Iterable[int]) -> Iterator[Finding]:
        """Return gaps. `trained`: steps with a trained group."""
        done, known = set(self.steps), {*trained, *self.pruned.steps}
        for step in range(self.began + 1, self.ended + 1):
            if step not in done:
                yield Finding(Rule.GAP, f"update {step}", f"is missing: {self.ended} are done")
            elif step not in known:
                yield Finding(Rule.GAP, f"update {step}", "is done, and nothing was trained on in it")
        if self.pruned.began is not None and self.kept != max(self.pruned.steps, default=self.pruned.began):
            yield Finding(Rule.GAP, f"update {self.kept}", "is the first that is kept, and not the last that is pruned")
        yield from self.pruned.findings()
        for step in sorted(known - done):
            if step > self.began:
                yield Finding(Rule.UNFOUNDED, f"update {step}", "was trained, and is not done")


def passed_over(db: sqlite3.Connection, drawn: Iterable[PromptKey], updates: Updates, now: Cursor) -> Iterator[Finding]:
    """Return prompts that a cursor passed between the beginning and `now` without a draw, source by source.

    `drawn`: fresh prompts of the remaining rounds, each once. The highest index of all tells the size of an epoch;
    skipped records do not count."""
    prompts, first, skipped = set(drawn), updates.first, updates.skipped
    counts, highest = Counter[PromptKey](), Counter[str]()
    for prompt in prompts:
        counts[replace(prompt, index=0)] += 1
        highest[prompt.source] = max(highest[prompt.source], prompt.index)
    for epoch, count in updates.pruned.fresh.items():
        counts[prompt_of(db, epoch, 0)] += count
    for epoch, index in updates.pruned.highest.items():
        source = prompt_of(db, epoch, 0).source
        highest[source] = max(highest[source], index)
    for source in [one.name for one in now.sources] or [""]:
        began, at = first.of(source), now.of(source)
        size = 1 + highest.get(source, -1)
        for epoch in range(began.epoch, at.epoch + 1):
            begin = began.position if epoch == began.epoch else 0
            end = at.position if epoch == at.epoch else max(size, begin)
            count = counts[PromptKey(epoch, 0, source)]
            missing, key = end - begin - count, f"epoch {epoch}" + (f" of {source}" if source else "")
            if missing > skipped:
                told = f"{end - begin} prompts were passed by the cursor, {count} were drawn"
                yield Finding(Rule.LOST, key, told + (f", {skipped} skipped" if skipped else ""))
            elif missing < 0:
                told = f"{count} prompts were drawn, the cursor passed {end - begin}"
                yield Finding(Rule.GAP, key, told)
    for prompt in sorted(prompts):
        at = now.of(prompt.source)
        if not first.of(prompt.source).epoch <= prompt.epoch <= at.epoch:
            yield Finding(Rule.GAP, str(prompt), f"is of an epoch that the cursor is not in: {at.epoch}")
