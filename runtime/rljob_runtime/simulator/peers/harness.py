"""Simulated harness: what the harness of an episode asks for, and what goes wrong in its attempts.

Everything follows from the seed, the response and the rank of the attempt among its attempts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.simulator.core.tokens import digest

SLOW_TOOL_FACTOR = 60.0


class Fault(StrEnum):
    """What goes wrong in an attempt."""

    CRASH = "crash"
    """The runner loses the attempt in the middle: it names it no more, and the attempt's calls end."""
    FAILURE = "failure"
    """The runner reports that a part of ours failed."""
    REWRITE = "rewrite"
    """The harness changes what it said before, so that its turn forks."""
    REPEAT = "repeat"
    """The harness sends each request twice."""
    SILENT = "silent"
    """The harness never calls the model."""
    SLOW = "slow"
    """Tools take `SLOW_TOOL_FACTOR` times as long, so that the attempt may reach its deadline."""
    SUBAGENTS = "subagents"
    """The harness sends two requests concurrently, and goes on with one of the answers."""
    REPORTS_TWICE = "reports twice"
    """The runner reports the end twice."""
    LEAVES = "leaves"
    """The runner hands the attempt back at its end, as one that is told to end does."""
    CRASH_AFTER_CALL = "crash after call"
    """As `CRASH`, between a call of a tool and the turn that follows from it."""
    HANGS = "hangs"
    """The harness never ends, and no deadline ends it, while its runner goes on sending heartbeats."""
    ASKS_AFTER_END = "asks after end"
    """The harness requests a turn and reports a call of a tool after its end was reported."""


OF_PROGRAM = frozenset((Fault.REWRITE, Fault.SILENT, Fault.SUBAGENTS, Fault.HANGS, Fault.ASKS_AFTER_END))
"""What a program does, and does again when it runs again."""


@dataclass(frozen=True)
class HarnessScript:
    """How the harnesses of an environment behave. `faults`: chances in a thousand, of an attempt."""

    turns: int = 4
    """Most turns that a harness asks for; each episode has 1 to this many."""
    prompt_tokens: int = 12
    tool_tokens: int = 6
    tool_seconds: float = 0.5
    turn_tokens: int = 8
    """Most tokens of a turn."""
    faults: tuple[tuple[Fault, int], ...] = ()
    seed: int = 0
    rewards: int = 2
    """Number of distinct rewards; 0 if the environment gives none, so that the job's rewards score the last answer."""
    ends_when_cut: bool = False
    """Whether a turn that was cut at its token limit is the last one."""
    differing: int = 0
    """Chance in a thousand that tools with a state, or a program's own, answer a call otherwise when the next runner
    executes it again."""

    def turns_of(self, key: TrajectoryKey) -> int:
        """Return the number of turns of an episode."""
        return 1 + digest("turns", self.seed, str(key)) % self.turns

    def fault_of(self, key: TrajectoryKey, rank: int) -> Fault | None:
        """Return what goes wrong in the attempt of this rank."""
        drawn = digest("episode-fault", self.seed, str(key), rank) % 1000
        for fault, chance in self.faults:
            if drawn < chance:
                return fault
            drawn -= chance
        return None

    def prompt_tokens_of(self, key: TrajectoryKey) -> int:
        """Return the number of tokens of a prompt."""
        return self.prompt_tokens

    def most_tokens_of(self, key: TrajectoryKey, turn: int) -> int:
        """Return the most tokens that the harness permits a turn."""
        return self.turn_tokens

    def calls_tools(self, key: TrajectoryKey, turn: int) -> bool:
        """Return whether tools are called after a turn."""
        return True

    def tool_tokens_of(self, key: TrajectoryKey, turn: int) -> int:
        """Return the number of tokens that tools add to the context after a turn."""
        return self.tool_tokens

    def usual_tool_seconds(self, key: TrajectoryKey, turn: int) -> float:
        """Return the seconds of the tools after a turn: half to one and a half times those of the script."""
        return self.tool_seconds * (0.5 + digest("tool", self.seed, str(key), turn) % 1000 / 1000)

    def tool_seconds_of(self, key: TrajectoryKey, turn: int, fault: Fault | None) -> float:
        """Return the seconds of the tools after a turn, in an attempt with this fault."""
        return self.usual_tool_seconds(key, turn) * (SLOW_TOOL_FACTOR if fault is Fault.SLOW else 1.0)

    def observation_of(self, key: TrajectoryKey, node: int, rank: int, replay: bool) -> str:
        """Return what a call of a tool answers. `rank`: of the attempt; it matters where tools answer otherwise."""
        return f"{key} {node}{f' {rank}' if replay and self.differs(key, node, rank) else ''}"

    def differs(self, key: TrajectoryKey, node: int, rank: int) -> bool:
        """Return whether the call of a turn is answered otherwise when the next runner executes it again."""
        return digest("replay", self.seed, str(key), node, rank) % 1000 < self.differing

    def reward_of(self, key: TrajectoryKey, rank: int) -> float | None:
        """Return the reward that the attempt of this rank reports."""
        if not self.rewards:
            return None
        return digest("reward", str(key), rank) % self.rewards / max(1, self.rewards - 1)
