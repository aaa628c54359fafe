"""Common invariants: hold in every run, under every fault; checked after every event.

Invariants of store rows are in `on_policy` and `asynchronous`.

- trained once: no response is in the weights' history twice;
- one version: all tokens of a response come from the weights that its version names, and no request names the KV of
  other ones;
- one gradient: every group of an update is in exactly one of the parts of its gradient, and all parts were computed
  with the weights that the update starts from;
- complete groups: an update has all responses of a prompt or none;
- one lease: no replica generates under an attempt that was given to another one;
- no progress lost: a restart loses no update before the newest checkpoint, and a continued response starts with every
  token in the store;
- no update lost: if all faults are planned, a restart loses no update;
- no policy fails: an optional policy meets no unforeseen error, which a coordinator would survive;
- one history: a version number has one content; reports never go back to an earlier term or event;
- evaluations: see `evaluations`; episodes: see `episodes`;
- anchors: at each boundary the store has exactly the anchors of the rewards, after any restart or rewind.

`end` checks that nothing is left open, and that the job had the requested number of rounds: at most the one in progress
when fewer were requested.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from rljob_runtime.audit.stored_keys import cursor_of
from rljob_runtime.coordinator.reporting.policy_failures import PROBLEM as POLICY_FAILED
from rljob_runtime.protocols.trajectory import Group, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.shares import ONE_SOURCE
from rljob_runtime.simulator.core.events import (
    Asked,
    Checkpointed,
    Committed,
    CoordinatorStarted,
    EpisodeReported,
    Event,
    Exported,
    Generated,
    KvAsked,
    Learned,
    Loaded,
    Published,
    Reported,
    Restored,
    Row,
    StoreLost,
    Submitted,
    ToolCalled,
    Trained,
)
from rljob_runtime.simulator.core.tokens import digest, phase, text
from rljob_runtime.simulator.invariants.episodes import EpisodeTexts, response_of
from rljob_runtime.simulator.invariants.evaluations import EvaluationRecord


@dataclass(frozen=True)
class Violation:
    """A violated invariant. `event` counts from 1, `at` is in seconds."""

    invariant: str
    detail: str
    at: float
    event: int

    def __str__(self) -> str:
        return f"{self.invariant}: {self.detail} (at {self.at:.3f} s, event {self.event})"


@dataclass(frozen=True)
class _Boundary:
    """A boundary. `drawn`: number of prompts before the cursor, in all and of each named source."""

    drawn: int
    queue: frozenset[str]
    drawn_of: Mapping[str, int]


class Invariants(ABC):
    """Observer with the invariants of both modes. The first violation is kept, and `on_broken` called once."""

    def __init__(
        self,
        group_size: int,
        prompts_an_epoch: int,
        now: Callable[[], float],
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self.evaluations = EvaluationRecord({})
        self.episodes = EpisodeTexts()
        self.broken: Violation | None = None
        self.events = 0
        self.planned = False
        """Whether no update may be lost (`FaultPlan.planned`)."""
        self.policies_fail = False
        """Whether optional policies may fail by an error."""
        self.shares = ONE_SOURCE
        self._group_size = group_size
        self._prompts_an_epoch = prompts_an_epoch
        self._now = now
        self._on_broken = on_broken
        # The store's rows.
        self._boundaries: dict[int, _Boundary] = {}
        self._store_lost = False
        # The trainer's weights: `_contents[s]` after s updates.
        self._history: list[tuple[str, ...]] = []
        self._contents = [digest(())]
        self._trained: set[str] = set()
        self._checkpoint = 0
        # Leases given out.
        self._versions: dict[int, int] = {}
        self._leases: dict[tuple[TrajectoryKey, int, int], str] = {}
        self._last_report = (0, 0)
        self._tellable = 0
        """Rounds that a report in transit may name: it may have been correct when it was sent."""
        # Anchors: in the store by step, and held by the rewards when a round last closed.
        self._anchors: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self._learned: dict[str, int] | None = None
        # Requested rounds.
        self._most_rounds = 0
        self._exported = self._asked_late = False

    def __call__(self, event: Event) -> None:
        """Check one event."""
        self.events += 1
        match event:
            case Committed(rows):
                self.evaluations.commit(rows)
                self._commit(rows)
                for row in (one for one in rows if one.table == "episodes"):
                    self._expect_none(self.episodes.time_out_problem(row), "no fake time-out")
            case CoordinatorStarted():
                self.episodes.coordinator_started(self._now())
            case StoreLost():
                self._store_lost = True
            case Submitted():
                self._submitted(event)
            case Generated():
                self.episodes.generated(event)
            case EpisodeReported():
                self.episodes.reported(event)
            case ToolCalled():
                self._expect_none(self.episodes.called(event), "no call twice")
            case KvAsked(replica, key, written, version):
                own = written in (None, version)
                self._expect(own, "one version", f"{key} of version {version} asks {replica} for KV of {written}")
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
                # A new coordinator first reports its predecessor's state.
                tellable = max(self._tellable, len(self._history))
                self._expect(
                    (status.round or 0) <= tellable or status.stage == "Starting",
                    "one history",
                    f"round {status.round} was reported, {tellable} are trained",
                )
                self._last_report, self._tellable = report, len(self._history)
                failed = [one.message for one in status.warnings if one.reason == POLICY_FAILED]
                self._expect(not failed or self.policies_fail, "no policy fails", "; ".join(failed))
            case _:
                pass

    def end(self, rounds: int) -> None:
        """Check the end of a job that reports completion and last learned this number of rounds.

        A number that arrives together with the final answer is too late."""
        done, newest = len(self._history), max(self._boundaries, default=0)
        right = rounds <= done <= max(rounds, self._most_rounds)
        self._expect(right or self._asked_late, "the job ends", f"{done} of {rounds} rounds are done")
        self._expect(newest == done, "the job ends", f"the store stands at {newest} of {done}")
        self._expect_none(self.evaluations.end(done), "evaluated")

    def _expect(self, holds: bool, invariant: str, detail: str) -> None:
        if not holds and self.broken is None:
            self.broken = Violation(invariant, detail, self._now(), self.events)
            self._on_broken()

    def _expect_none(self, problem: str | None, invariant: str) -> None:
        self._expect(problem is None, invariant, problem or "")

    # --- the trainer ---

    @property
    def history(self) -> tuple[tuple[str, ...], ...]:
        """The ids that each update of the trainer's weights trained on, in order."""
        return tuple(self._history)

    def _update(self, event: Trained) -> None:
        self._expect(event.step == len(self._history) + 1, "one history", f"step {event.step} is not the next")
        self._expect(event.before == self._contents[-1], "one history", f"step {event.step} starts from other weights")
        ids = tuple(str(scored.response.key) for group in event.groups for scored in group.responses)
        again = [one for one in ids if one in self._trained]
        self._expect(
            not again and len(set(ids)) == len(ids), "trained once", f"step {event.step} trains {again or ids} again"
        )
        self._expect_none(self.evaluations.trained(event), "never trained on")
        self._one_gradient(event)
        for group in event.groups:
            self._whole(group)
            self._of_one_version(group, event.before)
            for scored in group.responses:
                self._expect_none(self.episodes.reward_problem(scored), "no invented reward")
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

    @abstractmethod
    def _of_one_version(self, group: Group, weights: int) -> None:
        """Check that the update that starts from `weights` may train on the group."""

    def _not_invented(self, response: Response) -> None:
        key, version = response.key, response.weight_version
        if self.episodes.knows(key):
            self._expect_none(self.episodes.problem(response), "one version")
            return
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
        done = len(self._history)
        self._expect(step == done or not self.planned, "no update lost", f"restored {step}, {done} were finished")
        self._tellable = max(self._tellable, done)
        for ids in self._history[step:]:
            self._trained.difference_update(ids)
        del self._history[step:], self._contents[step + 1 :]

    # --- replicas ---

    def _submitted(self, event: Submitted) -> None:
        lease = (event.key, event.version, event.attempt)
        first = lease not in self._leases
        holder = self._leases.setdefault(lease, event.replica)
        self._expect(
            holder == event.replica, "one lease", f"{event.key} attempt {event.attempt} at {holder} and {event.replica}"
        )
        response = response_of(event.key)
        if (response or event.key).prompt.evaluation is not None:
            of_response = event if response is None else replace(event, key=response)
            problem = self.evaluations.submitted(of_response, self._versions, self._contents)
            self._expect_none(problem, "own weights")
            return
        if response is not None:
            return
        held = self._held_of(event.key, event.attempt) if first else 0
        self._expect(
            event.prefix >= held, "no progress lost", f"{event.key} goes on from {event.prefix} of {held} tokens"
        )

    @abstractmethod
    def _held_of(self, key: TrajectoryKey, attempt: int) -> int:
        """Return the stored tokens of a response when this attempt was given; 0 if it is not in progress."""

    # --- the store ---

    @abstractmethod
    def _commit(self, rows: Iterable[Row]) -> None:
        """Check the rows of a transaction."""

    @abstractmethod
    def _closed(self, step: int) -> None:
        """Check a new boundary."""

    def _key(self, epoch: int, index: int) -> PromptKey:
        """Return the prompt of a row. Sources have the numbers of their order (`ObservedStore`)."""
        number, epoch = divmod(epoch, 1 << 32)
        return PromptKey(epoch, index, self.shares.named[number - 1] if number else "")

    def _place(self, prompt: PromptKey) -> tuple[int, int]:
        """Return `epoch` and `idx` of a prompt's rows."""
        number = self.shares.named.index(prompt.source) + 1 if prompt.source else 0
        return (number << 32) + prompt.epoch, prompt.index

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
        epoch, position, queue, sources = row.values
        assert isinstance(epoch, int)
        assert isinstance(position, int)
        drawn = epoch * self._prompts_an_epoch + position
        cursors = cursor_of(epoch, position, str(sources)).sources
        drawn_of = {one.name: one.epoch * self._prompts_an_epoch + one.position for one in cursors}
        self._boundaries[step] = _Boundary(drawn, frozenset(json.loads(str(queue))), drawn_of)
        return [step]

    def _history_begins(self, step: int) -> None:
        """Accept a new store that knows no rounds up to `step`; they count all the same, later ones do not."""
        self._store_lost = False
        self.evaluations.history_begins(step)
        for later in [one for one in self._boundaries if one > step]:
            del self._boundaries[later]
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
