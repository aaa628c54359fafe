"""Accounts of `rljob bench pat`: choices of a state are judged by true rates, which the job learns."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from statistics import fmean

import pytest

from rljob_bench.simulated import pat, pat_accounts
from rljob_bench.simulated.pat_accounts import (
    CONTEXT_BYTES,
    GRAPH_BYTES,
    GROUP_BYTES,
    GROUPS_SHARE,
    SWITCHES,
    Choice,
    choices,
    kept_bytes,
    memory_figures,
    state_figures,
)
from rljob_bench.simulated.pat_stages import ACCELERATORS, H100_8B, Stage
from rljob_runtime.perf_model.hardware import A40
from rljob_runtime.perf_model.model_shape import LLAMA3_1_8B
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts

JOBS = 16


def jobs(profiled: bool = False) -> list[Choice]:
    asked = Stage("", H100_8B, 16_384, 256).lengths("0", 0)
    engines = H100_8B.by_size()
    return [
        one
        for number in range(JOBS)
        for one in choices(engines, ACCELERATORS, H100_8B.costs(0.0), asked, Random(number), profiled)
    ]


def test_a_choice_is_right_unless_the_other_state_is_clearly_cheaper() -> None:
    assert Choice(0, 1.05, 1.0).is_right
    assert not Choice(0, 1.2, 1.0).is_right


def test_with_the_rates_that_it_assumes_a_job_is_always_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pat_accounts, "SPREADS", dict.fromkeys(pat_accounts.SPREADS, 1.0))
    monkeypatch.setattr(pat_accounts, "NOISE", 0.0)
    made = jobs()
    assert len(made) == JOBS * SWITCHES
    assert all(one.chosen == one.cheaper for one in made)


def test_a_job_learns_its_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    made = jobs()
    monkeypatch.setattr(SwitchCosts, "record", lambda *args: None)
    unlearned = jobs()
    assert [one.cheaper for one in made] == [one.cheaper for one in unlearned]
    assert all(one.chosen >= one.cheaper for one in made)
    assert sum(one.chosen for one in made) < sum(one.chosen for one in unlearned)


def test_idle_time_profiles_make_choices_right_more_often() -> None:
    share = {profiled: fmean(one.is_right for one in jobs(profiled)) for profiled in (True, False)}
    assert share[True] >= 0.95 > share[False]
    first = {profiled: fmean(one.is_right for one in jobs(profiled) if not one.number) for profiled in (True, False)}
    assert first[True] > first[False], "also the first switch, before which no switch has measured anything"


def test_figures_are_those_of_the_choices() -> None:
    def play(random: Random, profiled: bool) -> Iterator[Choice]:
        return iter([Choice(0, 1.0, 1.0), Choice(1, 3.0 if profiled else 1.0, 1.0)])

    told = {one["name"]: one for one in state_figures([("made", play)], 0)}
    assert told["made: state chosen right without idle-time profiles"]["value"] == 1.0
    assert told["made: state chosen right"]["value"] == 0.5
    assert told["made: state of the first switch chosen right"]["value"] == 1.0
    assert told["made: seconds of state over the cheaper one"]["value"] == 2.0


def test_kept_engines_cost_contexts_graphs_and_groups_but_no_weights() -> None:
    found = {one["name"].partition(": ")[2]: one for one in memory_figures(LLAMA3_1_8B, A40, [1, 2, 4])}
    kept, peak = (found[f"memory of an accelerator, {part}, assumed"] for part in ("kept", "in a switch"))
    assert kept["value"] == pytest.approx(2 * (CONTEXT_BYTES + GRAPH_BYTES + GROUP_BYTES) / 1e9)
    assert kept["goal"] == 5.2
    assert found["memory of an accelerator, kept over all"]["value"] == pytest.approx(kept["value"] / 48)
    assert (peak["value"], peak["goal"]) == (pytest.approx(128_256 * 4096 * 2 / 1e9), 2.5)
    weights = LLAMA3_1_8B.parameters * 2 / 1e9
    naive = found["memory of an accelerator, if engines kept their weights"]
    assert naive["value"] == pytest.approx(weights / 2 + weights / 4)


def test_groups_of_all_sizes_keep_what_the_paper_measured() -> None:
    assert kept_bytes([1, 2, 4, 8])["groups"] == pytest.approx(GROUPS_SHARE * 48e9)


def test_the_account_has_every_kind_of_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pat, "state_figures", lambda jobs, seed: [])
    names = [one["name"] for one in pat.accounts(0, quick=False)]
    for engines in ("H100 Llama-3.1-8B", "H100 Qwen3-14B", "A40 Llama-3.1-8B"):
        assert f"{engines}, 4 sizes: memory of an accelerator, kept, assumed" in names
