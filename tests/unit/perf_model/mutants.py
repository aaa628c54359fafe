"""Mutants of rljob_runtime.perf_model."""

from hack.mutants import Mutant

ENGINE_SIMULATOR = "tests/unit/perf_model/test_engine_simulator.py"
ENGINE_MODEL = (
    f"{ENGINE_SIMULATOR}::test_the_event_model_is_the_stepwise_engine",
    f"{ENGINE_SIMULATOR}::test_the_youngest_is_preempted_queued_first_and_computed_again",
)

IDLE = "tests/unit/scheduling/adaptive_tp/test_idle_profile.py"

BATCH_TIMELINE = "tests/unit/perf_model/test_batch_timeline.py"
OBSERVED_SPEED = "tests/unit/perf_model/test_observed_speed.py"
OUTSIDE = "tests/unit/perf_model/test_outside_time.py"
EPISODE_LOANS = "tests/simulation/test_episodes.py"

MUTANTS = (
    Mutant(
        name="what lost its race is expected to run on",
        target="rljob_runtime.perf_model.batch_timeline:race_ends",
        before="engines[run[0]].stop(run[1], now)",
        after="True",
        tests=(
            "tests/unit/scheduling/lending/test_gain.py::test_a_response_that_lost_its_race_slows_no_other_down",
            "tests/unit/scheduling/adaptive_tp/test_tail.py::test_responses_of_other_machines_win_places",
            f"{BATCH_TIMELINE}::test_the_first_runs_take_the_places_and_the_others_stop",
        ),
    ),
    Mutant(
        name="a run that lost is expected where it was before",
        target="rljob_runtime.perf_model.batch_timeline:race_ends",
        before="now != engine.due",
        after="False",
        tests=(f"{BATCH_TIMELINE}::test_the_first_runs_take_the_places_and_the_others_stop",),
    ),
    Mutant(
        name="a round without a sample displaces one with samples",
        target="rljob_runtime.perf_model.observed_speed:newest_speeds",
        before="speed.stretches",
        after="True",
        tests=(f"{OBSERVED_SPEED}::test_a_fit_considers_the_newest_rounds_with_samples",),
    ),
    Mutant(
        name="a simulated engine knows no priorities",
        target="rljob_runtime.perf_model.engine_simulator:EngineSimulator._queue",
        before="one.priority > sequence.priority",
        after="False",
        tests=(f"{ENGINE_SIMULATOR}::test_lower_priority_values_start_first_and_are_preempted_last",),
    ),
    Mutant(
        name="nothing passes a preempted sequence before another ends",
        target="rljob_runtime.perf_model.engine_simulator:EngineSimulator._schedule",
        before="preempted and self._has_priorities",
        after="False",
        tests=(f"{ENGINE_SIMULATOR}::test_a_small_request_of_a_lower_value_passes_a_preempted_one",),
    ),
    Mutant(
        name="a long context is computed again without its squares",
        target="rljob_runtime.perf_model.observed_speed:fit_latency",
        before="square * prompt",
        after="0.0",
        tests=(f"{OBSERVED_SPEED}::test_long_contexts_are_predicted_from_short_prompts_and_the_shape",),
    ),
    Mutant(
        name="the attention of short prompts counts as work of their tokens",
        target="rljob_runtime.perf_model.observed_speed:fit_latency",
        before="one.prompt_tokens + square * one.prompt_squares",
        after="one.prompt_tokens",
        tests=(f"{OBSERVED_SPEED}::test_long_contexts_are_predicted_from_short_prompts_and_the_shape",),
    ),
    Mutant(
        name="the squares of prompts without squares count twice",
        target="rljob_runtime.perf_model.observed_speed:fit_latency",
        before="any(one.prompt_squares for one in seen)",
        after="True",
        tests=(f"{OBSERVED_SPEED}::test_prompts_of_an_earlier_version_are_taken_as_they_are",),
    ),
    Mutant(
        name="a profile counts as much as a round near it",
        target="rljob_runtime.perf_model.observed_speed:undisplaced",
        before="any(is_displaced(by, one) for by in own)",
        after="False",
        tests=(f"{IDLE}::test_rounds_displace_profiles_near_their_batches_only",),
    ),
    Mutant(
        name="a round displaces all that profiles know",
        target="rljob_runtime.perf_model.observed_speed:undisplaced.is_displaced",
        before="near and bool(by.prompt_tokens) == bool(one.prompt_tokens)",
        after="True",
        tests=(f"{IDLE}::test_rounds_displace_profiles_near_their_batches_only",),
    ),
    Mutant(
        name="steps of a profile are taken for steps of a round",
        target="rljob_runtime.perf_model.observed_speed:Speed.decode_without_loans",
        before="not one.profiled",
        after="True",
        tests=(f"{IDLE}::test_a_speed_keeps_the_mark_of_profiles_in_the_store",),
    ),
    Mutant(
        name="the oldest is preempted",
        target="rljob_runtime.perf_model.engine_simulator:EngineSimulator._youngest",
        before="reversed(self._running)",
        after="iter(self._running)",
        tests=ENGINE_MODEL,
        canary=True,
    ),
    Mutant(
        name="who was preempted queues behind the others",
        target="rljob_runtime.perf_model.engine_simulator:EngineSimulator._queue_again",
        before="last=False",
        after="last=True",
        tests=ENGINE_MODEL,
    ),
    Mutant(
        name="a jump goes one step past the room in the KV cache",
        target="rljob_runtime.perf_model.engine_simulator:EngineSimulator._schedule",
        before="(self.kv_tokens - self._context) // len(self._running)",
        after="(self.kv_tokens - self._context) // len(self._running) + 1",
        tests=ENGINE_MODEL,
    ),
    Mutant(
        name="a request breaks into the step under way",
        target="rljob_runtime.perf_model.engine_simulator:EngineSimulator._arrive",
        before="self._steps_done(now) + 1",
        after="max(1, self._steps_done(now))",
        tests=ENGINE_MODEL,
    ),
    Mutant(
        name="a jump forgets that the context grows",
        target="rljob_runtime.perf_model.latency_model:LatencyModel.decode",
        before="steps * context_tokens + batch * steps * (steps - 1) / 2",
        after="steps * context_tokens",
        tests=ENGINE_MODEL,
    ),
    Mutant(
        name="repeats of a load count by their worst",
        target="rljob_runtime.perf_model.profile:medians",
        before="median(one.seconds for one in its)",
        after="max(one.seconds for one in its)",
        tests=("tests/unit/perf_model/test_profile.py::test_repeats_of_a_load_are_their_median",),
    ),
    Mutant(
        name="a response meets all others in its engine, also those in tools",
        target="rljob_runtime.perf_model.outside_time:OutsideTime.batch",
        before="self.inside",
        after="1.0",
        tests=(f"{OUTSIDE}::test_a_response_takes_as_long_as_its_turns_and_tools",),
    ),
    Mutant(
        name="a token takes a step only, without its time outside",
        target="rljob_runtime.perf_model.outside_time:OutsideTime.latency",
        before="seconds + self.token_seconds",
        after="seconds",
        tests=(f"{OUTSIDE}::test_a_response_takes_as_long_as_its_turns_and_tools",),
    ),
)
