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
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from rljob_api.learning import CodeReward
from rljob_runtime.coordinator.protocols import RewardFailed
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.rewards import CannotSandbox, CodeRule, Elsewhere, InvalidReward, RewardPool, RewardsEnded, Rule
from rljob_runtime.rewards import elsewhere as client
from rljob_runtime.rewards import host as server
from rljob_runtime.sandbox.program import SandboxUnavailable

SERVE = "import asyncio, sys; from pathlib import Path; from rljob_runtime.rewards.host import serve; " + (
    "asyncio.run(serve(Path(sys.argv[1])))"
)
ADD = [{"stdin": "3 4", "stdout": "7"}]
RIGHT = "```python\nprint(sum(map(int, input().split())))\n```"
ENDLESS = "```python\nwhile True: pass\n```"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class Container:
    """The host as a process, which stands for its container."""

    def __init__(self, folder: str) -> None:
        self.elsewhere = Elsewhere(Path(folder) / "rewards.sock")
        self._socket = Path(folder) / "rewards.sock"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> int:
        here = str(Path(__file__).parent)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])}
        command = (sys.executable, "-c", SERVE, str(self._socket))
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
async def watching(elsewhere: Elsewhere) -> AsyncIterator[asyncio.Task[None]]:
    line = asyncio.create_task(elsewhere.watch())
    await until(lambda: elsewhere.there or line.done())
    yield line
    line.cancel()
    await asyncio.gather(line, return_exceptions=True)


def sample(tests: object = ADD) -> Prompt:
    return Prompt(0, "Add.", (1,), "7", {"tests": tests, "kept": (1, 2)})


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pids: list[int]) -> bool:
    def alive(pid: int) -> bool:
        stat = Path(f"/proc/{pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"

    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


def code(parallelism: int = 1) -> CodeRule:
    return CodeRule("code", settings=CodeReward(parallelism=parallelism))


async def test_functions_and_programs_run_there_and_not_here(container: Container) -> None:
    ours = set(children_of(os.getpid()))
    rules = [Rule("length", "reward_functions:length", 0.5), Rule("tuple", "reward_functions:kept"), code(2)]
    async with RewardPool(rules, elsewhere=container.elsewhere) as pool:
        scores = await asyncio.gather(*(pool.score(sample(), text) for text in (RIGHT, "none", RIGHT)))
        assert set(children_of(os.getpid())) == ours, "nothing was started in the coordinator's container"
        assert len(children_of(container.process.pid)) == pool.figures().processes
    assert scores == [0.5 * len(RIGHT) + 3.0, 0.5 * 4 + 2.0, 0.5 * len(RIGHT) + 3.0]
    figures = pool.figures()
    assert (figures.scored, figures.programs) == (3, {"Exited": 2})


async def test_a_failure_there_has_its_reason_here(container: Container) -> None:
    by_order = Rule("rule", "reward_functions:by_order", timeout_seconds=1)
    async with RewardPool([by_order], workers=1, elsewhere=container.elsewhere) as pool:
        for order, reason in {"raise": "Raised", "hang": "TimedOut", "crash": "Crashed", "nan": "NotFinite"}.items():
            with pytest.raises(RewardFailed, match=f"reward rule \\({reason}\\)"):
                await pool.score(sample(), order)
            assert await pool.score(sample(), "fine") == 1.0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Rule("r", "no_such_module:f"), "module 'no_such_module' cannot be imported"),
        (Rule("r", "reward_functions:needs_three"), "missing a required argument: 'extra'"),
    ],
)
async def test_a_rule_that_cannot_be_loaded_there_is_named(container: Container, bad: Rule, message: str) -> None:
    with pytest.raises(InvalidReward, match=message):
        async with RewardPool([bad], elsewhere=container.elsewhere):
            pass


async def test_a_machine_without_a_sandbox_is_told_and_can_be_asked_again(folder: str, monkeypatch) -> None:
    class Lacking:
        def __init__(self, seats: int) -> None:
            pass

        async def __aenter__(self) -> None:
            raise SandboxUnavailable("Landlock would be right")

        async def __aexit__(self, *error: object) -> None:
            return

    elsewhere = Elsewhere(Path(folder) / "s")
    here = asyncio.create_task(server.serve(Path(folder) / "s"))
    with monkeypatch.context() as patch:
        patch.setattr(server, "Sandbox", Lacking)
        with pytest.raises(CannotSandbox, match="Landlock would be right"):
            async with RewardPool([code()], elsewhere=elsewhere):
                pass
    async with RewardPool([code()], elsewhere=elsewhere) as pool, watching(elsewhere):
        assert await pool.score(sample(), RIGHT) == 1.0
    await here


async def test_a_cancelled_call_ends_its_program(container: Container) -> None:
    async with RewardPool([code()], elsewhere=container.elsewhere) as pool:
        call = asyncio.create_task(pool.score(sample(), ENDLESS))
        (supervisor,) = children_of(container.process.pid)
        await until(lambda: children_of(supervisor) != [])
        programs = children_of(supervisor)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.to_thread(gone, [supervisor, *programs])
        assert await pool.score(sample(), RIGHT) == 1.0


async def test_the_coordinator_may_be_there_first(folder: str) -> None:
    late = Container(folder)
    async with watching_in_time(late):
        pass
    assert await late.ended() == 0


@contextlib.asynccontextmanager
async def watching_in_time(late: Container) -> AsyncIterator[None]:
    line = asyncio.create_task(late.elsewhere.watch())
    await asyncio.sleep(0.5)
    assert not late.elsewhere.there
    assert not line.done()
    await late.start()
    await until(lambda: late.elsewhere.there)
    yield
    line.cancel()
    await asyncio.gather(line, return_exceptions=True)
    assert not late.elsewhere.there


async def test_the_containers_death_aborts_what_is_under_way_and_ends_the_coordinator(
    container: Container, monkeypatch
) -> None:
    monkeypatch.setattr(client, "LAST_WORDS_SECONDS", 0.1)
    async with watching(container.elsewhere) as line:
        async with RewardPool([code()], elsewhere=container.elsewhere) as pool:
            call = asyncio.create_task(pool.score(sample(), ENDLESS))
            (supervisor,) = children_of(container.process.pid)
            await until(lambda: children_of(supervisor) != [])
            programs = children_of(supervisor)
            container.process.kill()
            with pytest.raises(RewardFailed, match="the container rewards ended under the program"):
                await call
            waiting = asyncio.create_task(pool.score(sample(), RIGHT))
            with pytest.raises(RewardsEnded, match="the container rewards has ended"):
                await line
            assert not waiting.done(), "what was not under way is no failure: the next pod scores it"
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert pool.figures().failed == {("code", "SandboxFailed"): 1}
    assert await asyncio.to_thread(gone, [supervisor, *programs])


async def test_the_container_ends_when_the_coordinator_leaves(container: Container) -> None:
    pool = RewardPool([code(), Rule("length", "reward_functions:length")], elsewhere=container.elsewhere)
    async with watching(container.elsewhere):
        await pool.__aenter__()
        processes = children_of(container.process.pid)
        assert len(processes) == 2
    assert await container.ended() == 0, "though the seats are still taken"
    assert await asyncio.to_thread(gone, processes)


async def test_sigterm_is_for_the_coordinator_to_answer(container: Container) -> None:
    async with watching(container.elsewhere), RewardPool([code()], elsewhere=container.elsewhere) as pool:
        container.process.send_signal(signal.SIGTERM)
        assert await pool.score(sample(), RIGHT) == 1.0, "the coordinator is not done yet"
    assert await container.ended() == 0


async def test_sigterm_ends_a_container_that_nobody_uses(container: Container) -> None:
    with contextlib.suppress(InvalidReward):  # it is up when it has answered
        async with RewardPool([Rule("r", "no_such_module:f")], elsewhere=container.elsewhere):
            pass
    container.process.send_signal(signal.SIGTERM)
    assert await container.ended() == 0


async def test_what_no_host_understands_is_told(container: Container) -> None:
    with pytest.raises(RewardsEnded, match=json.dumps("x")[1:-1]):
        await container.elsewhere.connect({"x": 1})
