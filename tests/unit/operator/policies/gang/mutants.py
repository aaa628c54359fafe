"""Mutants of rljob_operator.policies.gang."""

from hack.mutants import Mutant

POD_GROUPS = "tests/unit/operator/policies/gang/test_pod_groups.py"

MUTANTS = (
    Mutant(
        name="replacements of a job that has begun belong to its gang",
        target="rljob_operator.policies.gang.pod_groups:gathers",
        before="spec.scheduling.gang is not Gang.NONE and status.first_ready_time is None",
        after="spec.scheduling.gang is not Gang.NONE",
        tests=(POD_GROUPS,),
    ),
    Mutant(
        name="machines above the base take places before the gang has its own",
        target="rljob_operator.policies.gang.pod_groups:admitted",
        before="list(created) if _placed(first, observed) else [new for new in created if new.machine in first]",
        after="list(created)",
        tests=(POD_GROUPS,),
    ),
    Mutant(
        name="a group whose API came late is not made",
        target="rljob_operator.policies.gang.pod_groups:missing",
        before="edited or begins or not observed.children_present",
        after="edited or not observed.children_present",
        tests=(POD_GROUPS,),
    ),
    Mutant(
        name="a gang counts rollout machines that the job can do without",
        target="rljob_operator.policies.gang.pod_groups:size",
        before="spec.rollout.smallest",
        after="spec.rollout.machines",
        tests=(POD_GROUPS,),
    ),
)
