"""On-policy invariants: they hold in mode OnPolicy, in addition to `common`.

- one place: each prompt is in exactly one of: undrawn, in the open round, queued, trained, filtered; the stored
  long-prompt queue has exactly the queued ones;
- trained once: the store's history equals the trainer's;
- one version: a response's version names the weights that the update starts from;
- shares: each update trains on the groups that the weights give each source, or on fewer if some are filtered; each
  source's prompts are drawn once an epoch;
- no progress lost: stored tokens of a response in progress never decrease, unless it had ended without a reward. After
  a lost store the new history starts in the state of the old one at its step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rljob_runtime.protocols.trajectory import Group, TrajectoryKey
from rljob_runtime.simulator.core.events import Row
from rljob_runtime.simulator.invariants.common import Invariants

Prompt = tuple[int, int]
"""(epoch, index)."""
Sample = tuple[int, int, int, int]
"""(step, epoch, index, sample)."""


@dataclass
class _Trajectory:
    attempt: int
    failures: int
    finished: bool
    outcome: str | None


class RoundInvariants(Invariants):
    """An observer, as `Invariants`."""

    def __init__(
        self,
        group_size: int,
        prompts_an_epoch: int,
        now: Callable[[], float],
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(group_size, prompts_an_epoch, now, on_broken)
        self._prompts: defaultdict[Prompt, dict[int, str | None]] = defaultdict(dict)
        self._queued: set[str] = set()
        self._trajectories: dict[Sample, _Trajectory] = {}
        self._tokens: Counter[Sample] = Counter()
        self._chunks: dict[tuple[int, ...], int] = {}
        self._trained_in: defaultdict[int, set[str]] = defaultdict(set)
        self._open_step = 0
        self.per_round = 1

    def end(self, rounds: int) -> None:
        super().end(rounds)
        unsettled = [key for key, rows in self._prompts.items() if None in rows.values()]
        self._expect(not unsettled, "one place", f"{len(unsettled)} prompts are still in a round: {unsettled[:3]}")
        undecided = [key for key, row in self._trajectories.items() if row.outcome is None]
        self._expect(not undecided, "trained once", f"{len(undecided)} responses have no outcome: {undecided[:3]}")

    def _of_one_version(self, group: Group, weights: int) -> None:
        for response in (scored.response for scored in group.responses):
            version = response.weight_version
            self._expect(
                self._versions.get(version) == weights,
                "one version",
                f"{response.key} of version {version} is off policy",
            )
            self._not_invented(response)

    def _held_of(self, key: TrajectoryKey, attempt: int) -> int:
        sample = self._open_step, *self._place(key.prompt), key.sample
        row = self._trajectories.get(sample)
        return self._tokens[sample] if row is not None and row.attempt == attempt else 0

    def _commit(self, rows: Iterable[Row]) -> None:
        prompts: dict[Prompt, None] = {}
        boundaries: list[int] = []
        held: dict[Sample, tuple[int, _Trajectory | None]] = {}
        for row in rows:
            match row.table:
                case "prompts":
                    prompts[self._prompt_row(row)] = None
                case "trajectories":
                    sample = _sample(row.identity)
                    held.setdefault(sample, self._holding(sample))
                    self._trajectory_row(sample, row.values)
                case "chunks":
                    sample = _sample(row.identity)
                    held.setdefault(sample, self._holding(sample))
                    self._chunk_row(sample, row)
                case "boundaries":
                    boundaries += self._boundary_row(row)
                case "anchors":
                    self._anchor_row(row)
                case "rounds" if row.values is not None:
                    self._open_step = row.identity[0]
        for prompt in prompts:
            self._in_one_place(prompt)
        for step in boundaries:
            self._closed(step)
        for sample, (tokens, before) in held.items():
            self._kept(sample, tokens, before)

    def _holding(self, sample: Sample) -> tuple[int, _Trajectory | None]:
        return self._tokens[sample], self._trajectories.get(sample)

    def _prompt_row(self, row: Row) -> Prompt:
        step, epoch, index = row.identity
        if row.values is None:
            self._prompts[epoch, index].pop(step, None)
        else:
            outcome = row.values[0]
            self._prompts[epoch, index][step] = None if outcome is None else str(outcome)
        return epoch, index

    def _in_one_place(self, prompt: Prompt) -> None:
        rows, name = self._prompts[prompt], str(self._key(*prompt))
        self._queued.discard(name)
        if not rows:
            del self._prompts[prompt]
            return
        *former, last = sorted(rows)
        if rows[last] == "requeued":
            self._queued.add(name)
        elsewhere = {step: rows[step] for step in former if rows[step] != "requeued"}
        self._expect(not elsewhere, "one place", f"prompt {prompt} is drawn again, but was {elsewhere}")

    def _trajectory_row(self, sample: Sample, values: tuple[int | float | str | None, ...] | None) -> None:
        step, name = sample[0], str(TrajectoryKey(self._key(*sample[1:3]), sample[3]))
        if values is None:
            del self._trajectories[sample]
            self._trained_in[step].discard(name)
            return
        attempt, failures, _, finish, outcome = values
        assert isinstance(attempt, int)
        assert isinstance(failures, int)
        told = None if outcome is None else str(outcome)
        self._trajectories[sample] = _Trajectory(attempt, failures, finish is not None, told)
        if outcome == "trained":
            self._trained_in[step].add(name)

    def _chunk_row(self, sample: Sample, row: Row) -> None:
        if row.values is not None:
            size = row.values[0]
            assert isinstance(size, int)
            self._chunks[row.identity] = size
            self._tokens[sample] += size
        else:
            self._tokens[sample] -= self._chunks.pop(row.identity)

    def _history_begins(self, step: int) -> None:
        super()._history_begins(step)
        self._open_step = step
        for prompt, rows in list(self._prompts.items()):
            for later in [one for one in rows if one > step]:
                del rows[later]
            self._in_one_place(prompt)
        self._trajectories = {sample: row for sample, row in self._trajectories.items() if sample[0] <= step}
        self._tokens.clear()
        self._chunks.clear()
        for later in [one for one in self._trained_in if one > step]:
            del self._trained_in[later]

    def _closed(self, step: int) -> None:
        drawn, queue = self._boundaries[step].drawn, self._boundaries[step].queue
        self._expect(
            len(self._prompts) == drawn, "one place", f"{drawn} prompts are drawn, {len(self._prompts)} have a place"
        )
        self._anchored()
        self._expect(
            queue == self._queued, "one place", f"the queue differs from what is queued: {sorted(queue ^ self._queued)}"
        )
        if self.shares.named:
            self._in_shares(step)
        told, done = self._trained_in[step], set(self._history[step - 1]) if 0 < step <= len(self._history) else set()
        self._expect(
            told == done, "trained once", f"store and trainer differ in step {step}: {sorted(told ^ done)[:3]}"
        )

    def _in_shares(self, step: int) -> None:
        drawn = Counter(self._key(*prompt).source for prompt in self._prompts)
        wanted = {name: count for name, count in self._boundaries[step].drawn_of.items() if count}
        self._expect(drawn == wanted, "shares", f"{wanted} prompts are drawn, {dict(drawn)} have a place")
        before = Counter(self.shares.sequence({}, (step - 1) * self.per_round))
        places = Counter(self.shares.sequence(before, self.per_round))
        trained, filtered = Counter[str](), Counter[str]()
        for prompt, rows in self._prompts.items():
            trained[self._key(*prompt).source] += rows.get(step) == "trained"
            filtered[self._key(*prompt).source] += rows.get(step) == "filtered"
        for name in self.shares.named if step else ():
            right = trained[name] == places[name] or (trained[name] < places[name] and filtered[name] > 0)
            told = f"round {step} trained on {trained[name]} of {name}; its share is {places[name]}"
            self._expect(right, "shares", told)

    def _kept(self, sample: Sample, tokens: int, before: _Trajectory | None) -> None:
        row = self._trajectories.get(sample)
        failures = before.failures if before is not None else 0
        begins_again = before is not None and before.finished and row is not None and not row.finished
        if row is not None and row.outcome is None and row.failures == failures:
            _, epoch, index, number = sample
            # An episode that its runner handed back begins again, and has not failed.
            if begins_again and self.episodes.begins_again(TrajectoryKey(self._key(epoch, index), number)):
                return
            now = self._tokens[sample]
            self._expect(now >= tokens, "no progress lost", f"{sample} had {tokens} tokens in the store, has {now}")
        elif row is None:
            self._tokens.pop(sample, None)


def _sample(identity: tuple[int, ...]) -> Sample:
    step, epoch, index, sample = identity[:4]
    return step, epoch, index, sample
