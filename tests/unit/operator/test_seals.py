"""The proof that an operator wrote a status: with a stand-in for the API server that keeps one Role and one status."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from rljob_operator.policies.status.seal import ANNOTATION, REPORTED_SECONDS, digest, foreign, operator_part
from rljob_operator.seals import Forgery, SealBroken, Seals
from tests.support.examples import examples
from tests.support.operator.roles import UID, Json, Roles


def seals(roles: Roles, clock: Any = lambda: 0.0) -> Seals:
    return Seals(roles, clock=clock)  # type: ignore[arg-type]


def job(part: Json | None = None, **runtime: Any) -> Json:
    """A job with this status."""
    status: Json = {**(part or {}), **({"runtime": runtime} if runtime else {})}
    return {"metadata": {"namespace": "ns", "name": "demo", "uid": UID}, **({"status": status} if status else {})}


async def write(book: Seals, part: Json) -> None:
    """What the operator does around one write of a status."""
    await book.announce("ns", "demo", UID, part)
    await book.written(job(part))


def test_a_digest_does_not_depend_on_how_the_server_spells_a_value() -> None:
    assert digest({"a": 1.0, "b": [{"c": 0.25}], "d": None}) == digest({"b": [{"c": 0.25}], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest({"a": True}) != digest({"a": 1})
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})


def test_the_coordinators_field_is_not_the_operators() -> None:
    assert operator_part(job({"phase": "Running"}, round=3)) == {"phase": "Running"}
    assert foreign({"a": 1, "b": 2, "c": 3}, {"a": 1.0, "b": 3, "d": 4}) == ("b", "c", "d")


async def test_an_unchanged_job_costs_one_request_per_process() -> None:
    roles = Roles({ANNOTATION: digest({"phase": "Running"})})
    book = seals(roles)
    for round_ in range(5):
        assert await book.forgery(job({"phase": "Running"}, round=round_)) is None
    assert roles.requests == ["GET"]


async def test_a_new_job_costs_no_look_at_a_role_that_is_not_there_yet() -> None:
    roles = Roles(exists=False)
    book = seals(roles)
    assert await book.forgery(job()) is None
    assert roles.requests == []
    book.made(UID, roles.make(book.first(UID)["annotations"]))
    await write(book, {"phase": "Pending"})
    assert roles.requests == ["PATCH"]


async def test_a_forged_status_is_found_and_the_truth_is_known() -> None:
    book = seals(Roles({ANNOTATION: digest({})}))
    assert await book.forgery(job()) is None
    await write(book, {"accepted": {"spec": "good"}, "phase": "Running"})
    found = await book.forgery(job({"accepted": {"spec": "evil"}, "phase": "Running", "startTime": "x"}, round=1))
    assert found == Forgery(("accepted", "startTime"), {"accepted": {"spec": "good"}, "phase": "Running"}, known=True)


async def test_another_process_finds_it_too_and_knows_no_truth() -> None:
    roles = Roles({ANNOTATION: digest({"phase": "Running"})})
    assert await seals(roles).forgery(job({"phase": "Failed"})) == Forgery(("phase",), {}, known=False)


async def test_wiping_a_status_is_forging_it() -> None:
    book = seals(Roles({ANNOTATION: digest({"phase": "Running"})}))
    assert await book.forgery(job({"phase": "Running"})) is None
    assert await book.forgery(job({}, round=1)) == Forgery(("phase",), {"phase": "Running"}, known=True)


async def test_a_role_of_an_earlier_job_of_this_name_says_nothing() -> None:
    roles = Roles({ANNOTATION: digest({"phase": "Failed"})})
    assert roles.role is not None
    roles.role["metadata"]["ownerReferences"] = [{"uid": "u-0"}]
    assert await seals(roles).forgery(job({"phase": "Running"})) is None
    assert roles.requests == ["GET"]


async def test_a_job_of_an_operator_without_seals_is_sealed_at_first() -> None:
    roles = Roles()
    assert await seals(roles).forgery(job({"phase": "Running"})) is None
    assert roles.requests == ["GET", "PATCH"]
    assert await seals(roles).forgery(job({"phase": "Failed"})) is not None


async def test_who_does_not_know_that_another_leads_writes_no_seal() -> None:
    roles = Roles({ANNOTATION: digest({})})
    old, new = seals(roles), seals(roles)
    for book in (old, new):
        assert await book.forgery(job({}, round=1)) is None
    await write(new, {"phase": "Running"})
    with pytest.raises(SealBroken):
        await old.announce("ns", "demo", UID, {"phase": "Failed"})
    assert await old.forgery(job({"phase": "Running"})) is None, "what the other wrote is no forgery"


async def test_a_server_that_leaves_a_field_out_is_no_forger() -> None:
    roles = Roles({ANNOTATION: digest({})})
    book = seals(roles)
    assert await book.forgery(job()) is None
    await book.announce("ns", "demo", UID, {"phase": "Running", "newer": 1})
    await book.written(job({"phase": "Running"}))
    for reader in (book, seals(roles)):
        assert await reader.forgery(job({"phase": "Running"})) is None


async def test_a_forgery_is_told_for_a_while() -> None:
    now = 100.0
    book = seals(Roles({ANNOTATION: digest({})}), clock=lambda: now)
    assert book.alarm(UID) is None
    await book.undone(job(), Forgery(("accepted", "target"), {}, known=True))
    told = book.alarm(UID)
    assert told is not None
    assert "status.accepted, status.target" in told
    now += REPORTED_SECONDS
    assert book.alarm(UID) == told
    now += 1
    assert book.alarm(UID) is None
    assert book.alarm("another") is None


class Histories(RuleBasedStateMachine):
    """Operators write, die at any step and follow each other; another client with the coordinator's rights writes."""

    def __init__(self) -> None:
        super().__init__()
        self.roles = Roles({ANNOTATION: digest({})})
        self.status: Json = {}
        self.ours: list[Json] = [{}]
        """What the status may be: as an operator found it before its last write, and as that left it."""
        self.past: list[Json] = [{}]
        self.another_operator_leads()

    def run(self, work: Any) -> Any:
        """The result of a coroutine that waits for nothing."""
        try:
            work.send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("it waits")

    def seen(self) -> Json:
        return job(copy.deepcopy(self.status), round=1)

    def check(self) -> None:
        """Look at the job, and undo what is wrong: an alarm where there is reason for one, and only there."""
        good = self.status in self.ours
        found: Forgery | None = self.run(self.book.forgery(self.seen()))
        assert (found is None) == good
        if found is not None:
            assert found.known == (not self.new)
            assert found.truth in (self.ours if found.known else [{}])
            self.status = found.truth
            self.run(self.book.undone(self.seen(), found))
            self.ours = [self.status]
        self.new = False

    @rule(dies=st.sampled_from(["never", "announced", "written"]))
    def the_operator_writes(self, dies: str) -> None:
        self.check()
        part = {"n": len(self.past)}
        self.run(self.book.announce("ns", "demo", UID, part))
        self.ours = [self.status, part]
        if dies != "announced":
            self.status = part
            self.past.append(part)
        if dies == "never":
            self.run(self.book.written(self.seen()))
        else:
            self.another_operator_leads()

    @rule()
    def another_operator_leads(self) -> None:
        self.book, self.new = seals(self.roles), True

    @rule()
    def an_operator_looks(self) -> None:
        self.check()

    @rule(evil=st.integers(0, 3))
    def forge_a_status(self, evil: int) -> None:
        self.status = {"evil": evil}

    @rule(data=st.data())
    def restore_an_old_status(self, data: st.DataObject) -> None:
        self.status = data.draw(st.sampled_from(self.past))


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=examples(150), stateful_step_count=20, deadline=None)
