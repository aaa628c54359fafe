"""Asynchronous invariants: they hold in mode Asynchronous, in addition to `common`.

- one place: each prompt before the pool's cursor is in exactly one of: in flight, ready, assigned, trained, filtered,
  requeued;
- trained once: the trainer trained on exactly the groups that the store records for an update;
- one version: all tokens of a response come from the weights that its group names, which were published once; with
  mixed versions, each turn has one version, and the oldest is the response's;
- no progress lost: stored tokens of a response in progress decrease only by a move whose source generated more than the
  destination started with, or by a restart of the response;
- shares: the prompts drawn, without filtered ones, have the shares of their sources;
- fresh enough: no group over the staleness bound is trained on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from rljob_api import RLJob
from rljob_api.spec.training import Mode
from rljob_runtime.protocols.trajectory import Group, TrajectoryKey
from rljob_runtime.scheduling.shares import shares_of
from rljob_runtime.simulator.core.events import Event, Published, Row, StoreLost
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.invariants.common import Invariants
from rljob_runtime.simulator.invariants.evaluations import EvaluationRecord
from rljob_runtime.simulator.invariants.on_policy import RoundInvariants

Draw = tuple[int, int, int]
"""(epoch, index, draw)."""
Sample = tuple[int, int, int, int]
"""(epoch, index, draw, sample)."""


class ExperienceInvariants(Invariants):
    """An observer, as `Invariants`. `bound`: on staleness."""

    def __init__(
        self,
        group_size: int,
        prompts_an_epoch: int,
        now: Callable[[], float],
        on_broken: Callable[[], None] = lambda: None,
        bound: int | None = None,
    ) -> None:
        super().__init__(group_size, prompts_an_epoch, now, on_broken)
        self._bound = bound
        self.mixed = False
        """Whether newer weights may generate later turns."""
        self._drawn = 0
        self._groups: dict[Draw, tuple[int | None, str | None]] = {}
        """By draw: the update that it is assigned to, and its outcome."""
        self._by_prompt: defaultdict[tuple[int, int], dict[int, str | None]] = defaultdict(dict)
        self._filtered: set[tuple[int, int]] = set()
        self._former: set[tuple[int, int]] = set()
        """Prompts settled in a lost store: filtered, and trained on. Filtered ones drawn after the checkpoint are drawn
        again."""
        self._rows: dict[Sample, tuple[int, str | None, int]] = {}
        """Attempt, replica, failures."""
        self._finished: set[Sample] = set()
        self._begun_again: set[Sample] = set()
        """Responses that had ended without a reward, and begin again by the present transaction."""
        self._held: Counter[Sample] = Counter()
        self._begins: Counter[Sample] = Counter()
        """Stored tokens when the attempt was given: the source of a move continues until the destination starts."""
        self._chunk_sizes: dict[tuple[int, ...], int] = {}
        self._version_steps: dict[int, int] = {}
        self._began = 0
        """Step of the first boundary in the present store."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Published):
            self._version_steps[event.version] = event.step
        if isinstance(event, StoreLost):
            self._forget_store()
        super().__call__(event)

    def end(self, rounds: int) -> None:
        super().end(rounds)
        still = [draw for draw, (_, outcome) in self._groups.items() if outcome is None]
        self._expect(not still, "one place", f"{len(still)} groups are still open: {still[:3]}")

    # --- the trainer ---

    def _of_one_version(self, group: Group, weights: int) -> None:
        versions = {scored.response.weight_version for scored in group.responses}
        same = len(versions) == 1 or self.mixed
        self._expect(same, "one version", f"the group of {group.prompt} is of versions {versions}")
        for response in (scored.response for scored in group.responses):
            version = response.weight_version
            known = version in self._versions
            self._expect(known, "one version", f"{response.key} is of version {version}, which was never published")
            self._not_invented(response)
        if self._bound is not None and versions <= self._version_steps.keys():
            stale = len(self._history) - min(self._version_steps[version] for version in versions)
            self._expect(stale <= self._bound, "fresh enough", f"the group of {group.prompt} is {stale} updates old")

    # --- the store ---

    def _held_of(self, key: TrajectoryKey, attempt: int) -> int:
        draws = self._by_prompt[self._place(key.prompt)]
        under_way = next((draw for draw, outcome in draws.items() if outcome is None), None)
        if under_way is None:
            return 0
        sample = *self._place(key.prompt), under_way, key.sample
        at, _, _ = self._rows.get(sample, (0, None, 0))
        return self._begins[sample] if at == attempt else 0

    def _commit(self, rows: Iterable[Row]) -> None:
        touched: dict[Sample, tuple[int, tuple[int, str | None, int] | None]] = {}
        boundaries: list[int] = []
        prompts: set[tuple[int, int]] = set()
        for row in rows:
            match row.table:
                case "pool" if row.values is not None:
                    epoch, position = row.values
                    assert isinstance(epoch, int)
                    assert isinstance(position, int)
                    self._drawn = epoch * self._prompts_an_epoch + position
                case "groups":
                    prompts.add(self._group_row(row))
                case "samples":
                    sample = _sample(row.identity)
                    touched.setdefault(sample, (self._held[sample], self._rows.get(sample)))
                    self._sample_row(sample, row)
                case "experience_chunks":
                    sample = _sample(row.identity)
                    touched.setdefault(sample, (self._held[sample], self._rows.get(sample)))
                    self._experience_chunk(sample, row)
                case "boundaries":
                    boundaries += self._boundary_row(row)
                case "anchors":
                    self._anchor_row(row)
        for prompt in prompts:
            self._in_one_group(prompt)
        for step in boundaries:
            self._closed(step)
        for sample, (held, before) in touched.items():
            known = self._rows.get(sample)
            if known is not None and (before is None or before[0] != known[0]):
                self._begins[sample] = self._held[sample]
            self._no_token_lost(sample, held, before)

    def _group_row(self, row: Row) -> tuple[int, int]:
        epoch, index, draw = row.identity
        if row.values is None:
            self._groups.pop((epoch, index, draw), None)
            self._by_prompt[epoch, index].pop(draw, None)
            return epoch, index
        _, _, _, step, outcome, _ = row.values
        told = None if outcome is None else str(outcome)
        self._groups[epoch, index, draw] = (step if isinstance(step, int) else None, told)
        self._by_prompt[epoch, index][draw] = told
        return epoch, index

    def _in_one_group(self, prompt: tuple[int, int]) -> None:
        draws = self._by_prompt[prompt]
        elsewhere = {draw: outcome for draw, outcome in draws.items() if draw < max(draws) and outcome != "requeued"}
        self._expect(not elsewhere, "one place", f"prompt {prompt} is drawn again, but was {elsewhere}")

    def _sample_row(self, sample: Sample, row: Row) -> None:
        if row.values is None:
            self._rows.pop(sample, None)
            self._finished.discard(sample)
            return
        attempt, failures, replica, finish, _, _ = row.values
        assert isinstance(attempt, int)
        assert isinstance(failures, int)
        self._rows[sample] = (attempt, None if replica is None else str(replica), failures)
        if finish is not None:
            self._finished.add(sample)
        elif sample in self._finished:
            self._finished.discard(sample)
            epoch, index, _, number = sample
            # An episode that its runner handed back begins again, and has not failed.
            if self.episodes.begins_again(TrajectoryKey(self._key(epoch, index), number)):
                self._begun_again.add(sample)

    def _experience_chunk(self, sample: Sample, row: Row) -> None:
        self._held[sample] -= self._chunk_sizes.pop(row.identity, 0)
        if row.values is not None:
            size = row.values[0]
            assert isinstance(size, int)
            self._chunk_sizes[row.identity] = size
            self._held[sample] += size

    def _no_token_lost(self, sample: Sample, held: int, before: tuple[int, str | None, int] | None) -> None:
        now, row = self._held[sample], self._rows.get(sample)
        _, outcome = self._groups.get(sample[:3], (None, None))
        moved = (before is not None and row is not None and before != row) or sample in self._begun_again
        self._begun_again.discard(sample)
        if outcome is None and row is not None and not moved:
            self._expect(now >= held, "no progress lost", f"{sample} had {held} tokens in the store, has {now}")

    def _forget_store(self) -> None:
        """Forget the settled prompts of a lost store; only the trainer and observers know them."""
        self._filtered |= {draw[:2] for draw, (_, outcome) in self._groups.items() if outcome == "filtered"}
        for known in (
            self._groups,
            self._by_prompt,
            self._rows,
            self._held,
            self._begins,
            self._chunk_sizes,
        ):
            known.clear()
        self._finished.clear()
        self._begun_again.clear()
        self._drawn = 0

    def _history_begins(self, step: int) -> None:
        super()._history_begins(step)
        self._began = step
        self._former = {self._prompt(one) for ids in self._history[:step] for one in ids}

    def _closed(self, step: int) -> None:
        known = {prompt for prompt, draws in self._by_prompt.items() if draws} | self._former
        self._expect(
            len(known) <= self._drawn <= len(known | self._filtered),
            "one place",
            f"{self._drawn} prompts are drawn, {len(known)} have a place",
        )
        self._anchored()
        if self.shares.named and not self._former:
            self._in_shares()
        told = {draw[:2] for draw, (at, outcome) in self._groups.items() if at == step and outcome == "trained"}
        ids = self._history[step - 1] if 0 < step <= len(self._history) else ()
        done = {self._prompt(one) for one in ids}
        self._expect(told == done or step == self._began, "trained once", f"store and trainer differ in step {step}")

    def _prompt(self, trajectory: str) -> tuple[int, int]:
        return self._place(TrajectoryKey.parse(trajectory).prompt)

    def _in_shares(self) -> None:
        """Check the draws of the present store; a filtered prompt is replaced from its source, but not immediately."""
        drawn = Counter(self._key(*prompt).source for prompt, draws in self._by_prompt.items() if draws)
        filtered = Counter(
            self._key(*draw[:2]).source for draw, (_, outcome) in self._groups.items() if outcome == "filtered"
        )
        counts = {name: drawn[name] - filtered[name] for name in self.shares.named}
        total, slack = sum(counts.values()), sum(filtered.values())
        for name, weight in self.shares.weights.items():
            off = abs(counts[name] - total * weight / self.shares.total)
            self._expect(off < 1 + slack, "shares", f"{counts[name]} of {total} prompts are of {name}")


def invariants_of(job: RLJob, prompts_an_epoch: int, on_broken: Callable[[], None] = lambda: None) -> Invariants:
    """Return the invariants of the job's mode, on the simulator's clock."""
    size, shares = job.spec.algorithm.responses_per_prompt, shares_of(job.spec.data)
    invariants: Invariants
    if job.spec.mode is Mode.ON_POLICY:
        invariants = rounds = RoundInvariants(size, prompts_an_epoch, loop_time, on_broken)
        rounds.per_round = job.spec.algorithm.prompts_per_round
    else:
        bound = job.spec.experience.max_staleness
        invariants = groups = ExperienceInvariants(size, prompts_an_epoch, loop_time, on_broken, bound)
        groups.mixed = job.spec.mixes_versions
    invariants.shares = shares
    invariants.evaluations = EvaluationRecord({one.name: one.every_rounds for one in job.spec.evaluation})
    return invariants


def _sample(identity: tuple[int, ...]) -> Sample:
    epoch, index, draw, sample = identity[:4]
    return epoch, index, draw, sample
