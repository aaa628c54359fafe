"""Start: the tensor parallel size at which a stage should begin, predicted together with the switches that follow.

A size that is best for a whole stage need not be the best start, because the tail may change it. So each size is played
with its best switches on lengths like those of the last rounds. The operator decides the start; this is what it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljob_runtime.scheduling.adaptive_tp.policy import SwitchRules, decide
from rljob_runtime.scheduling.adaptive_tp.snapshot import SizedEngine
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, Chooser, StageResult, generate
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts


@dataclass(frozen=True)
class Machine:
    """A machine for predictions: its engines by size, its accelerators, costs of switches, and their rules."""

    engines: Mapping[int, SizedEngine]
    accelerators: int
    costs: SwitchCosts
    rules: SwitchRules

    def chooser(self, past: Sequence[int], max_tokens: int) -> Chooser:
        """Return the policy, for a stage before which the lengths `past` are known."""
        return lambda stage: decide(stage.snapshot(past, (), max_tokens), self.engines, self.costs, self.rules).target


def predict_starts(
    machine: Machine, asked: Sequence[Asked], past: Sequence[int], max_tokens: int
) -> dict[int, StageResult]:
    """Return the predicted stage of each size that holds the longest of these responses, with its best switches.

    `asked`: a round like the next one; `past`: lengths that will be known before it."""
    longest = max(one.prompt_tokens + one.tokens for one in asked)
    pairs = machine.costs.table(machine.engines, machine.accelerators, machine.rules.state)
    choose = machine.chooser(past, max_tokens)
    return {
        size: generate(asked, size, machine.engines, machine.accelerators, pairs, choose)
        for size, engine in sorted(machine.engines.items())
        if size in machine.rules.sizes and longest <= engine.kv_tokens
    }


NEAR = 0.01
"""Stages whose times differ by a smaller share are equally long: the lengths of one round say no more."""


def best_start(predicted: Mapping[int, StageResult]) -> int | None:
    """Return the size of the shortest stage; None without any.

    Of stages that are about equally long it is the one with the fewest switches: a start that is left immediately
    costs a switch for nothing.

    >>> best_start({1: StageResult(9.0), 2: StageResult(7.0), 4: StageResult(7.0)})
    2
    """
    if not predicted:
        return None
    most = (1 + NEAR) * min(result.seconds for result in predicted.values())
    near = [
        (len(result.switches), result.seconds, size) for size, result in predicted.items() if result.seconds <= most
    ]
    return min(near)[2]
