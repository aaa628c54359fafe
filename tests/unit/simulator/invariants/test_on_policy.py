"""The invariants themselves: each is broken by an event that breaks it, and by nothing that is right."""

import json
from dataclasses import replace

import pytest

from rljob_api.status import RuntimeStatus
from rljob_runtime.protocols.trajectory import FinishReason, Group, PromptKey, Response, ScoredResponse, TrajectoryKey
from rljob_runtime.simulator.core.events import (
    EXECUTED,
    REPLAYED,
    STORED,
    Asked,
    Checkpointed,
    Committed,
    EpisodeReported,
    Exported,
    Learned,
    Loaded,
    Part,
    Published,
    Reported,
    Restored,
    Row,
    Submitted,
    ToolCalled,
    Trained,
)
from rljob_runtime.simulator.core.tokens import digest, phase, text
from rljob_runtime.simulator.invariants.on_policy import RoundInvariants

KEYS = [TrajectoryKey(PromptKey(0, 0), sample) for sample in range(2)]
IDS = tuple(map(str, KEYS))
FIRST, SECOND = digest(()), digest((IDS,))


def response(key, version=1, made_by=None, length=3):
    tokens, logprobs = text(phase(key, made_by or version), 0, length)
    return ScoredResponse(Response(key, 1, version, tokens, logprobs, FinishReason.STOP, "r"), 0.5)


GROUP = Group(PromptKey(0, 0), (1,), tuple(map(response, KEYS)))


def trained(step=1, groups=(GROUP,), before=FIRST, parts=None):
    """An update; unless said otherwise the trainer computed all of its gradient."""
    whole = (Part("trainer", before, tuple(group.prompt for group in groups)),)
    return Trained(step, groups, before, SECOND, 0.0, whole if parts is None else parts)


TRAINED = trained()


def computed_by(worker, content=FIRST):
    return Part(worker, content, (GROUP.prompt,))


def prompt(step=1, index=0, outcome=None):
    return Row("prompts", (step, 0, index), (outcome,))


def sample(number, attempt=1, failures=0, outcome=None, step=1):
    return Row("trajectories", (step, 0, 0, number), (attempt, failures, 1, None, outcome))


def chunk(size, start=0, number=0):
    return Row("chunks", (1, 0, 0, number, start), (size,))


def boundary(step, drawn, queue=()):
    return Row("boundaries", (step,), (0, drawn, json.dumps(queue), "[]"))


def gone(row):
    return replace(row, values=None)


def committed(*rows):
    return Committed(rows)


def submitted(replica="a", attempt=1, prefix=0):
    return Submitted(replica, KEYS[0], attempt, 1, prefix)


START = committed(boundary(0, 0))
OPENED = committed(Row("rounds", (1,), (1, 2)), prompt(), sample(0), sample(1))
SETTLED = (prompt(outcome="trained"), sample(0, outcome="trained"), sample(1, outcome="trained"))
CLOSED = committed(*SETTLED, boundary(1, 1))
PUBLISHED = Published(1, 0, FIRST, 0.0)
RUN = (START, PUBLISHED, OPENED, submitted(), TRAINED, CLOSED)


def broken_by(*events, end=None):
    invariants = RoundInvariants(2, 10, lambda: 0.0)
    for event in events:
        invariants(event)
    if end is not None:
        invariants.end(end)
    return invariants.broken and invariants.broken.invariant


def test_a_right_run_breaks_nothing():
    assert broken_by(*RUN, Checkpointed(1, 0.0), Restored(1, SECOND), end=1) is None


def test_a_rewind_gives_everything_back():
    undone = committed(
        gone(boundary(1, 1)), gone(prompt()), gone(sample(0)), gone(sample(1)), gone(Row("rounds", (1,), ()))
    )
    again = (Published(2, 0, FIRST, 0.0), committed(prompt(), sample(0), sample(1)))
    second = Group(PromptKey(0, 0), (1,), tuple(response(key, version=2) for key in KEYS))
    events = (*RUN, Restored(0, FIRST), undone, *again, trained(groups=(second,)), CLOSED)
    assert broken_by(*events, end=1) is None


def said(rounds, number):
    return Reported(RuntimeStatus(term=1, round=rounds, stage="Generating"), number)


def test_a_report_may_be_overtaken_by_a_rewind_once():
    rewound = (*RUN[:-1], Restored(0, FIRST))
    assert broken_by(*rewound, said(1, 1)) is None, "it was true when it was sent"
    assert broken_by(*rewound, said(1, 1), said(1, 2)) == "one history"
    assert broken_by(*rewound, said(0, 1), said(1, 2)) == "one history"


def test_the_first_violation_is_kept_and_told_once():
    told = []
    invariants = RoundInvariants(2, 10, lambda: 7.5, lambda: told.append(1))
    for event in (Loaded("r", 9, 1, 0.0), Loaded("r", 8, 1, 0.0)):
        invariants(event)
    assert str(invariants.broken) == "one version: r loaded other weights as version 9 (at 7.500 s, event 1)"
    assert told == [1]


@pytest.mark.parametrize(
    ("invariant", "events"),
    [
        ("one place", (*RUN, committed(prompt(step=2)))),
        ("one place", (OPENED, committed(boundary(1, 2)))),
        ("one place", (OPENED, committed(prompt(outcome="requeued"), boundary(1, 1)))),
        ("one place", (OPENED, committed(prompt(outcome="filtered"), boundary(1, 1, ["0.0"])))),
        ("trained once", (*RUN, Published(2, 1, SECOND, 0.0), trained(step=2, before=SECOND))),
        ("trained once", (PUBLISHED, trained(groups=(GROUP, GROUP)))),
        ("trained once", (PUBLISHED, OPENED, TRAINED, committed(boundary(1, 1)))),
        ("trained once", (PUBLISHED, OPENED, CLOSED)),
        ("whole groups", (PUBLISHED, trained(groups=(replace(GROUP, responses=GROUP.responses[:1]),)))),
        ("whole groups", (PUBLISHED, trained(groups=(replace(GROUP, prompt=PromptKey(0, 1)),)))),
        ("one gradient", (PUBLISHED, trained(parts=()))),
        (
            "one gradient",
            (
                PUBLISHED,
                trained(parts=(Part("trainer", FIRST, (GROUP.prompt,)), Part("loaned", FIRST, (GROUP.prompt,)))),
            ),
        ),
        ("one gradient", (PUBLISHED, trained(parts=(Part("loaned", SECOND, (GROUP.prompt,)),)))),
        ("one version", (TRAINED,)),
        ("one version", (Loaded("r", 1, SECOND, 0.0),)),
        ("one lease", (PUBLISHED, OPENED, submitted(), submitted(replica="b"))),
        ("no progress lost", (OPENED, committed(chunk(5)), submitted(prefix=4))),
        ("no progress lost", (OPENED, committed(chunk(5)), committed(gone(chunk(5))))),
        ("no progress lost", (*RUN, committed(gone(boundary(1, 1))))),
        ("no progress lost", (*RUN, Checkpointed(1, 0.0), Restored(0, FIRST))),
        ("one history", (PUBLISHED, Published(1, 0, SECOND, 0.0))),
        ("one history", (*RUN, Published(2, 1, FIRST, 0.0))),
        ("one history", (PUBLISHED, trained(step=2))),
        ("one history", (PUBLISHED, trained(before=SECOND))),
        ("one history", (Restored(0, SECOND),)),
        ("one history", (Reported(RuntimeStatus(term=2), 5), Reported(RuntimeStatus(term=1), 6))),
        ("one history", (Reported(RuntimeStatus(term=2), 5), Reported(RuntimeStatus(term=2), 4))),
        ("one history", (Reported(RuntimeStatus(term=1, round=1, stage="Generating"), 1),)),
    ],
)
def test_each_is_broken_by_what_breaks_it(invariant, events):
    assert broken_by(*events) == invariant


def test_tokens_of_other_weights_are_seen_whatever_their_version_says():
    forged = replace(GROUP, responses=(response(KEYS[0]), response(KEYS[1], version=1, made_by=2)))
    assert broken_by(PUBLISHED, trained(groups=(forged,))) == "one version"


def test_tokens_may_go_when_a_reward_failed_or_the_round_is_closed():
    assert broken_by(OPENED, committed(chunk(5)), committed(gone(chunk(5)), sample(0, failures=1))) is None
    assert broken_by(PUBLISHED, OPENED, committed(chunk(5)), TRAINED, committed(*CLOSED.rows, gone(chunk(5)))) is None


def test_an_ended_response_begins_again_once_for_each_hand_back():
    ended = Row("trajectories", (1, 0, 0, 0), (1, 0, 1, "stop", None))
    begun = (committed(chunk(5), ended), committed(gone(chunk(5)), sample(0)))
    left = EpisodeReported("r", KEYS[0], 1, None, "runner")
    assert broken_by(OPENED, left, *begun) is None
    assert broken_by(OPENED, left, left, *begun, *begun) is None
    assert broken_by(OPENED, left, *begun, *begun) == "no progress lost"
    assert broken_by(OPENED, EpisodeReported("r", KEYS[0], 1, 0.0, None), *begun) == "no progress lost"


def test_a_stored_call_of_a_tool_is_executed_again_in_a_replay_only():
    begun = ToolCalled("r", KEYS[0], 7, 2, EXECUTED)
    stored, replayed = replace(begun, what=STORED), replace(begun, what=REPLAYED)
    assert broken_by(begun, begun, stored, replayed) is None
    assert broken_by(begun, stored, replace(begun, attempt=8), replace(begun, node=4)) is None
    assert broken_by(begun, stored, begun) == "no call twice"


def test_a_late_submit_of_an_older_attempt_is_not_blamed():
    assert broken_by(OPENED, committed(chunk(5), sample(0, attempt=2)), submitted(prefix=0)) is None


@pytest.mark.parametrize(
    ("asked", "events"),
    [
        # One round is done, and no second one was under way.
        (0, (Asked(0), *RUN)),
        (1, (*RUN, Asked(2), Asked(1))),
        # The answer with the final model is under way already.
        (2, (*RUN, Exported(1), Asked(2))),
    ],
)
def test_the_rounds_are_those_that_were_asked_for(asked, events):
    assert broken_by(*events, end=asked) is None


@pytest.mark.parametrize(
    ("asked", "events"),
    [
        (2, (*RUN, Asked(2))),
        # A final model that is written again is written for what is asked now.
        (2, (*RUN, Exported(1), Asked(2), Exported(1))),
        (2, (START, PUBLISHED, OPENED, Exported(0), Asked(2), TRAINED, CLOSED)),
    ],
)
def test_a_job_that_ends_before_its_last_round_is_a_violation(asked, events):
    assert broken_by(*events, end=asked) == "the job ends"


def test_a_job_that_exceeds_its_reduced_rounds_is_a_violation():
    later = (
        Published(2, 1, SECOND, 0.0),
        trained(step=2, groups=(), before=SECOND, parts=()),
        committed(boundary(2, 1)),
    )
    assert broken_by(Asked(1), *RUN, *later, end=1) == "the job ends"
    assert broken_by(*RUN, Asked(1), *later, end=1) is None


def anchor(step, milliseconds, test="t"):
    return Row("anchors", (step,), ("r", test, milliseconds))


def test_the_store_holds_the_anchors_that_rewards_hold():
    closed = (*SETTLED, boundary(1, 1))
    learned = Learned((("r/t", 7),))
    until = (START, PUBLISHED, OPENED, TRAINED)
    assert broken_by(*until, learned, committed(*closed, anchor(1, 7))) is None
    assert broken_by(*until, learned, committed(*closed)) == "anchors"
    assert broken_by(*until, learned, committed(*closed, anchor(1, 6))) == "anchors"
    assert broken_by(*until, Learned(()), committed(*closed, anchor(1, 7))) == "anchors"
    # The newest row of a test holds, and what was taken back does not.
    assert broken_by(committed(anchor(1, 5), anchor(2, 7)), *until, learned, committed(*closed)) is None
    taken_back = committed(Row("anchors", (2,), None))
    assert broken_by(committed(anchor(1, 7), anchor(2, 9)), taken_back, *until, learned, committed(*closed)) is None


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_job_that_ends_early_or_late_has_not_ended_right(rounds):
    assert broken_by(*RUN, end=rounds) == "the job ends"


def test_a_job_ends_with_nothing_open():
    assert broken_by(*RUN, committed(prompt(step=2, index=1)), end=1) == "one place"
    assert broken_by(*RUN, committed(sample(0, step=2)), end=1) == "trained once"
