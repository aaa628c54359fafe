"""Scoring: the reward of an episode by a Python function of the environment's owner, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_env.config import EnvironmentConfig
from rljob_env.episode import Assignment
from rljob_env.failures import Failed, Part
from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.workers import CallFailed, WorkerPool, WorkerSettings
from rljob_env.results import reward_and_metrics


@dataclass(frozen=True)
class Place:
    """Where a program worked: its working directory and its HOME. The reward's function is called with both."""

    folder: Path
    home: Path


class Scorer:
    """The reward function of an environment, if it has one. Its time is not the episode's."""

    def __init__(self, config: EnvironmentConfig, root: Path, guard: Guard) -> None:
        self._name = config.reward
        self._seconds = config.reward_seconds
        names = (config.reward,) if config.reward is not None else ()
        self.workers = WorkerPool(WorkerSettings(root, names, config.variables, Part.ENVIRONMENT, guard))

    @property
    def has_function(self) -> bool:
        """Whether the environment has one."""
        return self._name is not None

    async def score(
        self,
        assignment: Assignment,
        messages: Sequence[Mapping[str, Any]],
        answer: str | None,
        place: Place | None = None,
    ) -> tuple[float | None, dict[str, float]]:
        """Return reward and metrics; no reward without a function. Raises `Failed`: a wrong function is no zero."""
        if self._name is None:
            return None, {}
        given = [dict(assignment.record), [dict(message) for message in messages], answer]
        try:
            where = {"folder": str(place.folder), "home": str(place.home)} if place is not None else {}
            return reward_and_metrics(await self.workers.evaluate(self._name, given, self._seconds, where))
        except TimeoutError as error:
            text = f"{self._name} did not return within rewardSeconds ({self._seconds:g} s)"
            raise Failed(Part.ENVIRONMENT, text) from error
        except CallFailed as error:
            raise Failed(Part.ENVIRONMENT, str(error)) from error
        except ValueError as error:
            raise Failed(Part.ENVIRONMENT, f"{self._name}: {error}") from error

    async def close(self) -> None:
        """End its processes."""
        await self.workers.close()
