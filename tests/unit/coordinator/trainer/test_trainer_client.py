"""The trainer client: pods that are replaced, a trainer that refuses what it is asked, one that dies as it starts."""

import asyncio
from itertools import pairwise

import pytest

from rljob_api.status import FinishedOutcome, Member, Role, RuntimeStatus
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.protocols import FunctionFailed, PeerGone, Refused, StaleTerm
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import ProcessStarted
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane
from tests.support.simulated_job import Stage, job, until

SETTINGS = Settings.of(job())


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path / "state.db", job=job(rounds=4))


def check_trained_once(stage: Stage) -> None:
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == 4 * 3 * 2


class Trainer:
    """Takes so long to start, or dies of it."""

    def __init__(self, seconds: float, dies: bool) -> None:
        self._seconds = seconds
        self._dies = dies

    async def start(self, term):
        await asyncio.sleep(self._seconds)
        if self._dies:
            raise PeerGone("dead")
        return "state"


class Backend:
    """`made`: when trainers were made, and on which incarnation. The first `deaths` die as they start; on the
    incarnations `gone` none starts, and no error says so. `released`: whose actors were ended, which takes so long.
    `whole`: whether all ranks of a trainer are there, or none."""

    def __init__(
        self,
        deaths: int = 0,
        seconds: float = 0.0,
        gone: tuple[int, ...] = (),
        release_seconds: float = 0.0,
        whole: bool = True,
    ) -> None:
        self.made: list[tuple[float, int]] = []
        self.released: list[int] = []
        self.ended: list[float] = []
        self._deaths = deaths
        self._seconds = seconds
        self._gone = gone
        self._release_seconds = release_seconds
        self._whole = whole

    async def has_trainer(self, members):
        return self._whole

    async def trainer(self, term, members):
        self.made.append((asyncio.get_running_loop().time(), members[0].incarnation))
        if members[0].incarnation in self._gone:
            await asyncio.Event().wait()
        return Trainer(self._seconds, len(self.made) <= self._deaths)

    async def release(self, member):
        await asyncio.sleep(self._release_seconds)
        self.released.append(member.incarnation)
        self.ended.append(asyncio.get_running_loop().time())


def client_on(backend: Backend) -> TrainerClient:
    reporter = Reporter(SimulatedControlPlane(job(), 1), RuntimeStatus(), SETTINGS.back_off)
    return TrainerClient(backend, 1, SETTINGS, reporter)


async def fails(trainer):
    raise PeerGone("dead")


def pods(incarnation: int) -> list[Member]:
    return [Member(machine="trainer-0", incarnation=incarnation, ip="10.0.0.1", role=Role.TRAINER)]


# --- pods that are replaced ---


# The failure that is looked for: no other caller gets its turn.
@pytest.mark.timeout(20)
def test_a_trainer_whose_next_pod_has_no_address_yet_is_waited_for():
    async def program():
        client = client_on(backend := Backend())
        client.set_members(pods(1))
        await client.start()
        client.set_members(())
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(60.0)
        assert not starting.done()
        client.set_members(pods(2))
        assert await starting == "state"
        return backend.made

    assert virtual_time.run(program()) == [(0.0, 1), (60.0, 2)]


@pytest.mark.timeout(60)
def test_a_trainer_pod_without_an_address_is_awaited(stage):
    async def fault(stage):
        await until(lambda: stage.rounds == [1], tick=0.01)
        stage.world.kill("trainer")
        stage.control.withdraw("trainer-0")
        await asyncio.sleep(60.0)
        assert stage.control.last.stage == "Starting"
        stage.control.place("trainer-0")

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)


def test_nothing_is_started_on_pods_that_may_go():
    async def program():
        client = client_on(backend := Backend())
        client.set_members(pods(1))
        await client.start()
        assert not client.leaving
        client.set_members([member.model_copy(update={"leaving": True}) for member in pods(1)])
        assert client.leaving
        await client.allow_to_leave()
        assert (client.available, client.leaving) == (False, False)
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(60.0)
        client.set_members(pods(2))
        assert await starting == "state"
        return backend

    backend = virtual_time.run(program())
    assert backend.made == [(0.0, 1), (60.0, 2)]
    assert backend.released == [1]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_trainer_is_made_when_the_one_before_has_ended(cancelled):
    """Where the API server is slow to confirm the term, that takes seconds, and its caller may be cancelled."""

    async def program():
        client = client_on(backend := Backend(release_seconds=7.0))
        client.set_members(pods(1))
        await client.start()
        losing = asyncio.create_task(client.call(fails))
        await asyncio.sleep(1.0)
        if cancelled:
            losing.cancel()
        assert await client.start() == "state"
        await asyncio.gather(losing, return_exceptions=True)
        return backend

    backend = virtual_time.run(program())
    assert backend.made == [(0.0, 1), (7.0, 1)]
    assert backend.ended == [7.0]


def test_what_is_left_of_a_group_is_ended_before_a_whole_one_is_made():
    """A rank that lives on knows the ranks that it began with: no other can take the place of one."""

    async def program():
        client = client_on(backend := Backend(whole=False, release_seconds=3.0))
        client.set_members(pods(1))
        await client.start()
        return backend

    backend = virtual_time.run(program())
    assert (backend.released, backend.made) == ([1], [(3.0, 1)])


def test_a_closed_client_ends_no_actor():
    async def program():
        client = client_on(backend := Backend(release_seconds=7.0))
        client.set_members(pods(1))
        await client.start()
        losing = asyncio.create_task(client.call(fails))
        await asyncio.sleep(1.0)
        losing.cancel()
        await asyncio.gather(losing, return_exceptions=True)
        await client.aclose()
        await asyncio.sleep(60.0)
        return backend.ended

    assert virtual_time.run(program()) == []


def test_other_pods_are_tried_immediately():
    async def program():
        client = client_on(backend := Backend(seconds=10.0))
        client.set_members(pods(1))
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(5.0)
        client.set_members(pods(2))
        assert await starting == "state"
        return backend.made

    assert virtual_time.run(program()) == [(0.0, 1), (5.0, 2)]


# No caller would get its turn again.
@pytest.mark.timeout(20)
def test_a_trainer_that_never_starts_is_dropped_with_its_pod():
    """Its pod was gone before the Ray cluster noticed: an actor made for that node waits for its return."""

    async def program():
        client = client_on(backend := Backend(gone=(1,)))
        client.set_members(pods(1))
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(12.0)
        client.set_members(pods(2))
        async with asyncio.timeout(60.0):
            assert await starting == "state"
        return backend

    backend = virtual_time.run(program())
    assert backend.made == [(0.0, 1), (12.0, 2)]
    assert backend.released == [1]


def test_what_is_let_go_of_is_what_was_made():
    """Not what is on the pods that came since."""

    async def program():
        client = client_on(backend := Backend())
        client.set_members(pods(1))
        await client.start()
        client.set_members(pods(2))
        await client.start()
        return backend.released

    assert virtual_time.run(program()) == [1]


def test_a_trainer_that_dies_as_it_starts_is_tried_again_ever_later():
    async def program():
        client = client_on(backend := Backend(deaths=4))
        client.set_members(pods(1))
        assert await client.start() == "state"
        return [later - sooner for (sooner, _), (later, _) in pairwise(backend.made)]

    assert virtual_time.run(program()) == pytest.approx([SETTINGS.back_off.delay(failures) for failures in range(1, 5)])


# --- a trainer that refuses ---


def refusing(method: str, error: Refused):
    """From the second round on, this process answers so."""

    async def fault(stage: Stage) -> None:
        await until(lambda: stage.rounds == [1], tick=0.01)

        async def refuse(*arguments):
            raise error

        setattr(stage.world.process("trainer").peer, method, refuse)

    return fault


@pytest.mark.parametrize("method", ["train", "publish"])
def test_a_trainer_that_refuses_is_not_asked_again(stage, method):
    """Another process is, and begins at the checkpoint."""
    events = []
    stage.watchers.append(events.append)
    assert stage.play(refusing(method, Refused("not with what I hold"))).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)
    assert [event.process for event in events if isinstance(event, ProcessStarted)].count("trainer") == 2


def test_a_function_of_the_user_that_fails_ends_the_job(stage):
    """Another trainer would fail with it too."""
    events, why = [], "step 2 is not trained: algorithm.loss my_loss:loss returned a sum of nan"
    stage.watchers.append(events.append)
    finished = stage.play(refusing("train", FunctionFailed(why)))
    assert (finished.outcome, finished.reason) == (FinishedOutcome.FAILED, "FunctionNotUsable")
    assert finished.message == why
    assert [event.process for event in events if isinstance(event, ProcessStarted)].count("trainer") == 1
    assert stage.rounds == [1]


@pytest.mark.parametrize("method", ["train", "publish", "checkpoint", "export"])
def test_a_fenced_coordinator_leaves_the_trainer_to_the_next(stage, method):
    with pytest.raises(StaleTerm, match="term 1 is over"):
        stage.play(refusing(method, StaleTerm("term 1 is over")))
    assert stage.world.process("trainer") is not None
    assert not any(report.warnings for report in stage.control.reports)
