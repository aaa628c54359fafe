"""Mutants of rljob_operator.policies.kueue."""

from hack.mutants import Mutant

RUNNERS = "tests/unit/operator/policies/kueue/test_runner_quota.py"
IN_A_BASE = "tests/unit/operator/policies/kueue/test_runners_in_a_base.py"
WORKLOADS = "tests/unit/operator/policies/kueue/test_workloads.py"
QUOTA = "tests/unit/operator/policies/kueue/test_quota.py"

MUTANTS = (
    Mutant(
        name="a machine that Kueue evicts stays in the target",
        target="rljob_operator.policies.kueue.admission:admitted",
        before="found.admitted",
        after="found.reserved",
        tests=(f"{QUOTA}::test_kueue_takes_one_machine_which_hands_over_and_comes_back",),
    ),
    Mutant(
        name="a base that waits keeps its place for nodes that are not wanted any more",
        target="rljob_operator.policies.kueue.settlement:_outdated",
        before="changed or elsewhere or one.queue != _queue(job, kueue)",
        after="changed or one.queue != _queue(job, kueue)",
        tests=(f"{QUOTA}::test_a_waiting_base_is_requested_again_when_its_nodes_change",),
    ),
    Mutant(
        name="quota goes back before the pods that it stands for",
        target="rljob_operator.policies.kueue.settlement:_settle",
        before="Settlement(one, _given_back(one, now)) if empty else None",
        after="Settlement(one, _given_back(one, now))",
        tests=(f"{QUOTA}::test_an_evicted_base_suspends_the_job_and_gives_its_quota_back",),
    ),
    Mutant(
        name="a resource that the queue lacks is waited for",
        target="rljob_operator.policies.kueue.waiting:_found",
        before="sign.while_others_pass or not passes",
        after="not passes",
        tests=(f"{QUOTA}::test_what_kueue_says_is_told_and_what_does_not_pass_by_itself_stalls",),
    ),
    Mutant(
        name="Kueue is asked for no limit of a container",
        target="rljob_operator.policies.kueue.workloads:_with_requests",
        before='{**resources["limits"], **(resources.get("requests") or {})}',
        after='resources.get("requests") or {}',
        tests=(f"{WORKLOADS}::test_a_pod_set_requests_what_its_pods_request",),
    ),
    Mutant(
        name="another number of runners is no other request",
        target="rljob_operator.policies.kueue.workloads:asks",
        before='"count": one.most_runners, ',
        after="",
        tests=(f"{RUNNERS}::test_what_is_requested_again",),
    ),
    Mutant(
        name="each further machine asks for all runners",
        target="rljob_operator.policies.kueue.workloads:_environments",
        before="job.spec.environments if Role.COORDINATOR in roles else ()",
        after="job.spec.environments",
        tests=(f"{RUNNERS}::test_a_machine_of_its_own_workload_asks_for_no_runners",),
    ),
    Mutant(
        name="Kueue refuses a base with too many pod sets",
        target="rljob_operator.policies.kueue.workloads:too_many_environments",
        before="len(job.spec.environments) <= most",
        after="True",
        tests=(f"{RUNNERS}::test_more_pod_sets_than_a_workload_may_have_are_told_and_not_requested",),
    ),
    Mutant(
        name="quota is returned while the kubelet still ends the pod",
        target="rljob_operator.policies.kueue.settlement:_settle",
        before="any(pod.occupies for pod in pods)",
        after="any(not pod.terminal for pod in pods)",
        tests=(f"{QUOTA}::test_quota_is_held_until_the_kubelet_has_ended_the_pod",),
    ),
    Mutant(
        name="quota is returned while runners run",
        target="rljob_operator.policies.kueue.settlement:_settle",
        before="not any(some.possible_pods for some in runners.values())",
        after="True",
        tests=(f"{IN_A_BASE}::test_quota_is_returned_when_the_runners_are_gone_too",),
    ),
    Mutant(
        name="a base is finished while runners run",
        target="rljob_operator.policies.kueue.settlement:finished",
        before="observed.runner_pods",
        after="False",
        tests=(f"{IN_A_BASE}::test_the_base_is_finished_when_the_runners_are_gone_too",),
    ),
    Mutant(
        name="a base is not ready while a pod of one episode is replaced",
        target="rljob_operator.policies.kueue.settlement:_ready_runners",
        before="single_episode_pods.ready(some, now, started)",
        after="some.ready",
        tests=(f"{IN_A_BASE}::test_the_base_stays_ready_while_pods_of_one_episode_are_replaced",),
    ),
    Mutant(
        name="a base with runners is never ready",
        target="rljob_operator.policies.kueue.settlement:_pods_ready",
        before="by_set |= _ready_runners(one, runners, now, started)",
        after="pass",
        tests=(f"{IN_A_BASE}::test_the_base_is_ready_with_its_runners",),
    ),
    Mutant(
        name="runners go to nodes that their quota does not cover",
        target="rljob_operator.policies.kueue.admission:placed_runners",
        before='_on_assigned(template["spec"], assignment, observed)',
        after='template["spec"]',
        tests=(f"{IN_A_BASE}::test_runners_are_placed_where_their_flavor_is",),
    ),
)
