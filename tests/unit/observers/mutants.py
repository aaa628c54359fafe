"""Mutants of rljob_runtime.observers."""

from hack.mutants import Mutant

SPANS = "tests/unit/observers/test_otel_spans.py"

MUTANTS = (
    Mutant(
        name="metrics of one spelling are one curve",
        target="rljob_runtime.observers.round_metrics:_measured",
        before="name.lower() in found",
        after="False",
        tests=("tests/unit/observers/test_metric_names.py::test_each_metric_of_an_environment_has_a_name_of_its_own",),
    ),
    Mutant(
        name="observers get names as environments spell them",
        target="rljob_runtime.observers.round_metrics:_measured",
        before='f"environment/{one.environment}/{spelled(one.name)}"',
        after='f"environment/{one.environment}/{one.name}"',
        tests=(
            "tests/unit/observers/test_metric_names.py::test_mlflow_takes_a_round_with_any_names",
            "tests/unit/observers/test_metric_names.py::test_opentelemetry_takes_a_round_with_any_names",
        ),
    ),
    Mutant(
        name="spans of an agent are in a trace of their own",
        target="rljob_runtime.observers.otel_spans:EpisodeSpans._episode",
        before="self._ids.attempt = attempt",
        after="pass",
        tests=(f"{SPANS}::test_spans_of_an_agent_join_the_trace_of_its_episode",),
    ),
    Mutant(
        name="all spans of an episode have the same id",
        target="rljob_runtime.observers.otel_spans:EpisodeSpans._episode",
        before="self._ids.attempt = None",
        after="pass",
        tests=(f"{SPANS}::test_spans_of_an_agent_join_the_trace_of_its_episode",),
    ),
    Mutant(
        name="a later coordinator begins another run of MLflow",
        target="rljob_runtime.observers.mlflow_run:MlflowRun.__init__",
        before="f\"tags.`{TAG}` = '{uid}'\"",
        after="\"tags.absent = 'x'\"",
        canary=True,
        tests=("tests/unit/observers/test_observers.py::test_mlflow_keeps_one_run_over_two_coordinators",),
    ),
    Mutant(
        name="copies of tables stay",
        target="rljob_runtime.observers.wandb_files:TableFiles.delete_old",
        before="(*tables, *self._copies.rglob('*'))",
        after="tables",
        tests=("tests/unit/observers/test_observers.py::test_tables_of_wandb_stay_for_as_many_rounds_as_samples",),
    ),
    Mutant(
        name="a key that the server of W&B refuses is not named",
        target="rljob_runtime.observers.wandb_run:_key_named",
        before="_ABOUT_THE_KEY.search(str(error)) is None",
        after="True",
        tests=("tests/unit/observers/test_observers.py::test_errors_of_wandb_about_the_key_name_its_variable",),
    ),
    Mutant(
        name="a turn of an episode's spans begins at the answer before it",
        target="rljob_runtime.observers.otel_spans:EpisodeSpans._episode",
        before='before.seconds + turn["outsideSeconds"]',
        after="before.seconds",
        tests=(f"{SPANS}::test_turns_and_tools_of_an_episode_are_spans_below_its_agent",),
    ),
    Mutant(
        name="a collector receives what a program said of its failure",
        target="rljob_runtime.observers.otel_spans:EpisodeSpans._episode",
        before='str(episode.get("cause", ""))',
        after='str(episode.get("end", ""))',
        tests=(f"{SPANS}::test_no_text_of_an_episode_is_in_a_span",),
    ),
    Mutant(
        name="a collector receives a name that the model wrote",
        target="rljob_runtime.observers.otel_spans:EpisodeSpans._tool",
        before='call["name"] if offered else UNKNOWN',
        after='call["name"]',
        tests=(f"{SPANS}::test_no_text_of_an_episode_is_in_a_span",),
    ),
    Mutant(
        name="each branch with a result has run the tool",
        target="rljob_runtime.observers.otel_spans:EpisodeSpans._episode",
        before="(above, place) not in told",
        after="True",
        tests=(f"{SPANS}::test_a_call_whose_result_two_branches_have_is_one_span",),
    ),
    Mutant(
        name="a call without a result is a tool that ran",
        target="rljob_runtime.observers.otel_spans:_answered",
        before='call.get("id") in results',
        after="True",
        tests=(f"{SPANS}::test_a_call_without_a_result_is_no_tool_that_ran",),
    ),
    Mutant(
        name="observers get the metrics of an update twice",
        target="rljob_runtime.observers.round_metrics:round_metrics",
        before='{"round", *OF_TRAINING}',
        after='{"round"}',
        tests=("tests/unit/coordinator/reporting/test_training_metrics.py::test_no_observer_gets_a_number_twice",),
    ),
    Mutant(
        name="spans of a turn stand at sums of seconds",
        target="rljob_runtime.observers.otel_spans:EpisodeSpans._episode",
        before='turn.get("opened", before.seconds + turn["outsideSeconds"])',
        after='before.seconds + turn["outsideSeconds"]',
        tests=(
            "tests/unit/observers/test_otel_spans.py::test_spans_are_at_the_moments_of_turns_and_not_at_sums_of_seconds",
        ),
    ),
    Mutant(
        name="a span of a tool has the time of its harness",
        target="rljob_runtime.observers.otel_spans:_call_seconds",
        before='max(answered, end - call["seconds"]), end',
        after="answered, asked",
        tests=(f"{SPANS}::test_a_span_of_a_tool_is_the_time_of_the_call",),
    ),
)
