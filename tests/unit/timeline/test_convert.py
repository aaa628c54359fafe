"""Recorded intervals as a trace: nothing is lost, and no two spans of a thread overlap."""

import json
from collections import Counter, defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.timeline.convert import threads, trace_of
from rljob_runtime.timeline.record import LEVELS, Interval, Record, read_records

SECONDS = st.integers(0, 50).map(lambda tenths: 1.7e9 + tenths / 10)
INTERVALS = st.builds(
    lambda row, name, since, seconds, args: Interval(
        row, name, since, None if seconds is None else since + seconds / 10, args
    ),
    st.sampled_from(["trainer", "coordinator/rounds", "rollout-0/relay", "rollout-0/replica-1", "rollout-1/relay"]),
    st.sampled_from(["load", "generate"]),
    SECONDS,
    st.none() | st.integers(0, 30),
    st.dictionaries(st.sampled_from(["round", "version"]), st.integers(0, 9), max_size=2),
)


def overlap(one: Interval, other: Interval) -> bool:
    return one.until is not None and other.until is not None and one.since < other.until and other.since < one.until


@given(st.lists(INTERVALS, max_size=25))
def test_every_interval_is_in_one_thread_where_none_overlaps_it(intervals):
    found = threads(intervals)
    key = repr
    assert Counter(map(key, intervals)) == Counter(key(one) for thread in found for one in thread)
    for thread in found:
        spans = [one for one in thread if one.until is not None]
        assert not any(overlap(one, other) for one, other in pairwise(spans))
        assert [one.since for one in spans] == sorted(one.since for one in spans)
    if len(found) > 1:
        # As few as possible: a span of the last thread begins while all others are busy.
        first = found[-1][0]
        assert all(any(one.until and one.since <= first.since < one.until for one in thread) for thread in found[:-1])


@given(st.lists(INTERVALS, min_size=1, max_size=25), st.integers(1, 4))
def test_a_trace_has_the_recorded_times_and_rows(intervals, rounds):
    text = ""
    for number in range(rounds):
        text += Record(number + 1, 1, tuple(intervals[number::rounds])).to_json() + "\n"
    document = trace_of(read_records(text)).document()
    json.dumps(document)
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["ph"] == "M"
    }
    found: Counter[tuple[object, ...]] = Counter()
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            continue
        place = event["pid"], event["tid"]
        thread = names["thread_name", *place].partition(" (")[0]
        tenths = round(event["ts"] / 1e5)
        length = round(event["dur"] / 1e5) if event["ph"] == "X" else None
        found[names["process_name", *place], thread, event["name"], tenths, length] += 1
    start = min(one.since for one in intervals)

    def expected(one: Interval) -> tuple[object, ...]:
        machine, _, process = one.row.partition("/")
        length = None if one.until is None else round((one.until - one.since) * 10)
        return machine, process or machine, one.name, round((one.since - start) * 10), length

    assert found == Counter(map(expected, intervals))


def test_spans_of_a_thread_do_not_overlap_in_the_document():
    intervals = (Interval("a/b", "x", 1.0, 3.0), Interval("a/b", "y", 2.0, 4.0), Interval("a/b", "z", 3.0, 5.0))
    document = trace_of([Record(1, 1, intervals)]).document()
    spans = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            spans[event["tid"]].append(event["name"])
    assert sorted(spans.values()) == [["x", "z"], ["y"]]
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"]
    assert names == ["b", "b (2)"]


def test_samples_of_counters_are_counters():
    samples = [Interval("episodes calc/open", LEVELS, at, None, {"model": at, "outside": 2}) for at in (1.0, 3.0)]
    events = trace_of([Record(1, 1, tuple(samples))]).document()["traceEvents"]
    found = [(event["name"], event["ts"], event["args"]) for event in events if event["ph"] == "C"]
    assert found == [
        ("episodes calc", 0.0, {"model": 1.0, "outside": 2}),
        ("episodes calc", 2e6, {"model": 3.0, "outside": 2}),
    ]
    assert {event["ph"] for event in events} == {"M", "C"}


def test_machines_come_after_coordinator_and_trainer():
    intervals = tuple(Interval(row, "x", 1.0, 2.0) for row in ("a/relay", "trainer", "coordinator/rounds"))
    document = trace_of([Record(1, 1, intervals)]).document()
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"]
    assert names == ["coordinator", "trainer", "a"]


def test_lines_that_are_none_are_skipped():
    whole = Record(3, 2, (Interval("trainer", "train", 1.5, 2.5, {"round": 3}),), lost=4)
    text = f'0, "since"]]}}\n{whole.to_json()}\n[]\n{{"round": 1}}\n{whole.to_json()[:20]}'
    assert read_records(text) == [whole]
    assert trace_of([]).document()["traceEvents"] == []
