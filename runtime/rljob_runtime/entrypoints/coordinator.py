"""Coordinator container: holds the Lease, and runs the coordinator as a driver of the Ray head in the same pod."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import ray
from prometheus_client import CollectorRegistry
from ray._private import services

from rljob_api import RLJob
from rljob_api.constants import (
    GATEWAY_DIR,
    GATEWAY_KEYS_DIR,
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
from rljob_kube.connection import in_cluster
from rljob_kube.credentials import Credentials
from rljob_runtime.coordinator.build import Folders, run_job
from rljob_runtime.coordinator.control_plane.confirmed_term import ConfirmedBackend
from rljob_runtime.coordinator.control_plane.kubernetes import KubernetesControlPlane
from rljob_runtime.coordinator.control_plane.lease import LeaseLost, TermLease
from rljob_runtime.coordinator.control_plane.pod_client import ApiClient
from rljob_runtime.coordinator.coordinator import Coordinator
from rljob_runtime.coordinator.core.async_utils import alongside, in_daemon_thread
from rljob_runtime.coordinator.core.event_loop_lag import EventLoopLag
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.inputs import LazyRewards
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.samples.attempt_lines import AttemptLines
from rljob_runtime.coordinator.store.opening import EarlyReports
from rljob_runtime.entrypoints.health import serve
from rljob_runtime.entrypoints.pod_env import RELAY_KEY, Identity
from rljob_runtime.entrypoints.pod_gateway import PodGateway
from rljob_runtime.entrypoints.ray_head import HeadClient
from rljob_runtime.entrypoints.ray_node import NodeEnded, tables_held
from rljob_runtime.entrypoints.sample_server import sample_routes
from rljob_runtime.ray_backend.actors import ActorPlacement
from rljob_runtime.ray_backend.backend import RayBackend
from rljob_runtime.relay.relay import read_key
from rljob_runtime.rewards import RewardServerClient
from rljob_runtime.training.spec_advantages import advantages_of

log = logging.getLogger(__name__)

CONNECT_SECONDS = 300.0
"""Longest wait for the head to accept its driver."""
SCRATCH = Path(TMP_DIR) / "rljob"
"""Folder of what the coordinator may lose."""
TABLES_SECONDS = 1.0
"""Interval at which Ray's tables are checked."""


async def run(identity: Identity) -> int:
    """Run until the job is finished or SIGTERM; return 0 unless something failed.

    Raises `LeaseLost` if the Lease could not be renewed. This process then holds nothing of the job, and the program
    that follows it waits for the Lease.
    """
    head = HeadClient()
    metrics, started = CoordinatorMetrics(CollectorRegistry()), asyncio.Event()
    attempts = AttemptLines()
    watch = EventLoopLag()
    metrics.watch_loop(lambda: watch.longest_seconds)

    def why_not_ready() -> str | None:
        if not (head.up and started.is_set()):
            return "the coordinator is starting"
        if reward_server is not None and not reward_server.connected:
            return "the rewards container is absent"
        return gateway.why_not_ready() if gateway is not None else None

    async with (
        serve(
            identity.pod_ip,
            why_not_ready,
            metrics.registry,
            routes=sample_routes(Path(STATE_DIR), read_key(RELAY_KEY), attempts),
        ),
        ApiClient.opened(Credentials(in_cluster()), on_request=metrics.count_request) as client,
    ):
        control = KubernetesControlPlane(client, identity.namespace, identity.job)
        lease = TermLease(client, identity.namespace, identity.job, identity.pod, lambda: datetime.now(UTC))
        job = await control.job()
        # If a later pod holds the Lease, do not wait for its tables and its store.
        await lease.wait_for_server()
        await _wait_for_tables(Path(STATE_DIR) / RAY_TABLES, job, control)
        reward_server = RewardServerClient(Path(REWARDS_SOCKET)) if job.spec.rewards_apart else None
        gateway = _gateway(job, identity) if job.spec.environments else None
        needed = [_head(head), control.run(), watch.run()]
        if reward_server is not None:
            needed.append(reward_server.watch())

        async def lead() -> int:
            # Take the Lease after this: a connecting driver may hold the interpreter for longer than a Lease lasts.
            await _connect(identity, head)
            term = await lease.take()
            code = await alongside(
                _coordinate(job, identity, control, lease, term, metrics, started, reward_server, gateway, attempts),
                lease.keep(),
            )
            await lease.release()
            return code

        with _disconnect_from_ray():
            return await alongside(lead(), *needed)


@contextlib.contextmanager
def _disconnect_from_ray() -> Iterator[None]:
    """Disconnect the driver from Ray, unless the Lease was lost or the head has ended.

    Disconnecting takes seconds. After a lost Lease there is no time: the next program must hold the Lease before the
    operator takes the silence for the coordinator's end. A head that has ended answers no goodbye.
    """
    in_time = True
    try:
        yield
    except (LeaseLost, NodeEnded):
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
    reward_server: RewardServerClient | None,
    gateway: PodGateway | None,
    attempts: AttemptLines,
) -> int:
    placement = ActorPlacement(
        shared_memory=Path(SHM_DIR) / f"rljob-{identity.uid}",
        scratch=SCRATCH,
        # On the checkpoint volume: a replaced or resumed trainer finds its model unpacked.
        models=Path(STATE_DIR) / "models",
        volume=Path(STATE_DIR),
        relay_key=RELAY_KEY,
    )
    backend = RayBackend(job, placement, resource_of=lambda member: f"{member.machine}.{member.incarnation}")

    def on_start(coordinator: Coordinator) -> None:
        # From here on SIGTERM requests a stop and does not end the process.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, coordinator.stop)
        metrics.watch_layouts(coordinator.layout_stats)
        started.set()

    folders = Folders(Path(STATE_DIR), placement.scratch)
    rewards = LazyRewards(job.spec, reward_server)
    metrics.watch_rewards(rewards.figures)
    finished = await run_job(
        job,
        rewards,
        control,
        ConfirmedBackend(backend, lease.confirm),
        folders,
        term,
        advantages_of(job.spec),
        observers=[metrics.round],
        on_report=metrics.status,
        on_start=on_start,
        # A process that holds the store will end: this pod would not have the Lease otherwise.
        patience=math.inf,
        serve_episodes=gateway.serve if gateway is not None else None,
        serve_store=attempts.reading,
    )
    return 1 if finished is not None and finished.outcome is FinishedOutcome.FAILED else 0


def _gateway(job: RLJob, identity: Identity) -> PodGateway:
    return PodGateway(job, identity.pod_ip, SCRATCH, Path(GATEWAY_DIR), Path(GATEWAY_KEYS_DIR))


async def _head(head: HeadClient) -> None:
    await head.run()
    why = f"ray's head ended: see container {HEAD_CONTAINER}; the next pod uses its tables"
    # What the coordinator ends first may wait for the head for longer than its pod lasts.
    log.error(why)
    raise NodeEnded(why)


async def _wait_for_tables(storage: Path, job: RLJob, control: KubernetesControlPlane) -> None:
    """Wait until Ray's tables are free. An unreachable earlier coordinator releases them when its Lease expires."""
    early = EarlyReports(control, job.status.runtime, Settings.of(job).back_off)
    async with early.written():
        while held := await asyncio.to_thread(tables_held, storage):
            early.tell(STORE_HELD, f"{held}: another head has Ray's tables. The coordinator waits for its end")
            await asyncio.sleep(TABLES_SECONDS)


async def _connect(identity: Identity, head: HeadClient) -> None:
    """Connect as a driver to the head in this pod. Raises `NodeEnded` if the head does not come up."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            while True:
                if not head.joined:
                    # A driver that connects too early only fails after more than a minute.
                    await asyncio.sleep(0.2)
                    continue
                try:
                    await in_daemon_thread(functools.partial(_init_driver, identity, head.node_id), "driver")
                    return
                except (ConnectionError, RuntimeError, ValueError) as error:
                    log.info("the head does not answer yet: %s", error)
                    await asyncio.sleep(1.0)
    except TimeoutError as error:
        within = f"within {CONNECT_SECONDS:g} s"
        raise NodeEnded(f"ray's head does not answer {within}: see container {HEAD_CONTAINER}") from error


def _init_driver(identity: Identity, node_id: str) -> None:
    # Ray searches its raylet among the visible processes, but that raylet runs in another container.
    """Initialise Ray's driver with the raylet's id."""
    services.find_node_ids = lambda: {node_id}
    ray.init(
        address=f"{identity.pod_ip}:{RAY_PORT}",
        namespace=identity.job,
        log_to_driver=False,
        configure_logging=False,
    )
