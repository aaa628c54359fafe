"""Adaptive switches: the switch policy of a job whose machines change their tensor parallel size when that pays.

It turns what a coordinator observes in one look into the snapshot of each machine, and decides for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rljob_runtime.scheduling.adaptive_tp.policy import LookCadence, SwitchDecision, SwitchRules, decide
from rljob_runtime.scheduling.adaptive_tp.snapshot import Builds, MachineSnapshot, OtherEngine, Running
from rljob_runtime.scheduling.layouts.layout_switch import SwitchableMachine, SwitchLook
from rljob_runtime.scheduling.lending.policy import Unfinished


class AdaptiveSwitches:
    """A `layout_switch.SwitchPolicy`: a machine switches by these rules."""

    def __init__(self, rules: SwitchRules) -> None:
        self._rules = rules
        self._looks = LookCadence()

    def begin_round(self) -> None:
        """Forget the looks of the last round."""
        self._looks = LookCadence()

    def is_due(self, done: int, total: int, now: float) -> bool:
        """Return whether to look at the machines now, with `done` of `total` responses complete."""
        return self._looks.is_due(done, total, now)

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        """Decide for each machine."""
        return {machine.name: self._decide(machine, look) for machine in look.machines}

    def _decide(self, machine: SwitchableMachine, look: SwitchLook) -> SwitchDecision:
        rules = replace(self._rules, sizes=self._rules.sizes & {machine.tensor_parallel, *machine.sizes})
        return decide(snapshot_of(machine, look), look.engines, look.costs, rules)


def snapshot_of(machine: SwitchableMachine, look: SwitchLook) -> MachineSnapshot:
    """Return the snapshot of one machine."""
    round_ = look.round_
    return MachineSnapshot(
        tensor_parallel=machine.tensor_parallel,
        accelerators=machine.tensor_parallel * len(machine.engines),
        replicas=tuple(_running(round_.by_replica.get(name, ())) for name in sorted(machine.engines)),
        lengths=round_.lengths.curve,
        max_tokens=round_.lengths.max_tokens,
        waiting=machine.waiting,
        queued=machine.queued,
        groups=round_.groups,
        wanted=round_.wanted,
        elsewhere=tuple(
            OtherEngine(look.sizes[name], _running(responses))
            for name, responses in sorted(round_.by_replica.items())
            if name not in machine.engines and look.sizes.get(name)
        ),
        switches=machine.switches,
        closed=machine.closed,
        builds=Builds(machine.built, look.rounds, machine.discarded),
    )


def _running(responses: Sequence[Unfinished]) -> tuple[Running, ...]:
    return tuple(Running(one.prompt_tokens, one.generated, one.group) for one in responses)
