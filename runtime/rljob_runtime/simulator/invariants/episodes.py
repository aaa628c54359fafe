"""Episode invariants: they hold in both modes.

- each token that is trained on is one that an engine emitted in a turn of that response, once;
- the version of a response is that of its oldest turn;
- no reward of an episode is one that no runner reported: a failure of ours is no zero;
- a call of a tool that is known to be stored is executed again in a replay only;
- no attempt whose coordinator was lost in its time is truncated by seconds.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence

from rljob_runtime.coordinator.episodes.attempt import turn_of
from rljob_runtime.protocols.environments import FailedPart
from rljob_runtime.protocols.trajectory import PromptKey, Response, ScoredResponse, TrajectoryKey
from rljob_runtime.scheduling.episodes.limits import Limit
from rljob_runtime.simulator.core.events import EXECUTED, STORED, EpisodeReported, Generated, Row, ToolCalled
from rljob_runtime.simulator.core.tokens import phase, text

Text = tuple[tuple[int, ...], tuple[float, ...]]


class EpisodeTexts:
    """What engines emitted for the turns of each response."""

    def __init__(self) -> None:
        self._emitted: defaultdict[TrajectoryKey, dict[TrajectoryKey, tuple[int, int]]] = defaultdict(dict)
        """By response, by turn: version and tokens."""
        self._rewards: defaultdict[TrajectoryKey, set[float | None]] = defaultdict(set)
        """By response: what runners reported. None: the job's rewards score the last answer."""
        self._handed_back: Counter[TrajectoryKey] = Counter()
        """Attempts that runners handed back, and whose response has not begun again."""
        self._stored_calls: set[tuple[int, int]] = set()
        """Calls that their runner knows to be stored, by attempt and turn."""
        self._starts: list[float] = []
        """When coordinators started."""
        self.trained_turns = 0
        self.turns_of_newer_weights = 0
        """Of these, turns whose version is newer than that of their response."""

    def generated(self, event: Generated) -> None:
        """Record the end of a turn."""
        response = response_of(event.key)
        if response is None:
            return
        self._emitted[response][event.key] = event.version, event.tokens

    def reported(self, event: EpisodeReported) -> None:
        """Record what a runner reports."""
        if event.failed is None:
            self._rewards[event.key].add(event.reward)
        self._handed_back[event.key] += event.failed == FailedPart.RUNNER

    def called(self, event: ToolCalled) -> str | None:
        """Record a call of a tool; return what is wrong with it."""
        place = event.attempt, event.node
        if event.what == STORED:
            self._stored_calls.add(place)
        elif place in self._stored_calls and event.what == EXECUTED:
            return f"{event.runner} executes the call of turn {event.node} of {event.key} again, and it is stored"
        return None

    def coordinator_started(self, now: float) -> None:
        """Record that a coordinator takes over the attempts of the one before."""
        self._starts.append(now)

    def time_out_problem(self, row: Row) -> str | None:
        """Return what is wrong with the end of an attempt as it is stored."""
        reached, started, pauses, ended = row.values or (None,) * 4
        if reached != Limit.SECONDS:
            return None
        assert isinstance(started, float)
        assert isinstance(ended, float)
        # Another runner may have had all of its time again.
        begun = max([started, *(until for _, until in json.loads(str(pauses or "[]")))])
        lost = [one for one in self._starts if begun < one <= ended]
        return (
            f"attempt {row.identity[0]} is out of time, and a coordinator started at {lost[0]:.3f} s" if lost else None
        )

    def begins_again(self, key: TrajectoryKey) -> bool:
        """Return whether a response that had ended may begin again without a failure: once for each hand-back."""
        if not self._handed_back[key]:
            return False
        self._handed_back[key] -= 1
        return True

    def reward_problem(self, scored: ScoredResponse) -> str | None:
        """Return what is wrong with the reward of a response that is trained on."""
        key = scored.response.key
        if not self.knows(key) or {None, scored.reward} & self._rewards[key]:
            return None
        return (
            f"{key} is trained on with the reward {scored.reward}; {sorted(map(str, self._rewards[key]))} are reported"
        )

    def knows(self, key: TrajectoryKey) -> bool:
        """Return whether a response has turns."""
        return key in self._emitted

    def problem(self, response: Response) -> str | None:
        """Return what is wrong with the tokens of a response that is trained on."""
        emitted = {
            turn: text(phase(turn, version), 0, length)
            for turn, (version, length) in self._emitted[response.key].items()
        }
        versions = []
        for part in _parts(response):
            # Texts repeat: two turns may have made the same tokens. One of an older version is the last to be believed.
            made = [(self._emitted[response.key][turn][0], turn) for turn, text_ in emitted.items() if text_ == part]
            if not made:
                return f"{response.key} has {len(part[0])} tokens that no turn of it emitted, or trains on a turn twice"
            version, turn = min(made, key=lambda pair: (pair[0] < response.weight_version, pair[0]))
            del emitted[turn]
            versions.append(version)
        if (oldest := min(versions)) != response.weight_version:
            return f"{response.key} is of version {response.weight_version}, and its oldest turn of {oldest}"
        self.trained_turns += len(versions)
        self.turns_of_newer_weights += sum(version > oldest for version in versions)
        return None


def response_of(turn: TrajectoryKey) -> TrajectoryKey | None:
    """Return the response that a turn belongs to; None for a response of one turn."""
    if turn_of(turn) is None:
        return None
    prompt = turn.prompt
    return TrajectoryKey(PromptKey(prompt.epoch, prompt.index, prompt.source.partition(":")[2]), turn.sample)


def _parts(response: Response) -> Sequence[Text]:
    """Return the sampled spans of a response."""
    lengths = [span.sampled for one in response.sequences for span in one] or [len(response.token_ids)]
    parts, begin = [], 0
    for length in lengths:
        end = begin + length
        parts.append((tuple(response.token_ids[begin:end]), tuple(response.logprobs[begin:end])))
        begin = end
    return parts
