"""Mutants of rljob_runtime.scheduling.round_planner."""

from hack.mutants import Mutant

LENGTH_MODEL = "tests/unit/scheduling/round_planner/test_length_model.py"
PLANNER = "tests/unit/scheduling/round_planner/test_planner.py"

SAVED = f"{PLANNER}::test_switches_shorten_rounds_and_races_by_seconds_of_their_own"

MUTANTS = (
    Mutant(
        name="switches of plain rounds shorten races",
        target="rljob_runtime.scheduling.round_planner.planner:Costs.round",
        before="(self.saved_in_race if race else self.saved)",
        after="self.saved",
        tests=(SAVED,),
    ),
    Mutant(
        name="a race is predicted without its switches",
        target="rljob_runtime.scheduling.round_planner.planner:Costs.round",
        before="(self.saved_in_race if race else self.saved)",
        after="(0.0 if race else self.saved)",
        tests=(
            SAVED,
            "tests/unit/coordinator/on_policy/test_switch_forecast.py::test_a_race_is_predicted_with_its_own_switches",
        ),
    ),
    Mutant(
        name="the size to start at is that of the longest round",
        target="rljob_runtime.scheduling.round_planner.initial_tp:best_tp_size",
        before="min(whole)[1]",
        after="max(whole)[1]",
        tests=("tests/unit/scheduling/round_planner/test_initial_tp.py",),
    ),
    Mutant(
        name="stopped responses count as finished",
        target="rljob_runtime.scheduling.round_planner.length_model:LengthModel._complete",
        before="response.tokens if response.ended else self._survival.beyond(response.tokens, share)",
        after="response.tokens",
        tests=(f"{LENGTH_MODEL}::test_the_tail_is_seen_through_a_race",),
    ),
    Mutant(
        name="lengths of before the limit was lowered are believed",
        target="rljob_runtime.scheduling.round_planner.length_model:LengthModel._complete",
        before="min(self._limit, max(1, length))",
        after="max(1, length)",
        tests=(f"{LENGTH_MODEL}::test_no_response_is_longer_than_the_present_limit",),
    ),
    Mutant(
        name="long rounds are not charged",
        target="rljob_runtime.scheduling.round_planner.planner:RoundPlanner.predict_plan",
        before="plain_rounds * plain + short_rounds * short + long_rounds * (long or plain)",
        after="plain_rounds * plain + (short_rounds + long_rounds) * (short or plain)",
        tests=(f"{PLANNER}::test_long_rounds_are_charged",),
    ),
    Mutant(
        name="a decision may cost any number of events",
        target="rljob_runtime.scheduling.round_planner.planner:RoundPlanner._simulate",
        before="self._most_events - self.events",
        after="1 << 40",
        tests=(f"{PLANNER}::test_filters_and_preemptions_do_not_slow_a_decision",),
    ),
    Mutant(
        name="the last winner of a race stands for all that were stopped with it",
        target="rljob_runtime.scheduling.round_planner.survival:Survival.__init__",
        before="length + length // HEAD_START",
        after="length",
        tests=(
            (
                "tests/unit/scheduling/round_planner/test_survival.py::test_the_last_winner_tells_nothing_of_responses_"
                "stopped_with_it"
            ),
        ),
    ),
    Mutant(
        name="a loan knows nothing of responses that were stopped",
        target="rljob_runtime.scheduling.round_planner.survival:Survival.of",
        before="cls((one.tokens for one in seen if one.ended), (one.tokens for one in seen if not one.ended))",
        after="cls(one.tokens for one in seen if one.ended)",
        tests=(
            "tests/unit/scheduling/lending/test_policy.py::test_what_was_stopped_or_still_runs_is_longer_than_it_is",
        ),
    ),
)
