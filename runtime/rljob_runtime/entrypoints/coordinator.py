"""The coordinator's container: the office (Lease), and the coordinator itself, a driver of the Ray head beside it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import ray
from prometheus_client import CollectorRegistry
from ray._private import services

from rljob_api import RLJob
from rljob_api.constants import (
    HEAD_CONTAINER,
    RAY_PORT,
    RAY_TABLES,
    REWARDS_SOCKET,
    SHM_DIR,
    STATE_DIR,
    STORE_HELD,
    TMP_DIR,
)
from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.build import Folders, run_job
from rljob_runtime.coordinator.control_plane.confirmed_term import ConfirmedBackend
from rljob_runtime.coordinator.control_plane.kubernetes import KubernetesControlPlane
from rljob_runtime.coordinator.control_plane.lease import LeaseLost, TermLease
from rljob_runtime.coordinator.control_plane.pod_client import ApiClient, Server
from rljob_runtime.coordinator.coordinator import Coordinator
from rljob_runtime.coordinator.core.async_utils import alongside
from rljob_runtime.coordinator.core.event_loop_lag import EventLoopLag
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.inputs import LazyRewards
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.store.opening import EarlyReports
from rljob_runtime.entrypoints.health import serve
from rljob_runtime.entrypoints.pod_env import RELAY_KEY, Identity
from rljob_runtime.entrypoints.ray_head import HeadApart
from rljob_runtime.entrypoints.ray_node import NodeEnded, tables_held
from rljob_runtime.ray_backend.actors import ActorPlacement
from rljob_runtime.ray_backend.backend import RayBackend
from rljob_runtime.rewards import Elsewhere

log = logging.getLogger(__name__)

CONNECT_SECONDS = 300.0
"""Until the head answers its own driver."""
TABLES_SECONDS = 1.0
"""Between looks whether Ray's tables are free."""


async def run(identity: Identity) -> int:
    """Until the job is finished or SIGTERM came; 0 unless something broke. Raises `LeaseLost` when it could not renew
    its Lease: nothing of the job's is held here any more, and the program that follows this one stands by."""
    head = HeadApart()
    metrics, started = CoordinatorMetrics(CollectorRegistry()), asyncio.Event()
    watch = EventLoopLag()
    metrics.watch_loop(lambda: watch.longest_seconds)

    def why_not_ready() -> str | None:
        if not (head.up and started.is_set()):
            return "the coordinator is starting"
        return None if elsewhere is None or elsewhere.there else "the container rewards is not there"

    async with serve(identity.pod_ip, why_not_ready, metrics.registry), ApiClient(Server.in_cluster()) as client:
        control = KubernetesControlPlane(client, identity.namespace, identity.job)
        lease = TermLease(client, identity.namespace, identity.job, identity.pod, lambda: datetime.now(UTC))
        job = await control.job()
        # Where a later pod is in office, its tables and its store are not waited for.
        await lease.wait_for_server()
        await _wait_for_tables(Path(STATE_DIR) / RAY_TABLES, job, control)
        elsewhere = Elsewhere(Path(REWARDS_SOCKET)) if job.spec.rewards_apart else None
        needed = [_head(head), control.run(), watch.run()]
        if elsewhere is not None:
            needed.append(elsewhere.watch())

        async def in_office() -> int:
            # Not before: while a driver connects it may hold the interpreter for longer than a Lease lasts.
            await _connect(identity, head)
            term = await lease.take()
            code = await alongside(
                _coordinate(job, identity, control, lease, term, metrics, started, elsewhere), lease.keep()
            )
            await lease.release()
            return code

        with _goodbye():
            return await alongside(in_office(), *needed)


@contextlib.contextmanager
def _goodbye() -> Iterator[None]:
    """Let Ray know that this driver ends. It takes seconds, for which whoever lost its Lease has no time: the program
    that follows it must be in office before the operator takes its silence for its end."""
    in_time = True
    try:
        yield
    except LeaseLost:
        in_time = False
        raise
    finally:
        if in_time and ray.is_initialized():
            ray.shutdown()


async def _coordinate(
    job: RLJob,
    identity: Identity,
    control: KubernetesControlPlane,
    lease: TermLease,
    term: int,
    metrics: CoordinatorMetrics,
    started: asyncio.Event,
    elsewhere: Elsewhere | None,
) -> int:
    places = ActorPlacement(
        shared_memory=Path(SHM_DIR) / f"rljob-{identity.uid}",
        scratch=Path(TMP_DIR) / "rljob",
        # Beside the checkpoints: a trainer that is replaced or resumed finds its model unpacked.
        models=Path(STATE_DIR) / "models",
        volume=Path(STATE_DIR),
        relay_key=RELAY_KEY,
    )
    binding = RayBackend(job, places, resource_of=lambda member: f"{member.machine}.{member.incarnation}")

    def on_start(coordinator: Coordinator) -> None:
        # From here on SIGTERM is a request to stop, not the end.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, coordinator.stop)
        started.set()

    folders = Folders(Path(STATE_DIR), places.scratch)
    rewards = LazyRewards(job.spec, elsewhere)
    metrics.watch_rewards(rewards.figures)
    finished = await run_job(
        job,
        rewards,
        control,
        ConfirmedBackend(binding, lease.confirm),
        folders,
        term,
        observers=[metrics.round],
        on_report=metrics.status,
        on_start=on_start,
        # Whoever has it will end: nobody takes a Lease that another pod renews.
        patience=math.inf,
    )
    return 1 if finished is not None and finished.outcome is FinishedOutcome.FAILED else 0


async def _head(head: HeadApart) -> None:
    await head.run()
    raise NodeEnded(f"ray's head ended: see container {HEAD_CONTAINER}; the next pod takes up its tables")


async def _wait_for_tables(storage: Path, job: RLJob, control: KubernetesControlPlane) -> None:
    """A former coordinator that cannot be reached lets go of Ray's tables when its Lease has expired."""
    early = EarlyReports(control, job.status.runtime, Settings.of(job).back_off)
    async with early.written():
        while held := await asyncio.to_thread(tables_held, storage):
            early.tell(STORE_HELD, f"{held}: another head has Ray's tables. The coordinator waits for its end")
            await asyncio.sleep(TABLES_SECONDS)


async def _connect(identity: Identity, head: HeadApart) -> None:
    """Become a driver of the head beside us. Raises `NodeEnded` when it does not come up."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            while True:
                if not head.joined:
                    # A driver that comes too early waits for more than a minute before it says so.
                    await asyncio.sleep(0.2)
                    continue
                try:
                    await _aside(functools.partial(_drive, identity, head.node_id))
                    return
                except (ConnectionError, RuntimeError, ValueError) as error:
                    log.info("the head does not answer yet: %s", error)
                    await asyncio.sleep(1.0)
    except TimeoutError as error:
        within = f"within {CONNECT_SECONDS:g} s"
        raise NodeEnded(f"ray's head does not answer {within}: see container {HEAD_CONTAINER}") from error


def _drive(identity: Identity, node_id: str) -> None:
    # Ray looks for its raylet among the processes that it sees, and this one is another container's.
    services.find_node_ids = lambda: {node_id}
    ray.init(
        address=f"{identity.pod_ip}:{RAY_PORT}",
        namespace=identity.job,
        log_to_driver=False,
        configure_logging=False,
    )


async def _aside(work: Callable[[], None]) -> None:
    """Run blocking work in a thread that the end of the process does not wait for: a driver whose head has died goes on
    trying for `HEAD_ABSENCE_SECONDS`, and the pod must end so that the next one brings a head."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:  # handed to whoever awaits
            error = raised
        # Nobody listens any more when the loop is closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="driver", daemon=True).start()
    await done
