"""Multi-process engine: one engine over several rank processes, forked by the engine slot's fork server.

Each rank runs a complete engine on its part of the model. All ranks receive the same commands in the same order, so all
schedule alike and share no scheduler (vLLM's external launcher). The first rank's answers count. Each step checks that
all ranks made the same tokens.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_runtime.protocols import EngineStats, KvStats
from rljob_runtime.rollout.engines.base import EngineRequest, EngineSettings, KvTicket, StepOutput, seed_of
from rljob_runtime.rollout.engines.rank_processes import ForkServer, RankProcesses
from rljob_runtime.rollout.engines.weights import VersionUnavailable
from rljob_runtime.rollout.kv.kv_file import Held, Index
from rljob_runtime.rollout.kv.layout import KvShape

SHARED_MEMORY = Path("/dev/shm")
GRACE_SECONDS = 30.0
"""Seconds in which the other ranks must answer after one has raised. This suffices to copy the slices of a large model;
a rank that waits for the failed one in a collective never answers."""
PEERS = {kind: f"rljob_runtime.rollout.engines.engine_rank:{kind}Rank" for kind in ("VLLM", "Reference")}
"""Class that the fork server makes in each rank, by engine kind."""


class RankMismatch(RuntimeError):
    """Ranks of one engine that made different tokens, or of which only some could load a version."""


class MultiProcessEngine:
    """`base.SleepableEngine` of `settings.tensor_parallel` ranks.

    Raises the error of any rank whose engine fails to build.
    """

    def __init__(self, fork_server: ForkServer, settings: EngineSettings, devices: Sequence[str] = ()) -> None:
        self.weight_version: int | None = None
        self.busy = False
        self._stats = EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0)
        self._ranks = RankProcesses(fork_server, settings.tensor_parallel, devices, grace=GRACE_SECONDS)
        meeting = f"rljob-ranks-{uuid.uuid4().hex}"
        try:
            with tempfile.TemporaryDirectory(prefix="rljob-ranks-") as folder:
                place = Path(folder) / meeting
                own = [replace(settings, rank=rank, rendezvous=place) for rank in range(settings.tensor_parallel)]
                self._ranks.call_each("build", [(each,) for each in own])
        except BaseException:
            self._ranks.kill()
            raise
        finally:
            # All ranks have mapped the shared files. Unlinked now, the files vanish however the ranks end.
            for path in SHARED_MEMORY.glob(f"*{meeting}*"):
                path.unlink(missing_ok=True)

    def _record(self, state: tuple[bool, EngineStats]) -> None:
        self.busy, self._stats = state

    def check(self, request: EngineRequest) -> None:
        self._ranks.call("check", request)

    def add(self, request: EngineRequest) -> None:
        # The seed is drawn here, once: every rank must sample with the same one.
        self._record(self._ranks.call("add", replace(request, seed=seed_of(request)))[0])

    def step(self) -> list[StepOutput]:
        answers = self._ranks.call("step")
        outputs, _, state = answers[0]
        if len({agreement for _, agreement, _ in answers}) > 1:
            raise RankMismatch(f"the {len(answers)} ranks made different tokens in one step")
        self._record(state)
        made: list[StepOutput] = outputs
        return made

    def abort(self, ids: list[str]) -> None:
        self._record(self._ranks.call("abort", ids)[0])

    def load(self, version: int) -> None:
        before, self.weight_version = self.weight_version, None
        answers: list[tuple[Any, Exception | None]] = self._ranks.results(
            "load", [(version,)] * len(self._ranks.connections)
        )
        errors = [error for _, error in answers if error is not None]
        if len(errors) == len(answers) and all(isinstance(error, VersionUnavailable) for error in errors):
            self.weight_version = before
        if errors:
            raise errors[0]
        self._record(answers[0][0])
        self.weight_version = version

    def sleep(self) -> None:
        self.weight_version = None
        self._record(self._ranks.call("sleep")[0])

    def wake(self) -> None:
        self._ranks.call("wake")

    def kv_shape(self) -> KvShape | None:
        shape: KvShape | None = self._ranks.call("kv_shape")[0]
        return shape

    def kv_held(self, ids: Sequence[str]) -> dict[str, Held]:
        held: dict[str, Held] = self._ranks.call("kv_held", list(ids))[0]
        return held

    def kv_write(self, path: Path, index: Index, names: Mapping[str, str]) -> dict[str, dict[int, int]]:
        written: dict[str, dict[int, int]] = {name: {} for name in names.values()}
        for own in self._ranks.call("kv_write", path, index, dict(names)):
            for name, checksums in own.items():
                written[name] |= checksums
        return written

    def kv_open(self, tickets: Sequence[KvTicket]) -> list[bool]:
        # All ranks schedule alike, so KV that one of them cannot read is used by none.
        return [all(answers) for answers in zip(*self._ranks.call("kv_open", list(tickets)), strict=True)]

    def kv_read(self, tickets: Mapping[str, KvTicket]) -> KvStats:
        ranks: list[KvStats] = self._ranks.call("kv_read", dict(tickets))
        return replace(ranks[0], import_seconds=max(one.import_seconds for one in ranks))

    def stats(self) -> EngineStats:
        return self._stats

    def close(self) -> None:
        self._ranks.close()
