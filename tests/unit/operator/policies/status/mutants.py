"""Mutants of rljob_operator.policies.status."""

from hack.mutants import Mutant

PLAN = "tests/unit/operator/policies/test_plan.py"
CONDITIONS = "tests/unit/operator/policies/status/test_conditions.py"
SEALS = "tests/unit/operator/test_seals.py"
RUNNERS = "tests/unit/operator/policies/base/test_runners.py"

MUTANTS = (
    Mutant(
        name="the same refusal is told again at every try",
        target="rljob_operator.policies.status.conditions:stalled_now",
        before="before.conditions",
        after="status.conditions",
        tests=(f"{PLAN}::test_the_same_refusal_at_the_next_try_writes_nothing",),
    ),
    Mutant(
        name="a refused edit counts as Ready",
        target="rljob_operator.policies.status.conditions:derive",
        before="facts.is_ready and facts.refused is None",
        after="facts.is_ready",
        tests=(
            "tests/unit/operator/policies/lifecycle/test_admission.py",
            f"{PLAN}::test_a_refused_edit_is_told_and_nothing_else_changes",
            f"{PLAN}::test_a_pod_lost_during_a_refused_edit_is_replaced",
            "tests/unit/api/admission/test_last_accepted.py",
        ),
    ),
    Mutant(
        name="the reason shows the machine that waits, not what it waits for",
        target="rljob_operator.policies.status.conditions:Facts.ready",
        before="self.obstacle or missing",
        after="missing",
        tests=(CONDITIONS,),
    ),
    Mutant(
        name="a missing sandbox is no reason to stall",
        target="rljob_operator.policies.status.conditions:Facts.obstacle",
        before="self.stall or self.halted",
        after="self.stall",
        tests=(f"{CONDITIONS}::test_a_missing_sandbox_stalls_the_job_and_nothing_else_does",),
    ),
    Mutant(
        name="a digest depends on how the server spells a number",
        target="rljob_operator.policies.status.seal:_plain",
        before="int(value) if isinstance(value, float) and value.is_integer() else value",
        after="value",
        tests=(f"{SEALS}::test_a_digest_does_not_depend_on_how_the_server_spells_a_value",),
    ),
    Mutant(
        name="the coordinator's field is sealed too",
        target="rljob_operator.policies.status.seal:operator_part",
        before='{key: value for key, value in (document.get("status") or {}).items() if key != RUNTIME}',
        after='dict(document.get("status") or {})',
        tests=(f"{SEALS}::test_the_coordinators_field_is_not_the_operators",),
    ),
    Mutant(
        name="a status is written over that of another operator",
        target="rljob_operator.policies.status.write_conflict:only_reported",
        before=(
            'unversioned == before.metadata and status.model_copy(update={"runtime": before.status.runtime}) '
            "== before.status"
        ),
        after=(
            'unversioned == before.metadata or status.model_copy(update={"runtime": before.status.runtime}) '
            "== before.status"
        ),
        tests=("tests/unit/operator/policies/status/test_write_conflict.py",),
    ),
    Mutant(
        name="failed switches are told at each reconcile",
        target="rljob_operator.policies.status.events:_switches",
        before="before.parallelism is None or before.parallelism.round == after.parallelism.round",
        after="before.parallelism is None",
        tests=("tests/unit/operator/policies/status/test_switch_events.py::test_a_round_is_told_once",),
    ),
    Mutant(
        name="a job whose episodes have no runner is ready",
        target="rljob_operator.policies.status.conditions:Facts._missing",
        before="one.runners and not one.ready",
        after="False",
        tests=(f"{RUNNERS}::test_no_runner_means_not_ready_and_too_few_mean_degraded",),
    ),
    Mutant(
        name="runners that are ready stall their job",
        target="rljob_operator.policies.status.stalled:_runners",
        before="one.ready >= one.wanted",
        after="False",
        tests=(f"{RUNNERS}::test_why_runners_do_not_start",),
    ),
    Mutant(
        name="runners that cannot start wait for a deadline that a resumption does not set",
        target="rljob_operator.policies.status.stalled:_runners",
        before="one.broken is not None",
        after="one.broken is not None and one.overdue is not None",
        tests=(
            "tests/unit/operator/policies/base/test_runner_start.py::test_a_job_is_stalled_as_soon_as_it_is_known_why",
        ),
    ),
)
