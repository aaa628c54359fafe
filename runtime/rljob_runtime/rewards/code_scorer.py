"""Kind Code: the program in a response against the tests of its prompt, in a sandbox, under adaptive timeouts.

A program that is wrong, crashes, or runs out of time, memory or output is worth what it is worth: nothing. What is not
its fault (a sandbox that cannot be started or is killed, tests that cannot be read) is `ScoreFailed`.
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

from rljob_api.rewards import CodeScore
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.rewards.aside import aside
from rljob_runtime.rewards.code_test_cases import InvalidTests, TestCase, parse_tests
from rljob_runtime.rewards.errors import Failure, ScoreFailed
from rljob_runtime.rewards.remote_client import SandboxElsewhere
from rljob_runtime.rewards.rules import CannotSandbox, CodeRule
from rljob_runtime.rewards.template import fill
from rljob_runtime.sandbox.program import End, Program, Run, SandboxFailed, SandboxUnavailable
from rljob_runtime.sandbox.sandbox import Sandbox
from rljob_runtime.scheduling.reward_timeout import AdaptiveTimeout, TimeoutDecision, TimeoutRule

log = logging.getLogger(__name__)

MOST_SHADOWS = 32
"""Shadow runs that wait or run at a time; more samples than that go without."""

_OPENED = re.compile(r"```[ \t]*(\w*)")
_CLOSED = re.compile(r"```[ \t\r]*\n?")
_LANGUAGES = ("", "python", "python3", "py")


def extract_program(response: str) -> str | None:
    """The last fenced block of Python (or of no language named). None: there is none, or it never ends.

    One pass over the lines: the text was written by a model, and no text may cost more than its length.
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
    """One Code rule. Use as an asynchronous context manager; entering raises `CannotSandbox`."""

    def __init__(self, rule: CodeRule, sandbox: Sandbox | SandboxElsewhere) -> None:
        self._rule = rule
        self._sandbox = sandbox
        self._turns = asyncio.Semaphore(rule.settings.parallelism)
        self._waiting = 0
        """Calls that wait for their turn, shadow runs not counted."""
        bounds = rule.timeout
        self.ended: Counter[str] = Counter()
        """Runs by how they ended."""
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
        """End all programs; shadow runs that are not done tell nothing."""
        self._end_shadows()
        await asyncio.gather(*self._shadows, return_exceptions=True)
        await self._sandbox.__aexit__(kind, error, trace)

    def restore(self, anchors: Mapping[str, int]) -> None:
        """Go back to these anchors (milliseconds by test). What shadow runs of a taken back round would teach is taken
        back too. Raises ValueError for what `AdaptiveTimeout.drain_raised` cannot have made."""
        self._end_shadows()
        self.timeout.restore(anchors)

    def _end_shadows(self) -> None:
        for task in self._shadows:
            task.cancel()

    @property
    def processes_started(self) -> int:
        """Supervisors since the start."""
        return self._sandbox.processes_started

    async def score(self, prompt: Prompt, response: str) -> float:
        """Weighted. Raises `ScoreFailed`."""
        settings = self._rule.settings
        try:
            tests = await aside(parse_tests, settings.tests_field, prompt.answer, prompt.metadata)
        except InvalidTests as error:
            raise ScoreFailed(Failure.NO_TESTS, self._rule.name, f"record {prompt.index}: {error}") from error
        source = await aside(self._program, prompt, response)
        if source is None:
            return 0.0
        sample = await aside(_identity, response)
        passed = 0
        for number, test in enumerate(tests):
            # What a run may take is decided when its turn comes: those before it may have shown how long it should be.
            async with self._turn():
                right = await self._passes(f"{prompt.index}/{number}", sample, test, source)
            if right:
                passed += 1
            elif settings.score is CodeScore.ALL_TESTS:
                return 0.0
        return self._rule.weight * passed / len(tests)

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
        """A turn that no call waits for. Turns come in order: whoever gives one back has others go before it."""
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
        return fill(template, {"response": response, "question": prompt.question})

    async def _passes(self, name: str, sample: str, test: TestCase, source: str) -> bool:
        allowance = self.timeout.decide(name, sample)
        try:
            run, right = await self._run(allowance.without_shadow_run, test, source)
        except SandboxFailed as error:
            raise ScoreFailed(Failure.SANDBOX_FAILED, self._rule.name, str(error)) from error
        self.ended[run.end.value] += 1
        if allowance.shadow_run and run.end is End.TIMED_OUT and len(self._shadows) < MOST_SHADOWS:
            task = asyncio.create_task(self._shadow(allowance, test, source))
            self._shadows.add(task)
            task.add_done_callback(self._shadow_ended)
        return self.timeout.record(allowance.without_shadow_run, run.cpu_seconds, run.run_seconds, right)

    async def _shadow(self, allowance: TimeoutDecision, test: TestCase, source: str) -> None:
        """Once more, to Tmax, behind the answer that was given at T: when no call waits, and one at a time, so that it
        takes no more than one seat from those that come meanwhile."""
        try:
            async with self._shadow_turn, self._idle_turn():
                run, right = await self._run(allowance, test, source)
        except SandboxFailed as error:
            log.info("a shadow run failed: %s", error)
            return
        self.timeout.record_shadow_run(allowance, run.cpu_seconds, right)

    def _shadow_ended(self, task: asyncio.Task[None]) -> None:
        """Nobody waits for it: what it raised is told here. The job does without the measure."""
        self._shadows.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a shadow run failed as none should", exc_info=error)

    async def _run(self, allowance: TimeoutDecision, test: TestCase, source: str) -> tuple[Run, bool]:
        """(the run, whether it passed before its end). Raises `SandboxFailed`."""
        script, stdin = test.script(source)
        program = Program(
            script,
            stdin,
            cpu_seconds=allowance.cpu_seconds,
            run_seconds=allowance.wall_seconds,
            memory_bytes=self._rule.settings.memory_bytes,
            output_bytes=test.output_bytes,
        )
        run = await self._sandbox.run(program)
        self.cpu_seconds += run.cpu_seconds
        return run, run.end is not End.TIMED_OUT and run.clean and await aside(test.passes, run)


def _identity(response: str) -> str:
    return hashlib.sha256(response.encode("utf-8", errors="surrogatepass")).hexdigest()
