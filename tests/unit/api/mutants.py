"""Mutants of rljob_api."""

from hack.mutants import Mutant

PLAN = "tests/unit/operator/policies/test_plan.py"

MUTANTS = (
    Mutant(
        name="unknown fields are accepted",
        target="rljob_api.fields:Model.model_config",
        before='extra="forbid"',
        after='extra="ignore"',
        tests=("tests/unit/api/test_invalid_specs.py",),
        canary=True,
    ),
    Mutant(
        name="what another cluster accepted counts",
        target="rljob_api.last_accepted:was_accepted",
        before='memory.get("uid") == (document.get("metadata") or {}).get("uid")',
        after="True",
        tests=(
            "tests/unit/operator/policies/lifecycle/test_admission.py",
            f"{PLAN}::test_a_refused_edit_is_told_and_nothing_else_changes",
            f"{PLAN}::test_a_pod_lost_during_a_refused_edit_is_replaced",
            "tests/unit/api/test_last_accepted.py",
        ),
    ),
    Mutant(
        name="a reward that an earlier version accepted keeps its former path",
        target="rljob_api.renamed:translated",
        before='reward["function"] = present_path(reward["function"])',
        after="pass",
        tests=("tests/unit/api/test_renamed.py::test_a_stored_spec_is_read_with_the_present_path_of_a_reward",),
    ),
)
