"""Mutants of rljob_runtime.coordinator."""

from hack.mutants import Mutant

SCORING = "tests/unit/coordinator/generation/test_scoring.py"
LOOP = "tests/unit/coordinator/on_policy/test_loop.py"
PLANNED_LEAVES = "tests/unit/coordinator/test_planned_leaves.py"

MUTANTS = (
    Mutant(
        name="a warning about an observer stays for ever",
        target="rljob_runtime.coordinator.loop.context:CoordinatorContext._show",
        before="dict.fromkeys(OBSERVER_REASONS)",
        after="{}",
        tests=("tests/unit/observers/test_observers.py::test_a_warning_about_an_observer_ends_with_its_cause",),
    ),
    Mutant(
        name="an object that was reported is left out",
        target="rljob_runtime.coordinator.coordinator:Coordinator._recover",
        before="boundary.report or self._reporter.draft.last_round",
        after="boundary.report",
        tests=(
            (
                "tests/unit/coordinator/trainer/test_recovery.py::test_a_lost_store_costs_no_more_than_the_"
                "checkpoint_says[3-machines immediately]"
            ),
        ),
    ),
    Mutant(
        name="a coordinator that is asked to go saves nothing",
        target="rljob_runtime.coordinator.coordinator:Coordinator._leave",
        before="await self._commands.save()",
        after="pass",
        tests=(f"{PLANNED_LEAVES}::test_coordinator_and_trainer_leave_together_without_a_lost_update",),
    ),
    Mutant(
        name="a trainer that is ahead of the store goes with its update",
        target="rljob_runtime.coordinator.coordinator:Coordinator._recover",
        before="boundary.step if boundary.step == state.step else None",
        after="state.step",
        tests=(f"{PLANNED_LEAVES}::test_a_suspension_saves_an_update_whose_answer_was_lost",),
    ),
    Mutant(
        name="a final model that cannot be written ends the coordinator",
        target="rljob_runtime.coordinator.coordinator:Coordinator._export",
        before="self._checkpoints.export()",
        after="self._trainer.call(lambda trainer: trainer.export(self._term))",
        tests=(f"{LOOP}::test_a_final_model_that_cannot_be_written_is_waited_with_and_not_lost",),
    ),
    Mutant(
        name="a round under way is left when fewer are asked for",
        target="rljob_runtime.coordinator.coordinator:Coordinator._run_job",
        before="boundary.step < self._follower.rounds or await self.loop.has_uncommitted_update()",
        after="boundary.step < self._follower.rounds",
        tests=(f"{LOOP}::test_a_running_round_ends_though_fewer_rounds_are_requested[trainer]",),
    ),
    Mutant(
        name="rounds that are asked for while the final model is written are not played",
        target="rljob_runtime.coordinator.coordinator:Coordinator._run_job",
        before="boundary.step >= self._follower.rounds",
        after="True",
        tests=(f"{LOOP}::test_rounds_requested_while_the_export_waits_for_space_run",),
    ),
    Mutant(
        name="anchors outlive the round that is rewound",
        target="rljob_runtime.coordinator.coordinator:Coordinator._recover",
        before="self._rewards.restore_anchors(await self._store.do(lambda store: store.boundaries.anchors()))",
        after="await self._store.do(lambda store: store.boundaries.anchors())",
        tests=(
            f"{SCORING}::test_a_rewound_round_taught_nothing",
            "tests/simulation/test_runs.py::test_anchors_outlive_the_coordinator_and_a_rewind",
        ),
    ),
    Mutant(
        name="the opening of the rewards receives no call",
        target="rljob_runtime.coordinator.coordinator:Coordinator._recover",
        before="self._follower.unless_suspended(self._prompts_from(state.model_files))",
        after="self._prompts_from(state.model_files)",
        tests=(f"{SCORING}::test_a_job_whose_rewards_are_slow_to_open_can_be",),
    ),
    Mutant(
        name="drawing prompts holds the event loop",
        target="rljob_runtime.coordinator.inputs:ObservedPrompts.take",
        before="clock() - self._held_since > LONGEST_DRAW_SECONDS",
        after="not keys",
        tests=(
            (
                "tests/unit/rewards/test_event_loop.py::test_drawing_prompts_that_take_long_to_make_gives_others_"
                "their_turns"
            ),
        ),
    ),
    Mutant(
        name="a job that may switch never does",
        target="rljob_runtime.coordinator.coordinator:_switch_policy",
        before="settings.switch_rules is not None",
        after="False",
        tests=(
            "tests/unit/coordinator/on_policy/test_adaptive_job.py::test_a_job_that_may_switch_does_and_tells_it_everywhere",
        ),
    ),
    Mutant(
        name="warnings of the end are not shown",
        target="rljob_runtime.coordinator.loop.context:CoordinatorContext.notify_ended",
        before="self._show(found)",
        after="pass",
        tests=("tests/unit/coordinator/reporting/test_round_log.py::test_warnings_of_the_end_are_in_the_last_status",),
    ),
    Mutant(
        name="a job's rule for the environment's reward is not told to its scorer",
        target="rljob_runtime.coordinator.build:episodes_of",
        before="ManyTurns(book, spec.adds_environment_rewards, len(spec.environments))",
        after="ManyTurns(book)",
        tests=("tests/unit/coordinator/episodes/test_scorer.py::test_who_scores_an_episode",),
    ),
)
