"""The operator's elasticity with the whole coordinator under virtual time: it finds the number of machines that is best
in hindsight, from both sides."""

from collections import defaultdict
from itertools import pairwise

import pytest

from rljob_bench.simulated.elasticity import QUICK, elasticity

# A module of one bench, which plays for half a minute.
pytestmark = pytest.mark.slow  # in make test: tests/unit/operator/policies/scaling/test_autoscaler.py


@pytest.fixture(scope="module")
def result():
    return elasticity(quick=True, seed=0)


@pytest.fixture(scope="module")
def runs(result):
    found = defaultdict(list)
    for row in result["rows"]:
        found[row["run"]].append(row)
    return found


def test_every_run_plays_all_rounds_and_fixed_numbers_stay(runs):
    assert all([row["round"] for row in rows] == list(range(1, QUICK.rounds + 1)) for rows in runs.values())
    for number in range(1, QUICK.most + 1):
        assert {row["machines"] for row in runs[f"{number} machines"]} == {number}
        assert not any(row["predicted_seconds"] for row in runs[f"{number} machines"])


def test_from_both_sides_it_finds_the_best_number_and_stays(result, runs):
    figures = {one["name"]: one for one in result["figures"]}
    best = figures["7b-8k, from 1: machines in the end"]["goal"]
    assert 1 < best < QUICK.most, "so that both have a way to go"
    for start in (1, QUICK.most):
        numbers = [row["machines"] for row in runs[f"elastic from {start}"]]
        steps = [now - before for before, now in pairwise(numbers) if now != before]
        assert numbers[0] == start
        assert steps == [best - start]
        assert numbers[-QUICK.last :] == [best] * QUICK.last
        product = figures[f"7b-8k, from {start}: seconds x machine-seconds, best fixed over elastic"]
        assert product["value"] == pytest.approx(1.0, abs=0.02)


def test_predicted_rounds_are_what_is_measured(runs):
    """Of the number that there is, within what rounds differ by."""
    for start in (1, QUICK.most):
        told = [
            (row["predicted_seconds"].get(str(row["machines"])), row["seconds"])
            for row in runs[f"elastic from {start}"]
        ]
        known = [(predicted, seconds) for predicted, seconds in told if predicted]
        assert len(known) > QUICK.rounds // 2
        assert sum(predicted for predicted, _ in known) == pytest.approx(sum(seconds for _, seconds in known), rel=0.15)
