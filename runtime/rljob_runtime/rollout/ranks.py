"""An engine over rank processes: one layout of one seat, forked warm from the seat's zygote.

Every rank runs the whole engine on its part of the model and hears the same commands in the same order, so all of them
schedule alike and need no scheduler in common (vLLM's external launcher). The first rank's answers count; that the
others made the same tokens is checked at each step. An error of one of them is the engine's, whatever the others wait
for.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rljob_runtime.coordinator.protocols import EngineStats
from rljob_runtime.rollout.engine import EngineRequest, EngineSettings, StepOutput, seed_of
from rljob_runtime.rollout.weights import VersionUnavailable

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
CLOSE_SECONDS = 10.0
"""A rank that is idle ends in far less."""
GRACE_SECONDS = 30.0
"""How long the other ranks may take to answer after one has raised. Enough for the slices of a large model to be
copied; a rank that waits for the failed one in a collective would wait for ever."""


class RankDied(RuntimeError):
    """A rank process ended: what the engine held is lost."""


class RanksDisagree(RuntimeError):
    """The ranks of one engine made different tokens, or one loaded weights that another could not."""


class Zygote:
    """Forks ranks of one kind of engine. Begins to import at once, in the background."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # A group of its own, that it can end as a whole.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rljob_runtime.rollout.zygote", kind, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )

    def fork(self, devices: Sequence[str]) -> Connection:
        """The way to a new rank that sees these devices (none: as the zygote does)."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # Never an empty message: that is the end.
                socket.send_fds(self._control, [json.dumps(list(devices)).encode()], [theirs.fileno()])
            except OSError as error:
                raise RankDied(f"the process that ranks are forked from has ended: {error}") from error
        return Connection(ours.detach())

    def close(self) -> None:
        """End it and every rank that is left, at once."""
        self._control.close()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class RankEngine:
    """`engine.KeptEngine` of `settings.tensor_parallel` ranks. Raises what a rank's engine raises when it is built."""

    def __init__(self, zygote: Zygote, settings: EngineSettings, devices: Sequence[str] = ()) -> None:
        self.weight_version: int | None = None
        self.busy = False
        self._stats = EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0)
        self._ranks = [zygote.fork(devices) for _ in range(settings.tensor_parallel)]
        self._pids: list[int] = []
        self._ended: set[Connection] = set()
        meeting = f"rljob-ranks-{uuid.uuid4().hex}"
        try:
            self._pids = self._hear()
            with tempfile.TemporaryDirectory(prefix="rljob-ranks-") as folder:
                place = Path(folder) / meeting
                for rank, way in enumerate(self._ranks):
                    way.send(("build", (zygote.kind, replace(settings, rank=rank, rendezvous=place))))
                self._together(self._answers())
        except BaseException:
            self._kill()
            raise
        finally:
            # All ranks have mapped what they share; unlinked now, nothing is left behind however they end.
            for path in SHARED_MEMORY.glob(f"*{meeting}*"):
                path.unlink(missing_ok=True)

    # --- commands ---

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        return self._together(self._asked(method, *arguments))

    def _asked(self, method: str, *arguments: Any) -> list[tuple[Any, Exception | None]]:
        for way in self._ranks:
            try:
                way.send((method, arguments))
            except OSError as error:
                raise self._died(way) from error
        return self._answers()

    def _answers(self) -> list[tuple[Any, Exception | None]]:
        return [tuple(answer) for answer in self._hear()]  # type: ignore[misc]

    def _hear(self) -> list[Any]:
        """One message of every rank. The end of any rank ends the waiting, and soon after it an error does: the others
        may wait for that rank for ever. Who has not answered by then is ended, and the error raised."""
        heard: dict[Connection, Any] = {}
        failure: Exception | None = None
        ends: float | None = None
        while len(heard) < len(self._ranks):
            silent = [way for way in self._ranks if way not in heard]
            ready = wait(silent, None if ends is None else max(0.0, ends - time.monotonic()))
            if failure is not None and not ready:
                self._give_up(silent)
                raise failure
            for way in ready:
                assert isinstance(way, Connection)
                try:
                    heard[way] = message = way.recv()
                except (EOFError, OSError) as error:
                    died = self._died(way)
                    raise failure or died from error
                if failure is None and isinstance(message, tuple) and message[1] is not None:
                    failure, ends = message[1], time.monotonic() + GRACE_SECONDS
        return [heard[way] for way in self._ranks]

    def _give_up(self, silent: Sequence[Connection]) -> None:
        """End ranks that do not answer: the next command finds the engine dead, and no late answer is taken for its
        own."""
        for way in silent:
            log.warning("rank %d is ended: it did not answer within %g s", self._ranks.index(way), GRACE_SECONDS)
            self._kill_rank(way)
            self._ended.add(way)

    def _died(self, way: Connection) -> RankDied:
        self._ended.add(way)
        rank = self._ranks.index(way)
        pid = self._pids[rank] if self._pids else "?"
        return RankDied(f"rank {rank} of {len(self._ranks)} (process {pid}) has ended; its log has the cause")

    @staticmethod
    def _together(answers: list[tuple[Any, Exception | None]]) -> list[Any]:
        for _, error in answers:
            if error is not None:
                raise error
        return [value for value, _ in answers]

    def _note(self, state: tuple[bool, EngineStats]) -> None:
        self.busy, self._stats = state

    # --- Engine ---

    def check(self, request: EngineRequest) -> None:
        self._ask("check", request)

    def add(self, request: EngineRequest) -> None:
        # Drawn once, here: every rank must sample with the same one.
        self._note(self._ask("add", replace(request, seed=seed_of(request)))[0])

    def step(self) -> list[StepOutput]:
        answers = self._ask("step")
        outputs, _, state = answers[0]
        if len({agreement for _, agreement, _ in answers}) > 1:
            raise RanksDisagree(f"the {len(answers)} ranks made different tokens in one step")
        self._note(state)
        made: list[StepOutput] = outputs
        return made

    def abort(self, ids: list[str]) -> None:
        self._note(self._ask("abort", ids)[0])

    def load(self, version: int) -> None:
        before, self.weight_version = self.weight_version, None
        answers = self._asked("load", version)
        errors = [error for _, error in answers if error is not None]
        if len(errors) == len(answers) and all(isinstance(error, VersionUnavailable) for error in errors):
            self.weight_version = before
        self._note(self._together(answers)[0])
        self.weight_version = version

    def sleep(self) -> None:
        self.weight_version = None
        self._note(self._ask("sleep")[0])

    def wake(self) -> None:
        self._ask("wake")

    def stats(self) -> EngineStats:
        return self._stats

    def close(self) -> None:
        """End the ranks: by a word, or where one does not hear it, by force."""
        for way in self._ranks:
            with suppress(OSError):
                way.send(("close", ()))
        while listening := [way for way in self._ranks if way not in self._ended]:
            ready = [way for way in wait(listening, CLOSE_SECONDS) if isinstance(way, Connection)]
            for way in ready:
                try:
                    way.recv()
                except (EOFError, OSError):
                    self._ended.add(way)
            if not ready:
                break
        self._kill()

    def _kill(self) -> None:
        """End what has not ended yet. The id of a process that has ended may be somebody else's by now."""
        for way in self._ranks:
            self._kill_rank(way)
        for way in self._ranks:
            way.close()
        self._ranks = []

    def _kill_rank(self, way: Connection) -> None:
        if way not in self._ended and self._pids:
            with suppress(ProcessLookupError):
                os.kill(self._pids[self._ranks.index(way)], signal.SIGKILL)
