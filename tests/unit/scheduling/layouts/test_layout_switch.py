"""Layouts of a round and switches inside it: tables and properties of the pure parts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import RoundKind
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.packing import pack
from rljob_runtime.scheduling.adaptive_tp.snapshot import Running
from rljob_runtime.scheduling.layouts.fleet_layout import RoundLayout
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch, NeverSwitch, SwitchableMachine, replicas_of
from rljob_runtime.scheduling.round import Round
from rljob_runtime.scheduling.round_plan import RoundPlan, RoundShape
from rljob_runtime.scheduling.round_samples import SampleState

MACHINES = st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, 2, 4, 8]), max_size=3)


def response(index: int, sample: int = 0) -> TrajectoryKey:
    return TrajectoryKey(PromptKey(0, index), sample)


PACKED = (
    # name, tokens by (prompt, sample), replicas, expected replica of each
    ("nothing", {}, ["a"], {}),
    ("no replica", {(0, 0): 5}, [], {}),
    ("the longest are apart", {(0, 0): 9, (1, 0): 8, (2, 0): 1, (3, 0): 1}, ["a", "b"], ["a", "b", "b", "a"]),
    ("siblings are apart", {(0, 0): 9, (1, 0): 9, (0, 1): 7}, ["a", "b"], ["a", "b", "b"]),
    ("as few, whatever the tokens", {(0, 0): 90, (1, 0): 1, (2, 0): 1, (3, 0): 1}, ["a", "b"], ["a", "b", "b", "a"]),
    ("one replica has all", {(0, 0): 2, (0, 1): 3}, ["a"], ["a", "a"]),
    ("the longer prompt first", {(0, 0): 5, (2, 0): 5, (1, 0): 4, (3, 0): 3}, ["a", "b"], ["b", "a", "b", "a"]),
)


def running(tokens: Mapping[tuple[int, int], int]) -> dict[TrajectoryKey, Running]:
    """Responses with so many tokens. Every third prompt is longer."""
    return {response(*place): Running(100 + 50 * (place[0] % 3 == 2), count) for place, count in tokens.items()}


@pytest.mark.parametrize(
    ("tokens", "replicas", "expected"), [row[1:] for row in PACKED], ids=[row[0] for row in PACKED]
)
def test_where_responses_go_on(tokens, replicas, expected):
    held = running(tokens)
    found = replicas_of(held, replicas)
    assert [found[key] for key in held if key in found] == list(expected)


@given(
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 3)), st.integers(0, 99), max_size=20),
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True),
)
def test_every_response_goes_on_once_and_replicas_have_as_many(tokens, replicas):
    held = running(tokens)
    found = replicas_of(held, replicas)
    assert found.keys() == held.keys()
    counts = Counter(found.values())
    assert max(counts.values(), default=0) - min((counts[name] for name in replicas), default=0) <= 1
    assert replicas_of(dict(reversed(held.items())), replicas[::-1]) == found, "in any order"
    # The longest ones share no replica while another has none.
    longest = sorted(held, key=lambda key: (-held[key].generated, -held[key].prompt_tokens, key))[: len(replicas)]
    assert len({found[key] for key in longest}) == len(longest)


@given(
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 3)), st.integers(0, 9), max_size=20),
    st.integers(1, 8),
)
def test_responses_go_on_where_the_decision_played_them(tokens, replicas):
    held = running(tokens)
    groups = {prompt: number for number, prompt in enumerate(sorted({key.prompt for key in held}))}
    played = pack(
        [replace(one, group=groups[key.prompt]) for key, one in sorted(held.items())], replicas, lambda one: one
    )
    found = replicas_of(held, [f"a/{number}" for number in range(replicas)])
    made = [
        Counter(replace(held[key], group=groups[key.prompt]) for key, name in found.items() if name == f"a/{number}")
        for number in range(replicas)
    ]
    assert made == [Counter(part) for part in played]


@given(st.sampled_from([1, 2, 4]), st.lists(MACHINES, max_size=6))
def test_a_layout_follows_from_its_changes(size, switched):
    layout, changes = RoundLayout(size), []
    for machines in switched:
        machines = {name: its for name, its in machines.items() if its != size}
        new = layout.changes_to(machines)
        assert all(layout.of(name) != its for name, its in new), "a row for each change, and no other"
        changes += new
        layout = RoundLayout(size, machines)
        assert RoundLayout(size).changed(changes) == layout
    assert layout.changes_to(layout.machines) == []


@pytest.mark.parametrize(
    ("layout", "target", "sizes", "kept"),
    [
        (RoundLayout(1), 1, (1, 2), True),
        (RoundLayout(1, {"a": 2}), 1, (1, 2), True),
        (RoundLayout(1, {"a": 4}), 1, (1, 2), False),
        (RoundLayout(4), 4, (1, 2), False),
        # Engines of size 1 may fail under the load of this round: another target has to reach it.
        (RoundLayout(1), 2, (1, 2), False),
        (RoundLayout(1, {"a": 2}), 2, (1, 2), False),
    ],
)
def test_an_open_round_goes_on_in_its_layout_if_target_and_spec_permit_it(layout, target, sizes, kept):
    assert layout.kept(target, sizes) == (layout if kept else None)


def round_of(prompts: int = 3, responses: int = 2) -> Round:
    shape = RoundShape(RoundKind.PLAIN, prompts, responses, prompts, responses)
    return Round(RoundPlan(1, 1, shape, tuple(PromptKey(0, index) for index in range(prompts))))


def test_placed_responses_follow_their_placement_and_others_are_spread():
    round_ = round_of()
    placed = {response(0, 0): "b", response(0, 1): None, response(1, 0): "b", response(9, 9): "a"}
    launched = {launch.key: launch.lease.replica for launch in round_.launch(["a", "b"], placed)}
    assert launched == {
        response(0, 0): "b",
        response(1, 0): "b",
        response(1, 1): "a",
        response(2, 0): "a",
        response(2, 1): "b",
    }
    assert round_.state(response(0, 1)) is SampleState.WAITING
    (later,) = round_.launch(["a"], {})
    assert (later.key, later.lease.replica, later.lease.attempt) == (response(0, 1), "a", 1)


def test_a_launch_without_any_other_replica_keeps_what_waits():
    round_ = round_of()
    assert round_.launch([], dict.fromkeys(round_.in_state(SampleState.WAITING))) == ()
    assert round_.launch([], {response(0, 0): "x"})[0].lease.replica == "x"
    assert len(round_.in_state(SampleState.WAITING)) == 5


def test_views_and_switches_say_what_they_are():
    machine = SwitchableMachine("a", 1, (2,), {"a/0": {response(0): 3}, "a/1": {response(1): 4}})
    assert machine.responses == {response(0): 3, response(1): 4}
    assert not NeverSwitch().is_due(1, 2, 3.0)
    switch = LayoutSwitch("a", 1, 2, responses=(response(0),), seconds={"stop": 0.25}, reached=2)
    assert switch.succeeded
    assert str(switch) == "a: 1 → 2, reached 2, 1 responses: stop 0.250 s"
    assert not LayoutSwitch("a", 1, 2, reached=1).succeeded
