"""Mutants of rljob_runtime.coordinator.trainer."""

from hack.mutants import Mutant

LOOP = "tests/unit/coordinator/asynchronous/test_loop.py"
ASYNC_STORE = "tests/unit/coordinator/store/test_async_store.py"
RECOVERY = "tests/unit/coordinator/trainer/test_recovery.py"
TRAINER_CLIENT = "tests/unit/coordinator/trainer/test_trainer_client.py"

BEST_MODEL = "tests/unit/coordinator/evaluation/test_best_model.py"

MUTANTS = (
    Mutant(
        name="only one piece of the tokens goes",
        target="rljob_runtime.coordinator.trainer.checkpoints:Checkpoints._forget",
        before="""
            while await self._store.do(lambda store: store.experience.forget(step)):
                pass
        """,
        after="await self._store.do(lambda store: store.experience.forget(step))",
        tests=(f"{LOOP}::test_killed_between_two_pieces_of_what_a_checkpoint_lets_go",),
    ),
    Mutant(
        name="a coordinator without its term takes it for a checkpoint that failed",
        target="rljob_runtime.coordinator.trainer.checkpoints:Checkpoints._write",
        before="StaleTerm",
        after="()",
        tests=(f"{TRAINER_CLIENT}::test_a_fenced_coordinator_leaves_the_trainer_to_the_next[checkpoint]",),
    ),
    Mutant(
        name="the update whose answer was lost is not trained again, in an asynchronous job",
        target="rljob_runtime.coordinator.trainer.recovery:reconcile_store_and_trainer",
        before="(opened is not None and opened.assigned) or store.experience.assigned(step)",
        after="opened is not None and opened.assigned",
        tests=(f"{ASYNC_STORE}::test_an_update_whose_answer_was_lost_is_trained_again",),
    ),
    Mutant(
        name="a checkpoint forgets the groups under way",
        target="rljob_runtime.coordinator.trainer.recovery:snapshot_at",
        before="store.experience.unsettled",
        after="store.experience.requeued",
        tests=(f"{ASYNC_STORE}::test_a_new_history_draws_again_what_a_checkpoint_had_under_way",),
    ),
    Mutant(
        name="a lost store takes its long-prompt queue along",
        target="rljob_runtime.coordinator.trainer.recovery:reconcile_store_and_trainer",
        before="snapshot.queue if pool is None else ()",
        after="()",
        tests=(
            f"{RECOVERY}::test_the_queue_and_the_cursor_are_in_the_checkpoint[2-1-in the next round-lose_the_store]",
        ),
    ),
    Mutant(
        name="a new history goes on from an unknown step",
        target="rljob_runtime.coordinator.trainer.recovery:reconcile_store_and_trainer",
        before="step != trainer.kept",
        after="False",
        tests=(
            f"{RECOVERY}::test_the_queue_and_the_cursor_are_in_the_checkpoint[3-2-in the next round-lose_the_store]",
        ),
    ),
    Mutant(
        name="the anchors of a lost store are lost",
        target="rljob_runtime.coordinator.trainer.recovery:reconcile_store_and_trainer",
        before="snapshot.anchors",
        after="{}",
        tests=(f"{RECOVERY}::test_what_a_checkpoint_keeps_is_what_a_new_history_begins_with",),
    ),
    Mutant(
        name="a trainer is made again and again for a loss that fails",
        target="rljob_runtime.coordinator.trainer.trainer_client:TrainerClient.lose_if_refused",
        before="isinstance(error, FunctionFailed)",
        after="False",
        tests=(f"{TRAINER_CLIENT}::test_a_function_of_the_user_that_fails_ends_the_job",),
    ),
    Mutant(
        name="a suspension waits for a trainer that loads",
        target="rljob_runtime.coordinator.trainer.trainer_client:TrainerClient.find_existing",
        before="await self._backend.has_trainer(self._members)",
        after="True",
        tests=("tests/unit/coordinator/test_planned_leaves.py::test_a_suspension_waits_for_no_trainer_that_loads",),
    ),
    Mutant(
        name="a trainer is started on a pod that goes",
        target="rljob_runtime.coordinator.trainer.trainer_client:TrainerClient._complete",
        before=(
            "len(self._members) >= self._settings.trainer_replicas and _identity(self._members) != "
            "self._allowed_to_leave"
        ),
        after="len(self._members) >= self._settings.trainer_replicas",
        tests=(f"{TRAINER_CLIENT}::test_nothing_is_started_on_pods_that_may_go",),
    ),
    Mutant(
        name="a call that fails late ends the next trainer",
        target="rljob_runtime.coordinator.trainer.trainer_client:TrainerClient._mark_lost",
        before="trainer is not self._trainer",
        after="trainer is None",
        tests=(
            (
                "tests/unit/coordinator/fleet/test_membership.py::test_a_call_that_fails_late_does_not_end_the_"
                "next_trainer"
            ),
        ),
    ),
    Mutant(
        name="a trainer whose next pod has no address yet is waited for without letting go of the processor",
        target="rljob_runtime.coordinator.trainer.trainer_client:TrainerClient.start",
        before='await self.mark_lost("its pods changed")',
        after="pass",
        tests=(f"{TRAINER_CLIENT}::test_a_trainer_whose_next_pod_has_no_address_yet_is_waited_for",),
    ),
    Mutant(
        name="a trainer that never comes up is waited for though its pod was replaced",
        target="rljob_runtime.coordinator.trainer.trainer_client:TrainerClient._make",
        before="self._unless_changed(lambda: self._backend.trainer(self._term, members))",
        after="self._backend.trainer(self._term, members)",
        tests=(f"{TRAINER_CLIENT}::test_a_trainer_that_never_starts_is_dropped_with_its_pod",),
    ),
    Mutant(
        name="a trainer that refuses an update is asked again",
        target="rljob_runtime.coordinator.trainer.trainer_client:TrainerClient.lose_if_refused",
        before="await self.mark_lost(error)",
        after="pass",
        tests=(f"{TRAINER_CLIENT}::test_a_trainer_that_refuses_is_not_asked_again[train]",),
    ),
    Mutant(
        name="a trainer that refuses to publish is asked again",
        target="rljob_runtime.coordinator.trainer.trainer_client:TrainerClient.lose_if_refused",
        before="await self.mark_lost(error)",
        after="pass",
        tests=(f"{TRAINER_CLIENT}::test_a_trainer_that_refuses_is_not_asked_again[publish]",),
    ),
    Mutant(
        name="a trainer is made before the one before has ended",
        target="rljob_runtime.coordinator.trainer.trainer_client:TrainerClient._released",
        before="await asyncio.shield(self._releasing)",
        after="pass",
        tests=(f"{TRAINER_CLIENT}::test_a_trainer_is_made_when_the_one_before_has_ended",),
    ),
    Mutant(
        name="half a group of ranks is taken up",
        target="rljob_runtime.coordinator.trainer.trainer_client:TrainerClient._make",
        before="not await self._unless_changed(lambda: self._backend.has_trainer(members))",
        after="False",
        tests=(f"{TRAINER_CLIENT}::test_what_is_left_of_a_group_is_ended_before_a_whole_one_is_made",),
    ),
    Mutant(
        name="a new trainer publishes nothing within a round",
        target="rljob_runtime.coordinator.trainer.weight_publisher:WeightPublisher._load_everywhere",
        before="self._trainer.published_version != version",
        after="False",
        tests=(
            (
                "tests/unit/coordinator/stream_training/test_loans.py::test_a_trainer_replaced_within_a_round_"
                "accepts_its_sums"
            ),
        ),
    ),
    Mutant(
        name="the trainer waits for the relays",
        target="rljob_runtime.coordinator.trainer.weight_publisher:WeightPublisher.start_publishing.push",
        before="""
            if not copied.done():
                copied.set_result(None)
        """,
        after="",
        tests=(f"{LOOP}::test_the_trainer_has_only_copied_its_weights_when_it_goes_on",),
    ),
    Mutant(
        name="after a suspension no machine is given weights",
        target="rljob_runtime.coordinator.trainer.weight_publisher:WeightPublisher.start_publishing",
        before="self._trainer.published_version == self._fleet.weights.version == version",
        after="self._trainer.published_version == version",
        tests=(f"{LOOP}::test_a_suspended_job_hands_everything_over_and_goes_on",),
    ),
    Mutant(
        name="a model that could not be written is the best",
        target="rljob_runtime.coordinator.trainer.best_model:BestModel._results",
        before="one.round in self._saved",
        after="True",
        tests=(f"{BEST_MODEL}::test_a_full_disk_costs_a_candidate_and_a_warning",),
    ),
    Mutant(
        name="no model is deleted while the job runs",
        target="rljob_runtime.coordinator.trainer.best_model:BestModel.forget_worse",
        before="step in needed or step > last",
        after="True",
        tests=(f"{BEST_MODEL}::test_the_best_model_is_exported",),
    ),
    Mutant(
        name="a model of abandoned weights that cannot be deleted wins",
        target="rljob_runtime.coordinator.trainer.best_model:BestModel._saved",
        before="step <= self._first or step in self._written",
        after="True",
        tests=(f"{BEST_MODEL}::test_abandoned_models_that_cannot_be_deleted_do_not_win",),
    ),
    Mutant(
        name="a trainer that cannot read its models ends the coordinator",
        target="rljob_runtime.coordinator.trainer.best_model:BestModel._ask",
        before="Refused",
        after="()",
        tests=(f"{BEST_MODEL}::test_a_trainer_that_refuses_to_delete_models_does_not_end_the_job",),
    ),
    Mutant(
        name="models stay where a checkpoint has no room",
        target="rljob_runtime.coordinator.trainer.checkpoints:Checkpoints._with_room",
        before="not await self._make_room(what)",
        after="True",
        tests=(f"{BEST_MODEL}::test_models_give_way_to_a_checkpoint",),
    ),
)
