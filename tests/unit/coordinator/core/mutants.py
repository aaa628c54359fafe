"""Mutants of rljob_runtime.coordinator.core."""

from hack.mutants import Mutant

LOANS = "tests/unit/coordinator/stream_training/test_loans.py"

MUTANTS = (
    Mutant(
        name="keys and values of episodes are to be moved",
        target="rljob_runtime.coordinator.core.settings:switch_rules",
        before="spec.environments",
        after="False",
        tests=("tests/unit/coordinator/core/test_settings.py::test_keys_and_values_of_episodes_are_not_moved",),
    ),
    Mutant(
        name="episodes of mixed versions are merged for nothing",
        target="rljob_runtime.coordinator.core.settings:repack_rules",
        before="one.versions is Versions.MIXED",
        after="False",
        tests=(
            "tests/unit/coordinator/core/test_settings.py"
            "::test_replicas_are_merged_unless_newer_weights_need_no_release",
        ),
    ),
    Mutant(
        name="a job's limit of turns lengthens episodes",
        target="rljob_runtime.coordinator.core.settings:episode_rules",
        before="min(one.max_turns, limits.max_turns or one.max_turns)",
        after="limits.max_turns or one.max_turns",
        tests=(
            "tests/unit/coordinator/core/test_settings.py::"
            "test_the_lower_limit_of_environment_and_job_bounds_an_episode",
        ),
    ),
    Mutant(
        name="a task of a stage ends unheard",
        target="rljob_runtime.coordinator.core.async_utils:StageTasks._ended",
        before="self._post(Broken(error))",
        after="pass",
        tests=("tests/unit/coordinator/core/test_task_failures.py::test_stage_tasks_tell_of_errors_alone",),
    ),
    Mutant(
        name="Auto loans nothing",
        target="rljob_runtime.coordinator.core.settings:lending_rules",
        before="not any(plan.stream for plan in _choices(spec).plans)",
        after="stream.enabled is not True",
        tests=(f"{LOANS}::test_machines_are_loaned_where_rounds_may_stream",),
    ),
    Mutant(
        name="a loaned machine is believed to have one accelerator",
        target="rljob_runtime.coordinator.core.settings:Settings.of",
        before="spec.trainer.ranks / max(1, spec.rollout.accelerators_per_machine)",
        after="spec.trainer.ranks",
        tests=(f"{LOANS}::test_an_unmeasured_machine_counts_by_its_accelerators",),
    ),
    Mutant(
        name="rollouts draw from all tokens whatever the spec says",
        target="rljob_runtime.coordinator.core.settings:sampling_of",
        before="spec.algorithm.sampling.model_dump()",
        after='{"temperature": spec.algorithm.temperature}',
        tests=(
            "tests/unit/coordinator/core/test_settings.py::test_every_request_has_the_choice_of_the_spec[OnPolicy]",
        ),
    ),
    Mutant(
        name="a machine switches to sizes that the spec leaves out",
        target="rljob_runtime.coordinator.core.settings:switch_rules",
        before="frozenset(spec.switch_sizes)",
        after="frozenset(spec.rollout.tensor_parallel_sizes)",
        tests=(
            "tests/unit/coordinator/core/test_settings.py::test_machines_switch_inside_a_round_between_sizes_of_the_spec",
        ),
    ),
    Mutant(
        name="rates of loans hold for another trainer",
        target="rljob_runtime.coordinator.core.settings:gradients_digest",
        before="fields.get(name) for name in GRADIENT_FIELDS",
        after="name for name in GRADIENT_FIELDS",
        tests=(
            "tests/unit/coordinator/core/test_settings.py::test_rates_of_loans_hold_for_the_same_machines_and_algorithm",
        ),
    ),
    Mutant(
        name="a coordinator does not know the time of its rewards",
        target="rljob_runtime.coordinator.core.settings:episode_rules",
        before="one.overtime_seconds",
        after="EpisodeRules.overtime",
        tests=(
            "tests/unit/coordinator/episodes/test_overtime.py::test_a_limit_of_a_reward_is_the_overtime_of_its_attempts",
        ),
    ),
)
