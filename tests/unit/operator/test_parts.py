"""Queue, recorder, relevance, health, leases, manifests and the command line, each by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from aiohttp.test_utils import TestClient, TestServer

from rljob_api.status import Role
from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.event_recorder import EventRecorder, event_name
from rljob_kube.leader_election import LeadershipLost
from rljob_kube.resources import DISRUPTION_BUDGET
from rljob_operator.__main__ import options
from rljob_operator.app import serve
from rljob_operator.applier import Applier
from rljob_operator.coordinator_leases import CoordinatorLeaseMonitor
from rljob_operator.event_filter import START_FAILURE_DELAY_SECONDS, ChangeFilter, job_signature, pod_signature
from rljob_operator.health import Health, WatchLag
from rljob_operator.metrics import Metrics
from rljob_operator.node_cache import NodeCache
from rljob_operator.observer import PodLister
from rljob_operator.owned_resources import RESOURCES
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod, Removal
from rljob_operator.policies.base.observation import Observed, Pod, Silence
from rljob_operator.policies.creation import Creation, Drafts
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.pods.manifests import render_pod, render_role, shape
from rljob_operator.policies.pods.owned_objects import children, disruption_budget, service
from rljob_operator.seals import Seals
from rljob_operator.watch import WatchHandlers
from rljob_operator.workqueue import Backoff, WorkQueue
from rljob_operator.writers.children import covers
from tests.support.operator.harness import NOW, make_job, until

# --- queue ------------------------------------------------------------------------------------------------------------


async def _served(work: Any, drive: Any, **settings: Any) -> WorkQueue[str]:
    """Run a queue while `drive` acts."""
    queue: WorkQueue[str] = WorkQueue(work, **settings)
    stop = asyncio.Event()
    task = asyncio.create_task(queue.run(stop))
    try:
        await asyncio.wait_for(drive(queue), 30)
    finally:
        stop.set()
        await asyncio.wait_for(task, 30)
    return queue


async def _idle(queue: WorkQueue[str]) -> None:
    await _when(queue.idle)


async def _when(holds: Callable[[], bool]) -> None:
    async def check() -> bool:
        return holds()

    await until(check)


async def test_one_worker_a_key_and_no_mark_is_lost() -> None:
    running: set[str] = set()
    turns: dict[str, int] = {}

    async def work(key: str, since: float) -> None:
        assert key not in running
        running.add(key)
        turns[key] = turns.get(key, 0) + 1
        await asyncio.sleep(0.01)
        running.discard(key)

    async def drive(queue: WorkQueue[str]) -> None:
        for _ in range(20):
            queue.add("a")
            queue.add("b")
        await asyncio.sleep(0.005)
        queue.add("a")  # while it runs: once more after it
        await _idle(queue)

    await _served(work, drive)
    assert turns == {"a": 2, "b": 1}


async def test_workers_are_bounded() -> None:
    most = now = 0

    async def work(key: str, since: float) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    async def drive(queue: WorkQueue[str]) -> None:
        for number in range(20):
            queue.add(str(number))
        await _idle(queue)

    await _served(work, drive, workers=3)
    assert most == 3


async def test_failures_are_tried_again_and_slowed() -> None:
    failures: list[int] = []

    async def work(key: str, since: float) -> None:
        failures.append(1)
        if len(failures) < 4:
            raise ApiError(500, "InternalError", "boom")

    async def drive(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await _when(lambda: len(failures) >= 4)
        await _idle(queue)

    await _served(work, drive, backoff=Backoff(base=0.01, cap=0.02))
    assert len(failures) == 4


async def test_a_worker_that_hangs_is_ended() -> None:
    calls = 0

    async def work(key: str, since: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()

    async def drive(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await _when(lambda: calls >= 2)
        await _idle(queue)

    await _served(work, drive, work_seconds=0.05, backoff=Backoff(base=0.01))
    assert calls == 2


async def test_work_asks_for_another_turn_and_forgetting_ends_it() -> None:
    calls = 0

    async def work(key: str, since: float) -> float:
        nonlocal calls
        calls += 1
        return 0.01

    async def drive(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await _when(lambda: calls >= 3)
        queue.forget("a")

    await _served(work, drive)
    assert calls >= 3


@pytest.mark.parametrize(("failures", "pause"), [(1, 0.2), (2, 0.4), (5, 3.2), (50, 60.0), (10**6, 60.0)])
def test_back_off_of_the_queue(failures: int, pause: float) -> None:
    assert Backoff().pause(failures, 0.5) == pytest.approx(pause)


# --- recorder ---------------------------------------------------------------------------------------------------------


class Events:
    """As much of a client as the recorder needs."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.broken = False

    async def create(self, resource: Any, manifest: dict[str, Any]) -> None:
        if self.broken:
            raise ApiError(500, "InternalError", "no events today")
        name = manifest["metadata"]["name"]
        if name in self.objects:
            raise ApiError(409, "AlreadyExists", name)
        self.objects[name] = manifest

    async def get(self, resource: Any, namespace: str, name: str) -> dict[str, Any]:
        return self.objects[name]

    async def merge(self, resource: Any, namespace: str, name: str, patch: dict[str, Any]) -> None:
        if name not in self.objects:
            raise ApiError(404, "NotFound", name)
        self.objects[name] |= patch


async def test_an_event_is_counted_not_repeated() -> None:
    client: Any = Events()
    first, second = EventRecorder(client, clock=lambda: NOW), EventRecorder(client, clock=lambda: NOW)
    for recorder in (first, first, second):  # the second is the first's successor after a restart
        await recorder.record("ns", "demo", "uid", "Warning", "MachineLost", "rollout-0")
    (event,) = client.objects.values()
    assert event["count"] == 3
    assert event["involvedObject"]["uid"] == "uid"
    client.objects.clear()  # an hour later
    await first.record("ns", "demo", "uid", "Warning", "MachineLost", "rollout-0")
    await first.record("ns", "demo", "uid", "Warning", "MachineLost", "rollout-0")
    assert len(client.objects) == 1


async def test_an_event_that_cannot_be_written_stops_no_work(caplog: pytest.LogCaptureFixture) -> None:
    client: Any = Events()
    client.broken = True
    await EventRecorder(client).record("ns", "demo", "uid", "Normal", "Created", "text")
    assert "no events today" in caplog.text


def test_event_names_tell_jobs_and_texts_apart() -> None:
    names = {event_name("demo", uid, reason, text) for uid in "ab" for reason in "cd" for text in "ef"}
    assert len(names) == 8
    assert event_name("demo", "a", "c", "e") in names


# --- deletions --------------------------------------------------------------------------------------------------------


class Requests(KubeClient):
    """A client whose requests are kept and not sent."""

    def __init__(self) -> None:
        super().__init__(Credentials(Connection("https://unused")))
        self.sent: list[tuple[str, str, Any]] = []

    async def _send(self, method: str, path: str, data: bytes | None, params: Any, headers: Any) -> dict[str, Any]:
        self.sent.append((method, path, json.loads(data or b"null")))
        return {}


async def test_only_the_leader_deletes_a_pod_and_only_the_judged_one() -> None:
    client = Requests()
    asked: list[int] = []

    async def confirm_leader() -> None:
        asked.append(len(client.sent))

    pod = Pod("demo-rollout-0-1", "uid-7", Role.ROLLOUT, "rollout-0", 1)
    applier = Applier(client, EventRecorder(client), Metrics(), confirm_leader, lambda pods: None, Seals(client))
    await applier.apply(make_job(), Plan(removals=(Removal(pod, "Superseded"),)), NOW)
    ((method, path, body),) = client.sent
    assert (method, path) == ("DELETE", "/api/v1/namespaces/default/pods/demo-rollout-0-1")
    assert body["preconditions"] == {"uid": "uid-7"}
    assert "gracePeriodSeconds" not in body
    assert asked == [0]


async def test_by_force_too_only_the_pod_that_was_judged() -> None:
    client, metrics = Requests(), Metrics()

    async def confirm_leader() -> None:
        return

    pod = Pod("demo-rollout-0-1", "uid-7", Role.ROLLOUT, "rollout-0", 1)
    applier = Applier(client, EventRecorder(client), metrics, confirm_leader, lambda pods: None, Seals(client))
    await applier.apply(make_job(), Plan(removals=(Removal(pod, "NodeFenced", 0), Removal(pod, "JobEnded", 15))), NOW)
    bodies = [body for _, _, body in client.sent]
    assert [body["gracePeriodSeconds"] for body in bodies] == [0, 15]
    assert all(body["preconditions"] == {"uid": "uid-7"} for body in bodies)
    assert metrics.registry.get_sample_value("rljob_force_deleted_pods_total") == 1


class Clerk(Requests):
    """Gives what is created a resource version, and notes how old a list may be."""

    def __init__(self) -> None:
        super().__init__()
        self.floors: list[str] = []

    async def _send(self, method: str, path: str, data: bytes | None, params: Any, headers: Any) -> dict[str, Any]:
        await super()._send(method, path, data, params, headers)
        if method == "GET":
            self.floors.append(params["resourceVersion"])
            return {"items": [], "metadata": {}}
        return {"metadata": {"resourceVersion": str(40 + len(self.sent))}}


async def test_no_look_at_pods_is_older_than_those_it_made_itself() -> None:
    client = Clerk()
    pods = PodLister(client)

    async def confirm_leader() -> None:
        return

    job = make_job()
    new = NewPod("rollout-0", Role.ROLLOUT, 1)
    drafts = Drafts(job, Observed(), ("rollout-0",), {Role.ROLLOUT: render_role(job, Role.ROLLOUT, 1, Config(), "")})
    applier = Applier(client, EventRecorder(client), Metrics(), confirm_leader, pods.observe, Seals(client))
    await pods.pods("default", "demo")
    await applier.apply(job, Plan(creations=(Creation(new, drafts),)), NOW)
    await pods.pods("default", "demo")
    assert client.floors == ["0", "42"]


def test_a_disruption_budget_lets_one_rollout_machine_go() -> None:
    budget = disruption_budget(make_job(), 3)
    assert budget["apiVersion"] == DISRUPTION_BUDGET.api_version == "policy/v1"
    assert budget["spec"]["minAvailable"] == 2
    assert budget["spec"]["selector"]["matchLabels"] == {"rljob.dev/job": "demo", "rljob.dev/role": "rollout"}


def test_every_object_beside_a_job_is_written_where_its_kind_is_kept() -> None:
    for manifest in children(make_job(), 1, 3, Config()):
        assert manifest["apiVersion"] == RESOURCES[manifest["kind"]].api_version


# --- relevance --------------------------------------------------------------------------------------------------------


def _body(**runtime: Any) -> dict[str, Any]:
    return {"metadata": {"uid": "u", "generation": 1}, "status": {"runtime": runtime}}


def test_a_thousand_progress_reports_are_irrelevant() -> None:
    relevance = ChangeFilter()
    assert relevance.changed("job", job_signature(_body(event=1)))
    for number in range(1000):
        body = _body(event=1, progress=number / 1000, reward=number, tokensPerSecond=number)
        body["metadata"]["resourceVersion"] = str(number)
        assert not relevance.changed("job", job_signature(body))


@pytest.mark.parametrize(
    "change",
    [
        {"event": 2},
        {"event": 1, "applied": 3},
        {"event": 1, "drained": ["rollout-1"]},
        {"event": 1, "finished": {"outcome": "Complete"}},
        {"event": 1, "suspects": [{"machine": "rollout-0", "incarnation": 1, "witnesses": ["a"]}]},
        {"event": 1, "warnings": [{"reason": "CheckpointDiskFull"}]},
        {"event": 1, "relay": {"epoch": 1, "revision": 2, "chain": ["rollout-1"]}},
    ],
)
def test_what_the_coordinator_acknowledges_is_relevant(change: dict[str, Any]) -> None:
    assert job_signature(_body(**change)) != job_signature(_body(event=1))


def test_a_pod_as_it_was_made_wakes_no_job() -> None:
    pod = render_pod(make_job(), NewPod("rollout-0", Role.ROLLOUT, 1), 1, Config())
    pod["status"] = {"phase": "Pending"}
    assert not ChangeFilter().changed("pod", pod_signature(pod)) or pod_signature(pod) is None
    started = {**pod, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
    assert pod_signature(started) is not None


def test_what_keeps_pods_from_starting_is_told_together() -> None:
    marks: list[float] = []
    watch = WatchHandlers(
        lambda key, seconds: marks.append(seconds),
        lambda key, uid: None,
        mock.Mock(),
        NodeCache(mock.Mock()),
        Metrics(),
    )
    for number in range(3):
        pod = render_pod(make_job(), NewPod(f"rollout-{number}", Role.ROLLOUT, 1), 1, Config())
        pod["metadata"] |= {"uid": f"uid-{number}"}
        unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        for status in ({"phase": "Pending"}, {"phase": "Pending", "conditions": [unplaced]}) * 2:
            watch.pod_event("MODIFIED", {**pod, "status": status})
    assert marks == [START_FAILURE_DELAY_SECONDS] * 9
    watch.pod_event("MODIFIED", {**pod, "status": {"phase": "Failed"}})
    assert marks[9:] == [0.0, START_FAILURE_DELAY_SECONDS]


def test_another_reason_of_the_scheduler_is_told_and_another_number_is_not() -> None:
    marks: list[float] = []
    watch = WatchHandlers(
        lambda key, seconds: marks.append(seconds),
        lambda key, uid: None,
        mock.Mock(),
        NodeCache(mock.Mock()),
        Metrics(),
    )
    pod = render_pod(make_job(), NewPod("rollout-0", Role.ROLLOUT, 1), 1, Config())
    pod["metadata"] |= {"uid": "uid-0"}
    told = []
    for message in ("0/4 nodes: device class a", "0/4 nodes: 4 claims unmet", "0/9 nodes: 9 claims unmet"):
        unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        watch.pod_event("MODIFIED", {**pod, "status": {"phase": "Pending", "conditions": [unplaced]}})
        told.append(len(marks))
    assert told == [1, 2, 2]


# --- leases of coordinators -------------------------------------------------------------------------------------------


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
    """Each answers at once, and all of them take longer than the time between two checks."""
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


# --- health -----------------------------------------------------------------------------------------------------------


async def test_liveness_notices_what_is_stuck() -> None:
    now = 0.0
    health = Health(Metrics(), clock=lambda: now)
    health.standby = False
    assert health.stuck() is None
    health.queue_seconds = lambda: 400.0
    assert "queue" in (health.stuck() or "")
    health.queue_seconds = lambda: 0.0
    health.watch_seconds = lambda: 200.0
    assert "watch" in (health.stuck() or "")
    health.watch_seconds = lambda: 0.0
    now = 5000.0
    assert "resync" in (health.stuck() or "")
    health.standby = True  # a standby has nothing that could be stuck
    assert health.stuck() is None


async def test_endpoints() -> None:
    health = Health(Metrics())
    async with TestClient(TestServer(health.application())) as client:
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/readyz")).status == 503
        health.problem = None
        assert (await client.get("/readyz")).status == 200
        assert "rljob_operator_queue_depth" in await (await client.get("/metrics")).text()
        health.standby, health.queue_seconds = False, lambda: 1e6
        assert (await client.get("/healthz")).status == 503


def test_a_watch_that_shows_nothing_any_more() -> None:
    now = 0.0
    lag = WatchLag(clock=lambda: now)
    key = ("ns", "demo")
    lag.listed({key: "7"}, {key: "7"})
    assert lag.check({key: "7"}) == 0.0
    lag.listed({key: "9"}, {key: "7"})
    now = 50.0
    assert lag.check({key: "7"}) == 50.0
    lag.listed({key: "9"}, {key: "7"})  # the next resync does not start the clock again
    assert lag.check({key: "7"}) == 50.0
    assert lag.check({key: "9"}) == 0.0


# --- manifests --------------------------------------------------------------------------------------------------------

TEMPLATE = {
    "metadata": {"labels": {"team": "rl"}},
    "spec": {
        "nodeSelector": {"pool": "gpu"},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [
            {
                "name": "main",
                "image": "example/own:2",
                "env": [{"name": "HOME", "value": "/data"}, {"name": "MINE", "value": "1"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "resources": {"requests": {"cpu": "2"}},
                "securityContext": {"runAsUser": 1000},
            },
            {"name": "logs", "image": "example/logs:1"},
        ],
    },
}


def test_a_template_is_laid_over_ours() -> None:
    job = make_job(rollout={"template": TEMPLATE, "acceleratorsPerMachine": 4, "tensorParallelSize": 4})
    pod = render_pod(job, NewPod("rollout-1", Role.ROLLOUT, 3), 5, Config())
    main, logs = pod["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in main["env"]}
    assert pod["metadata"]["name"] == "demo-rollout-1-3"
    assert pod["metadata"]["labels"]["team"] == "rl"
    assert pod["metadata"]["labels"]["rljob.dev/epoch"] == "5"
    assert (main["image"], logs["name"]) == ("example/own:2", "logs")
    assert (env["HOME"], env["MINE"], env["RLJOB_MACHINE"]) == ("/data", "1", "rollout-1")
    assert len(env) == len(main["env"])
    assert main["resources"] == {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": "4"}}
    assert main["securityContext"]["runAsUser"] == 1000
    assert main["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"data", "rljob-tmp", "rljob-shm", "rljob-auth"} == {v["name"] for v in pod["spec"]["volumes"]}
    assert pod["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("role", list(Role))
def test_pods_are_confined(role: Role) -> None:
    pod = render_pod(make_job(), NewPod(f"{role.value.lower()}-0", role, 1), 0, Config())["spec"]
    main = pod["containers"][0]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert main["securityContext"]["allowPrivilegeEscalation"] is False
    assert pod["automountServiceAccountToken"] is False
    tokens = [v for v in pod["volumes"] if "projected" in v]
    assert len(tokens) == (1 if role is Role.COORDINATOR else 0)


def test_claims_and_checkpoint() -> None:
    job = make_job(model={"source": "pvc://models/llama"}, checkpoint={"volumeClaimName": "state"})
    for role, folder in ((Role.COORDINATOR, "store"), (Role.TRAINER, "checkpoints"), (Role.ROLLOUT, None)):
        pod = render_pod(job, NewPod(f"{role.value.lower()}-0", role, 1), 0, Config())["spec"]
        mounts = {m["mountPath"]: m for m in pod["containers"][0]["volumeMounts"]}
        assert mounts["/mnt/rljob/models"]["readOnly"] is True
        state = mounts.get("/var/lib/rljob")
        assert (state is None) == (folder is None)
        assert state is None or state["subPath"].endswith(f"/{folder}")


def test_shapes_change_with_what_users_ask_only() -> None:
    job, config = make_job(), Config()
    assert shape(job.spec, Role.ROLLOUT, config) == shape(make_job(rounds=9).spec, Role.ROLLOUT, config)
    other = make_job(rollout={"template": TEMPLATE})
    assert shape(job.spec, Role.ROLLOUT, config) != shape(other.spec, Role.ROLLOUT, config)
    assert shape(job.spec, Role.TRAINER, config) == shape(other.spec, Role.TRAINER, config)


def test_the_coordinator_may_touch_its_own_job_only() -> None:
    found = {(m["kind"], m["metadata"]["name"]): m for m in children(make_job(), 1, 2, Config())}
    role = found["Role", "demo-coordinator"]
    assert all(rule["resourceNames"] == ["demo"] for rule in role["rules"])
    verbs = {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}
    assert ("rljobs", "patch") not in verbs
    assert ("rljobs/status", "patch") in verbs
    assert ("NetworkPolicy", "demo") in found
    assert ("NetworkPolicy", "demo") not in {
        (m["kind"], m["metadata"]["name"]) for m in children(make_job(), 1, 2, Config(network_policy=False))
    }


def test_the_coordinators_address_outlives_its_pods() -> None:
    """A headless Service's name means a pod's address, and is looked up again too late."""
    specs = [service(make_job(), incarnation)["spec"] for incarnation in (1, 2)]
    assert [spec["selector"]["rljob.dev/incarnation"] for spec in specs] == ["1", "2"]
    assert not any("clusterIP" in spec for spec in specs)


@pytest.mark.parametrize(
    ("live", "wanted", "covered"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 2}, {"a": 1}, False),
        ({"p": [{"port": 1, "protocol": "TCP"}]}, {"p": [{"port": 1}]}, True),
        ({"p": [{"port": 1}, {"port": 2}]}, {"p": [{"port": 1}]}, False),
        ({}, {"a": {}}, False),
    ],
)
def test_drift(live: Any, wanted: Any, covered: bool) -> None:
    assert covers(live, wanted) is covered


# --- command line -----------------------------------------------------------------------------------------------------


def test_options_from_flags_and_environment() -> None:
    env = {"POD_NAME": "op-1", "POD_NAMESPACE": "rl", "RLJOB_RUNTIME_IMAGE": "a:1", "RLJOB_NAMESPACES": "x,y"}
    found, level = options([], env)
    assert (found.identity, found.lease_namespace, found.namespaces) == ("op-1", "rl", ("x", "y"))
    assert (found.config.runtime_image, found.config.network_policy, level) == ("a:1", True, "info")
    found, level = options(["-n", "z", "--runtime-image=b:2", "--no-network-policy", "--log-level=debug"], env)
    assert (found.namespaces, found.config.runtime_image, level) == (("z",), "b:2", "debug")
    assert found.config.network_policy is False
    assert options([], {})[0].scopes == (None,)


@pytest.mark.parametrize("bad", [["--workers=0"], ["--workers=many"], ["--log-level=loud"]])
def test_bad_options_are_refused(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(bad, {})
    assert bad[0].partition("=")[0] in capsys.readouterr().err


# --- leadership ---


async def test_who_loses_the_lease_is_followed_by_one_that_knows_nothing() -> None:
    stop = asyncio.Event()
    lives: list[int] = []

    class StandIn:
        def __init__(self) -> None:
            self.life = len(lives)

        async def run(self, stop: asyncio.Event) -> None:
            lives.append(self.life)
            if self.life < 2:
                raise LeadershipLost("the Lease could not be renewed")
            stop.set()

    await serve(StandIn, stop)  # type: ignore[arg-type]
    assert lives == [0, 1, 2]


async def test_what_an_operator_dies_of_otherwise_ends_the_process() -> None:
    class StandIn:
        async def run(self, stop: asyncio.Event) -> None:
            raise RuntimeError("kopf ended by itself")

    with pytest.raises(RuntimeError, match="kopf ended"):
        await serve(StandIn, asyncio.Event())  # type: ignore[arg-type]
