"""The monitor of the coordinators' Leases: which silence counts."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_kube.errors import Unreachable
from rljob_operator.policies.base.observation import Silence
from rljob_operator.readers.coordinator_leases import CoordinatorLeaseMonitor


class Leases:
    """One Lease, as the store has it and as the cache shows it, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.renewed = 0
        self.shown: int | None = None
        """What the cache stands still at."""
        self.readable = True
        self.reads = 0
        self.away = False
        self.refused: set[str] = set()
        self.list_seconds = self.read_seconds = 0.0

    async def read(
        self, resource: Any, namespace: Any, keep: Any, not_older_than: str | None = None, **_: Any
    ) -> list[Any]:
        if self.away or namespace in self.refused:
            raise Unreachable("no answer")
        self.now += self.list_seconds
        cached = not_older_than is not None and self.shown is not None
        return [keep(self._lease(self.shown if cached else self.renewed))] if namespace == "ns" else []

    async def find(self, *args: Any) -> dict[str, Any]:
        self.reads += 1
        if not self.readable:
            raise Unreachable("no answer")
        self.now += self.read_seconds
        return self._lease(self.renewed)

    def _lease(self, renewed: int) -> dict[str, Any]:
        spec = {"holderIdentity": "demo-coordinator-0-1", "leaseDurationSeconds": 15, "renewTime": str(renewed)}
        return {"metadata": {"namespace": "ns", "name": "demo", "resourceVersion": str(10 + renewed)}, "spec": spec}


def _monitor(leases: Any) -> tuple[CoordinatorLeaseMonitor, list[tuple[str, str]]]:
    woken: list[tuple[str, str]] = []
    return CoordinatorLeaseMonitor(leases, ["ns"], woken.append, interval=5.0, clock=lambda: leases.now), woken


async def _looks(
    monitor: CoordinatorLeaseMonitor, leases: Leases, count: int, *, renewing: bool
) -> list[Silence | None]:
    """What is said of the coordinator after each of so many looks, 5 s apart."""
    said = []
    for _ in range(count):
        await monitor.check()
        said.append(monitor.silence(("ns", "demo")))
        leases.now += 5
        leases.renewed += renewing
    return said


async def _outage(monitor: CoordinatorLeaseMonitor, leases: Leases) -> None:
    """Three looks, 5 s apart, at a server that does not answer."""
    leases.away = True
    for _ in range(3):
        with pytest.raises(Unreachable):
            await monitor.check()
        leases.now += 5
    leases.away = False


async def test_a_lease_that_stands_still_is_silence() -> None:
    leases = Leases()
    monitor, woken = _monitor(leases)
    assert await _looks(monitor, leases, 10, renewing=True) == [None] * 10
    assert leases.reads == 0, "one list for all jobs is enough while they renew"
    *_, silence = await _looks(monitor, leases, 6, renewing=False)
    assert silence is not None
    assert silence.seconds > 0
    assert woken == [("ns", "demo")]


async def test_a_stale_cache_makes_no_kubelet_silent() -> None:
    leases = Leases()
    monitor, woken = _monitor(leases)
    await _looks(monitor, leases, 2, renewing=True)
    leases.shown = leases.renewed
    assert await _looks(monitor, leases, 60, renewing=True) == [None] * 60
    assert woken == []
    assert leases.reads < 20, "the store is asked once a duration, not at each look"
    *_, silence = await _looks(monitor, leases, 8, renewing=False)
    assert silence is not None, "who has really stopped is found, whatever the cache shows"
    assert woken == [("ns", "demo")]


async def test_who_cannot_be_asked_for_is_not_silent() -> None:
    leases = Leases()
    leases.readable = False
    monitor, woken = _monitor(leases)
    await _looks(monitor, leases, 2, renewing=True)
    assert await _looks(monitor, leases, 12, renewing=False) == [None] * 12
    assert woken == []
    leases.readable = True
    *coming_back, silence = await _looks(monitor, leases, 11, renewing=False)
    assert coming_back == [None] * 10, "what cannot be read cannot be renewed either"
    assert silence is not None
    assert woken == [("ns", "demo")]


async def test_a_coordinator_that_renews_again_is_not_silent_any_more() -> None:
    leases = Leases()
    monitor, _ = _monitor(leases)
    await _looks(monitor, leases, 2, renewing=True)
    *_, silence = await _looks(monitor, leases, 6, renewing=False)
    assert silence is not None
    leases.shown, leases.renewed = leases.renewed, leases.renewed + 1
    (silence,) = await _looks(monitor, leases, 1, renewing=True)
    assert silence is None, "by the store, though the cache does not show it yet"


async def test_time_in_which_we_could_not_look_is_not_held_against_anybody() -> None:
    leases = Leases()
    monitor, _ = _monitor(leases)
    await monitor.check()
    leases.now += 3600
    await monitor.check()
    assert monitor.silence(("ns", "demo")) is None


@pytest.mark.parametrize("comes_back_after", [5, 15, 40])
async def test_after_an_outage_a_coordinator_has_three_durations_to_return(comes_back_after: int) -> None:
    """It has let go of its job when it could not renew, and starts Ray's head again before it renews."""
    leases = Leases()
    monitor, woken = _monitor(leases)
    await _looks(monitor, leases, 1, renewing=True)
    await _looks(monitor, leases, 1, renewing=False)
    await _outage(monitor, leases)
    assert await _looks(monitor, leases, comes_back_after // 5, renewing=False) == [None] * (comes_back_after // 5)
    leases.renewed += 1
    assert await _looks(monitor, leases, 3, renewing=True) == [None] * 3
    assert woken == []
    *_, silence = await _looks(monitor, leases, 5, renewing=False)
    assert silence is not None


async def test_a_new_leader_does_not_know_whether_an_outage_came_before_it() -> None:
    leases = Leases()
    monitor, woken = _monitor(leases)
    assert await _looks(monitor, leases, 10, renewing=False) == [None] * 10
    assert woken == []
    (silence,) = await _looks(monitor, leases, 1, renewing=False)
    assert silence is not None, "a coordinator that died beside the former leader is found all the same"


@pytest.mark.parametrize(("looks", "stands"), [(2, "list_seconds"), (3, "list_seconds"), (4, "read_seconds")])
async def test_a_server_that_stood_still_makes_no_coordinator_silent(looks: int, stands: str) -> None:
    """It refuses nothing, and answers late. The coordinator renews a moment after."""
    leases = Leases()
    monitor, woken = _monitor(leases)
    await _looks(monitor, leases, 2, renewing=True)
    assert await _looks(monitor, leases, looks, renewing=False) == [None] * looks
    setattr(leases, stands, 15.0)
    assert await _looks(monitor, leases, 1, renewing=False) == [None]
    setattr(leases, stands, 0.0)
    assert await _looks(monitor, leases, 8, renewing=False) == [None] * 8
    assert woken == []
    *_, silence = await _looks(monitor, leases, 4, renewing=False)
    assert silence is not None


async def test_a_namespace_that_cannot_be_listed_hides_no_silence_in_another() -> None:
    leases = Leases()
    leases.refused = {"gone"}
    woken: list[tuple[str, str]] = []
    monitor = CoordinatorLeaseMonitor(leases, ["gone", "ns"], woken.append, interval=5.0, clock=lambda: leases.now)
    for look in range(8):
        with pytest.raises(Unreachable):
            await monitor.check()
        leases.now += 5
        leases.renewed += look < 2
    assert monitor.silence(("ns", "demo")) is not None
    assert woken == [("ns", "demo")]


async def test_many_namespaces_are_no_outage() -> None:
    """Each answers immediately, and all of them take longer than the time between two checks."""
    leases = Leases()
    names = [f"other-{number}" for number in range(20)]
    monitor = CoordinatorLeaseMonitor(leases, [*names, "ns"], lambda key: None, interval=5.0, clock=lambda: leases.now)
    leases.list_seconds = 0.5
    for look in range(6):
        await monitor.check()
        leases.now += 5
        leases.renewed += look < 2
    assert monitor.silence(("ns", "demo")) is not None


async def test_a_renewal_of_before_an_outage_that_shows_late_is_none_of_after_it() -> None:
    leases = Leases()
    monitor, woken = _monitor(leases)
    await _looks(monitor, leases, 2, renewing=True)
    leases.shown = leases.renewed - 1
    await _outage(monitor, leases)
    await _looks(monitor, leases, 1, renewing=False)
    leases.shown = None
    assert await _looks(monitor, leases, 8, renewing=False) == [None] * 8
    assert woken == []


async def test_a_job_of_the_same_name_does_not_inherit_the_silence() -> None:
    leases = Leases()
    monitor, _ = _monitor(leases)
    await _looks(monitor, leases, 2, renewing=True)
    *_, silence = await _looks(monitor, leases, 6, renewing=False)
    assert silence is not None
    monitor.forget(("ns", "demo"))
    assert monitor.silence(("ns", "demo")) is None


async def test_looks_that_fail_now_and_then_hide_no_silence() -> None:
    leases = Leases()
    monitor, _ = _monitor(leases)
    await _looks(monitor, leases, 2, renewing=True)
    for _ in range(5):
        (silence,) = await _looks(monitor, leases, 1, renewing=False)
        leases.away = True
        with pytest.raises(Unreachable):
            await monitor.check()
        leases.away = False
    assert silence is not None
