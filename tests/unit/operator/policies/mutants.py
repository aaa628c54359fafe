"""Mutants of rljob_operator.policies."""

from hack.mutants import Mutant

EVICTION = "tests/unit/operator/policies/lifecycle/test_eviction.py"
POLICIES_PLAN = "tests/unit/operator/policies/test_plan.py"
PLAN = (
    f"{POLICIES_PLAN}::test_a_status_is_written_when_it_differs",
    f"{POLICIES_PLAN}::test_a_lost_pods_name_is_not_used_again",
    f"{POLICIES_PLAN}::test_a_fresh_operator_keeps_the_pause_after_failures",
    f"{POLICIES_PLAN}::test_what_is_complete_stays_complete",
)
RUNNERS = "tests/unit/operator/policies/base/test_runners.py"
EVENT_FILTER = "tests/unit/operator/policies/test_event_filter.py"
ENVIRONMENTS = "tests/unit/operator/test_environments.py"

MUTANTS = (
    Mutant(
        name="another witness against a machine wakes no job",
        target="rljob_operator.policies.event_filter:job_signature",
        before="len(s.get('witnesses') or ())",
        after="0",
        tests=(f"{EVENT_FILTER}::test_a_request_or_an_acknowledgement_of_a_job_is_relevant",),
    ),
    Mutant(
        name="a used pod wakes no job",
        target="rljob_operator.policies.event_filter:runner_pod_used",
        before="is_used(body) or None",
        after="None",
        tests=(f"{ENVIRONMENTS}::test_a_used_pod_marks_its_job_once_and_immediately",),
    ),
    Mutant(
        name="a runner that cannot start is looked at by chance only",
        target="rljob_operator.policies.event_filter:runner_start_failure",
        before="None if why is None else why.reason",
        after="None",
        tests=(f"{ENVIRONMENTS}::test_a_runner_that_cannot_start_marks_its_job_once",),
    ),
    Mutant(
        name="pods are made without the template of their claims",
        target="rljob_operator.policies.phases.running:_change_pods",
        before="[new for new in wanted if new.role not in barred]",
        after="list(wanted)",
        tests=(
            "tests/unit/operator/policies/pods/test_devices.py::test_a_template_that_is_absent_is_told_by_its_path",
        ),
    ),
    Mutant(
        name="a job that has ended keeps its chain",
        target="rljob_operator.policies.phases.ended:end_job",
        before='updates["relay"] = dissolved(before.relay)',
        after="pass",
        tests=(f"{POLICIES_PLAN}::test_the_chain_of_an_ended_job_is_empty",),
    ),
    Mutant(
        name="the back-off is not written down",
        target="rljob_operator.policies.phases.running:_running",
        before='"replacements": assessment.replacements',
        after='"replacements": before.replacements',
        tests=PLAN,
    ),
    Mutant(
        name="an equal status is written again",
        target="rljob_operator.policies.phases.steps:changed",
        before='None if mine == job.status.model_copy(update={"runtime": None}) else mine',
        after="mine",
        tests=PLAN,
    ),
    Mutant(
        name="Complete is taken back",
        target="rljob_operator.policies.plan:_decide",
        before="job.status.ended",
        after="False",
        tests=PLAN,
    ),
    Mutant(
        name="racks are not asked for",
        target="rljob_operator.policies.phases.running:_change_pods",
        before="spec.relay.topology_keys",
        after="()",
        tests=(
            (
                "tests/unit/operator/policies/pods/test_relay_membership.py::test_the_chain_goes_through_one_rack_after_"
                "the_other"
            ),
        ),
    ),
    Mutant(
        name="a machine on its way out is no member any more",
        target="rljob_operator.policies.phases.running:_change_pods",
        before=(
            "pod_set.members(observed, created, removals, machine_set.departing, eviction.shut_down(observed, spec))"
        ),
        after="pod_set.members(observed, created, removals, (), eviction.shut_down(observed, spec))",
        tests=(EVICTION,),
    ),
    Mutant(
        name="a machine on its way out keeps its place",
        target="rljob_operator.policies.phases.running:run",
        before="{pod.machine for pod in going}",
        after="set()",
        tests=(EVICTION,),
    ),
    Mutant(
        name="a chain keeps who died during a suspension",
        target="rljob_operator.policies.phases.suspended:suspend",
        before="without_lost(before.relay, before.members, members, observed.highest_epoch)",
        after="before.relay",
        tests=(f"{POLICIES_PLAN}::test_a_machine_lost_while_the_job_is_suspended_leaves_the_chain",),
    ),
    Mutant(
        name="the accepted spec is not written down",
        target="rljob_operator.policies.phases.running:_running",
        before='"accepted": accept(job)',
        after="",
        tests=(
            "tests/unit/operator/policies/lifecycle/test_admission.py",
            f"{POLICIES_PLAN}::test_a_refused_edit_is_told_and_nothing_else_changes",
            f"{POLICIES_PLAN}::test_a_pod_lost_during_a_refused_edit_is_replaced",
            "tests/unit/api/admission/test_last_accepted.py",
        ),
    ),
    Mutant(
        name="what was removed is seen to be gone by its event alone",
        target="rljob_operator.policies.plan:plan",
        before="REMOVED_SECONDS if decided.removals else None",
        after="None",
        tests=(f"{POLICIES_PLAN}::test_what_was_removed_is_looked_at_again_though_no_event_may_tell",),
    ),
    Mutant(
        name="a resume overtakes the drain",
        target="rljob_operator.policies.plan:_decide",
        before="job.spec.suspend or held is not None or stopping(job, observed)",
        after="job.spec.suspend or held is not None",
        tests=(f"{POLICIES_PLAN}::test_an_edit_under_a_suspension_reaches_new_pods",),
    ),
    Mutant(
        name="a resumption cut short throws its pods away",
        target="rljob_operator.policies.phases.suspended:stopping",
        before="not pod.deleting and pod.incarnation <= known.get(pod.machine, 0)",
        after="not pod.deleting",
        tests=(f"{POLICIES_PLAN}::test_a_resumption_cut_short_before_its_status_keeps_its_pods",),
    ),
    Mutant(
        name="a base is asked for before what it claims is there",
        target="rljob_operator.policies.phases.suspended:suspend",
        before="tuple(owned_objects.claim_templates(job, observed.devices)) if held is not None else ()",
        after="()",
        tests=(
            (
                "tests/unit/operator/policies/kueue/test_workloads.py::test_what_the_base_claims_is_made_before_the_"
                "base_is_asked_for"
            ),
        ),
    ),
    Mutant(
        name="a loss is counted again when its successor is refused",
        target="rljob_operator.policies.refusal:refused",
        before="c.new.incarnation - 1",
        after="job.status.incarnations.get(c.new.machine, 0)",
        tests=(f"{POLICIES_PLAN}::test_a_loss_is_counted_once_though_its_successor_is_refused",),
    ),
    Mutant(
        name="pods are made though the coordinator's is refused",
        target="rljob_operator.policies.refusal:in_order",
        before="tuple(creation for creation in creations if creation.new.role is role)",
        after="tuple(creations) if role is Role.COORDINATOR else ()",
        tests=("tests/unit/operator/policies/test_refusal.py",),
    ),
    Mutant(
        name="a round that ends has no runners",
        target="rljob_operator.policies.phases.suspended:suspend",
        before="() if waiting else _runners_to_stop(job, observed, config)",
        after="_runners_to_stop(job, observed, config)",
        tests=(f"{RUNNERS}::test_runners_stay_until_a_suspended_job_has_saved_its_state",),
    ),
)
