"""Mutants of rljob_operator.policies.lifecycle."""

from hack.mutants import Mutant

ADMISSION = "tests/unit/operator/policies/lifecycle/test_admission.py"
EVICTION = "tests/unit/operator/policies/lifecycle/test_eviction.py"
PLAN = "tests/unit/operator/policies/test_plan.py"
DRAIN = "tests/unit/operator/policies/lifecycle/test_drain.py"

MUTANTS = (
    Mutant(
        name="changes of a spec are not looked at",
        target="rljob_operator.policies.lifecycle.admission:admit",
        before="validate_update(accepted, job)",
        after="pass",
        tests=(
            ADMISSION,
            f"{PLAN}::test_a_refused_edit_is_told_and_nothing_else_changes",
            f"{PLAN}::test_a_pod_lost_during_a_refused_edit_is_replaced",
            "tests/unit/api/admission/test_last_accepted.py",
        ),
    ),
    Mutant(
        name="a machine leaves before it is drained",
        target="rljob_operator.policies.lifecycle.drain:drained_machines",
        before="(machine for machine in leaving if machine in drained or machine not in working)",
        after="leaving",
        tests=(DRAIN,),
    ),
    Mutant(
        name="a suspension does not wait for the coordinator that could save",
        target="rljob_operator.policies.lifecycle.drain:may_suspend",
        before="not _listening(observed) and not (_coming(observed) and _unsaved(observed, status))",
        after="not _listening(observed)",
        tests=(f"{DRAIN}::test_when_a_suspended_jobs_pods_may_go",),
    ),
    Mutant(
        name="a machine on a dead node is waited for",
        target="rljob_operator.policies.lifecycle.eviction:_may",
        before="pod.deletion is not None and now < pod.deletion and (node is None or node.ready)",
        after="pod.deletion is not None and now < pod.deletion",
        tests=(EVICTION,),
    ),
    Mutant(
        name="the trainer's next pod comes before the state is saved",
        target="rljob_operator.policies.lifecycle.eviction:drains",
        before="spec.checkpoint.survives_pods",
        after="False",
        tests=(EVICTION,),
    ),
)
