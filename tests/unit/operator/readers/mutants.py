"""Mutants of rljob_operator.readers."""

from hack.mutants import Mutant

KUBELET_LEASES = "tests/unit/operator/readers/test_kubelet_leases.py"
COORDINATOR_LEASES = "tests/unit/operator/readers/test_coordinator_leases.py"
ENVIRONMENTS = "tests/unit/operator/test_environments.py"

MUTANTS = (
    Mutant(
        name="an outage of the API server makes kubelets silent",
        target="rljob_operator.readers.kubelet_leases:KubeletLeaseMonitor.check",
        before="self._observed = {}",
        after="",
        tests=(f"{KUBELET_LEASES}::test_time_without_a_watch_is_held_against_no_kubelet",),
        canary=True,
    ),
    Mutant(
        name="a stopped operator makes kubelets silent",
        target="rljob_operator.readers.kubelet_leases:KubeletLeaseMonitor.check",
        before="before if passed <= 2 * self._interval else {}",
        after="before",
        tests=(f"{KUBELET_LEASES}::test_time_without_a_watch_is_held_against_no_kubelet",),
    ),
    Mutant(
        name="a node of which the watch is late counts as deleted",
        target="rljob_operator.readers.node_cache:NodeCache.facts",
        before="node if node is not None and node.ready else await self._ask(name)",
        after="node or Node(name, ready=False, gone=True)",
        tests=("tests/unit/operator/readers/test_node_cache.py",),
    ),
    Mutant(
        name="a coordinator that could not renew is replaced while it comes back",
        target="rljob_operator.readers.coordinator_leases:CoordinatorLeaseMonitor._check",
        before="{} if outage else known",
        after="known",
        tests=(f"{COORDINATOR_LEASES}::test_after_an_outage_a_coordinator_has_three_durations_to_return[15]",),
    ),
    Mutant(
        name="a namespace that cannot be listed hides the silence in others",
        target="rljob_operator.readers.coordinator_leases:CoordinatorLeaseMonitor.check",
        before="errors.append(error)",
        after="raise",
        tests=(f"{COORDINATOR_LEASES}::test_a_namespace_that_cannot_be_listed_hides_no_silence_in_another",),
    ),
    Mutant(
        name="a stale list after an outage shows a renewal",
        target="rljob_operator.readers.coordinator_leases:CoordinatorLeaseMonitor._list",
        before="last is not None and namespace not in self._failed",
        after="True",
        tests=(f"{COORDINATOR_LEASES}::test_a_renewal_of_before_an_outage_that_shows_late_is_none_of_after_it",),
    ),
    Mutant(
        name="an API server that stands still had no outage",
        target="rljob_operator.readers.coordinator_leases:CoordinatorLeaseMonitor._list",
        before="namespace in self._failed or now - began > self._interval",
        after="namespace in self._failed",
        tests=(f"{COORDINATOR_LEASES}::test_a_server_that_stood_still_makes_no_coordinator_silent",),
    ),
    Mutant(
        name="a Lease that could not be read or renewed is old when it can be read",
        target="rljob_operator.readers.coordinator_leases:CoordinatorLeaseMonitor._confirm",
        before="read if known.unread or self._clock() - began > self._interval else merged(known, read, 0.0)",
        after="merged(known, read, 0.0)",
        tests=(f"{COORDINATOR_LEASES}::test_who_cannot_be_asked_for_is_not_silent",),
    ),
    Mutant(
        name="a Lease that a cache shows unchanged is silence",
        target="rljob_operator.readers.coordinator_leases:CoordinatorLeaseMonitor._check",
        before="await asyncio.gather(*map(self._confirm, doubtful))",
        after="self._observed |= {key: replace(self._observed[key], confirmed=True) for key in doubtful}",
        tests=(f"{COORDINATOR_LEASES}::test_a_stale_cache_makes_no_kubelet_silent",),
    ),
    Mutant(
        name="every job costs a list of Deployments",
        target="rljob_operator.readers.deployment_lister:DeploymentLister.runners",
        before="not job.spec.environments",
        after="False",
        tests=(f"{ENVIRONMENTS}::test_deployments_are_listed_for_jobs_with_environments_only",),
    ),
)
