"""Costs of switches: priors, measurements by pair, and the cheaper way for the state."""

import json
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols import KvSize
from rljob_runtime.scheduling.adaptive_tp.snapshot import ALL_BUILT, PAYING_ROUNDS, Builds
from rljob_runtime.scheduling.adaptive_tp.switch_costs import (
    BELIEVED,
    CHECKSUM_RATE,
    ENOUGH,
    EXPORT_COPY,
    FIXED,
    IMPORT_COPY,
    KEPT,
    PRIORS,
    RATES,
    Carried,
    Part,
    State,
    SwitchCosts,
)
from tests.support.adaptive_tp import ENGINES

NOTHING = Carried(0, 0, 0)


def test_priors_hold_until_something_is_measured():
    pair = SwitchCosts().table(ENGINES, 4)[1, 4]
    assert pair.seconds(NOTHING) == pytest.approx(sum(PRIORS[part] for part in FIXED))


@pytest.mark.parametrize(
    ("built", "rounds", "discarded", "share"),
    [
        pytest.param(None, 1, (), 0.0, id="all are built"),
        pytest.param({1, 4}, 1, (), 0.0, id="these are built"),
        pytest.param({1}, 1, (), 1.0, id="the last round pays all"),
        pytest.param({1}, 0, (), 1.0, id="a round beyond the last one"),
        pytest.param({1}, 5, (), 0.2, id="five rounds share"),
        pytest.param({1}, 1000, (), 1 / PAYING_ROUNDS, id="no more than a few rounds share"),
        pytest.param({1}, 1000, {4}, 1.0, id="engines that were discarded before"),
        pytest.param({1}, 5, {2}, 0.2, id="others were discarded"),
    ],
)
def test_engines_that_are_not_built_cost_a_share_of_their_build(built, rounds, discarded, share):
    """30 s of a build in place of 0.3 s of a wake, by the priors."""
    builds = Builds(None if built is None else frozenset(built), rounds, frozenset(discarded))
    kept, found = (SwitchCosts().table(ENGINES, 4, builds=some)[1, 4] for some in (ALL_BUILT, builds))
    extra = 29.7 if share else 0.0
    assert found.fixed == pytest.approx(kept.fixed + share * extra)
    assert (found.build, found.unpaid) == pytest.approx((extra, (1 - share) * extra))
    assert found.of(NOTHING).state is kept.of(NOTHING).state


def test_a_build_is_as_long_as_the_last_ones():
    costs = SwitchCosts()
    for _ in range(ENOUGH):
        costs.record(1, 2, Part.BUILD, 1, 50.3)
    table = costs.table(ENGINES, 4, builds=Builds(frozenset({1})))
    assert table[1, 4].fixed - SwitchCosts().table(ENGINES, 4)[1, 4].fixed == pytest.approx(50.0)
    for seconds in (4.3, 2.0):
        costs.record_build(seconds)
    costs = SwitchCosts.from_json(costs.to_json())
    assert costs.measured
    table = costs.table(ENGINES, 4, builds=Builds(frozenset({1})))
    assert table[1, 4].fixed - SwitchCosts().table(ENGINES, 4)[1, 4].fixed == pytest.approx(4.0), "as this machine's"


def test_the_prior_of_a_move_has_a_copy_and_a_checksum_in_each_direction():
    """A process does one after the other, so their rates add up harmonically: 2.3 GB/s."""
    costs = SwitchCosts(dict.fromkeys(FIXED, 0.0))
    tokens = 10**9
    seconds = costs.table(ENGINES, 4, State.MIGRATE)[1, 4].seconds(Carried(4, tokens, 0))
    left, arrived = tokens // 4 * ENGINES[1].kv_token_bytes, tokens * ENGINES[4].kv_token_bytes
    assert left == arrived, "each accelerator has a quarter before and after"
    rate = left / seconds
    assert 1 / rate == pytest.approx(1 / EXPORT_COPY + 1 / CHECKSUM_RATE + 1 / CHECKSUM_RATE + 1 / IMPORT_COPY)
    assert rate == pytest.approx(2.34e9, rel=0.01)


def test_a_pair_has_its_own_measurements_others_have_those_of_all():
    costs = SwitchCosts()
    for seconds in (3.0, 0.5, 0.5):
        costs.record(1, 4, Part.WAKE, 1, seconds)
    assert costs.unit(1, 4, Part.WAKE) == 0.5
    assert costs.unit(2, 4, Part.WAKE) == 0.5
    for _ in range(ENOUGH):
        costs.record(2, 4, Part.WAKE, 1, 7.0)
    assert costs.unit(1, 4, Part.WAKE) == 0.5
    assert costs.unit(2, 4, Part.WAKE) == 7.0
    assert costs.unit(1, 4, Part.SLEEP) == PRIORS[Part.SLEEP]


def test_one_slow_switch_changes_no_cost():
    """A cost above every gain would end all switches, and with them all measurements."""
    costs = SwitchCosts()
    before = costs.table(ENGINES, 4)
    for part in FIXED:
        costs.record(1, 4, part, 1, 40.0)
    assert costs.table(ENGINES, 4) == before
    costs.record(1, 4, Part.WAKE, 1, 0.6)
    costs.record(1, 4, Part.WAKE, 1, 0.5)
    assert costs.unit(1, 4, Part.WAKE) == 0.6
    assert costs.unit(4, 1, Part.WAKE) == 0.6


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        pytest.param([1.5], 1.5, id="one measurement counts"),
        pytest.param([1.5, 0.9], 1.2, id="two count alike"),
        pytest.param([40.0], BELIEVED, id="one slow copy doubles the rate, no more"),
        pytest.param([0.001], 1 / BELIEVED, id="one that is too fast halves it"),
        pytest.param([40.0, 40.0], BELIEVED, id="nor do two"),
        pytest.param([40.0, 40.0, 40.0], 40.0, id="three are believed"),
        pytest.param([40.0, 1.5, 1.5], 1.5, id="one of three is not"),
    ],
)
@pytest.mark.parametrize("part", RATES)
def test_a_rate_of_state_is_believed_from_the_first_measurement_on(part, measured, expected):
    costs = SwitchCosts({part: 1.0})
    for seconds in measured:
        costs.record(1, 2, part, 1, seconds)
    assert costs.unit(4, 2, part) == pytest.approx(expected)


@given(st.sampled_from(Part), st.floats(1e-3, 1e3), st.lists(st.floats(1e-6, 1e6), max_size=ENOUGH - 1))
def test_few_measurements_change_other_pairs_within_bounds_at_most(part, prior, measured):
    costs = SwitchCosts({part: prior})
    for seconds in measured:
        costs.record(1, 2, part, 1, seconds)
    allowed = BELIEVED if part in RATES else 1.0
    assert prior / allowed * (1 - 1e-9) <= costs.unit(2, 4, part) <= prior * allowed * (1 + 1e-9)


def test_two_slow_switches_change_the_cost_of_their_pair_only():
    costs = SwitchCosts()
    for _ in range(2):
        costs.record(1, 4, Part.LOAD, 1, 40.0)
    assert costs.unit(1, 4, Part.LOAD) == 40.0
    assert costs.unit(2, 4, Part.LOAD) == PRIORS[Part.LOAD]


def test_builds_do_not_make_later_switches_dear():
    """Each machine of a fleet builds its engines of a size once."""
    costs = SwitchCosts()
    before = costs.table(ENGINES, 4)
    for _ in range(16):
        costs.record(1, 4, Part.BUILD, 1, 40.0)
    assert costs.table(ENGINES, 4) == before
    assert costs.unit(1, 4, Part.BUILD) == 40.0


def test_old_measurements_are_forgotten():
    costs = SwitchCosts()
    for _ in range(KEPT):
        costs.record(1, 2, Part.LOAD, 1, 1.0)
    for _ in range(KEPT):
        costs.record(1, 2, Part.LOAD, 1, 2.0)
    assert costs.unit(1, 2, Part.LOAD) == 2.0


def test_measurements_are_per_unit():
    costs = SwitchCosts()
    for _ in range(ENOUGH):
        costs.record(1, 2, Part.EXPORT, 1000, 2.0)
    costs.record(1, 2, Part.EXPORT, 0, 2.0)
    assert costs.unit(1, 2, Part.EXPORT) == 0.002
    with pytest.raises(ValueError, match="0 or more"):
        costs.record(1, 2, Part.EXPORT, 1, -1.0)


@pytest.mark.parametrize(
    ("state", "byte", "expected"),
    [
        (State.AUTO, 1e-9, State.MIGRATE),
        (State.AUTO, 1.0, State.RECOMPUTE),
        (State.MIGRATE, 1.0, State.MIGRATE),
        (State.RECOMPUTE, 1e-9, State.RECOMPUTE),
    ],
)
def test_state_goes_the_cheaper_way_unless_one_is_required(state, byte, expected):
    costs = SwitchCosts({Part.EXPORT: byte, Part.IMPORT: byte})
    cost = costs.table(ENGINES, 4, state)[1, 4].of(Carried(4, 4000, 4_000_000))
    assert cost.state is expected


@pytest.mark.parametrize(
    ("start", "target", "responses", "exported", "imported"),
    [
        pytest.param(1, 4, 4, 1.0, 1.0, id="1,000 tokens leave each accelerator, a quarter of 4,000 arrives"),
        pytest.param(4, 1, 4, 1.0, 1.0, id="and back"),
        pytest.param(1, 4, 1, 4.0, 1.0, id="all tokens are of one response, and leave one accelerator"),
        pytest.param(4, 1, 1, 1.0, 4.0, id="and arrive at one"),
        pytest.param(1, 2, 2, 2.0, 1.0, id="two of four accelerators export, all import"),
        pytest.param(2, 4, 9, 1.0, 1.0, id="responses for all"),
    ],
)
def test_what_moves_is_the_share_of_the_busiest_accelerator(start, target, responses, exported, imported):
    """4,000 tokens of 1,000 bytes, of which an engine's accelerators have even shares."""
    for export_, import_, seconds in ((1e-6, 0.0, exported), (0.0, 1e-6, imported)):
        costs = SwitchCosts({**dict.fromkeys(FIXED, 0.0), Part.EXPORT: export_, Part.IMPORT: import_})
        pair = costs.table(ENGINES, 4, State.MIGRATE)[start, target]
        assert pair.seconds(Carried(responses, 4000, 0)) == pytest.approx(seconds)


SIZES = st.sampled_from([1, 2, 4])
RECORDS = st.lists(st.tuples(SIZES, SIZES, st.sampled_from(Part), st.floats(0.1, 9.0), st.floats(0.0, 9.0)))


@given(RECORDS, RECORDS, st.sampled_from([None, KvSize(2, 400, 800_000)]))
def test_costs_that_were_stored_are_the_same_from_then_on(before, after, kv):
    costs = SwitchCosts()
    costs.kv = kv
    for record in before:
        costs.record(*record)
    restored = SwitchCosts.from_json(costs.to_json())
    for record in after:
        costs.record(*record)
        restored.record(*record)
    assert restored.to_json() == costs.to_json()
    assert restored.kv == kv
    for start in (1, 2, 4):
        for target in (1, 2, 4):
            assert [restored.unit(start, target, part) for part in Part] == [
                costs.unit(start, target, part) for part in Part
            ]


def test_prefills_measured_against_other_predictions_are_forgotten():
    costs = SwitchCosts()
    for _ in range(ENOUGH):
        costs.record(1, 4, Part.LOAD, 1, 2.0)
        costs.record(1, 4, Part.PREFILL, 1, 1.5)
    assert SwitchCosts.from_json(costs.to_json()).unit(1, 4, Part.PREFILL) == 1.5
    stored = json.loads(costs.to_json())
    del stored["form"]
    former = SwitchCosts.from_json(json.dumps(stored))
    assert (former.unit(1, 4, Part.PREFILL), former.unit(1, 4, Part.LOAD)) == (PRIORS[Part.PREFILL], 2.0)
    assert former.unit(4, 2, Part.PREFILL) == PRIORS[Part.PREFILL], "nor in the median of all pairs"


def test_a_part_that_this_runtime_does_not_know_is_ignored():
    costs = SwitchCosts()
    for _ in range(ENOUGH):
        costs.record(1, 4, Part.LOAD, 1, 2.0)
    stored = json.loads(costs.to_json())
    stored["all"]["compile"] = stored["pairs"][0][2]["compile"] = [1.0]
    del stored["kv"]  # A runtime that does not know it stores none.
    assert SwitchCosts.from_json(json.dumps(stored)).unit(1, 4, Part.LOAD) == 2.0


def test_nothing_moves_without_responses():
    costs = SwitchCosts(dict.fromkeys(FIXED, 0.0))
    assert costs.table(ENGINES, 4, State.MIGRATE)[1, 4].seconds(NOTHING) == 0


def test_prefill_is_that_of_the_fullest_replica():
    costs = SwitchCosts(dict.fromkeys(FIXED, 0.0))
    pair = costs.table(ENGINES, 4, State.RECOMPUTE)[4, 1]
    latency = ENGINES[1].latency
    assert pair.seconds(Carried(8, 8000, 0)) == pytest.approx(latency.prefill(2000, 0))
    assert pair.seconds(Carried(2, 8000, 0)) == pytest.approx(latency.prefill(4000, 0))
    for _ in range(ENOUGH):
        costs.record(4, 1, Part.PREFILL, 2.0, 3.0)
    assert costs.table(ENGINES, 4, State.RECOMPUTE)[4, 1].seconds(Carried(8, 8000, 0)) == pytest.approx(
        1.5 * latency.prefill(2000, 0)
    )


@pytest.mark.parametrize(
    ("state", "room", "byte", "expected"),
    [
        (State.AUTO, 4000, 1e-9, State.MIGRATE),
        (State.AUTO, 3999, 1e-9, State.RECOMPUTE),
        (State.MIGRATE, 4000, 1.0, State.MIGRATE),
        (State.MIGRATE, 3999, 1e-9, State.RECOMPUTE),
        (State.RECOMPUTE, 4000, 1e-9, State.RECOMPUTE),
    ],
)
def test_kv_moves_only_with_room_in_shared_memory(state, room, byte, expected):
    costs = SwitchCosts({Part.EXPORT: byte, Part.IMPORT: byte})
    engines = {size: replace(one, kv_room_tokens=room) for size, one in ENGINES.items()}
    cost = costs.table(engines, 4, state)[1, 4].of(Carried(4, 4000, 4_000_000))
    assert cost.state is expected


def test_engines_that_move_no_kv_recompute_also_where_a_move_is_required():
    engines = {size: replace(one, kv_token_bytes=None) for size, one in ENGINES.items()}
    cost = SwitchCosts().table(engines, 4, State.MIGRATE)[1, 4].of(Carried(4, 4000, 4_000_000))
    assert cost.state is State.RECOMPUTE
    assert cost.seconds < inf


SECONDS = st.floats(0.0, 1e-3)
CARRIED = st.builds(
    lambda responses, context: Carried(responses, responses * context, responses * context * context),
    st.integers(1, 512),
    st.integers(1, 20_000),
)


@given(SECONDS, SECONDS, st.floats(0.1, 10.0), st.one_of(st.just(inf), st.integers(0, 10**7)), CARRIED)
def test_auto_is_the_cheaper_of_both_and_no_move_exceeds_the_room(export_, import_, factor, room, carried):
    costs = SwitchCosts({Part.EXPORT: export_, Part.IMPORT: import_, Part.PREFILL: factor})
    engines = {size: replace(one, kv_room_tokens=room) for size, one in ENGINES.items()}
    for pair in ((1, 4), (4, 1), (2, 4)):
        found = {state: costs.table(engines, 4, state)[pair].of(carried) for state in State}
        assert found[State.RECOMPUTE].state is State.RECOMPUTE
        fits = carried.tokens <= room
        assert found[State.MIGRATE].state is (State.MIGRATE if fits else State.RECOMPUTE)
        assert found[State.AUTO].seconds == min(found[State.MIGRATE].seconds, found[State.RECOMPUTE].seconds)
        assert fits or found[State.AUTO].state is State.RECOMPUTE
        assert costs.table(engines, 4)[pair].seconds(carried) == found[State.AUTO].seconds


@pytest.mark.parametrize(("engines", "expected"), [("a", 9.0), ("b", PRIORS[Part.LOAD]), ("", PRIORS[Part.LOAD])])
def test_costs_of_other_engines_are_not_taken(engines, expected):
    """One that is too high would end all switches, and never be corrected."""
    costs = SwitchCosts()
    for _ in range(ENOUGH):
        costs.record(1, 4, Part.LOAD, 1, 9.0)
    assert SwitchCosts.from_json(costs.to_json("a"), engines).unit(1, 4, Part.LOAD) == expected
