"""One suite over both backends of the coordinator's protocols: Ray actors, and stand-ins in-process under virtual time.

The far end is the same simulated replica in both; what is tested is the way to it: death, timeout, duplicates, late
replies, cancellation, refusals and stale terms must look the same to the coordinator.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import yaml

from rljob_api import load
from rljob_api.status import Member, Role
from rljob_runtime.coordinator.fleet.machine import SLEEPING
from rljob_runtime.protocols import (
    GenerateRequest,
    PeerGone,
    PeerTimeout,
    Refused,
    RelayMember,
    StaleTerm,
    WrongVersion,
)
from rljob_runtime.protocols.remote import CallTimeouts, RemoteReplica, RemoteWorker
from rljob_runtime.protocols.trajectory import (
    FinishReason,
    Group,
    PromptKey,
    Response,
    Sampling,
    ScoredResponse,
    TrajectoryKey,
)
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.network import Process, SimulatedWire
from rljob_runtime.simulator.peers.engines.engine_kind import steady
from rljob_runtime.simulator.peers.engines.replica import Engines, SimulatedReplica
from rljob_runtime.simulator.peers.gradient_worker import SimulatedWorker
from rljob_runtime.simulator.peers.host import Host
from rljob_runtime.simulator.peers.relay import Weights
from rljob_runtime.simulator.peers.trainer import GradientInboxes, TrainerCosts
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "minimal.yaml"
BOUNDS = CallTimeouts(command=20.0)
KEY = TrajectoryKey(PromptKey(0, 3), 1)
INBOX = RelayMember("inbox", 0, "127.0.0.1", 1)


class Peer(SimulatedReplica):
    """A replica that can also be slow, or fail in a way that the protocol does not know."""

    def __init__(self) -> None:
        kind = steady(0.01)
        super().__init__("replica-0", Host(Weights(whole=1)), Engines(kind, layouts={1: kind, 2: steady(0.005)}))
        self.calls = 0
        self.woken = asyncio.Event()

    async def abort(self, term, attempts):
        self.calls += 1
        await super().abort(term, attempts)

    async def pid(self):
        return os.getpid()

    async def count(self):
        return self.calls

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)

    async def doze(self):
        await self.woken.wait()
        self.calls += 1
        return "late"

    async def wake(self):
        self.woken.set()

    async def stumble(self):
        raise KeyError("a bug of ours")


class Renewable:
    """A peer in a process that serves several tests: each has a new one, whatever the one before is still doing."""

    def __init__(self, make) -> None:
        self._make, self._peer = make, make()

    async def renew(self):
        self._peer = self._make()

    def __getattr__(self, name):
        return getattr(self._peer, name)


def make_peer(**_):
    return Renewable(Peer)


class WorkerPeer(SimulatedWorker):
    """A gradient worker with an inbox beside it."""

    def __init__(self) -> None:
        self.inboxes = GradientInboxes()
        self.inboxes.open(1)
        super().__init__("rollout-0", Host(Weights(whole=1)), lambda: self.inboxes, TrainerCosts(loaned_token=0.01))

    async def pid(self):
        return os.getpid()

    async def adopt(self, devices):
        self.devices = devices

    async def adopted(self):
        return self.devices


def make_worker_peer(**_):
    return Renewable(WorkerPeer)


async def prepare(replica):
    await replica.switch_layout(1, 1)
    await replica.load(1, 1)


class InProcess:
    """The simulator's wire."""

    def run(self, test):
        async def program():
            process = Process("replica-0", Peer())
            wire = SimulatedWire(process, random.Random(1), latency=0.001)

            async def kill():
                process.kill()

            replica = RemoteReplica("replica-0", wire, BOUNDS)
            await prepare(replica)
            await test(wire, replica, kill)

        virtual_time.run(program())

    def run_worker(self, test):
        async def program():
            process = Process("worker", WorkerPeer())

            async def kill():
                process.kill()

            await test(RemoteWorker("rollout-0", SimulatedWire(process, random.Random(1), latency=0.001), BOUNDS), kill)

        virtual_time.run(program())


class OverRay:
    """Ray's wire, to an actor made as the backend makes them. The process lives until a test kills it or fails."""

    def __init__(self):
        self.made = 0
        self.living = {}

    def run(self, test):
        async def program(wire, kill):
            replica = RemoteReplica(wire.name, wire, BOUNDS)
            await prepare(replica)
            await test(wire, replica, kill)

        self._with_actor("make_peer", program)

    def run_worker(self, test):
        self._with_actor("make_worker_peer", lambda wire, kill: test(RemoteWorker("rollout-0", wire, BOUNDS), kill))

    def _with_actor(self, factory, use):
        import ray

        from rljob_runtime.ray_backend.actors import ActorHost
        from rljob_runtime.ray_backend.backend import RayChannel

        name, handle = self.living.pop(factory, (None, None))
        if handle is None:
            self.made += 1
            name = f"peer-{self.made}"
            handle = ActorHost.options(
                name=name, lifetime="detached", num_cpus=0, max_task_retries=0, max_concurrency=16
            ).remote(f"{__name__}:{factory}", {})
        wire, killed = RayChannel(name, handle), []

        async def program():
            await wire.call(60, "renew")
            pid = await wire.call(60, "pid")

            async def kill():
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)

            await use(wire, kill)

        try:
            asyncio.run(program())
        except BaseException:
            ray.kill(handle)
            raise
        if not killed:
            self.living[factory] = name, handle


@pytest.fixture(scope="module")
def ray_cluster():
    import ray

    ray.init(
        address="local",
        num_cpus=1,
        num_gpus=2,
        include_dashboard=False,
        log_to_driver=False,
        namespace="contract",
        resources={"rollout-0.1": 1},
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}},
    )
    yield OverRay()
    ray.shutdown()


@pytest.fixture(params=["in-process", pytest.param("ray", marks=pytest.mark.engine)])
def backend(request):
    return InProcess() if request.param == "in-process" else request.getfixturevalue("ray_cluster")


def request(attempt=1, version=1, tokens=20):
    return GenerateRequest(KEY, attempt, (1, 2), Sampling(max_tokens=tokens, seed=5), version)


LONG = 2000
"""Tokens that take longer than any test looks at them."""


async def collect(replica, after=0):
    deltas, cursor = [], after
    while not (deltas and deltas[-1].finish_reason):
        report = await replica.poll(1, cursor, 5.0)
        deltas += report.deltas
        cursor = report.cursor
    return deltas, cursor


def test_a_response_comes_whole_and_in_order(backend):
    async def test(wire, replica, kill):
        await replica.submit(1, [request()])
        deltas, _ = await collect(replica)
        assert [delta.offset for delta in deltas] == [
            sum(len(d.token_ids) for d in deltas[:place]) for place in range(len(deltas))
        ]
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert {delta.weight_version for delta in deltas} == {1}

    backend.run(test)


def test_what_was_not_acknowledged_comes_again(backend):
    async def test(wire, replica, kill):
        await replica.submit(1, [request()])
        deltas, cursor = await collect(replica)
        again = await replica.poll(1, 0, 0.0)
        assert again.deltas == tuple(deltas[-len(again.deltas) :])
        assert (await replica.poll(1, cursor, 0.0)).deltas == ()

    backend.run(test)


def test_a_command_given_twice_is_done_once(backend):
    async def test(wire, replica, kill):
        await asyncio.gather(replica.submit(1, [request()]), replica.submit(1, [request()]))
        deltas, _ = await collect(replica)
        assert len([delta for delta in deltas if delta.finish_reason]) == 1
        assert len([delta for delta in deltas if delta.offset == 0]) == 1

    backend.run(test)


def test_an_abort_that_comes_late_harms_no_later_attempt(backend):
    async def test(wire, replica, kill):
        await replica.submit(1, [request(attempt=2)])
        await replica.abort(1, {KEY: 1})
        deltas, _ = await collect(replica)
        assert deltas[-1].attempt == 2

    backend.run(test)


def test_a_submit_that_comes_after_its_abort_begins_nothing(backend):
    async def test(wire, replica, kill):
        await replica.abort(1, {KEY: 2})
        await replica.submit(1, [request(attempt=1)])
        assert (await replica.poll(1, 0, 0.1)).stats.running == 0
        await replica.submit(1, [request(attempt=3)])
        assert (await collect(replica))[0][-1].attempt == 3

    backend.run(test)


def test_refusals_keep_their_kind_and_their_words(backend):
    async def test(wire, replica, kill):
        with pytest.raises(WrongVersion, match="holds version 1, not 9"):
            await replica.submit(1, [request(version=9)])
        await replica.submit(1, [request(tokens=LONG)])
        with pytest.raises(Refused, match="still holds 1 request"):
            await replica.load(1, 2)

    backend.run(test)


def test_a_former_coordinator_is_refused(backend):
    async def test(wire, replica, kill):
        await replica.abort(5, {})
        with pytest.raises(StaleTerm, match="term 4 is over"):
            await replica.submit(4, [request()])
        await replica.submit(5, [request()])

    backend.run(test)


def test_a_layout_begins_without_weights_and_drops_what_was_held(backend):
    async def test(wire, replica, kill):
        await replica.submit(1, [request(tokens=LONG)])
        boot = (await replica.poll(1, 0, 0.0)).boot
        await replica.release_accelerators(1, 2)
        with pytest.raises(WrongVersion, match="holds version None"):
            await replica.submit(1, [request(attempt=2)])
        await replica.switch_layout(1, 2)
        await replica.load(1, 1)
        cursor = (await replica.poll(1, 0, 0.0)).cursor
        await replica.submit(1, [request(attempt=2)])
        deltas, _ = await collect(replica, cursor)
        assert {delta.attempt for delta in deltas} == {2}
        report = await replica.poll(1, 0, 0.0)
        assert report.boot == boot
        assert (report.stats.layout_switches_total, report.stats.aborted_total) == (2, 1)

    backend.run(test)


def test_a_replica_in_any_layout_releases_accelerators_and_takes_them_back(backend):
    async def test(wire, replica, kill):
        await replica.submit(1, [request(tokens=LONG)])
        await asyncio.gather(replica.release_accelerators(1, SLEEPING), replica.release_accelerators(1, SLEEPING))
        report = await replica.poll(1, 0, 0.0)
        assert (report.weight_version, report.stats.aborted_total) == (None, 1)
        with pytest.raises(WrongVersion, match="holds version None"):
            await replica.submit(1, [request(attempt=2)])
        await prepare(replica)
        await replica.submit(1, [request(attempt=2)])
        deltas, _ = await collect(replica, report.cursor)
        assert {delta.attempt for delta in deltas} == {2}
        assert (await replica.poll(1, 0, 0.0)).stats.layout_switches_total == 2

    backend.run(test)


def test_a_layout_that_is_in_force_is_left_alone(backend):
    async def test(wire, replica, kill):
        await replica.submit(1, [request()])
        await asyncio.gather(
            replica.release_accelerators(1, 1), replica.switch_layout(1, 1), replica.switch_layout(1, 1)
        )
        deltas, _ = await collect(replica)
        assert deltas[-1].finish_reason
        assert (await replica.poll(1, 0, 0.0)).stats.layout_switches_total == 1

    backend.run(test)


def test_a_refused_layout_leaves_the_former_one_available(backend):
    async def test(wire, replica, kill):
        with pytest.raises(Refused, match="no engine of tensor parallel size 3, only of 1 and 2"):
            await replica.switch_layout(1, 3)
        await prepare(replica)
        await replica.submit(1, [request()])
        await collect(replica)

    backend.run(test)


def test_a_former_coordinator_changes_no_layout(backend):
    async def test(wire, replica, kill):
        await replica.abort(5, {})
        for command in (replica.release_accelerators(4, 2), replica.switch_layout(4, 2)):
            with pytest.raises(StaleTerm, match="term 4 is over"):
                await command
        await replica.submit(5, [request()])

    backend.run(test)


def test_a_bug_at_the_far_end_is_a_refusal_that_names_it(backend):
    async def test(wire, replica, kill):
        if isinstance(wire, SimulatedWire):
            pytest.skip("in-process a bug is the test's own to see")
        with pytest.raises(Refused, match=r"stumble failed: KeyError.*a bug of ours"):
            await wire.call(20, "stumble")
        await replica.abort(1, {})
        from rljob_runtime.ray_backend.backend import RayRank

        rank = RayRank(wire, "127.0.0.1", BOUNDS)  # the other ranks would wait for it in a collective
        with pytest.raises(PeerGone, match=r"stumble failed: KeyError.*a bug of ours"):
            await rank.call("stumble")
        with pytest.raises(Refused, match="start failed"):
            await rank.call("start", 1)

    backend.run(test)


def test_a_call_ends_at_its_bound_and_the_peer_stays_usable(backend):
    async def test(wire, replica, kill):
        before = asyncio.get_running_loop().time()
        with pytest.raises(PeerTimeout, match="sleep"):
            await wire.call(0.3, "sleep", 60.0)
        assert asyncio.get_running_loop().time() - before < 50.0
        await replica.abort(1, {})

    backend.run(test)


def test_a_late_reply_disturbs_no_later_call(backend):
    async def test(wire, replica, kill):
        with pytest.raises(PeerTimeout):
            await wire.call(0.1, "doze")
        assert await wire.call(20, "count") == 0
        await wire.call(20, "wake")
        # It is done after all: the caller must count with that, and every command is idempotent.
        async with asyncio.timeout(60):
            while (count := await wire.call(20, "count")) == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert count == 1

    backend.run(test)


def test_a_caller_that_gives_up_leaves_the_peer_usable(backend):
    async def test(wire, replica, kill):
        call = asyncio.create_task(replica.poll(1, 0, 10.0))
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await replica.submit(1, [request()])
        await collect(replica)

    backend.run(test)


def test_death_ends_a_call_that_waits_and_every_later_one(backend):
    async def test(wire, replica, kill):
        call = asyncio.create_task(replica.poll(1, 0, 15.0))
        await asyncio.sleep(0.3)
        await kill()
        with pytest.raises(PeerGone):
            await call
        with pytest.raises(PeerGone):
            await replica.submit(1, [request()])

    backend.run(test)


def groups(*numbers):
    made = []
    for number in numbers:
        key = TrajectoryKey(PromptKey(0, number), 0)
        response = Response(key, 1, 1, (1, 2, 3), (-0.1,) * 3, FinishReason.STOP, "replica-0")
        made.append(Group(key.prompt, (1,), (ScoredResponse(response, 1.0),)))
    return made


def test_a_worker_sums_a_group_once_and_hands_over_what_it_summed(backend):
    async def test(worker, kill):
        report = await worker.compute(1, 7, 1, groups(1, 2))
        assert (report.groups, report.tokens) == (2, 6)
        both = await asyncio.gather(worker.compute(1, 7, 1, groups(2, 3)), worker.compute(1, 7, 1, groups(2, 3)))
        assert sum(report.tokens for report in both) == 3
        receipts = [await worker.deliver(1, 7, 1, INBOX) for _ in range(2)]
        assert receipts[0] == receipts[1]
        assert receipts[0].groups == tuple(PromptKey(0, number) for number in (1, 2, 3))
        assert (receipts[0].step, receipts[0].term, receipts[0].version, receipts[0].tokens) == (7, 1, 1, 9)

    backend.run_worker(test)


def test_a_worker_refuses_other_weights_steps_and_former_coordinators(backend):
    async def test(worker, kill):
        with pytest.raises(WrongVersion, match="holds version 1, not 2"):
            await worker.compute(2, 7, 2, groups(1))
        await worker.compute(2, 7, 1, groups(1))
        with pytest.raises(Refused, match="holds no sums of step 8"):
            await worker.deliver(2, 8, 1, INBOX)
        for late in (worker.compute(1, 7, 1, groups(1)), worker.deliver(1, 7, 1, INBOX), worker.release(1)):
            with pytest.raises(StaleTerm, match="term 1 is over"):
                await late
        await worker.release(2)
        with pytest.raises(Refused, match="holds no sums of step 7"):
            await worker.deliver(2, 7, 1, INBOX)

    backend.run_worker(test)


def test_a_worker_that_dies_is_gone(backend):
    async def test(worker, kill):
        call = asyncio.create_task(worker.compute(1, 7, 1, groups(*range(300))))
        await asyncio.sleep(0.3)
        await kill()
        with pytest.raises(PeerGone):
            await call
        with pytest.raises(PeerGone):
            await worker.release(1)

    backend.run_worker(test)


@pytest.mark.engine
def test_a_worker_computes_on_the_accelerators_of_all_replicas(ray_cluster, tmp_path):
    """Ray counts them as the replicas', so there is none left for it to give."""
    import ray

    from rljob_runtime.ray_backend.actors import ActorPlacement
    from rljob_runtime.ray_backend.backend import Factories, RayBackend

    manifest = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    manifest["spec"]["streamTraining"] = {"enabled": True}
    manifest["spec"]["rollout"] |= {"machines": 2, "acceleratorsPerMachine": 2}
    job = load(manifest)
    member = Member(machine="rollout-0", incarnation=3, ip="127.0.0.1", role=Role.ROLLOUT)
    peer = f"{__name__}:make_peer"
    backend = RayBackend(
        job,
        ActorPlacement(*[tmp_path] * 5),
        resource_of=lambda _: "rollout-0.1",
        timeouts=BOUNDS,
        factories=Factories(relay=peer, replica=peer, worker=f"{__name__}:make_worker_peer"),
    )
    for term in (1, 2):
        machine = asyncio.run(backend.rollout_machine(term, member, {}))
        parts = ("replica-0", "replica-1", "worker")
        actors = [ray.get_actor(f"{job.name}/rollout-0.3/{part}", job.name) for part in parts]
        first, second = (ray.get(actor.call.remote("accelerators")).value for actor in actors[:2])
        its = ray.get(actors[2].call.remote("adopted")).value
        assert machine.shares_accelerators
        assert len(first) == len(second) == 1
        assert first != second
        assert its == [*first, *second]
    asyncio.run(backend.release(member))


@pytest.mark.engine
def test_the_next_coordinator_finds_the_same_processes(ray_cluster, tmp_path):
    """Of one incarnation; the next incarnation of the machine has actors of its own."""
    import ray

    from rljob_runtime.ray_backend.actors import ActorPlacement
    from rljob_runtime.ray_backend.backend import Factories, RayBackend

    manifest = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    manifest["spec"]["streamTraining"] = {"enabled": True}
    manifest["spec"]["rollout"]["machines"] = 2
    job = load(manifest)
    member = Member(machine="rollout-0", incarnation=1, ip="127.0.0.1", role=Role.ROLLOUT)
    placement = ActorPlacement(*[tmp_path] * 5)
    peer = f"{__name__}:make_peer"

    def found(term, member):
        """Process ids of what a coordinator, which has nothing but the job, finds or makes."""
        backend = RayBackend(
            job,
            placement,
            resource_of=lambda _: "rollout-0.1",
            timeouts=BOUNDS,
            factories=Factories(relay=peer, replica=peer, worker=peer),
        )
        asyncio.run(backend.rollout_machine(term, member, {}))
        machine = f"{job.name}/rollout-0.{member.incarnation}"
        actors = [ray.get_actor(f"{machine}/{part}", job.name) for part in ("relay", "worker", "replica-0")]
        return [ray.get(actor.call.remote("pid")).value for actor in actors], backend

    first, _ = found(1, member)
    again, backend = found(2, member)
    replaced, successor = found(2, member.model_copy(update={"incarnation": 2}))
    assert again == first
    assert not set(replaced) & set(first)
    asyncio.run(backend.release(member))
    asyncio.run(successor.release(member.model_copy(update={"incarnation": 2})))


@pytest.mark.engine
def test_a_trainer_is_found_where_it_was_made_and_looking_makes_none(ray_cluster, tmp_path):
    from rljob_runtime.ray_backend.actors import ActorPlacement
    from rljob_runtime.ray_backend.backend import Factories, RayBackend

    job = load(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")))
    member = Member(machine="trainer-0", incarnation=1, ip="127.0.0.1", role=Role.TRAINER)
    later = member.model_copy(update={"incarnation": 2})

    def backend():
        factories = Factories(rank=f"{__name__}:make_peer")
        return RayBackend(job, ActorPlacement(*[tmp_path] * 5), lambda _: "rollout-0.1", BOUNDS, factories)

    def there(*members):
        return asyncio.run(backend().has_trainer(members))

    assert [there(member), there(member)] == [False, False]
    asyncio.run(backend().trainer(1, [member]))
    assert [there(member), there(later), there(member, later)] == [True, False, False]
    asyncio.run(backend().release(member))
    end = time.monotonic() + 20
    while there(member):
        assert time.monotonic() < end, "it is found though it has ended"
        time.sleep(0.1)


NEVER_MADE = """
import sys, time, ray

@ray.remote
class ActorHost:
    def __init__(self, late): ...

@ray.remote(num_cpus=0)
def late():
    time.sleep(3600)

ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False)
for name in sys.argv[3:]:
    ActorHost.options(name=name, lifetime="detached", num_cpus=0).remote(late.remote())
print("registered", flush=True)
sys.stdin.read()
"""


@pytest.mark.engine
def test_an_actor_that_was_only_registered_is_made_again(ray_cluster, tmp_path):
    """It was cut off in the middle of making it. Ray keeps the name, and never makes the process."""
    import ray

    from rljob_runtime.ray_backend.actors import ActorPlacement
    from rljob_runtime.ray_backend.backend import Factories, RayBackend

    job = load(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")))
    member = Member(machine="rollout-0", incarnation=7, ip="127.0.0.1", role=Role.ROLLOUT)
    trainer = Member(machine="trainer-0", incarnation=7, ip="127.0.0.1", role=Role.TRAINER)
    peer = f"{__name__}:make_peer"
    factories = Factories(relay=peer, replica=peer, worker=peer, rank=peer)
    backend = RayBackend(job, ActorPlacement(*[tmp_path] * 5), lambda _: "rollout-0.1", BOUNDS, factories)
    names = [f"{job.name}/rollout-0.7/relay", f"{job.name}/trainer-0.7/rank-0"]

    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", NEVER_MADE, address, job.name, *names]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as former:
        try:
            assert former.stdout is not None
            assert former.stdout.readline() == b"registered\n"
            former.send_signal(signal.SIGSTOP)  # Ray's tables of a head that ended with its driver say the same
            for name in names:
                ray.get_actor(name, job.name)  # it is found
            assert not asyncio.run(backend.has_trainer([trainer]))
            asyncio.run(asyncio.wait_for(backend.rollout_machine(2, member, {}), 60))
            asyncio.run(asyncio.wait_for(backend.trainer(2, [trainer]), 60))
        finally:
            former.kill()
    asyncio.run(backend.release(member))
    asyncio.run(backend.release(trainer))
