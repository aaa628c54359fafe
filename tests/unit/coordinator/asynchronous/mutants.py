"""Mutants of rljob_runtime.coordinator.asynchronous."""

from hack.mutants import Mutant

RUNS = "tests/simulation/test_runs.py"
LOOP = "tests/unit/coordinator/asynchronous/test_loop.py"
BUFFER = "tests/unit/coordinator/asynchronous/test_experience_buffer.py"

EVALUATIONS = "tests/unit/coordinator/evaluation/test_evaluations.py"

SOURCES = "tests/unit/coordinator/test_sources.py"

EPISODE_MOVES = "tests/unit/coordinator/asynchronous/test_episode_moves.py"

MUTANTS = (
    Mutant(
        name="an episode's answers of tools take no room",
        target="rljob_runtime.coordinator.asynchronous.repack:RepackMonitor._tokens_after_prompt",
        before="max(0, tokens - self._prompt_tokens(key))",
        after="self._partials.length_of(key)",
        tests=(f"{EPISODE_MOVES}::test_a_plan_counts_what_tools_answered",),
    ),
    Mutant(
        name="a source's engine goes on with episodes that have moved",
        target="rljob_runtime.coordinator.asynchronous.dispatch:Dispatcher._relaunch",
        before="await self._pool.abort(ended)",
        after="pass",
        tests=(f"{EPISODE_MOVES}::test_the_source_has_stopped_before_the_destination_begins",),
    ),
    Mutant(
        name="groups that no update may take are generated to their end",
        target="rljob_runtime.coordinator.asynchronous.group_ends:GroupEnds.requeue_too_stale",
        before="self._buffer.is_too_stale(self._groups.version(prompt))",
        after="False",
        tests=(f"{BUFFER}::test_an_open_group_that_is_too_stale_is_requeued_before_its_end",),
    ),
    Mutant(
        name="weights of a lost history are fresher than those after them",
        target="rljob_runtime.coordinator.asynchronous.experience_buffer:ExperienceBuffer.published",
        before="min(its, step)",
        after="its",
        tests=(f"{BUFFER}::test_an_abandoned_version_is_no_fresher_than_the_weights_after_it",),
    ),
    Mutant(
        name="filtered groups of a source are not counted",
        target="rljob_runtime.coordinator.asynchronous.group_ends:GroupEnds.close",
        before="self._filtered[source] += 1",
        after="pass",
        tests=(f"{SOURCES}::test_a_source_whose_groups_are_all_filtered_starves_no_other",),
    ),
    Mutant(
        name="a source that has groups again is not replaced again",
        target="rljob_runtime.coordinator.asynchronous.group_ends:GroupEnds.close",
        before="del self._filtered[group.prompt.source]",
        after="pass",
        tests=(f"{SOURCES}::test_a_source_with_few_filtered_groups_in_a_row_keeps_its_share",),
    ),
    Mutant(
        name="newer asynchronous weights do not wait for an evaluation",
        target="rljob_runtime.coordinator.asynchronous.loop:AsyncLoop._wait_for_evaluations",
        before="not self._evaluator.active",
        after="before_close",
        tests=(f"{EVALUATIONS}::test_evaluation_is_abandoned_if_the_job_pauses_after_the_update",),
    ),
    Mutant(
        name="the attempt of a move is not reserved",
        target="rljob_runtime.coordinator.asynchronous.dispatch:Dispatcher._begin_move",
        before="await self._store.do(lambda s: s.experience.launched(reserved))",
        after="assert reserved",
        tests=(f"{LOOP}::test_the_last_long_responses_move_together",),
    ),
    Mutant(
        name="what a lost version costs is not told",
        target="rljob_runtime.coordinator.asynchronous.group_ends:GroupEnds.requeue_orphaned",
        before="self._stats.lost_version_tokens += lost",
        after="",
        tests=(f"{LOOP}::test_a_group_whose_weights_are_gone_is_drawn_again_and_counted",),
    ),
    Mutant(
        name="groups whose weights are gone wait for ever",
        target="rljob_runtime.coordinator.asynchronous.group_ends:GroupEnds.requeue_orphaned",
        before="await self.requeue(prompts, VERSION_GONE)",
        after="0",
        tests=(f"{LOOP}::test_a_group_whose_weights_are_gone_is_drawn_again_and_counted",),
    ),
    Mutant(
        name="a trainer that waits gets no more groups",
        target="rljob_runtime.coordinator.asynchronous.loop:AsyncLoop._close",
        before="clock.part(0) / clock.total if clock.total else 0.0",
        after="0.0",
        tests=(f"{LOOP}::test_as_many_groups_are_open_as_the_trainer_needs",),
    ),
    Mutant(
        name="a coordinator that comes back begins with the first capacity",
        target="rljob_runtime.coordinator.asynchronous.loop:AsyncLoop.begin",
        before="self._buffer.restore_capacity(boundary.report.capacity_prompts)",
        after="pass",
        tests=(f"{LOOP}::test_a_restarted_coordinator_keeps_the_in_flight_limit",),
    ),
    Mutant(
        name="a leaving machine is let go with its work",
        target="rljob_runtime.coordinator.asynchronous.loop:AsyncLoop._apply_commands",
        before="keep=self.generation.retire(leaving)",
        after="",
        tests=(f"{LOOP}::test_a_machine_that_is_to_leave_ends_its_work_first",),
    ),
    Mutant(
        name="what a lost trainer had consumed is not given back",
        target="rljob_runtime.coordinator.asynchronous.loop:AsyncLoop.begin",
        before="await self.generation.reload()",
        after="pass",
        tests=(f"{LOOP}::test_rollouts_continue_while_the_trainer_restarts",),
    ),
    Mutant(
        name="groups are not assigned before they are trained on",
        target="rljob_runtime.coordinator.asynchronous.loop:AsyncLoop._groups",
        before="await store.do(lambda s: s.experience.assign(step, assigned))",
        after="pass",
        tests=(f"{LOOP}::test_a_job_runs_to_its_end",),
    ),
    Mutant(
        name="weights are asked for that a trainer ahead of the store no longer has",
        target="rljob_runtime.coordinator.asynchronous.loop:AsyncLoop.advance",
        before="self._commands.step is not None",
        after="True",
        tests=(f"{RUNS}::test_an_unreported_update_is_kept",),
    ),
    Mutant(
        name="the status of an asynchronous job has no metrics of its update",
        target="rljob_runtime.coordinator.asynchronous.report:update_report",
        before="**training_metrics(trained),",
        after="",
        tests=(
            "tests/unit/coordinator/reporting/test_training_metrics.py::"
            "test_report_and_status_have_what_the_update_measured",
        ),
    ),
    Mutant(
        name="an update closes without the digests of its episodes",
        target="rljob_runtime.coordinator.asynchronous.loop:AsyncLoop._close",
        before="self._context.episodes.digests(groups)",
        after="{}",
        tests=("tests/simulation/test_episodes.py::test_seeds_with_environments_hold_every_invariant",),
    ),
)
