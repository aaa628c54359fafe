"""Mutants of rljob_operator."""

from hack.mutants import Mutant

KUBELET_LEASES = "tests/unit/operator/test_kubelet_leases.py"
PARTS = "tests/unit/operator/test_parts.py"
SEALS = "tests/unit/operator/test_seals.py"

MUTANTS = (
    Mutant(
        name="a flag has another variable than the page says",
        target="rljob_operator.__main__:parser",
        before='"RLJOB_LEASE_NAME"',
        after='"RLJOB_LEADER_NAME"',
        tests=("tests/unit/docs/test_operator.py::test_every_flag_is_in_the_table_with_its_variable_and_default",),
    ),
    Mutant(
        name="an operator that lost its Lease ends, and the kubelet starts it ever later",
        target="rljob_operator.app:serve",
        before='_logger.warning("%s; standing by", error)',
        after="raise error",
        tests=(f"{PARTS}::test_who_loses_the_lease_is_followed_by_one_that_knows_nothing",),
        canary=True,
    ),
    Mutant(
        name="a look at pods may be older than those just made",
        target="rljob_operator.applier:Applier._create_pod",
        before="self._observe_pods([await self._kube.create(POD, creation.manifest)])",
        after="await self._kube.create(POD, creation.manifest)",
        tests=(f"{PARTS}::test_no_look_at_pods_is_older_than_those_it_made_itself",),
    ),
    Mutant(
        name="each report keeps a status out",
        target="rljob_operator.applier:Applier.write_status",
        before="not tries_left or not only_reported(job, live)",
        after="True",
        tests=("tests/unit/operator/policies/status/test_write_conflict.py",),
    ),
    Mutant(
        name="whatever pod has the name is deleted",
        target="rljob_operator.applier:Applier._remove_pod",
        before="uid=pod.uid",
        after="",
        tests=(f"{PARTS}::test_only_the_leader_deletes_a_pod_and_only_the_judged_one",),
        canary=True,
    ),
    Mutant(
        name="a page prints what a limit was",
        target="rljob_operator.health:Limits.watch",
        before="120.0",
        after="60.0",
        tests=("tests/unit/docs/test_figures.py",),
    ),
    Mutant(
        name="an outage of the API server makes kubelets silent",
        target="rljob_operator.kubelet_leases:KubeletLeaseMonitor.check",
        before="self._observed = {}",
        after="",
        tests=(f"{KUBELET_LEASES}::test_time_without_a_watch_is_held_against_no_kubelet",),
    ),
    Mutant(
        name="a stopped operator makes kubelets silent",
        target="rljob_operator.kubelet_leases:KubeletLeaseMonitor.check",
        before="before if passed <= 2 * self._interval else {}",
        after="before",
        tests=(f"{KUBELET_LEASES}::test_time_without_a_watch_is_held_against_no_kubelet",),
    ),
    Mutant(
        name="a node of which the watch is late counts as deleted",
        target="rljob_operator.node_cache:NodeCache.facts",
        before="node if node is not None and node.ready else await self._ask(name)",
        after="node or Node(name, ready=False, gone=True)",
        tests=("tests/unit/operator/policies/failure/test_nodes.py",),
    ),
    Mutant(
        name="a coordinator that could not renew is replaced while it comes back",
        target="rljob_operator.observer:CoordinatorLeaseMonitor.check",
        before="{} if outage else self._observed",
        after="self._observed",
        tests=(f"{PARTS}::test_after_an_outage_a_coordinator_has_its_lease_duration_to_return[15]",),
    ),
    Mutant(
        name="a Lease that nobody could read or renew is old when it can be read",
        target="rljob_operator.observer:CoordinatorLeaseMonitor._confirm",
        before="read if known.unread else _merged(known, read, 0.0)",
        after="_merged(known, read, 0.0)",
        tests=(f"{PARTS}::test_who_cannot_be_asked_for_is_not_silent",),
    ),
    Mutant(
        name="a Lease that a cache shows unchanged is silence",
        target="rljob_operator.observer:CoordinatorLeaseMonitor.check",
        before="await asyncio.gather(*(self._confirm(key, gate) for key in expired))",
        after="self._watched |= {key: replace(self._watched[key], confirmed=True) for key in expired}",
        tests=(f"{PARTS}::test_a_stale_cache_makes_no_kubelet_silent",),
    ),
    Mutant(
        name="what a cache shows is newer than what the store said",
        target="rljob_operator.observer:_merged",
        before="read.version < known.version or (known.renewed, known.holder) == (read.renewed, read.holder)",
        after="(known.renewed, known.holder) == (read.renewed, read.holder)",
        tests=(f"{PARTS}::test_a_stale_cache_makes_no_kubelet_silent",),
    ),
    Mutant(
        name="a plan is made in the event loop",
        target="rljob_operator.reconciler:Reconciler._reconcile",
        before="await asyncio.to_thread(plan, job, observed, now, self._config, admitted.refused)",
        after="plan(job, seen, now, self._config, admitted.refused)",
        tests=(
            "tests/unit/operator/test_cost.py::test_other_jobs_and_the_loop_go_on_while_the_largest_job_is_planned",
        ),
    ),
    Mutant(
        name="a status that no operator wrote is believed",
        target="rljob_operator.seals:Seals.forgery",
        before="(seal or truth) and found not in seal",
        after="False",
        tests=(f"{SEALS}::test_another_process_finds_it_too_and_knows_no_truth",),
    ),
    Mutant(
        name="the status before is not sealed beside the coming one",
        target="rljob_operator.seals:Seals.announce",
        before="tuple(dict.fromkeys((coming, before)))",
        after="(coming,)",
        tests=(f"{SEALS}::TestHistories",),
    ),
    Mutant(
        name="a status is sealed after it was written",
        target="rljob_operator.seals:Seals.announce",
        before="await self._write(namespace, name, uid, tuple(dict.fromkeys((coming, before))))",
        after="pass",
        tests=(f"{SEALS}::TestHistories",),
    ),
    Mutant(
        name="the Role of an earlier job seals this one's status",
        target="rljob_operator.seals:Seals._read",
        before='role is None or all(owner["uid"] != uid for owner in role["metadata"].get("ownerReferences") or ())',
        after="role is None",
        tests=(f"{SEALS}::test_a_role_of_an_earlier_job_of_this_name_says_nothing",),
    ),
    Mutant(
        name="a job of an operator without seals is never sealed",
        target="rljob_operator.seals:Seals.forgery",
        before="version is not None and not seal",
        after="False",
        tests=(f"{SEALS}::test_a_job_of_an_operator_without_seals_is_sealed_at_first",),
    ),
    Mutant(
        name="a forgery is told for ever",
        target="rljob_operator.seals:Seals.alarm",
        before="message and self._clock() - when > TOLD_SECONDS",
        after="False",
        tests=(f"{SEALS}::test_a_forgery_is_told_for_a_while",),
    ),
    Mutant(
        name="an error in a plan is nobody's to know",
        target="rljob_operator.workqueue:WorkQueue._serve",
        before="await self._tell(key, error)",
        after="",
        tests=("tests/unit/operator/test_reconciler.py::test_an_error_in_a_plan_is_told_and_taken_back",),
    ),
)
