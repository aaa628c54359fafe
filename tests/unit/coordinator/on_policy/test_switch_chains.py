"""Each machine switches by itself: no other one waits for its stop, its export, its sleep or its engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.status import Finished, FinishedOutcome
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.on_policy.round_responses import RoundResponses
from rljob_runtime.coordinator.on_policy.switcher import Switcher
from rljob_runtime.scheduling.layouts import layout_switch
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import Event, Generated, LaidOut, Loaded, Submitted, Trained
from rljob_runtime.simulator.peers.engines.kv_memory import KvMemory
from tests.support.kv_job import Run, both, delay_exports
from tests.support.simulated_job import Stage, until
from tests.support.token_ledger import delay_polls


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    delay_polls(monkeypatch)


class Times:
    """When something happened in a run."""

    def __init__(self, run: Run) -> None:
        self._seen: list[tuple[float, Event]] = []
        run.stage.watchers.append(lambda event: self._seen.append((now(), event)))

    def of(self, kind: type, machine: str, which: Callable[[Any], bool] = lambda event: True) -> list[float]:
        found = [(at, event) for at, event in self._seen if isinstance(event, kind)]
        return [at for at, event in found if machine_of(event.replica) == machine and which(event)]  # type: ignore[attr-defined]


def now() -> float:
    return asyncio.get_running_loop().time()


def waited(run: Run) -> float:
    assert run.stage.coordinator is not None
    return run.stage.coordinator.layout_stats().switch_wait_seconds


def test_nothing_waits_while_a_machine_writes_its_kv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    began = delay_exports(monkeypatch, {"rollout-0": 3.0})
    rewards: list[float] = []
    receive = RoundResponses.receive_reward

    async def received(self: RoundResponses, reward: Any) -> None:
        rewards.append(now())
        await receive(self, reward)

    monkeypatch.setattr(RoundResponses, "receive_reward", received)
    run = Run(tmp_path, 4)
    times = Times(run)
    report = run.play()
    assert [(one.reached_size, one.state) for one in report.switches] == [(4, "Migrate")]
    since, end = min(began), max(began) + 3.0
    ends = times.of(Generated, "rollout-1")
    assert any(since < at < end for at in ends)
    assert any(since < at < end for at in rewards), "rewards of the other machine arrive"
    assert not any(since < at < end for at in times.of(Submitted, "rollout-0")), "it is given nothing meanwhile"
    assert waited(run) == 0.0


def test_machines_of_one_look_switch_each_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    began = delay_exports(monkeypatch, {"rollout-0": 0.5, "rollout-1": 4.0})
    run = both(tmp_path)
    times = Times(run)
    report = run.play()
    assert [one.state for one in report.switches] == ["Migrate"] * 2
    assert len(began) == 8
    assert max(began) - min(began) < 0.1
    stops = {one.machine: one.seconds["stop"] for one in run.switches}
    assert stops == {"rollout-0": pytest.approx(0.5, abs=0.2), "rollout-1": pytest.approx(4.0, abs=0.2)}, "each its own"
    again = times.of(Submitted, "rollout-0", lambda event: event.attempt > 1)
    assert min(again) < began[0] + 4.0, "it goes on while the other one still writes"
    assert waited(run) == 0.0


def test_a_machine_that_does_not_stop_is_lost_and_holds_back_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    monkeypatch.setattr(layout_switch, "STOP_SECONDS", 3.0)
    began = delay_exports(monkeypatch, {"rollout-0": 0.0, "rollout-1": 20.0})
    run = both(tmp_path)
    starts: dict[str, float] = {}
    start = Switcher.start

    def starts_at(self: Switcher, switch: layout_switch.LayoutSwitch, *args: Any) -> None:
        starts[switch.machine] = now() - began[0]
        start(self, switch, *args)

    monkeypatch.setattr(Switcher, "start", starts_at)
    finished = run.stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    ids = run.stage.trained_ids()
    assert len(ids) == len(set(ids)) == 6 * 4
    assert {one.machine: one.reached for one in run.switches} == {"rollout-0": 4, "rollout-1": 0}
    assert starts == {"rollout-0": pytest.approx(0.0, abs=0.5), "rollout-1": pytest.approx(3.0, abs=0.5)}


def test_an_interruption_waits_for_an_export_and_loses_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    began = delay_exports(monkeypatch, {"rollout-0": 2.0})
    run = Run(tmp_path, 4)

    async def lives() -> Finished | None:
        first = asyncio.create_task(run.stage.coordinate())
        await until(lambda: bool(began), tick=0.01)
        assert run.stage.coordinator is not None
        run.stage.coordinator.stop()
        assert await first is None
        assert now() > began[0] + 2.0
        return await run.stage.coordinate()

    finished = virtual_time.run(lives())
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    ids = run.stage.trained_ids()
    assert len(ids) == len(set(ids)) == 6 * 4
    assert run.tokens.lost == {}


def test_a_round_that_ends_while_a_machine_writes_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    """A race may end without the responses of the machine. Its weights wait for it, and its files are removed."""
    monkeypatch.setattr(KvMemory, "drop_older", lambda *_: None)  # Nothing else removes a file.
    began = delay_exports(monkeypatch, {"rollout-0": 10.0})
    run = Run(tmp_path, 4, rounds=2, tail={"enabled": True, "promptFactor": 2.0, "responseFactor": 1.0})
    times = Times(run)
    trained: list[float] = []
    run.stage.watchers.append(lambda event: trained.append(now()) if isinstance(event, Trained) else None)
    finished = run.stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert trained[0] < min(began) + 10.0
    loads = times.of(Loaded, "rollout-0", lambda event: event.version == 2)
    assert min(loads) >= max(began) + 10.0
    assert times.of(LaidOut, "rollout-0", lambda event: event.tensor_parallel == 4) == [], "it keeps its size"
    assert [one.exported_tokens > 0 for one in run.switches] == [True], "its files were written"
    assert run.files().files == {}
    assert waited(run) == 0.0


def test_an_evaluation_does_without_a_machine_that_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    """It answers nothing until it has written, longer than a command takes. It is not lost by that."""
    began = delay_exports(monkeypatch, {"rollout-0": 20.0})
    evaluation = {"name": "unseen", "everyRounds": 1, "maxPrompts": 40}
    race = {"enabled": True, "promptFactor": 2.0, "responseFactor": 1.0}
    run = Run(tmp_path, 4, rounds=2, tail=race, evaluation=[evaluation])
    lost: list[str] = []
    evaluated: list[tuple[float, str]] = []
    mark = Fleet.mark_lost

    def marked(fleet: Fleet, name: str, reason: str, detail: str = "") -> None:
        lost.append(f"{name} {reason}: {detail}")
        mark(fleet, name, reason, detail)

    monkeypatch.setattr(Fleet, "mark_lost", marked)

    def watch(event: Event) -> None:
        if isinstance(event, Submitted) and event.key.prompt.source.startswith("evaluation"):
            evaluated.append((now(), machine_of(event.replica)))

    run.stage.watchers.append(watch)
    finished = run.stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert lost == []
    writes = [machine for seconds, machine in evaluated if began[0] < seconds < min(began) + 20.0]
    assert set(writes) == {"rollout-1"}, "the other machine evaluates meanwhile"


def test_newcomers_do_not_wait_for_a_machine_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    """The other machine is lost twice: each time its successor generates before the export has ended."""
    # Shorter than the bound of a call, at which the machine would be lost, and hold back no other.
    began = delay_exports(monkeypatch, {"rollout-0": 20.0})
    run = Run(tmp_path, 4)
    times, killed, again = Times(run), list[float](), list[float]()

    async def replace_the_other_twice(stage: Stage) -> None:
        await until(lambda: bool(began), tick=0.01)
        for _ in range(2):
            killed.append(now())
            stage.world.kill("rollout-1")
            await until(lambda: any(at > killed[-1] for at in times.of(Submitted, "rollout-1")))
            again.append(now())

    run.play(replace_the_other_twice)
    end = min(began) + 20.0
    assert len(again) == 2
    assert max(again) < end - 10.0
    assert not any(min(began) < at < end for at in times.of(Submitted, "rollout-0")), "it is given nothing meanwhile"
    assert [(one.reached, one.exported_tokens > 0) for one in run.switches] == [(4, True)], "the export was awaited"


def test_a_newcomer_does_not_wait_for_a_machine_that_loads(tmp_path: Path, late: None) -> None:
    run = Run(tmp_path, 4)
    site = run.stage.world.site
    wider = tuple((size, replace(engine, load_seconds=20.0)) for size, engine in site.wider)
    run.stage.world.site = replace(site, wider=wider)
    times = Times(run)

    def wide() -> list[float]:
        return times.of(LaidOut, "rollout-0", lambda event: event.tensor_parallel == 4)

    async def replace_the_other(stage: Stage) -> None:
        await until(lambda: bool(wide()), tick=0.01)
        stage.world.kill("rollout-1")

    run.play(replace_the_other)
    (since,) = wide()
    again = [at for at in times.of(Submitted, "rollout-1") if at > since]
    loaded = min(at for at in times.of(Loaded, "rollout-1") if at > since)
    assert min(again) < since + 20.0
    assert min(again) == pytest.approx(loaded, abs=0.1), "it need not wait for the next flush either"
    assert min(at for at in times.of(Loaded, "rollout-0") if at > since) == pytest.approx(since + 20.0, abs=0.1)
