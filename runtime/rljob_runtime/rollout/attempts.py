"""Attempt tracker: which attempt of each trajectory a replica works on. Pure: it decides, the replica acts.

An attempt starts at most once, even after it finished or was aborted. A command repeated because its answer was lost
must not generate twice. The memory is dropped with the weights that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rljob_runtime.protocols import Delta, GenerateRequest
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.rollout.engines.base import StepOutput


@dataclass
class ActiveAttempt:
    """A request in the engine, and the offset of its next token."""

    request: GenerateRequest
    offset: int

    @property
    def engine_id(self) -> str:
        """Name of this attempt inside the engine."""
        return engine_id(self.request.key, self.request.attempt)


@dataclass(frozen=True)
class AdmitResult:
    """What a submit requires of the engine: stop `replaced`, then start `started`."""

    started: tuple[GenerateRequest, ...]
    replaced: tuple[str, ...]


def engine_id(key: TrajectoryKey, attempt: int) -> str:
    """Return the name of one attempt inside the engine."""
    return f"{key}#{attempt}"


class AttemptTracker:
    """Active requests, and the highest attempt of every trajectory under the present weights."""

    def __init__(self) -> None:
        self._active: dict[str, ActiveAttempt] = {}
        self._attempts: dict[TrajectoryKey, int] = {}

    def __len__(self) -> int:
        return len(self._active)

    def admit(self, requests: Iterable[GenerateRequest]) -> AdmitResult:
        """Admit each request whose attempt exceeds all before of its trajectory; others are repeats or late."""
        started: dict[TrajectoryKey, GenerateRequest] = {}
        replaced: list[str] = []
        for request in requests:
            seen = self._attempts.get(request.key)
            if seen is not None and request.attempt <= seen:
                continue
            if seen is not None:
                replaced += self._drop(request.key)
            self._attempts[request.key] = request.attempt
            active = ActiveAttempt(request, len(request.prefix_token_ids))
            self._active[active.engine_id] = active
            started[request.key] = request
        names = {engine_id(r.key, r.attempt) for r in started.values()}
        return AdmitResult(tuple(started.values()), tuple(name for name in replaced if name not in names))

    def active(self, attempts: Mapping[TrajectoryKey, int]) -> dict[str, TrajectoryKey]:
        """Return the requests that `abort` of the same attempts would stop, by their engine ids."""
        found = ((key, self._attempts.get(key, attempt + 1)) for key, attempt in attempts.items())
        names = {engine_id(key, seen): key for key, seen in found if seen <= attempts[key]}
        return {name: key for name, key in names.items() if name in self._active}

    def abort(self, attempts: Mapping[TrajectoryKey, int]) -> list[str]:
        """Drop these trajectories up to these attempts, also attempts still to come; return the engine ids to stop.

        Unknown and finished trajectories are skipped.
        """
        stopped: list[str] = []
        for key, attempt in attempts.items():
            if self._attempts.get(key, 0) <= attempt:
                stopped += self._drop(key)
                self._attempts[key] = attempt
        return stopped

    def deltas(self, outputs: Iterable[StepOutput], weight_version: int) -> list[Delta]:
        """Stamp an engine step's outputs and drop ended requests. Output of inactive requests is dropped."""
        made = []
        for output in outputs:
            active = self._active.get(output.id)
            if active is None:
                continue
            made.append(
                Delta(
                    key=active.request.key,
                    attempt=active.request.attempt,
                    offset=active.offset,
                    token_ids=output.token_ids,
                    logprobs=output.logprobs,
                    weight_version=weight_version,
                    finish_reason=output.finish_reason,
                    cached_tokens=output.cached_tokens,
                )
            )
            active.offset += len(output.token_ids)
            if output.finish_reason is not None:
                del self._active[output.id]
        return made

    def drop_all(self) -> list[str]:
        """Drop all active requests, as an abort of each does; return the engine ids to stop."""
        names = list(self._active)
        self._active.clear()
        return names

    def forget(self) -> None:
        """Forget all attempts for new weights. Raises RuntimeError if any request is active.

        Requests for older weights are refused by their version from then on.
        """
        if self._active:
            raise RuntimeError(f"{len(self._active)} requests are active")
        self._attempts.clear()

    def _drop(self, key: TrajectoryKey) -> list[str]:
        attempt = self._attempts.get(key)
        if attempt is None:
            return []
        name = engine_id(key, attempt)
        return [name] if self._active.pop(name, None) is not None else []
