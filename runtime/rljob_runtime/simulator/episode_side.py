"""Episode side: what a simulated job with environments has beside its coordinators: gateway, runners and records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rljob_api.spec.environments import EnvironmentState, EpisodeVersions
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.episodes.book import BookRules, EpisodeBook
from rljob_runtime.coordinator.episodes.episodes import Episodes, ManyTurns, SingleTurns
from rljob_runtime.coordinator.episodes.runner_service import RunnerRules
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.simulator.core.events import Observe
from rljob_runtime.simulator.core.network import LIFE, CoordinatorIncarnation
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.core.tokens import digest
from rljob_runtime.simulator.peers.gateway import RunnerDoor, SimulatedGateway
from rljob_runtime.simulator.peers.harness import HarnessScript
from rljob_runtime.simulator.peers.inputs import SimulatedPrompts
from rljob_runtime.simulator.peers.runners import RunnerProcess, SimulatedRunners
from rljob_runtime.simulator.peers.traced_harness import TracedScript

RUNNERS = 2
"""Runners of each environment."""


@dataclass(frozen=True)
class Environment:
    """An environment of a scenario. `max_turns`, `seconds`: its limits, which harnesses do not know."""

    harness: HarnessScript
    max_turns: int = 16
    seconds: float = 300.0
    state: EnvironmentState | None = None
    """Of its tools, whose calls its runners report. None: its episodes are played by a program."""

    def to_spec(self, name: str) -> dict[str, object]:
        """Return the fields of the spec."""
        tools = {"kind": "Tools", "tools": [{"function": "tools.py:call"}], "state": self.state}
        return {
            "name": name,
            **({"kind": "Agent", "command": ["harness"]} if self.state is None else tools),
            "maxTurns": self.max_turns,
            "timeoutSeconds": self.seconds,
            "runners": RUNNERS,
        }


@dataclass(frozen=True)
class EpisodeScenario:
    """The environments of a scenario, the limits of each episode, and the versions of its turns."""

    environments: tuple[Environment, ...]
    max_tokens: int | None = None
    max_forks: int | None = None
    rules: RunnerRules = field(default_factory=RunnerRules)
    versions: EpisodeVersions = EpisodeVersions.SINGLE

    @property
    def named(self) -> Mapping[str, Environment]:
        """The environments by name."""
        return {f"environment-{number}": one for number, one in enumerate(self.environments)}

    @property
    def plays_workload(self) -> bool:
        """Whether the turns are those of a workload, so that harnesses know their lengths."""
        return any(isinstance(one.harness, TracedScript) for one in self.environments)

    @property
    def runners(self) -> int:
        """The number of runners of all environments."""
        return RUNNERS * len(self.environments)

    def to_spec(self) -> dict[str, object]:
        """Return the sections of the spec."""
        fields: dict[str, object] = {
            "maxTokens": self.max_tokens,
            "maxForks": self.max_forks,
            "versions": self.versions.value,
        }
        return {
            "environments": [one.to_spec(name) for name, one in self.named.items()],
            "episode": {name: value for name, value in fields.items() if value is not None},
        }


class EpisodePrompts(SimulatedPrompts):
    """Prompts whose records name an environment."""

    environments: tuple[str, ...] = ()

    def environment(self, key: PromptKey) -> str:
        """Return the environment of a prompt."""
        return self.environments[digest("environment", str(key)) % len(self.environments)]

    async def record(self, key: PromptKey) -> Mapping[str, object]:
        """Return a stand-in record."""
        return {"prompt": str(key)}


class EpisodeSide:
    """Gateway and runners of a run, which outlive its coordinators; none without environments.

    `fail` receives an error that no call may raise."""

    def __init__(
        self,
        scenario: EpisodeScenario | None,
        settings: Settings,
        latency: float,
        observe: Observe,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.gateway = SimulatedGateway(settings.seed, latency, fail)
        self._fail = fail
        self._books: dict[CoordinatorIncarnation, EpisodeBook] = {}
        named = {} if scenario is None else scenario.named
        self._rules = BookRules(
            settings.environments, settings.seed, RunnerRules() if scenario is None else scenario.rules
        )
        self.runners = [
            SimulatedRunners(
                name,
                one.harness,
                lambda process: RunnerDoor(self.gateway, process.condition),
                [f"runner-{RUNNERS * number + index}" for index in range(RUNNERS)],
                observe,
                settings.environments[name].recovery,
            )
            for number, (name, one) in enumerate(named.items())
        ]

    def runner(self, name: str) -> RunnerProcess:
        """Return the runner of this name."""
        return next(one for group in self.runners for one in group.processes if one.name == name)

    def of_coordinator(self, store: StoreAccess) -> Episodes:
        """Return the episodes of the new coordinator whose task this is."""
        life = LIFE.get()
        if not self._rules.environments or life is None:
            return SingleTurns()
        book = self._books[life] = EpisodeBook(store, self._rules, loop_time)
        return ManyTurns(book)

    def opened(self, prompts: EpisodePrompts) -> None:
        """Let runners reach the coordinator whose task this is: its prompts are open."""
        life = LIFE.get()
        if life is not None and (book := self._books.get(life)) is not None:
            prompts.environments = tuple(self._rules.environments)
            book.use_prompts(prompts)
            self.gateway.open(life, book)

    def close(self, life: CoordinatorIncarnation) -> None:
        """End the calls of a coordinator that is no more."""
        self.gateway.close(life)
        self._books.pop(life, None)

    def start(self) -> list[asyncio.Task[None]]:
        """Run all runners until cancelled."""
        tasks = [asyncio.create_task(runners.run()) for runners in self.runners]
        for task in tasks:
            task.add_done_callback(self._ended)
        return tasks

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
