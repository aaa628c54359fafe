"""What holds in every run, whatever fails: checked after every event, from what that event changes.

- one place: each prompt is undrawn, in the open round, queued, trained or filtered, and in one of these only; the
  long-prompt queue in the store is those that are queued;
- trained once: no response is in the weights' history twice, and the store's history is the trainer's;
- one version: all tokens of a response are of the weights that its version names, and these are the weights that the
  update starts from;
- one gradient: every group of an update is in exactly one of the parts that its gradient was added up from, and all
  of them were computed with the weights that the update starts from;
- whole groups: an update sees a prompt's responses in full number or not at all;
- one lease: nobody else generates under an attempt that was given away;
- no progress lost: a restart loses no update behind the newest checkpoint and no token that the store holds; a new
  history after a lost store begins where the old one stood at its step;
- one history: a version number has one content, reports never go back to an earlier term or event;
- anchors: at each boundary the store holds just the anchors that rewards hold, after whatever restart or rewind.

`end` adds that nothing is left open, and that the job had as many rounds as it was told to have: no more than the one
under way when it was told of fewer.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rljob_runtime.scheduling.trajectory import Group, TrajectoryKey
from rljob_runtime.simulation.events import (
    Asked,
    Checkpointed,
    Committed,
    Event,
    Exported,
    Learned,
    Loaded,
    Published,
    Reported,
    Restored,
    Row,
    StoreLost,
    Submitted,
    Trained,
)
from rljob_runtime.simulation.tokens import digest, phase, text

Prompt = tuple[int, int]
"""(epoch, index)."""
Sample = tuple[int, int, int, int]
"""(step, epoch, index, sample)."""


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold. `event` counts from 1, `at` is in seconds."""

    invariant: str
    detail: str
    at: float
    event: int

    def __str__(self) -> str:
        return f"{self.invariant}: {self.detail} (at {self.at:.3f} s, event {self.event})"


@dataclass
class _Trajectory:
    attempt: int
    failures: int
    outcome: str | None


@dataclass(frozen=True)
class _Boundary:
    """`drawn`: how many prompts the cursor has passed."""

    drawn: int
    queue: frozenset[str]


class Invariants:
    """An observer. The first violation is kept, and `on_broken` called once."""

    def __init__(
        self,
        group_size: int,
        prompts_an_epoch: int,
        now: Callable[[], float],
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self.broken: Violation | None = None
        self.events = 0
        self._group_size = group_size
        self._prompts_an_epoch = prompts_an_epoch
        self._now = now
        self._on_broken = on_broken
        # The store's rows.
        self._prompts: defaultdict[Prompt, dict[int, str | None]] = defaultdict(dict)
        self._queued: set[str] = set()
        self._trajectories: dict[Sample, _Trajectory] = {}
        self._tokens: Counter[Sample] = Counter()
        self._chunks: dict[tuple[int, ...], int] = {}
        self._trained_in: defaultdict[int, set[str]] = defaultdict(set)
        self._boundaries: dict[int, _Boundary] = {}
        self._open_step = 0
        self._store_lost = False
        # The trainer's weights: `_contents[s]` after s updates.
        self._history: list[tuple[str, ...]] = []
        self._contents = [digest(())]
        self._trained: set[str] = set()
        self._checkpoint = 0
        # What was handed out.
        self._versions: dict[int, int] = {}
        self._leases: dict[tuple[TrajectoryKey, int, int], str] = {}
        self._last_report = (0, 0)
        self._tellable = 0
        """Rounds that a report under way may tell of: it may have been true when it was sent."""
        # What rewards learned: in the store by step, and in hand at the last closing of a round.
        self._anchors: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self._learned: dict[str, int] | None = None
        # What was asked for.
        self._most_rounds = 0
        self._exported = self._asked_late = False

    def __call__(self, event: Event) -> None:
        """An observer's view of one event."""
        self.events += 1
        match event:
            case Committed(rows):
                self._commit(rows)
            case StoreLost():
                self._store_lost = True
            case Submitted():
                self._submitted(event)
            case Trained():
                self._update(event)
            case Restored():
                self._restored(event)
            case Checkpointed(step):
                self._checkpoint = max(self._checkpoint, step)
            case Asked(rounds):
                self._most_rounds, self._asked_late = max(rounds, len(self._history) + 1), self._exported
            case Exported():
                self._exported, self._asked_late = True, False
            case Learned(anchors):
                self._learned = dict(anchors)
            case Published(version, step, content):
                self._expect(
                    self._versions.setdefault(version, content) == content == self._contents[step],
                    "one history",
                    f"version {version} was published with other weights than those after step {step}",
                )
            case Loaded(replica, version, content):
                known = self._versions.get(version)
                self._expect(known == content, "one version", f"{replica} loaded other weights as version {version}")
            case Reported(status, number):
                report = (status.term or 0, number)
                self._expect(report >= self._last_report, "one history", f"{report} after {self._last_report}")
                # Who takes over tells at first what its predecessor knew.
                tellable = max(self._tellable, len(self._history))
                self._expect(
                    (status.round or 0) <= tellable or status.stage == "Starting",
                    "one history",
                    f"round {status.round} was reported, {tellable} are trained",
                )
                self._last_report, self._tellable = report, len(self._history)
            case _:
                pass

    def end(self, rounds: int) -> None:
        """The job says that it is complete, and was told last to have so many rounds. What it is told while the answer
        with its final model is under way comes too late."""
        done, newest = len(self._history), max(self._boundaries, default=0)
        right = rounds <= done <= max(rounds, self._most_rounds)
        self._expect(right or self._asked_late, "the job ends", f"{done} of {rounds} rounds are done")
        self._expect(newest == done, "the job ends", f"the store stands at {newest} of {done}")
        unsettled = [key for key, rows in self._prompts.items() if None in rows.values()]
        self._expect(not unsettled, "one place", f"{len(unsettled)} prompts are still in a round: {unsettled[:3]}")
        undecided = [key for key, row in self._trajectories.items() if row.outcome is None]
        self._expect(not undecided, "trained once", f"{len(undecided)} responses have no outcome: {undecided[:3]}")

    def _expect(self, holds: bool, invariant: str, detail: str) -> None:
        if not holds and self.broken is None:
            self.broken = Violation(invariant, detail, self._now(), self.events)
            self._on_broken()

    # --- the trainer ---

    def _update(self, event: Trained) -> None:
        self._expect(event.step == len(self._history) + 1, "one history", f"step {event.step} is not the next")
        self._expect(event.before == self._contents[-1], "one history", f"step {event.step} starts from other weights")
        ids = tuple(str(scored.response.key) for group in event.groups for scored in group.responses)
        again = [one for one in ids if one in self._trained]
        self._expect(
            not again and len(set(ids)) == len(ids), "trained once", f"step {event.step} trains {again or ids} again"
        )
        self._one_gradient(event)
        for group in event.groups:
            self._whole(group)
            self._of_one_version(group, event.before)
        self._exported = self._asked_late = False
        self._history.append(ids)
        self._contents.append(event.after)
        self._trained.update(ids)

    def _one_gradient(self, event: Trained) -> None:
        summed = Counter(prompt for part in event.parts for prompt in part.prompts)
        wanted = Counter(group.prompt for group in event.groups)
        self._expect(
            summed == wanted,
            "one gradient",
            f"step {event.step}: {summed - wanted} too much, {wanted - summed} too little",
        )
        for part in event.parts:
            self._expect(
                part.content == event.before,
                "one gradient",
                f"step {event.step}: {part.worker} computed with other weights",
            )

    def _whole(self, group: Group) -> None:
        keys = {scored.response.key for scored in group.responses}
        self._expect(
            len(keys) == len(group.responses) == self._group_size and {key.prompt for key in keys} == {group.prompt},
            "whole groups",
            f"the group of {group.prompt} has {len(keys)} of {self._group_size} responses",
        )

    def _of_one_version(self, group: Group, weights: int) -> None:
        for response in (scored.response for scored in group.responses):
            key, version = response.key, response.weight_version
            self._expect(
                self._versions.get(version) == weights, "one version", f"{key} of version {version} is off policy"
            )
            made = text(phase(key, version), 0, len(response.token_ids))
            self._expect(
                (tuple(response.token_ids), tuple(response.logprobs)) == made,
                "one version",
                f"{key} has tokens of other weights",
            )

    def _restored(self, event: Restored) -> None:
        step = event.step
        self._expect(step == self._checkpoint, "no progress lost", f"restored {step}, checkpoint {self._checkpoint}")
        self._expect(
            step <= len(self._history) and self._contents[step] == event.content,
            "one history",
            f"other weights were restored as those after step {step}",
        )
        self._tellable = max(self._tellable, len(self._history))
        for ids in self._history[step:]:
            self._trained.difference_update(ids)
        del self._history[step:], self._contents[step + 1 :]

    # --- replicas ---

    def _submitted(self, event: Submitted) -> None:
        key, sample = event.key, (self._open_step, event.key.prompt.epoch, event.key.prompt.index, event.key.sample)
        lease = (key, event.version, event.attempt)
        first = lease not in self._leases
        holder = self._leases.setdefault(lease, event.replica)
        self._expect(
            holder == event.replica, "one lease", f"{key} attempt {event.attempt} at {holder} and {event.replica}"
        )
        row = self._trajectories.get(sample)
        if first and row is not None and row.attempt == event.attempt:
            held = self._tokens[sample]
            self._expect(
                event.prefix >= held, "no progress lost", f"{key} goes on from {event.prefix} of {held} tokens"
            )

    # --- the store ---

    def _commit(self, rows: Iterable[Row]) -> None:
        prompts: dict[Prompt, None] = {}
        boundaries: list[int] = []
        held: dict[Sample, tuple[int, int]] = {}
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
        for sample, (tokens, failures) in held.items():
            self._kept(sample, tokens, failures)

    def _holding(self, sample: Sample) -> tuple[int, int]:
        row = self._trajectories.get(sample)
        return self._tokens[sample], row.failures if row is not None else 0

    def _prompt_row(self, row: Row) -> Prompt:
        step, epoch, index = row.identity
        if row.values is None:
            self._prompts[epoch, index].pop(step, None)
        else:
            fate = row.values[0]
            self._prompts[epoch, index][step] = None if fate is None else str(fate)
        return epoch, index

    def _in_one_place(self, prompt: Prompt) -> None:
        rows, name = self._prompts[prompt], "{}.{}".format(*prompt)
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
        step, name = sample[0], "{}.{}.{}".format(*sample[1:])
        if values is None:
            del self._trajectories[sample]
            self._trained_in[step].discard(name)
            return
        attempt, failures, _, _, outcome = values
        assert isinstance(attempt, int)
        assert isinstance(failures, int)
        self._trajectories[sample] = _Trajectory(attempt, failures, None if outcome is None else str(outcome))
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

    def _boundary_row(self, row: Row) -> list[int]:
        (step,) = row.identity
        if row.values is None:
            del self._boundaries[step]
            self._expect(
                len(self._history) < step, "no progress lost", f"round {step} was undone, and the trainer holds it"
            )
            return []
        if self._store_lost:
            self._history_begins(step)
        epoch, position, queue = row.values
        assert isinstance(epoch, int)
        assert isinstance(position, int)
        drawn = epoch * self._prompts_an_epoch + position
        self._boundaries[step] = _Boundary(drawn, frozenset(json.loads(str(queue))))
        return [step]

    def _history_begins(self, step: int) -> None:
        """The new store knows nothing of the rounds up to `step`, and they were all the same; later ones never were."""
        self._store_lost, self._open_step = False, step
        for prompt, rows in list(self._prompts.items()):
            for later in [one for one in rows if one > step]:
                del rows[later]
            self._in_one_place(prompt)
        self._trajectories = {sample: row for sample, row in self._trajectories.items() if sample[0] <= step}
        self._tokens.clear()
        self._chunks.clear()
        for later in [one for one in self._boundaries if one > step]:
            del self._boundaries[later]
            self._trained_in.pop(later, None)
        for later in [one for one in self._anchors if one > step]:
            del self._anchors[later]

    def _anchor_row(self, row: Row) -> None:
        (step,) = row.identity
        if row.values is None:
            self._anchors.pop(step, None)
            return
        rule, test, milliseconds = row.values
        assert isinstance(milliseconds, int)
        self._anchors[step][f"{rule}/{test}"] = milliseconds

    def _anchored(self) -> None:
        if self._learned is None:
            return
        stored: dict[str, int] = {}
        for _, anchors in sorted(self._anchors.items()):
            stored.update(anchors)
        differ = sorted(stored.items() ^ self._learned.items())
        self._expect(not differ, "anchors", f"the store and the rewards differ: {differ[:3]}")
        self._learned = None

    def _closed(self, step: int) -> None:
        drawn, queue = self._boundaries[step].drawn, self._boundaries[step].queue
        self._expect(
            len(self._prompts) == drawn, "one place", f"{drawn} prompts are drawn, {len(self._prompts)} have a place"
        )
        self._anchored()
        self._expect(
            queue == self._queued, "one place", f"the queue differs from what is queued: {sorted(queue ^ self._queued)}"
        )
        told, done = self._trained_in[step], set(self._history[step - 1]) if 0 < step <= len(self._history) else set()
        self._expect(
            told == done, "trained once", f"store and trainer differ in step {step}: {sorted(told ^ done)[:3]}"
        )

    def _kept(self, sample: Sample, tokens: int, failures: int) -> None:
        row = self._trajectories.get(sample)
        if row is not None and row.outcome is None and row.failures == failures:
            now = self._tokens[sample]
            self._expect(now >= tokens, "no progress lost", f"{sample} had {tokens} tokens in the store, has {now}")
        elif row is None:
            self._tokens.pop(sample, None)


def _sample(identity: tuple[int, ...]) -> Sample:
    step, epoch, index, sample = identity[:4]
    return step, epoch, index, sample
