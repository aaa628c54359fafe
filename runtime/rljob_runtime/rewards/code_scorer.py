"""Code scorer (kind Code): runs the program of a response against the tests of its prompt.

Programs run in a sandbox under adaptive timeouts. A program that is wrong, crashes, or exceeds its time, memory or
output scores 0. Other failures raise `ScoreFailed`: a sandbox that cannot start or is killed, or tests that cannot be
read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self

from rljob_api.spec.rewards import CodeScore
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.protocols.rewards import Reward
from rljob_runtime.rewards.code_test_cases import InvalidTests, TestCase, parse_tests
from rljob_runtime.rewards.errors import Failure, ScoreFailed
from rljob_runtime.rewards.offload import offload
from rljob_runtime.rewards.remote_client import RemoteSandbox
from rljob_runtime.rewards.rules import CannotSandbox, CodeRule, fill_template
from rljob_runtime.sandbox.program import End, Program, Run, SandboxFailed, SandboxUnavailable
from rljob_runtime.sandbox.sandbox import Sandbox
from rljob_runtime.scheduling.reward_timeout import AdaptiveTimeout, TimeoutDecision, TimeoutRule

log = logging.getLogger(__name__)

MOST_SHADOWS = 32
"""Shadow runs that wait or run at a time. Further samples get none."""

_OPENED = re.compile(r"```[ \t]*(\w*)")
_CLOSED = re.compile(r"```[ \t\r]*\n?")
_LANGUAGES = ("", "python", "python3", "py")


def extract_program(response: str) -> str | None:
    """Return the last complete fenced block that names Python or no language.

    None without such a block. It scans the lines once: a model wrote the text, and no text may cost more than its
    length.
    """
    program: str | None = None
    language, begin, end = "", -1, 0
    for line in io.StringIO(response, newline="\n"):
        start, end = end, end + len(line)
        if begin < 0:
            opened = _OPENED.match(line)
            if opened is not None and line.endswith("\n"):
                language, begin = opened[1].lower(), end
        elif _CLOSED.fullmatch(line) is not None:
            if language in _LANGUAGES:
                program = response[begin:start]
            begin = -1
    return program


class CodeScorer:
    """Scorer of one Code rule.

    Use it as an asynchronous context manager. Entering raises `CannotSandbox`.
    """

    def __init__(self, rule: CodeRule, sandbox: Sandbox | RemoteSandbox) -> None:
        self._rule = rule
        self._sandbox = sandbox
        self._turns = asyncio.Semaphore(rule.settings.parallelism)
        self._waiting = 0
        """Calls that wait for their turn, without shadow runs."""
        bounds = rule.timeout
        self.ended: Counter[str] = Counter()
        """Runs by their end."""
        self.cpu_seconds = 0.0
        self._shadows: set[asyncio.Task[None]] = set()
        self._shadow_turn = asyncio.Semaphore(1)
        self.timeout = AdaptiveTimeout(TimeoutRule(bounds.min_seconds, bounds.factor, bounds.max_seconds))

    async def __aenter__(self) -> Self:
        """Open the sandbox."""
        try:
            await self._sandbox.__aenter__()
        except SandboxUnavailable as error:
            raise CannotSandbox(f"reward {self._rule.name} (kind Code) needs a sandbox: {error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all programs, and drop unfinished shadow runs."""
        self._end_shadows()
        await asyncio.gather(*self._shadows, return_exceptions=True)
        await self._sandbox.__aexit__(kind, error, trace)

    def restore(self, anchors: Mapping[str, int]) -> None:
        """Restore these anchors (milliseconds by test).

        Shadow runs of an abandoned round are dropped. Raises `ValueError` for anchors that
        `AdaptiveTimeout.drain_raised` cannot produce.
        """
        self._end_shadows()
        self.timeout.restore(anchors)

    def _end_shadows(self) -> None:
        for task in self._shadows:
            task.cancel()

    @property
    def processes_started(self) -> int:
        """Number of supervisors since the start."""
        return self._sandbox.processes_started

    async def score(self, prompt: Prompt, response: str) -> Reward:
        """Return the weighted score.

        Raises `ScoreFailed`.
        """
        settings = self._rule.settings
        try:
            tests = await offload(parse_tests, settings.tests_field, prompt.answer, prompt.metadata)
        except InvalidTests as error:
            raise ScoreFailed(Failure.NO_TESTS, self._rule.name, f"record {prompt.index}: {error}") from error
        source = await offload(self._program, prompt, response)
        if source is None:
            return self._reward(0, len(tests))
        sample = await offload(_identity, response)
        passed = 0
        for number, test in enumerate(tests):
            # The timeout is decided at the call's turn, because earlier runs may have changed it.
            async with self._turn():
                right = await self._passes(f"{prompt.index}/{number}", sample, test, source)
            if right:
                passed += 1
            elif settings.score is CodeScore.ALL_TESTS:
                return self._reward(0, len(tests))
        return self._reward(passed, len(tests))

    def _reward(self, passed: int, tests: int) -> Reward:
        return Reward(self._rule.weight * passed / tests, {self._rule.name: passed / tests})

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()

    @contextlib.asynccontextmanager
    async def _idle_turn(self) -> AsyncIterator[None]:
        """Acquire a turn while no call waits.

        Turns are granted in order, so a released turn goes to the calls that wait.
        """
        await self._turns.acquire()
        while self._waiting:
            self._turns.release()
            await self._turns.acquire()
        try:
            yield
        finally:
            self._turns.release()

    def _program(self, prompt: Prompt, response: str) -> str | None:
        template = self._rule.settings.program
        if template is None:
            return extract_program(response)
        return fill_template(template, {"response": response, "question": prompt.question})

    async def _passes(self, name: str, sample: str, test: TestCase, source: str) -> bool:
        decision = self.timeout.decide(name, sample)
        try:
            run, right = await self._run(decision.without_shadow_run, test, source)
        except SandboxFailed as error:
            raise ScoreFailed(Failure.SANDBOX_FAILED, self._rule.name, str(error)) from error
        self.ended[run.end.value] += 1
        if decision.shadow_run and run.end is End.TIMED_OUT and len(self._shadows) < MOST_SHADOWS:
            task = asyncio.create_task(self._shadow(decision, test, source))
            self._shadows.add(task)
            task.add_done_callback(self._shadow_ended)
        return self.timeout.record(decision.without_shadow_run, run.cpu_seconds, run.run_seconds, right)

    async def _shadow(self, decision: TimeoutDecision, test: TestCase, source: str) -> None:
        """Repeat a timed-out run up to the longest timeout, after the response is scored.

        It starts when no call waits. Only one runs at a time, so it takes at most one turn from later calls.
        """
        try:
            async with self._shadow_turn, self._idle_turn():
                run, right = await self._run(decision, test, source)
        except SandboxFailed as error:
            log.info("a shadow run failed: %s", error)
            return
        self.timeout.record_shadow_run(decision, run.cpu_seconds, right)

    def _shadow_ended(self, task: asyncio.Task[None]) -> None:
        """Log the error of a shadow run, which no caller awaits.

        The job continues without the measurement.
        """
        self._shadows.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a shadow run failed unexpectedly", exc_info=error)

    async def _run(self, decision: TimeoutDecision, test: TestCase, source: str) -> tuple[Run, bool]:
        """Run the program and return its run, and whether it passed before its end.

        Raises `SandboxFailed`.
        """
        script, stdin = test.script(source)
        program = Program(
            script,
            stdin,
            cpu_seconds=decision.cpu_seconds,
            run_seconds=decision.wall_seconds,
            memory_bytes=self._rule.settings.memory_bytes,
            output_bytes=test.output_bytes,
        )
        run = await self._sandbox.run(program)
        self.cpu_seconds += run.cpu_seconds
        return run, run.end is not End.TIMED_OUT and run.clean and await offload(test.passes, run)


def _identity(response: str) -> str:
    return hashlib.sha256(response.encode("utf-8", errors="surrogatepass")).hexdigest()
