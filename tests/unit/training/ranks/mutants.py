"""Mutants of rljob_runtime.training.ranks."""

from hack.mutants import Mutant

GROUP = "tests/unit/training/ranks/test_group.py"

MUTANTS = (
    Mutant(
        name="all ranks are sent the rows of the first",
        target="rljob_runtime.training.ranks.group:TrainerGroup._packed",
        before="rank.put(rows)",
        after="rank.put(shares[0])",
        tests=(f"{GROUP}::test_every_rank_gets_its_own_rows_and_one_packs_what_is_for_all",),
    ),
    Mutant(
        name="advantages of the user are not asked for",
        target="rljob_runtime.training.ranks.group:TrainerGroup._packed",
        before="progress.rules.advantages.function is not None",
        after="False",
        tests=("tests/unit/training/algorithm/test_own.py::test_advantages_of_the_user_are_trained_on",),
    ),
    Mutant(
        name="a command overtakes one whose caller gave up",
        target="rljob_runtime.training.ranks.group:TrainerGroup._call_all",
        before="asyncio.shield(self._command)",
        after="self._command",
        tests=(f"{GROUP}::test_the_next_command_waits_for_one_whose_caller_gave_up",),
    ),
    Mutant(
        name="weights are published whatever step they are of",
        target="rljob_runtime.training.ranks.rank:TrainerRank.publish",
        before="step != session.position.step",
        after="step is None",
        tests=("tests/unit/training/ranks/test_rank.py::test_weights_are_published_for_the_step_that_they_are_of",),
    ),
    Mutant(
        name="a full volume is any other refusal",
        target="rljob_runtime.training.ranks.rank:TrainerRank._lead",
        before="VolumeFull if full else Refused",
        after="Refused",
        tests=(
            "tests/unit/training/checkpoint/test_kept_models.py::test_a_volume_without_room_is_told_from_other_refusals",
        ),
    ),
    Mutant(
        name="an error without a caller prints a traceback",
        target="rljob_runtime.training.ranks.group:TrainerGroup._call_all",
        before="self._command.add_done_callback(_mark_retrieved)",
        after="pass",
        tests=("tests/unit/training/ranks/test_group.py::test_an_error_whose_caller_gave_up_prints_no_traceback",),
    ),
)
