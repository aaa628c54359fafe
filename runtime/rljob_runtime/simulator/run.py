"""Run: simulates a scenario under a fault plan. The real coordinator restarts after each death, until the job ends."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_api.status import Finished, FinishedOutcome
from rljob_runtime.coordinator.control_plane.confirmed_term import ConfirmedBackend
from rljob_runtime.coordinator.control_plane.lease import LeaseLost, TermLease
from rljob_runtime.coordinator.coordinator import Coordinator, CoordinatorInputs
from rljob_runtime.coordinator.core.async_utils import alongside
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.samples.writer import SampleWriter
from rljob_runtime.coordinator.store.connection import StoreHeld
from rljob_runtime.protocols import PromptSource, StaleTerm
from rljob_runtime.simulator.coordinator_lives import KILLED, CoordinatorLives, end_of
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.event_digest import EventDigest
from rljob_runtime.simulator.core.events import CoordinatorEnded, CoordinatorStarted, Event, Observe, StoreLost
from rljob_runtime.simulator.core.network import LIFE, CoordinatorIncarnation, FaultKind
from rljob_runtime.simulator.core.process_clock import first_of, loop_time
from rljob_runtime.simulator.episode_side import EpisodePrompts, EpisodeSide
from rljob_runtime.simulator.faults.injector import CoordinatorHost, Injector
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.faults.spec_edits import SpecEditSchedule
from rljob_runtime.simulator.final_checks import Outputs, final_faults
from rljob_runtime.simulator.forced_switches import RandomSwitches
from rljob_runtime.simulator.invariants.asynchronous import invariants_of
from rljob_runtime.simulator.invariants.common import Violation
from rljob_runtime.simulator.peers.cluster import SimulatedCluster
from rljob_runtime.simulator.peers.code_rewards import ProgramRewards
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane
from rljob_runtime.simulator.peers.inputs import SimulatedRewards
from rljob_runtime.simulator.peers.job_lease import LOOK_SECONDS, SimulatedLeases, Watch
from rljob_runtime.simulator.peers.observed_store import InlineStore, ObservedStore
from rljob_runtime.simulator.sample_writing import inline, open_writer
from rljob_runtime.simulator.scenario import Scenario
from rljob_runtime.workloads import Workload, open_workload

JOIN_PATIENCE = 5.0
RESTART_SECONDS = 1.0
"""Minimum time from a coordinator's end to the next one's start."""
KILL_SECONDS = 30.0
"""Time from the operator's deletion until the kubelet has killed a hanging pod."""
NEXT_POD_SECONDS = 5.0
"""The same after a graceful deletion: the next pod is created when this one has gone."""
CLOSE_SECONDS = 5.0
"""Time that the clean-up of a coordinator's tasks may take."""


@dataclass(frozen=True)
class SimulationResult:
    """Result of a run. Runs with equal `digest` took the same steps at the same times."""

    violation: Violation | None
    seconds: float
    """Virtual seconds."""
    events: int
    coordinators: int
    digest: str

    @property
    def passed(self) -> bool:
        """Whether every invariant held."""
        return self.violation is None


def simulate(
    scenario: Scenario, plan: FaultPlan, observers: Sequence[Observe] = (), workload: Workload | None = None
) -> SimulationResult:
    """Run until the job ends or an invariant is violated.

    Deterministic in its arguments; it writes one temporary file. `workload`: replaces the scenario's named workload."""
    with tempfile.TemporaryDirectory(prefix="rljob-simulate-") as folder:
        drawn = workload or open_workload(scenario.workload, scenario.seed)
        run = _Run(scenario, plan, Path(folder) / "state.db", observers, drawn)
        try:
            virtual_time.run(run.to_the_end())
        except (virtual_time.Deadlock, virtual_time.Livelock) as error:
            run.fail("the job ends", str(error))
        return run.outcome()


class _Run:
    """The objects of one run."""

    def __init__(
        self, scenario: Scenario, plan: FaultPlan, path: Path, observers: Sequence[Observe], workload: Workload
    ) -> None:
        self._scenario = scenario
        self._plan = plan
        self._path = path
        self._observers = observers
        self._digest = EventDigest()
        self._job = scenario.job
        own = Settings.of(self._job)
        self._settings = replace(
            own if scenario.adapt is None else scenario.adapt(own),
            join_patience=JOIN_PATIENCE,
            poll_wait=scenario.poll_seconds,
            first_responses=scenario.first_responses,
        )
        self._lengths = scenario.lengths(workload)
        self._prompts = EpisodePrompts(
            scenario.prompts_an_epoch,
            self._lengths.prompt,
            {one.name: one.max_prompts for one in self._job.spec.evaluation},
        )
        self._switch_policy = RandomSwitches(scenario.seed) if scenario.switches else None
        """None: the coordinator's own, which the spec decides."""
        self._seconds = 0.0
        self._coordinators = 0
        self._store_lost = False

    # --- results ---

    def outcome(self) -> SimulationResult:
        invariants = self._invariants
        return SimulationResult(
            invariants.broken, self._seconds, invariants.events, self._coordinators, self._digest.text()
        )

    def fail(self, invariant: str, detail: str) -> None:
        """Record a failure that ends the run."""
        if self._invariants.broken is None:
            self._invariants.broken = Violation(invariant, detail, self._seconds, self._invariants.events)

    def _observe(self, event: Event) -> None:
        self._seconds = loop_time()
        self._digest.add(self._seconds, event)
        self._invariants(event)
        for observe in self._observers:
            observe(event)

    # --- the run ---

    async def to_the_end(self) -> None:
        scenario = self._scenario
        asyncio.get_running_loop().set_exception_handler(self._stumbled)
        self._broken = asyncio.Event()
        self._invariants = invariants_of(self._job, scenario.prompts_an_epoch, self._broken.set)
        self._invariants.planned = self._plan.planned
        self._world = SimulatedCluster(
            scenario.seed, replace(scenario.site, lengths=self._lengths.response), scenario.costs, self._observe
        )
        self._control = SimulatedControlPlane(
            self._job,
            scenario.machines,
            scenario.seed,
            scenario.site.latency,
            self._observe,
            scenario.random_layout_changes,
        )
        if scenario.best_model is not None:
            self._world.disk.room = scenario.best_model.room
        self._rewards = self._make_rewards()
        self._host = CoordinatorHost()
        self._lives = CoordinatorLives(self._host)
        self._host.changed = self._lives.apply_faults
        self._leases = SimulatedLeases(self._control)
        self._episodes = EpisodeSide(
            scenario.episodes, self._settings, scenario.site.latency, self._observe, self._episode_failed
        )
        self._pods = 0
        self._former: list[asyncio.Task[Finished | None]] = []
        """Replaced pods that may still be alive."""
        Injector(self._world, self._control, self._rewards, self._host, self._observe, self._episodes).schedule(
            self._plan
        )
        if scenario.edit is not None:
            SpecEditSchedule(self._control, self._world, self._host).schedule(scenario.edit)
        job = asyncio.create_task(self._coordinators_in_turn())
        stop = asyncio.create_task(self._broken.wait())
        runners = self._episodes.start()
        edited = scenario.edit.end if scenario.edit is not None else 0.0
        patience = max(self._plan.end, edited) + scenario.horizon + scenario.patience_seconds
        await asyncio.wait({job, stop}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        self._seconds = loop_time()
        if job.done():
            self._judge(job.result())
        else:
            self.fail("the job ends", f"it has not, {patience:.0f} s after its start")
        for task in (tasks := (job, stop, *runners)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _episode_failed(self, error: BaseException) -> None:
        self.fail("calls of runners are answered", repr(error))
        self._broken.set()

    def _make_rewards(self) -> SimulatedRewards:
        scenario, seconds = self._scenario, self._scenario.reward_seconds
        if scenario.programs is not None:
            return ProgramRewards(scenario.programs, scenario.seed, self._observe)
        return SimulatedRewards(lambda text: seconds, levels=scenario.reward_levels, observe=self._observe)

    def _stumbled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Fail on an exception in a loop callback, which no task would report."""
        if "handle" in context:
            self.fail("the simulator works", f"{context['message']}: {context.get('exception')!r}")
            self._broken.set()
        else:
            loop.default_exception_handler(context)

    def _judge(self, finished: Finished) -> None:
        if finished.outcome is not FinishedOutcome.COMPLETE:
            self.fail("the job ends", f"{finished.outcome}, {finished.reason}: {finished.message}")
        self._invariants.end(self._control.rounds)
        outputs = Outputs(
            self._path, self._job.metadata.uid or "", self._store_lost, self._world.disk, self._control.reports[-1]
        )
        for invariant, fault in final_faults(self._scenario, self._settings, outputs, self._invariants):
            self.fail(invariant, fault)

    async def _coordinators_in_turn(self) -> Finished:
        """Start coordinators as the operator does.

        Another one starts after each that ends before the job's end, or lets its Lease expire."""
        try:
            while True:
                while self._host.absent:
                    await first_of((self._host.returned,), None)
                if self._host.lost_disk:
                    self._lose_store()
                self._pods += 1
                finished = await self._until_replaced(self._pods) or self._control.finished
                if finished is not None:
                    return finished
                await asyncio.sleep(NEXT_POD_SECONDS if self._host.asked.is_set() else RESTART_SECONDS)
        finally:
            for pod in self._former:
                pod.cancel()
            await asyncio.gather(*self._former, return_exceptions=True)

    async def _until_replaced(self, number: int) -> Finished | None:
        """Run a coordinator's pod until it ends or is silent.

        A silent one may be alive, but cut off from the API server."""
        pod = asyncio.create_task(self._one_pod(number))
        silence = asyncio.create_task(self._silence())
        try:
            await asyncio.wait({pod, silence}, return_when=asyncio.FIRST_COMPLETED)
            if pod.done():
                return pod.result()
            silence.result()
        except BaseException:
            pod.cancel()
            raise
        finally:
            silence.cancel()
        condition, api = self._host.condition, self._host.api
        if FaultKind.CUT not in condition and FaultKind.CUT not in api:
            # The kubelet there receives the deletion.
            asyncio.get_running_loop().call_later(KILL_SECONDS, pod.cancel)
        self._former.append(pod)
        self._host.move()
        return None

    async def _silence(self) -> None:
        """Return when the operator has seen the Lease unchanged for its duration."""
        watch = Watch()
        while not watch.silent:
            await asyncio.sleep(LOOK_SECONDS)
            watch.look(self._leases.looks if self._control.answers else None)

    async def _one_pod(self, number: int) -> Finished | None:
        """Run programs in one pod, one after the other.

        After a lost Lease the program starts over and waits as a standby."""
        while True:
            try:
                return await self._one_life(number)
            except LeaseLost:
                await asyncio.sleep(RESTART_SECONDS)
            except StaleTerm:
                return None

    def _lose_store(self) -> None:
        for file in self._path.parent.glob(f"{self._path.name}*"):
            file.unlink()
        self._host.lost_disk, self._store_lost = False, True
        self._observe(StoreLost())

    async def _one_life(self, number: int) -> Finished | None:
        """Run one coordinator.

        Returns None if it was killed, left, or died of a full disk. Raises `LeaseLost` and `StaleTerm`."""
        life, since = self._begin_life(number), loop_time()
        lease, killed = self._leases.of(number), asyncio.create_task(self._host.crashes.wait())
        taking = asyncio.create_task(self._take_term(life, lease))
        tasks: list[asyncio.Task[Any]] = [killed, taking]
        store: ObservedStore | None = None
        try:
            await asyncio.wait({taking, killed}, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                return None
            store, term = taking.result()
            self._coordinators += 1
            self._observe(CoordinatorStarted(term))
            self._lives.opened(life, store)
            access = InlineStore(store, life=life, seconds=self._scenario.store_seconds, seed=self._scenario.seed)
            writer = None
            if self._scenario.samples:
                writer = await open_writer(self._path.parent, access, self._scenario.seed, self._prompts)
                tasks.append(asyncio.create_task(writer.run()))
            coordinator = self._coordinator(lease, access, term, writer)
            work = asyncio.create_task(alongside(coordinator.run(), lease.keep()))
            tasks += [work, asyncio.create_task(self._asked_to_go(coordinator))]
            await asyncio.wait({work, killed}, return_when=asyncio.FIRST_COMPLETED)
            end = end_of(work) if work.done() else KILLED
            if end.fault is not None:
                self.fail("the coordinator lives", end.fault)
                self._broken.set()
            self._observe(CoordinatorEnded(term, end.why, since))
            if writer is not None and end.finished is not None:
                await writer.close()
            if work.done() and isinstance(work.exception(), LeaseLost | StaleTerm):
                work.result()
            return end.finished
        finally:
            life.alive = False
            self._episodes.close(life)
            try:
                await self._end_tasks(tasks)
            finally:
                self._lives.ended(life)
                if store is not None:
                    store.close()

    async def _end_tasks(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Cancel a coordinator's tasks. Their clean-up may wait neither for its store nor for a peer."""
        for task in tasks:
            task.cancel()
        _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        if late:
            self.fail("a coordinator ends", f"its clean-up takes more than {CLOSE_SECONDS:g} s")
            self._broken.set()

    def _begin_life(self, number: int) -> CoordinatorIncarnation:
        """Start the program of this pod."""
        life = CoordinatorIncarnation(self._host.condition, self._host.api)
        if number == self._pods:
            self._world.life = self._control.life = life
            self._host.crashes.clear()
            self._host.asked.clear()
            self._rewards.forget()
        self._lives.begun(life)
        LIFE.set(life)
        return life

    async def _take_term(self, life: CoordinatorIncarnation, lease: TermLease) -> tuple[ObservedStore, int]:
        """Take the Lease, then the store, as `entrypoints.coordinator` and `opening` do.

        Raises `StaleTerm` for a pod that lost the Lease meanwhile."""
        await lease.wait_for_server()
        term = await lease.take()
        return await alongside(self._open_store(term), lease.keep())

    async def _open_store(self, term: int) -> tuple[ObservedStore, int]:
        while True:
            try:
                store = ObservedStore(
                    self._path, self._job.metadata.uid or "", self._observe, self._settings.shares.named
                )
            except StoreHeld:
                await asyncio.sleep(RESTART_SECONDS)
            else:
                return store, store.adopt_term(term)

    async def _asked_to_go(self, coordinator: Coordinator) -> None:
        await self._host.asked.wait()
        coordinator.stop()

    def _coordinator(self, lease: TermLease, store: InlineStore, term: int, writer: SampleWriter | None) -> Coordinator:
        inputs = CoordinatorInputs(
            self._control,
            ConfirmedBackend(self._world, lease.confirm),
            store,
            self._open_prompts,
            self._rewards,
            self._settings,
            term,
            observers=[] if writer is None else [writer.round_closed],
            evaluation_observers=[] if writer is None else [writer.evaluated],
            before=self._control.reports[-1] if self._control.reports else None,
            switch_policy=self._switch_policy,
            apart=inline,
            episodes=self._episodes.of_coordinator(store),
        )
        return Coordinator(inputs)

    async def _open_prompts(self, model_files: dict[str, bytes]) -> PromptSource:
        await asyncio.sleep(self._scenario.prompts_seconds)
        self._episodes.opened(self._prompts)
        return self._prompts
