"""A simulated job whose machines switch as told, with engines that move KV."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.status import FinishedOutcome, LayoutSwitchesReport
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.on_policy.loop import OnPolicyLoop
from rljob_runtime.coordinator.on_policy.switch_report import switches_report
from rljob_runtime.protocols import KvSize
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State, SwitchCosts
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch, SwitchLook
from rljob_runtime.simulator.core.events import Event, KvAsked
from rljob_runtime.simulator.peers.engines.kv_memory import KV_BLOCK, KvMemory
from rljob_runtime.simulator.peers.engines.replica import SimulatedReplica
from tests.support.forced_switches import Script
from tests.support.simulated_job import Stage, job
from tests.support.token_ledger import TokenLedger

KV = KvSize(heads=2, head_bytes=1000, room_bytes=1 << 30)
BYTE_SECONDS = 1e-7


class Later(Script):
    """Switches while responses have several blocks of KV each."""

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        machines = [one for one in look.machines if min(one.responses.values(), default=0) >= 2 * KV_BLOCK]
        return super().decide(replace(look, machines=machines))


class Together(Later):
    """Switches both machines after the same look."""

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        found, left = super().decide(look), list(self.left)
        if len(found) == 1:
            self.left = [decision.target for decision in found.values() if decision.target] + left
        return found if len(found) > 1 else {}


class Run:
    """A job whose machines switch as told, with engines that move KV."""

    def __init__(
        self,
        folder: Path,
        *sizes: int,
        state: State = State.MIGRATE,
        kv: KvSize | None = KV,
        rounds: int = 1,
        tail: dict[str, Any] | None = None,
        evaluation: Sequence[dict[str, Any]] = (),
    ) -> None:
        layouts = {"slotsPerMachine": 4, "allowedTensorParallelSizes": [1, 2, 4], "engine": "Reference", "machines": 2}
        data = {"maxResponseTokens": 400}
        spec = job(rounds=rounds, prompts=6, responses=4, tail=tail, rollout=layouts, data=data, evaluation=evaluation)
        self.stage = Stage(folder / "state.db", job=spec, replicas=4, sizes=(1, 2, 4))
        site = self.stage.world.site
        wider = tuple((size, replace(engine, kv=kv, kv_byte_seconds=BYTE_SECONDS)) for size, engine in site.wider)
        self.stage.world.site = replace(
            site, engine=replace(site.engine, kv=kv, kv_byte_seconds=BYTE_SECONDS), wider=wider
        )
        self.policy = self.stage.switch_policy = Later("rollout-0", *sizes, state=state)
        self.tokens = TokenLedger()
        self.events: list[Any] = []
        self.stage.watchers += [self.tokens, self.events.append]
        self.switches: list[LayoutSwitch] = []
        self.costs = SwitchCosts()
        self.stage.watchers.append(self._watch)

    def _watch(self, _: Event) -> None:
        coordinator = self.stage.coordinator
        # At each event: a switch may fail before its engines make room.
        if coordinator is not None and isinstance(coordinator.loop, OnPolicyLoop):
            switcher = coordinator.loop.generation and coordinator.loop.generation.switcher
            if switcher:
                self.switches += [one for one in switcher.switches if one not in self.switches]
                self.costs = switcher.costs

    def play(self, *also: Callable[..., Any]) -> LayoutSwitchesReport:
        finished = self.stage.play(*also)
        assert finished is not None
        assert finished.outcome is FinishedOutcome.COMPLETE
        ids = self.stage.trained_ids()
        assert len(ids) == len(set(ids)) == len(self.stage.closed) * 6 * 4
        assert self.tokens.lost == {}
        return switches_report(self.switches, None)

    @property
    def asked(self) -> list[KvAsked]:
        return [event for event in self.events if isinstance(event, KvAsked)]

    @property
    def causes(self) -> Counter[str]:
        return Counter(event.cause for event in self.asked)

    def files(self, machine: str = "rollout-0") -> KvMemory:
        return self.stage.world.machine(machine).kv


def delay_exports(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> list[float]:
    """Delay exports by machine; return the list of times at which they begin.

    As a real engine, a replica computes nothing while it writes, and aborts nothing before it has written."""
    export, abort, began = SimulatedReplica.export_kv, SimulatedReplica.abort, list[float]()
    writing: dict[SimulatedReplica, asyncio.Event] = {}

    async def slow_export(self: SimulatedReplica, term: int, attempts: Any) -> Any:
        began.append(asyncio.get_running_loop().time())
        written = writing[self] = asyncio.Event()
        try:
            answer = await export(self, term, attempts)
            await asyncio.sleep(seconds[machine_of(self.name)])
            return answer
        finally:
            written.set()

    async def late_abort(self: SimulatedReplica, term: int, attempts: Any) -> None:
        if (written := writing.get(self)) is not None:
            await written.wait()
        await abort(self, term, attempts)

    monkeypatch.setattr(SimulatedReplica, "export_kv", slow_export)
    monkeypatch.setattr(SimulatedReplica, "abort", late_abort)
    return began


def both(folder: Path) -> Run:
    run = Run(folder)
    run.policy = run.stage.switch_policy = Together(None, 4, 4, state=State.MIGRATE)
    return run
