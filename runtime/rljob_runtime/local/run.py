"""Local run: `rljob run`, from a manifest to a trained model on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_api import RLJob
from rljob_api.constants import ENGINE_MISMATCH
from rljob_api.status import RLJobStatus, RoundReport, RuntimeStatus, StatusWarning
from rljob_runtime.coordinator.build import Folders, run_job
from rljob_runtime.coordinator.coordinator import Coordinator
from rljob_runtime.coordinator.inputs import LazyRewards
from rljob_runtime.data.job_prompts import tokenizer_folder
from rljob_runtime.local.blocking import Interrupt, run_blocking
from rljob_runtime.local.control_plane import LocalControlPlane
from rljob_runtime.local.environments import EnvironmentFolders, LocalEnvironments
from rljob_runtime.local.run_folder import Change, FolderRefused, hold, relay_key
from rljob_runtime.models.source import cache_folder
from rljob_runtime.protocols import TrainReport
from rljob_runtime.ray_backend.actors import ActorPlacement
from rljob_runtime.ray_backend.backend import RayBackend
from rljob_runtime.ray_backend.local_ray import LocalRay, local_ray
from rljob_runtime.relay.segment import SHARED_MEMORY
from rljob_runtime.training.spec_advantages import advantages_of

log = logging.getLogger(__name__)


def run(
    job: RLJob,
    workdir: Path,
    on_progress: Callable[[RuntimeStatus], None] = lambda status: None,
    on_round: Callable[[RoundReport, TrainReport], None] = lambda report, trained: None,
    on_changes: Callable[[Sequence[Change]], None] = lambda changes: None,
    manifest: Path = Path(),
    on_interrupt: Callable[[], None] = lambda: None,
) -> RuntimeStatus:
    """Run the job to its end and return its last `status.runtime`; `finished` is None if it was interrupted.

    All state is below `workdir`: a second call continues where the first stopped, and `on_changes` receives the fields
    of the spec that differ since then. SIGINT and SIGTERM stop the run cleanly, and `on_interrupt` is called. In a
    notebook, interrupting the cell does. `manifest`: the folder in which commands of environments begin.
    Raises `FolderRefused` or `StoreUnusable` if the folder cannot be used, `RayFailed`, `ProcessFailed` if a process of
    an environment cannot work, and `EndedEarly` after a second interrupt.
    """
    with hold(workdir.resolve(), job) as folder:
        on_changes(folder.changes)
        job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": folder.uid})})
        interrupt = Interrupt()
        with (
            interrupt.twice_is_early(),
            local_places(folder.path, SHARED_MEMORY / f"rljob-{folder.uid}") as placement,
            _log_to(folder.path / "coordinator.log"),
            local_ray(job) as node,
        ):
            tell = _Callbacks(on_progress, on_round, on_interrupt)
            return run_blocking(_run(job, placement, node, tell, interrupt, manifest), interrupt)


@dataclass(frozen=True)
class _Callbacks:
    """Functions of the caller."""

    progress: Callable[[RuntimeStatus], None] = lambda status: None
    round: Callable[[RoundReport, TrainReport], None] = lambda report, trained: None
    interrupt: Callable[[], None] = lambda: None


@contextlib.contextmanager
def local_places(folder: Path, shared: Path) -> Iterator[ActorPlacement]:
    """Yield folders with state below `folder` and weights in `shared`, which no other run uses.

    Files of a killed run in `shared` are removed first, and all files at the end.
    """
    placement = ActorPlacement(
        shared_memory=shared,
        scratch=folder / "scratch",
        models=cache_folder(),
        volume=folder,
        relay_key=relay_key(folder),
    )
    shutil.rmtree(shared, ignore_errors=True)
    try:
        shared.mkdir(mode=0o700)
    except OSError as error:
        raise FolderRefused(f"{shared}: cannot be created: {error.strerror}; it must hold the weights") from None
    try:
        yield placement
    finally:
        shutil.rmtree(shared, ignore_errors=True)


async def _run(
    job: RLJob,
    placement: ActorPlacement,
    node: LocalRay,
    tell: _Callbacks,
    interrupt: Interrupt,
    manifest: Path = Path(),
) -> RuntimeStatus:
    watch = _Watch(tell, interrupt)
    control = LocalControlPlane(job, watch.show)
    backend = RayBackend(job, placement, resource_of=lambda member: member.machine)
    rewards = LazyRewards(job.spec)
    folders = Folders(placement.volume, placement.scratch)
    places = EnvironmentFolders(placement.volume, tokenizer_folder(placement.scratch), manifest)
    environments = LocalEnvironments(job, places)
    playing = run_job(
        job,
        rewards,
        control,
        backend,
        folders,
        term=1,
        advantages=advantages_of(job.spec),
        observers=[watch.observe, environments.observe],
        on_start=watch.started,
        serve_episodes=lambda book: environments.serve(book.turns, book.runners),
    )
    await _run_until_one_ends(playing, node, environments)
    return control.status.runtime or RuntimeStatus()


class _Watch:
    """Passes on what the coordinator reports, and stops it on an interrupt or when the run cannot go on."""

    def __init__(self, tell: _Callbacks, interrupt: Interrupt) -> None:
        self._tell = tell
        self._interrupt = interrupt
        self._coordinator: Coordinator | None = None

    def started(self, coordinator: Coordinator) -> None:
        """Watch the coordinator that has started."""
        self._coordinator = coordinator
        self._interrupt.calls(self._stop)

    def _stop(self) -> None:
        assert self._coordinator is not None
        self._tell.interrupt()
        self._coordinator.stop()

    def observe(self, report: RoundReport, trained: TrainReport) -> StatusWarning | None:
        """Pass on a round."""
        self._tell.round(report, trained)
        return None

    def show(self, status: RLJobStatus) -> None:
        """Pass on a status."""
        if status.runtime is None:
            return
        self._tell.progress(status.runtime)
        # A local run cannot be edited while it is blocked: it ends, and its warnings give the reason.
        blocked = any(problem.reason == ENGINE_MISMATCH for problem in status.runtime.warnings)
        if blocked and self._coordinator is not None:
            self._coordinator.stop()


async def _run_until_one_ends(
    job: Coroutine[object, object, object], node: LocalRay, environments: LocalEnvironments
) -> None:
    """Run a job to its end. Raises `RayFailed` or `ProcessFailed` if Ray or a process of an environment ends first."""
    playing = asyncio.create_task(job)
    ended, failed = asyncio.create_task(node.ended()), asyncio.create_task(environments.failed())
    try:
        await asyncio.wait({playing, ended, failed}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        if not playing.done():
            name = ended.result()
            raise node.failure(f"Ray's {name} has ended, and all actors with it", f"{name}.*")
        playing.result()
    finally:
        for task in (playing, ended, failed):
            task.cancel()
        await asyncio.gather(playing, ended, failed, return_exceptions=True)


class _LogFile(logging.FileHandler):
    """A log file that says once that it cannot be written, as on a full disk, and prints no traceback."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Print the error, the first time."""
        if not self._told:
            self._told = True
            print(f"{self.baseFilename}: cannot be written: {sys.exc_info()[1]}; the run goes on", file=sys.stderr)


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("rljob_runtime")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
