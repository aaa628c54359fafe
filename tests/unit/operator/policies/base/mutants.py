"""Mutants of rljob_operator.policies.base."""

from hack.mutants import Mutant

EVICTION = "tests/unit/operator/policies/lifecycle/test_eviction.py"
RUNNERS = "tests/unit/operator/policies/base/test_runners.py"
RUNNER_START = "tests/unit/operator/policies/base/test_runner_start.py"
SINGLE_EPISODE = "tests/unit/operator/policies/base/test_single_episode_pods.py"

MUTANTS = (
    Mutant(
        name="a used pod stays",
        target="rljob_operator.policies.base.single_episode_pods:used",
        before="pod.used and not pod.deleting",
        after="pod.failing",
        tests=(SINGLE_EPISODE,),
    ),
    Mutant(
        name="a quota that still counts a used pod stalls the job",
        target="rljob_operator.policies.base.single_episode_pods:refusal",
        before="pod.used or pod.deleting",
        after="False",
        tests=(SINGLE_EPISODE,),
    ),
    Mutant(
        name="a job whose pods are always replaced never starts",
        target="rljob_operator.policies.base.single_episode_pods:ready",
        before="was_ready or any((pod.used for pod in pods))",
        after="was_ready",
        tests=(SINGLE_EPISODE,),
    ),
    Mutant(
        name="a used pod is seen only until its container is started again",
        target="rljob_operator.policies.base.single_episode_pods:_ended_used",
        before='("state", "lastState")',
        after='("state",)',
        tests=(SINGLE_EPISODE,),
    ),
    Mutant(
        name="a new pod is missing immediately",
        target="rljob_operator.policies.base.single_episode_pods:_lacks",
        before="is_past(deadline(pod.created, START_SECONDS), now)",
        after="True",
        tests=(SINGLE_EPISODE,),
    ),
    Mutant(
        name="a pod that never becomes ready takes the place of a used one for ever",
        target="rljob_operator.policies.base.single_episode_pods:next_checks",
        before="_may_lack(pod)",
        after="pod.used",
        tests=(SINGLE_EPISODE,),
    ),
    Mutant(
        name="a job is looked at again for a moment that is over",
        target="rljob_operator.policies.base.deadlines:earliest_wait",
        before="[(moment - now).total_seconds() for moment in moments if moment is not None and moment > now]",
        after="[max(1.0, (moment - now).total_seconds()) for moment in moments if moment is not None]",
        tests=("tests/unit/bench/test_operator.py::test_a_job_that_waits_for_nodes_costs_no_request",),
    ),
    Mutant(
        name="a node that shuts down counts as lost",
        target="rljob_operator.policies.base.observation:parse_node",
        before='ready.get("status") == "False"',
        after='ready.get("status") == "Unknown"',
        tests=(EVICTION,),
    ),
    Mutant(
        name="the next coordinator comes while the former one saves",
        target="rljob_operator.policies.base.observation:Pod.live",
        before="self.staying or not self.deleting",
        after="not self.deleting",
        tests=(EVICTION,),
    ),
    Mutant(
        name="a rewards' container that failed is waited for",
        target="rljob_operator.policies.base.observation:_ended_phase",
        before='"Failed" if role is Role.COORDINATOR and failed else None',
        after="None",
        tests=("tests/unit/operator/policies/pods/test_rewards_container.py",),
    ),
    Mutant(
        name="a coordinator's pod is deleted while its head ends",
        target="rljob_operator.policies.base.observation:parse_pod",
        before="ended is not None and any(_exit_code(container) is None for container in containers)",
        after="ended is not None",
        tests=(
            (
                "tests/unit/operator/policies/pods/test_ray_head.py::test_a_coordinator_that_has_ended_is_replaced_"
                "while_its_head_ends"
            ),
        ),
    ),
    Mutant(
        name="a coordinator without a gateway lives on",
        target="rljob_operator.policies.base.observation:_ended_phase",
        before="(REWARDS_CONTAINER, GATEWAY_CONTAINER)",
        after="(REWARDS_CONTAINER,)",
        tests=("tests/unit/operator/policies/pods/test_gateway_container.py",),
    ),
    Mutant(
        name="runners of another job of the same name count",
        target="rljob_operator.policies.base.runners:own_runners",
        before='owner.get("uid") == uid',
        after="True",
        tests=(f"{RUNNERS}::test_only_own_deployments_count",),
    ),
    Mutant(
        name="pods that a late controller creates have no quota",
        target="rljob_operator.policies.base.runners:Runners.possible_pods",
        before="0 if self.current else 1",
        after="0",
        tests=("tests/unit/operator/policies/kueue/test_runners_in_a_base.py",),
    ),
    Mutant(
        name="an image without the runner's package ends as any program does",
        target="rljob_operator.policies.base.runner_start:_missing",
        before='code == 1 and any(words in str(ended.get("message") or "") for words in NO_MODULE)',
        after="False",
        tests=(f"{RUNNER_START}::test_an_image_without_the_runner_is_told_with_what_to_install",),
    ),
)
