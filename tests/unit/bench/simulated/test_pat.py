"""`rljob bench pat`: figures are of its rows, the limit limits, and the printed algorithm does not help."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest

from rljob_bench.simulated.pat import pat
from rljob_bench.simulated.pat_printed import PRINTED
from rljob_bench.simulated.pat_rules import Hindsight, one_rule, printed
from rljob_bench.simulated.pat_stages import ABOVE_8K, ABOVE_16K, H100_8B, H100_14B, QUICK, Stage, deep_scaler, recorded
from rljob_bench.simulated.pat_starts import arrived
from rljob_bench.simulated.switches.comparison import best_switch, compare
from rljob_bench.simulated.switches.sensitivity import Wrong
from rljob_bench.simulated.switches.stage_play import Play
from rljob_runtime.scheduling.adaptive_tp.stage import generate

SMALL = Stage("small", H100_8B, 8192, 48)


@pytest.fixture(scope="module")
def result():
    return pat(quick=True, seed=0)


def test_figures_are_those_of_the_rows(result):
    figures = {one["name"]: one for one in result["figures"]}
    row = result["rows"][0]
    best = min(row["static_seconds"].values())
    name = row["setting"]
    assert figures[f"{name}: over the best static size"]["value"] == pytest.approx(best / row["seconds"], rel=1e-3)
    assert figures[f"{name}: over the profile's size"]["value"] == pytest.approx(
        row["profile_seconds"] / row["seconds"], rel=1e-3
    )
    assert figures["most switches of a stage"]["value"] <= 3
    saved = figures["PAT Fig. 11c, Llama-3.1-8B from TP 2: time saved"]
    assert 0.1 < saved["value"] < saved["goal"]
    (step,) = (one for name, one in figures.items() if name.startswith("PAT Fig. 11c") and "step over" in name)
    assert 1.05 < step["value"] < step["goal"] == 1.37
    assert step["value"] <= step["limit"] * 1.01


def test_the_printed_seconds_of_a_step_agree():
    """PAT §5.3 prints 172.5 s and 125.6 s of whole steps for the first setting."""
    first, second = PRINTED
    assert first.before + first.other_stages == pytest.approx(172.5, rel=0.01)
    assert first.after + first.other_stages == pytest.approx(125.6, rel=0.01)
    assert [round(one.saved, 3) for one in (first, second)] == [0.345, 0.32]


def test_predictions_are_compared_with_what_was_played(result):
    figures, row = {one["name"]: one for one in result["figures"]}, result["rows"][0]
    error = abs(row["predicted_seconds"] / row["seconds"] - 1)
    assert figures["error of predicted stages"]["value"] == pytest.approx(error, abs=1e-3)
    never = row["predicted_seconds_without_a_switch"] / row["static_seconds"][str(row["start"])]
    assert figures["error of predicted stages"]["limit"] == pytest.approx(abs(never - 1), abs=1e-3)
    assert 0 < error < 0.5
    assert figures["A40 Llama-3.1-8B 16k 1 x 8, 512, 1 rounds: bias of the predicted gain"]["goal"] == 0.1
    assert figures["A40 Llama-3.1-8B 16k 1 x 8, 512, 1 rounds: error of predicted stages"]["goal"] == 0.05


def test_a_size_that_is_believed_to_be_fast_is_left_when_it_has_run():
    truth = H100_8B.by_size()
    latency = truth[1].latency
    fast = replace(latency, knots=tuple((batch, seconds / 20) for batch, seconds in latency.knots))
    play = Play(SMALL, 0, believed=truth | {1: replace(truth[1], latency=fast)})
    made = [(one.start, one.target) for one in play.switched(8).switches]
    assert made[0] == (8, 1)
    assert made[1][0] == 1, "its speed is known now"


def test_a_start_that_is_believed_to_be_fast_is_left_when_it_has_run():
    truth = H100_8B.by_size()
    play = Play(SMALL, 0)
    slow = max(play.engines, key=lambda size: play.static(play.asked, size))
    assert slow not in (play.profiled, play.start())
    knots = tuple((batch, seconds / 20) for batch, seconds in truth[slow].latency.knots)
    fast = replace(truth[slow], latency=replace(truth[slow].latency, knots=knots, context_token_seconds=0.0))
    wrong = Play(SMALL, 0, believed=truth | {slow: fast})
    assert arrived(wrong.profiled, wrong.forecasts.switched, 8) == slow
    assert wrong.start() == play.start()


def test_wrong_assumptions_have_a_figure_of_their_worst_row(result):
    figures = {one["name"]: one for one in result["figures"]}
    for wrong in Wrong:
        speeds = [row["speed"] for row in result["rows"] if row.get("wrong") == wrong.value]
        told = figures[f"worst speed over the best static size, started there, with {wrong.value}"]
        assert (told["value"], told["goal"]) == (min(speeds), 0.99)
    assert sum("wrong" in row for row in result["rows"]) == 5
    started = [row["speed_from_start"] for row in result["rows"] if "speed_from_start" in row]
    told = figures[f"worst speed over the best static size, from the planner's start, with {Wrong.MODELS}"]
    assert (len(started), told["value"], told["goal"]) == (1, min(started), 0.99)


def test_what_is_told_is_that_of_the_stages():
    play = Play(SMALL, 0)
    told = play.told(2)
    predicted, played = play.predicted(2).seconds, play.switched(2).seconds
    assert told.gain == pytest.approx(1 - predicted / play._generate(play.own_earlier, 2).seconds)
    assert told.played == pytest.approx(1 - played / play.static(play.asked, 2))
    assert told.error == pytest.approx(abs(predicted / played - 1))
    assert told.gain != told.played, "two rounds"


def test_what_is_lost_of_the_limit_has_three_parts(result):
    figures, row = {one["name"]: one["value"] for one in result["figures"]}, result["rows"][0]
    best, parts = min(row["static_seconds"].values()), row["lost_shares"]
    assert parts["the start"] * best == pytest.approx(row["seconds"] - row["seconds_from_the_best_start"], abs=0.03)
    known = row["seconds_from_the_best_start"] - row["seconds_with_known_lengths"]
    assert parts["knowledge of lengths"] * best == pytest.approx(known, abs=0.03)
    assert sum(parts.values()) * best == pytest.approx(row["seconds"] - row["limit_seconds"], abs=0.03)
    assert parts["the start"] >= 0
    assert parts["the policy"] >= 0
    possible = 1 - row["limit_seconds"] / best
    lost = sum(figures[f"gain that is lost by {part}"] for part in parts)
    assert (lost + figures["gain of the best sequence"]) * possible == pytest.approx(possible, abs=1e-3)


def test_the_best_start_is_that_of_the_fastest_play():
    play = Play(SMALL, 0)
    seconds = {size: play.switched(size).seconds for size in play.engines}
    compared = compare(play)
    assert compared.best_start.seconds == min(seconds.values()) <= compared.ours.seconds
    assert compared.informed == play.informed(min(seconds, key=lambda size: (seconds[size], size)))


def test_the_switch_of_the_earlier_round_is_played_on_this_one(result):
    play = Play(SMALL, 0)
    earlier, asked = (Hindsight(one, play.engines, 8, play.pairs, most=1) for one in (play.own_earlier, play.asked[0]))
    sequence = best_switch(play)
    assert len(sequence[1]) <= 1
    unknown = Play(SMALL, 0)
    unknown.asked = []
    assert best_switch(unknown) == sequence
    assert earlier.play(sequence).seconds == earlier.best().seconds, "it is the best one there"
    assert compare(play).repeated == asked.play(sequence).seconds >= asked.best().seconds
    row, figures = result["rows"][0], {one["name"]: one for one in result["figures"]}
    best = min(row["static_seconds"].values())
    gain = figures["gain of the switch that is best for the earlier round"]["value"] * (best - row["limit_seconds"])
    assert gain == pytest.approx(best - row["seconds_with_the_earlier_rounds_best_switch"], abs=0.05)


def test_the_informed_policy_knows_the_lengths_of_the_stage():
    play = Play(SMALL, 0)
    known = []
    play.machine = SimpleNamespace(chooser=lambda past, cap: known.append((sorted(past), cap)))
    play.informed(2)
    assert known == [(sorted(one.tokens for one in play.asked[0]), SMALL.cap)]


def test_no_way_is_faster_than_the_limit(result):
    row = result["rows"][0]
    ways = ("seconds", "seconds_from_best", "profile_seconds", "planner_seconds", "seconds_with_known_lengths")
    assert all(row["limit_seconds"] <= row[way] for way in (*ways, "one_rule_seconds"))


def test_the_policy_loses_nothing_and_the_printed_algorithm_flaps(result):
    row = result["rows"][0]
    best = min(row["static_seconds"].values())
    assert row["seconds_from_best"] <= 1.01 * best
    assert row["printed_switches"] > 3
    assert row["printed_seconds"] > row["seconds"]


def test_a_stage_starts_where_the_planner_arrives_by_its_predictions():
    play = Play(SMALL, 0)
    predicted = play.forecasts.switched
    start = play.start()
    assert predicted[start] <= 1.03 * min(predicted.values())
    assert play.switched(start).seconds <= 1.05 * min(play.switched(size).seconds for size in play.engines)


def test_a_size_that_does_not_hold_the_longest_response_is_left_out():
    play = Play(Stage("large", H100_14B, 400_000, 4), 0)
    assert set(play.engines) == {2, 4, 8}
    assert play.start() in play.engines


def test_switches_are_in_the_predictions_of_starts():
    play = Play(QUICK[0], 0)
    without, with_them = play.forecasts.without, play.forecasts.switched
    assert all(with_them[size] <= without[size] for size in without)
    assert with_them[1] < 0.7 * without[1]


def test_hindsight_is_no_slower_than_any_size_and_plays_its_switches():
    play = Play(SMALL, 1)
    best = Hindsight(play.asked[0], play.engines, 8, play.pairs, most=2).best()
    assert best.seconds <= min(play.static(play.asked, size) for size in play.engines)
    assert len(best.switches) <= 2


def test_the_one_rule_goes_upward_only():
    play = Play(SMALL, 0)
    sizes = {}
    for rule in (printed, one_rule):
        choose = rule(play.engines, play.pairs, SMALL.cap)
        made = generate(play.asked[0], 1, play.engines, 8, play.pairs, choose).switches
        sizes[rule] = [(one.start, one.target) for one in made]
    assert sizes[one_rule]
    assert all(target > start for start, target in sizes[one_rule])
    play = Play(QUICK[0], 0)
    flapping = generate(play.asked[0], 8, play.engines, 8, play.pairs, printed(play.engines, play.pairs, 24_576))
    assert any(one.target < one.start for one in flapping.switches)


def test_lengths_are_those_of_the_paper():
    drawn = [one.tokens for one in deep_scaler(Random(0), 20_000, 10**6)]
    assert sum(one > 8192 for one in drawn) / len(drawn) == pytest.approx(ABOVE_8K, abs=0.01)
    assert sum(one > 16_384 for one in drawn) / len(drawn) == pytest.approx(ABOVE_16K, abs=0.005)
    assert max(one.tokens for one in deep_scaler(Random(0), 2000, 6144)) == 6144


def test_machines_of_a_fleet_share_the_responses():
    two = Stage("two", H100_8B, 8192, 48, machines=2)
    play = Play(two, 0)
    assert [len(asked) for asked in play.asked] == [24, 24]
    assert play.static(play.asked, 8) < Play(SMALL, 0).static(Play(SMALL, 0).asked, 8)


def test_recorded_lengths_replace_the_drawn_ones(tmp_path):
    folder = tmp_path / "made-up-7b"
    folder.mkdir()
    rows = (
        json.dumps(
            {
                "step": 0,
                "dp_rank": 0,
                "local_index": index,
                "input": 50,
                "output": [100 * (index + place + 1) for place in range(8)],
                "n_sampling": 8,
                "validate": False,
            }
        )
        for index in range(8)
    )
    (folder / "packed_lengths_step_0.jsonl").write_text("\n".join(rows) + "\n")
    stages = recorded(folder, quick=True)
    assert [stage.count for stage in stages] == [128]
    assert max(one.tokens for one in stages[0].lengths("0", 0)) == 1500
