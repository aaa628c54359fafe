"""Rewards in a container of their own: the same scores as in our own processes, and what happens when one side goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from rljob_api.spec.rewards import CodeReward
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.protocols import RewardFailed
from rljob_runtime.rewards import (
    CannotSandbox,
    CodeRule,
    InvalidReward,
    RewardPool,
    RewardsEnded,
    RewardServerClient,
    RewardsNotReady,
    Rule,
)
from rljob_runtime.rewards import remote_client as client
from rljob_runtime.rewards import remote_server as server
from rljob_runtime.rewards.function_scorer import cannot_confine
from rljob_runtime.sandbox import process_pool
from rljob_runtime.sandbox.framing import encode, receive
from rljob_runtime.sandbox.program import Program, SandboxUnavailable
from rljob_runtime.sandbox.sandbox import Sandbox
from rljob_runtime.sandbox.syscalls import PR_SET_CHILD_SUBREAPER, prctl
from tests.support.paths import ROOT
from tests.support.waiting import until

SERVE = """
import asyncio, sys
from pathlib import Path
from rljob_runtime.entrypoints.init_process import run_reaped
from rljob_runtime.rewards.remote_server import serve

def work():
    asyncio.run(serve(Path(sys.argv[1])))
    return 0

sys.exit(run_reaped(work) if sys.argv[2] == "reaped" else work())
"""
ADD = [{"stdin": "3 4", "stdout": "7"}]
RIGHT = "```python\nprint(sum(map(int, input().split())))\n```"
ENDLESS = "```python\nwhile True: pass\n```"


class Container:
    """The host as a process, which stands for its container."""

    def __init__(self, folder: str) -> None:
        self.reward_server = RewardServerClient(Path(folder) / "rewards.sock")
        self._socket = Path(folder) / "rewards.sock"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, how: str = "bare") -> int:
        here = str(ROOT / "tests/support/rewards")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])}
        command = (sys.executable, "-c", SERVE, str(self._socket), how)
        self.process = await asyncio.create_subprocess_exec(*command, env=environment)
        return self.process.pid

    async def ended(self) -> int:
        assert self.process is not None
        async with asyncio.timeout(60):
            return await self.process.wait()


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="rw-") as path:  # a socket's path is at most 107 characters
        yield path


@pytest.fixture
async def container(folder: str) -> AsyncIterator[Container]:
    made = Container(folder)
    await made.start()
    yield made
    if made.process is not None and made.process.returncode is None:
        made.process.kill()
        await made.process.wait()


@contextlib.asynccontextmanager
async def watching(reward_server: RewardServerClient) -> AsyncIterator[asyncio.Task[None]]:
    line = asyncio.create_task(reward_server.watch())
    await until(lambda: reward_server.connected or line.done())
    yield line
    line.cancel()
    await asyncio.gather(line, return_exceptions=True)


def sample(tests: object = ADD) -> Prompt:
    return Prompt(0, "Add.", (1,), "7", {"tests": tests, "kept": (1, 2)})


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid: int) -> str:
    """Its letter, "" when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def gone(pids: list[int], seconds: float = 20.0, but: str = "Z") -> bool:
    """Whether they end in time, or are in the state `but`."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if state_of(pid) not in ("", but)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not left


def code(parallelism: int = 1) -> CodeRule:
    return CodeRule("code", settings=CodeReward(parallelism=parallelism))


async def test_functions_and_programs_run_there_and_not_here(container: Container) -> None:
    ours = set(children_of(os.getpid()))
    rules = [Rule("length", "reward_functions:length", 0.5), Rule("tuple", "reward_functions:kept"), code(2)]
    async with RewardPool(rules, reward_server=container.reward_server) as pool:
        scores = await asyncio.gather(*(pool.score(sample(), text) for text in (RIGHT, "none", RIGHT)))
        assert set(children_of(os.getpid())) == ours, "nothing was started in the coordinator's container"
        assert len(children_of(container.process.pid)) == pool.figures().processes
    assert scores == [0.5 * len(RIGHT) + 3.0, 0.5 * 4 + 2.0, 0.5 * len(RIGHT) + 3.0]
    assert scores[0].terms == {"length": len(RIGHT), "tuple": 2.0, "code": 1.0}
    assert scores[1].terms == {"length": 4, "tuple": 2.0, "code": 0.0}
    figures = pool.figures()
    assert (figures.scored, figures.programs) == (3, {"Exited": 2})


async def test_a_failure_there_has_its_reason_here(container: Container) -> None:
    by_order = Rule("rule", "reward_functions:by_order", timeout_seconds=1)
    async with RewardPool([by_order], workers=1, reward_server=container.reward_server) as pool:
        for order, reason in {"raise": "Raised", "hang": "TimedOut", "crash": "Crashed", "nan": "NotFinite"}.items():
            with pytest.raises(RewardFailed, match=f"reward rule \\({reason}\\)"):
                await pool.score(sample(), order)
            assert await pool.score(sample(), "fine") == 1.0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Rule("r", "no_such_module:f"), "module 'no_such_module' cannot be imported"),
        pytest.param(
            Rule("r", "reward_functions:needs_three"), "missing a required argument: 'extra'", marks=pytest.mark.slow
        ),
    ],
)
async def test_a_rule_that_cannot_be_loaded_there_is_named(container: Container, bad: Rule, message: str) -> None:
    with pytest.raises(InvalidReward, match=message):
        async with RewardPool([bad], reward_server=container.reward_server):
            pass


async def test_a_machine_without_a_sandbox_is_told_and_can_be_asked_again(folder: str, monkeypatch) -> None:
    class Lacking:
        def __init__(self, processes: int) -> None:
            pass

        async def __aenter__(self) -> None:
            raise SandboxUnavailable("Landlock would be right")

        async def __aexit__(self, *error: object) -> None:
            return

    reward_server = RewardServerClient(Path(folder) / "s")
    here = asyncio.create_task(server.serve(Path(folder) / "s"))
    with monkeypatch.context() as patch:
        patch.setattr(server, "Sandbox", Lacking)
        with pytest.raises(CannotSandbox, match="Landlock would be right"):
            async with RewardPool([code()], reward_server=reward_server):
                pass
    async with RewardPool([code()], reward_server=reward_server) as pool, watching(reward_server):
        assert await pool.score(sample(), RIGHT) == 1.0
    await here


async def test_a_worker_that_cannot_be_confined_there_is_told_once(folder: str, monkeypatch) -> None:
    class Lacking:
        def __init__(self, rules: Sequence[Rule], workers: int) -> None:
            self._rules = rules

        async def __aenter__(self) -> None:
            error = SandboxUnavailable("Landlock would be right")
            raise cannot_confine(self._rules, error) from error

        async def __aexit__(self, *error: object) -> None:
            return

    monkeypatch.setattr(server, "FunctionScorer", Lacking)
    reward_server = RewardServerClient(Path(folder) / "s")
    here = asyncio.create_task(server.serve(Path(folder) / "s"))
    async with asyncio.timeout(20), watching(reward_server):
        with pytest.raises(CannotSandbox) as caught:
            async with RewardPool([Rule("math", "rljob_runtime.rewards.builtin:math")], reward_server=reward_server):
                pass
    assert str(caught.value) == ("reward math needs a worker that can do nothing but compute: Landlock would be right")
    await here


async def test_a_cancelled_call_ends_its_program(container: Container) -> None:
    async with RewardPool([code()], reward_server=container.reward_server) as pool:
        call = asyncio.create_task(pool.score(sample(), ENDLESS))
        (supervisor,) = children_of(container.process.pid)
        await until(lambda: children_of(supervisor) != [])
        programs = children_of(supervisor)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await pool.score(sample(), RIGHT) == 1.0
        # The old one ended before the new one started; on its own it would have gone on for longer than is waited here.
        assert await asyncio.to_thread(gone, [supervisor, *programs])


async def test_the_coordinator_may_be_there_first(folder: str) -> None:
    late = Container(folder)
    async with watching_in_time(late):
        pass
    assert await late.ended() == 0


@contextlib.asynccontextmanager
async def watching_in_time(late: Container) -> AsyncIterator[None]:
    line = asyncio.create_task(late.reward_server.watch())
    await asyncio.sleep(0.5)
    assert not late.reward_server.connected
    assert not line.done()
    await late.start()
    await until(lambda: late.reward_server.connected)
    yield
    line.cancel()
    await asyncio.gather(line, return_exceptions=True)
    assert not late.reward_server.connected


async def test_the_containers_death_aborts_calls_and_ends_the_coordinator(container: Container, monkeypatch) -> None:
    monkeypatch.setattr(client, "ABORT_SECONDS", 0.1)
    async with watching(container.reward_server) as line:
        async with RewardPool([code()], reward_server=container.reward_server) as pool:
            call = asyncio.create_task(pool.score(sample(), ENDLESS))
            (supervisor,) = children_of(container.process.pid)
            await until(lambda: children_of(supervisor) != [])
            programs = children_of(supervisor)
            container.process.kill()
            with pytest.raises(RewardFailed, match="the rewards container ended while the program ran"):
                await call
            waiting = asyncio.create_task(pool.score(sample(), RIGHT))
            with pytest.raises(RewardsEnded, match="the rewards container has ended"):
                await line
            assert not waiting.done(), "what was not under way is no failure: the next pod scores it"
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert pool.figures().failed == {("code", "SandboxFailed"): 1}
    assert await asyncio.to_thread(gone, [supervisor, *programs])


async def test_the_container_ends_when_the_coordinator_leaves(container: Container) -> None:
    pool = RewardPool([code(), Rule("length", "reward_functions:length")], reward_server=container.reward_server)
    async with watching(container.reward_server):
        await pool.__aenter__()
        processes = children_of(container.process.pid)
        assert len(processes) == 2
    assert await container.ended() == 0, "though its connections are still open"
    assert await asyncio.to_thread(gone, processes)


async def test_sigterm_is_for_the_coordinator_to_answer(container: Container) -> None:
    async with watching(container.reward_server), RewardPool([code()], reward_server=container.reward_server) as pool:
        container.process.send_signal(signal.SIGTERM)
        assert await pool.score(sample(), RIGHT) == 1.0, "the coordinator is not done yet"
    assert await container.ended() == 0


async def test_sigterm_ends_a_container_without_a_client(container: Container) -> None:
    with contextlib.suppress(InvalidReward):  # it is up when it has answered
        async with RewardPool([Rule("r", "no_such_module:f")], reward_server=container.reward_server):
            pass
    container.process.send_signal(signal.SIGTERM)
    assert await container.ended() == 0


async def test_what_no_host_understands_is_told(container: Container) -> None:
    with pytest.raises(RewardsEnded, match=json.dumps("x")[1:-1]):
        await container.reward_server.connect({"x": 1})


async def test_nothing_stays_as_a_zombie(folder: str) -> None:
    """Of programs that are let go, and of what a function had started when it was killed."""
    made = Container(folder)
    first = await made.start("reaped")
    note = Path(folder) / "note"
    rules = [code(), Rule("rule", "reward_functions:by_order", timeout_seconds=1)]
    async with watching(made.reward_server), RewardPool(rules[:1], reward_server=made.reward_server) as pool:
        (host,) = children_of(first)
        call = asyncio.create_task(pool.score(sample(), ENDLESS))
        (supervisor,) = children_of(host)
        await until(lambda: children_of(supervisor) != [])
        programs = children_of(supervisor)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        async with RewardPool(rules[1:], reward_server=made.reward_server) as functions:
            with pytest.raises(RewardFailed, match="TimedOut"):
                await functions.score(Prompt(0, "", (1,), str(note), {}), "leave a child")
        assert await asyncio.to_thread(gone, [supervisor, *programs, int(note.read_text())], but="")
    assert await made.ended() == 0, "with the code of what it waited for"


async def test_a_supervisor_that_is_let_go_reaps_its_program(monkeypatch) -> None:
    """A container whose first process reaps no children must have no zombies of programs."""
    monkeypatch.setattr(process_pool, "EXIT_SECONDS", 20.0)  # on a busy machine it takes more than a moment
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        async with Sandbox(1) as sandbox:
            (supervisor,) = (process.pid for process in sandbox.pool.running())
            call = asyncio.create_task(sandbox.run(Program("while True: pass")))
            await until(lambda: children_of(supervisor) != [])
            (program,) = children_of(supervisor)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert (state_of(supervisor), state_of(program)) == ("", "")
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


@contextlib.asynccontextmanager
async def host_that(answers: Sequence[bytes], folder: str) -> AsyncIterator[RewardServerClient]:
    """Gives one of these answers to each message, then none."""
    left = list(answers)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await receive(reader) is not None:
                if left:
                    writer.write(left.pop(0))
        finally:
            writer.close()

    async with await asyncio.start_unix_server(connected, Path(folder) / "s"):
        yield RewardServerClient(Path(folder) / "s")


READY = encode({"ready": True})


async def test_an_absent_or_silent_container_is_awaited_for_a_bounded_time(folder: str, monkeypatch) -> None:
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(client, "OPEN_SECONDS", 0.3)
    async with asyncio.timeout(20):
        with pytest.raises(RewardsNotReady, match=r"the rewards container is absent \(2 tries\)"):
            async with RewardPool([code()], reward_server=RewardServerClient(Path(folder) / "absent")):
                pass
        async with host_that([], folder) as reward_server:
            with pytest.raises(RewardsNotReady, match=r"gave no answer within 0\.3 s"):
                async with RewardPool([code()], reward_server=reward_server):
                    pass
        line = asyncio.create_task(RewardServerClient(Path(folder) / "absent").watch())
        await asyncio.sleep(1.0)
        assert not line.done(), "the operator sees that the pod is not ready, or that the container has ended"
        line.cancel()


@pytest.mark.parametrize(
    ("rule", "answers", "why"),
    [
        (code(), [READY], r"code \(SandboxFailed\): the rewards container gave no answer within 0\.5 s"),
        (Rule("r", "m:f"), [READY], r"\* \(TimedOut\): the rewards container gave no answer within 0\.5 s"),
        (code(), [READY, (1 << 62).to_bytes(8, "little")], "the rewards container ended while the program ran"),
        (Rule("r", "m:f"), [READY, (1 << 62).to_bytes(8, "little")], "the rewards container ended during the call"),
        (code(), [READY, encode({"broken": "so"})], "the rewards container: so|SandboxFailed.*: so"),
        (Rule("r", "m:f"), [READY, encode({"broken": "so"})], r"\* \(Crashed\): the rewards container: so"),
    ],
)
async def test_a_call_that_gets_no_answer_that_can_be_used(
    rule: CodeRule | Rule, answers: list[bytes], why: str, folder: str, monkeypatch
) -> None:
    monkeypatch.setattr(client, "START_SECONDS", 0.2)
    monkeypatch.setattr(client, "SLACK_SECONDS", 0.1)
    monkeypatch.setattr(client, "longest_run_seconds", lambda program: 0.2)
    monkeypatch.setattr(client, "longest_seconds", lambda rules: 0.4)
    async with (
        asyncio.timeout(20),
        host_that(answers, folder) as reward_server,
        RewardPool([rule], reward_server=reward_server) as pool,
    ):
        with pytest.raises(RewardFailed, match=why):
            await pool.score(sample(), RIGHT)


async def test_a_host_that_fails_as_none_should_says_so(folder: str, monkeypatch) -> None:
    class Failing:
        def __init__(self, *_: object, **__: object) -> None:
            raise BlockingIOError("no process left")

    here = asyncio.create_task(server.serve(Path(folder) / "s"))
    reward_server = RewardServerClient(Path(folder) / "s")
    async with asyncio.timeout(20), watching(reward_server):
        for name, rule in {"Sandbox": code(), "FunctionScorer": Rule("r", "m:f")}.items():
            with monkeypatch.context() as patch:
                patch.setattr(server, name, Failing)
                with pytest.raises(RewardsNotReady, match="the rewards container: BlockingIOError: no process left"):
                    async with RewardPool([rule], reward_server=reward_server):
                        pass
    await here
