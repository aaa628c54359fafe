"""Traced harness: an episode's turns, tools and their seconds as a workload has them, for example a recorded trace.

The lengths of turns are the engines' (`inputs.WorkloadLengths`), from the same workload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.simulator.peers.harness import HarnessScript
from rljob_runtime.workloads.workload import Prompt, Turn, Workload


@dataclass(frozen=True, kw_only=True)
class TracedScript(HarnessScript):
    """Harnesses that play the responses of a workload, whose step is the epoch of a prompt.

    The first `responses` of a prompt are drawn together; then they repeat."""

    workload: Workload
    responses: int

    @cached_property
    def _drawn(self) -> Callable[[PromptKey], Prompt]:
        return lru_cache(maxsize=4096)(lambda key: self.workload.prompt(key.epoch, key.index, self.responses))

    def _turns(self, key: TrajectoryKey) -> tuple[Turn, ...]:
        return self._drawn(key.prompt).responses[key.sample % self.responses].turns

    def turns_of(self, key: TrajectoryKey) -> int:
        """Return the number of turns of an episode."""
        return len(self._turns(key))

    def prompt_tokens_of(self, key: TrajectoryKey) -> int:
        """Return the number of tokens of a prompt."""
        return max(1, self._drawn(key.prompt).input_tokens)

    def most_tokens_of(self, key: TrajectoryKey, turn: int) -> int:
        """Return one token more than the turn has. Else the engine would have cut it, and no turn would continue it."""
        turns = self._turns(key)
        return 1 + max(1, turns[min(turn, len(turns) - 1)].tokens)

    def calls_tools(self, key: TrajectoryKey, turn: int) -> bool:
        """Return whether tools are called after a turn."""
        return bool(self._turns(key)[turn].calls)

    def tool_tokens_of(self, key: TrajectoryKey, turn: int) -> int:
        """Return the number of tokens that tools add to the context after a turn."""
        return self._turns(key)[turn].tool_tokens

    def usual_tool_seconds(self, key: TrajectoryKey, turn: int) -> float:
        """Return the seconds of the slowest call after a turn: the calls of a turn run simultaneously."""
        return self._turns(key)[turn].tool_seconds
