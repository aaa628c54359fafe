"""Mutants of rljob_api.admission."""

from hack.mutants import Mutant

PLAN = "tests/unit/operator/policies/test_plan.py"

MUTANTS = (
    Mutant(
        name="a coordinator ends at a field of a later version",
        target="rljob_api.admission.last_accepted:running_job",
        before="_accepted(document, load_known)",
        after="_accepted(document, load)",
        tests=(
            "tests/unit/api/admission/test_last_accepted.py::test_a_running_coordinator_leaves_out_what_a_later_version_added",
        ),
    ),
    Mutant(
        name="what another cluster accepted counts",
        target="rljob_api.admission.last_accepted:was_accepted",
        before='memory.get("uid") == (document.get("metadata") or {}).get("uid")',
        after="True",
        tests=(
            "tests/unit/operator/policies/lifecycle/test_admission.py",
            f"{PLAN}::test_a_refused_edit_is_told_and_nothing_else_changes",
            f"{PLAN}::test_a_pod_lost_during_a_refused_edit_is_replaced",
            "tests/unit/api/admission/test_last_accepted.py",
        ),
    ),
    Mutant(
        name="a reward that an earlier version accepted keeps its former path",
        target="rljob_api.admission.renamed:translated",
        before='reward["function"] = present_path(reward["function"])',
        after="pass",
        tests=(
            "tests/unit/api/admission/test_renamed.py::test_a_stored_spec_is_read_with_the_present_path_of_a_reward",
        ),
    ),
    Mutant(
        name="a bound is written as a number of the machine",
        target="rljob_api.admission.loading:_whole",
        before="value.is_integer()",
        after="False",
        tests=("tests/unit/api/test_invalid_specs.py::test_a_mixture_whose_weights_are_0_is_refused_at_each_source",),
    ),
)
