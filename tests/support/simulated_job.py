"""A whole job under virtual time, in one call, for the tests of this folder."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rljob_api import RLJob, load
from rljob_api.spec.training import Mode
from rljob_api.status import Finished, RoundReport, RuntimeStatus
from rljob_runtime.coordinator.coordinator import Coordinator, CoordinatorInputs
from rljob_runtime.coordinator.core.async_utils import Apart
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.episodes.episodes import Episodes, SingleTurns
from rljob_runtime.coordinator.loop.context import EndObserver, RoundObserver
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.evaluation import EvaluationResult
from rljob_runtime.protocols import PromptSource, Rewards
from rljob_runtime.scheduling.layouts.layout_switch import SwitchPolicy
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import CoordinatorStarted, Event, Observe
from rljob_runtime.simulator.invariants.asynchronous import invariants_of
from rljob_runtime.simulator.peers.cluster import ClusterSpec, SimulatedCluster
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane
from rljob_runtime.simulator.peers.engines.engine_kind import steady
from rljob_runtime.simulator.peers.inputs import SimulatedPrompts, SimulatedRewards
from rljob_runtime.simulator.peers.observed_store import InlineStore, ObservedStore
from rljob_runtime.simulator.sample_writing import inline

ENOUGH = 3600.0
"""Virtual seconds that no condition in a job of a unit test needs."""
LONGEST = 36_000.0
"""Virtual seconds that no such job lasts."""


def job(
    rounds: int = 3,
    prompts: int = 3,
    responses: int = 2,
    machines: int = 2,
    every_rounds: int = 2,
    tail: dict[str, Any] | None = None,
    dynamic: dict[str, Any] | None = None,
    stream: bool | str = False,
    mode: Mode = Mode.ON_POLICY,
    evaluation: Sequence[dict[str, Any]] = (),
    environments: Sequence[dict[str, Any]] = (),
    **more: dict[str, Any],
) -> RLJob:
    """`more`: fields of the spec by section, over those here."""
    spec: dict[str, Any] = {
        "rounds": rounds,
        "mode": mode,
        "model": {"source": "package://rljob/toy"},
        "data": {"prompts": {"reasoningGym": {"task": "basic_arithmetic"}}, "maxResponseTokens": 40, "seed": 7},
        "rewards": [{"name": "right", "kind": "ReasoningGym"}],
        "algorithm": {
            "promptsPerRound": prompts,
            "responsesPerPrompt": responses,
            "dynamicSampling": dynamic or {},
        },
        "tailBatching": tail or {},
        "streamTraining": {"enabled": stream},
        "trainer": {},
        "rollout": {"machines": machines, "engine": "Reference"},
        "checkpoint": {"emptyDir": {}, "everyRounds": every_rounds},
        "environments": list(environments),
        "evaluation": [{"prompts": {"reasoningGym": {"task": "basic_arithmetic"}}, **one} for one in evaluation],
    }
    return load(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "demo", "uid": "uid-1"},
            "spec": {**spec, **{section: {**spec.get(section, {}), **fields} for section, fields in more.items()}},
        }
    )


@dataclass
class Stage:
    """Everything a simulated run needs; survives coordinators, as a cluster does."""

    path: Path
    job: RLJob = field(default_factory=job)
    seed: int = 0
    machines: int = 2
    replicas: int = 1
    sizes: tuple[int, ...] = (1,)
    """Tensor parallel sizes that engines can be laid out with."""
    fails: dict[str, int] = field(default_factory=dict)
    reward_levels: int = 1000
    around: Callable[[str], None] = lambda moment: None
    prompts: SimulatedPrompts | None = None
    """Absent: usual ones, and those of the job's evaluations."""
    rewards: Rewards | None = None
    """In place of the usual ones."""
    observers: list[RoundObserver] = field(default_factory=list)
    """Besides `closed`."""
    switch_policy: SwitchPolicy | None = None
    """In place of the settings' one."""
    apart: Apart = inline
    """Computes decisions."""
    end_observers: Sequence[EndObserver] = ()
    on_opening: Callable[[], None] = lambda: None
    """Called when prompts and rewards are opened; may raise what opening them may raise."""

    def __post_init__(self) -> None:
        evaluations = {one.name: one.max_prompts for one in self.job.spec.evaluation}
        self.source = self.prompts or SimulatedPrompts(evaluations=evaluations)
        self.invariants = invariants_of(self.job, self.source.size)
        self.evaluated: list[EvaluationResult] = []
        self.watchers: list[Observe] = [self.invariants]
        wider = tuple((size, steady(0.02 / size)) for size in self.sizes[1:])
        site = ClusterSpec(self.replicas, tensor_parallel=self.sizes[0], wider=wider, layout_seconds=0.5)
        self.world = SimulatedCluster(self.seed, site, observe=self.observe)
        self.control: SimulatedControlPlane | None = None
        self.term = 0
        self.coordinator: Coordinator | None = None
        self.closed: list[RoundReport] = []
        self.store: Store | None = None

    def observe(self, event: Event) -> None:
        for watch in list(self.watchers):
            watch(event)

    @property
    def rounds(self) -> list[int]:
        """The rounds closed, in order; after a rewind some come again."""
        return [report.round for report in self.closed]

    async def prompts_from(self, model_files: dict[str, bytes]) -> PromptSource:
        assert model_files, "the trainer's files come first"
        self.on_opening()
        return self.source

    def episodes(self, store: StoreAccess) -> Episodes:
        """How the next coordinator generates responses."""
        return SingleTurns()

    async def coordinate(self, **changes: Any) -> Finished | None:
        """One coordinator's life, over whatever is there."""
        if self.control is None:
            self.control = SimulatedControlPlane(self.job, self.machines, observe=self.observe)
        sources = Settings.of(self.job).shares.named
        store = self.store = ObservedStore(self.path, "uid-1", self.observe, sources)
        try:
            self.term = store.adopt_term(self.term)
            self.observe(CoordinatorStarted(self.term))
            access = InlineStore(store, self.around)
            inputs = CoordinatorInputs(
                self.control,
                self.world,
                access,
                self.prompts_from,
                self.rewards or SimulatedRewards(fails=self.fails, levels=self.reward_levels),
                replace(Settings.of(self.job), **{"join_patience": 5.0, **changes}),
                self.term,
                evaluation_observers=[self.evaluated.append],
                observers=[*self.observers, lambda report, trained: self.closed.append(report)],
                on_end=self.end_observers,
                before=self.control.reports[-1] if self.control.reports else None,
                switch_policy=self.switch_policy,
                apart=self.apart,
                episodes=self.episodes(access),
            )
            self.coordinator = Coordinator(inputs)
            return await self.coordinator.run()
        finally:
            store.close()
            assert self.invariants.broken is None, str(self.invariants.broken)
            assert not objects_left_out(self.control.reports)

    def play(self, *meanwhile: Callable[[Stage], Awaitable[None]], **changes: Any) -> Finished | None:
        """Run to the end under virtual time, with these going on beside it."""

        async def program() -> Finished | None:
            tasks = [asyncio.ensure_future(action(self)) for action in meanwhile]
            try:
                # Longer than `until` waits, whose message says more.
                async with asyncio.timeout(LONGEST):
                    result = await self.coordinate(**changes)
            finally:
                for task in tasks:
                    task.cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, Exception) and not isinstance(outcome, asyncio.CancelledError):
                    raise outcome
            return result

        return virtual_time.run(program())

    def trained_ids(self) -> list[str]:
        """Ids the final weights were trained on, in order."""
        trainer = self.world.process("trainer")
        assert trainer is not None
        return [key for step in trainer.peer.history for key in step]


def objects_left_out(reports: list[RuntimeStatus]) -> set[str]:
    """Fields that held an object in one report and nothing in the next: what a user has seen would be gone."""
    held = [{name for name, value in report.to_dict().items() if isinstance(value, dict)} for report in reports]
    return {name for before, after in pairwise(held) for name in before - after}


async def until(condition: Callable[[], bool], tick: float = 0.05) -> None:
    """Return when the condition holds. Fails with the condition's source after `ENOUGH` virtual seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ENOUGH
    while not condition():
        assert loop.time() < deadline, f"not within {ENOUGH} s: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(tick)
