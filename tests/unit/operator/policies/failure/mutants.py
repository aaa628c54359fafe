"""Mutants of rljob_operator.policies.failure."""

from hack.mutants import Mutant

HOLD = "tests/unit/operator/policies/failure/test_mass_failure_hold.py"
NODES = "tests/unit/operator/policies/failure/test_nodes.py"
LOSSES = "tests/unit/operator/policies/failure/test_losses.py"
COORDINATOR_LEASES = "tests/unit/operator/policies/failure/test_coordinator_leases.py"
LEASE_MONITOR = "tests/unit/operator/readers/test_coordinator_leases.py"

MUTANTS = (
    Mutant(
        name="a coordinator that could not renew has one duration to return",
        target="rljob_operator.policies.failure.coordinator_leases:ObservedLease.silence",
        before="1 if self.renewing else RETURN_DURATIONS",
        after="1",
        tests=(
            f"{COORDINATOR_LEASES}::test_a_coordinator_is_silent_after_its_duration_or_three",
            f"{LEASE_MONITOR}::test_a_new_leader_does_not_know_whether_an_outage_came_before_it",
        ),
    ),
    Mutant(
        name="what a cache shows is newer than what the store said",
        target="rljob_operator.policies.failure.coordinator_leases:merged",
        before="read.version < known.version or (known.renewed, known.holder) == (read.renewed, read.holder)",
        after="(known.renewed, known.holder) == (read.renewed, read.holder)",
        tests=(
            f"{COORDINATOR_LEASES}::test_a_lease_counts_as_renewed_if_a_newer_state_differs",
            f"{LEASE_MONITOR}::test_a_stale_cache_makes_no_kubelet_silent",
        ),
    ),
    Mutant(
        name="who keeps failing needs a second witness",
        target="rljob_operator.policies.failure.losses:_wedged",
        before="suspect.reason == KEEPS_FAILING",
        after="suspect.reason == KEEPS_FAILING and len(suspect.witnesses) >= WITNESSES",
        tests=(LOSSES,),
    ),
    Mutant(
        name="a loss is forgotten whose status could not be written",
        target="rljob_operator.policies.failure.losses:_believed_in",
        before="pod is live[0] or pod.incarnation == member",
        after="pod is live[0]",
        tests=(
            (
                "tests/unit/operator/policies/test_plan.py::test_a_loss_is_counted_though_the_operator_dies_before_"
                "it_says_so"
            ),
        ),
    ),
    Mutant(
        name="a planned leave uses up the budget of failures",
        target="rljob_operator.policies.failure.losses:_ended",
        before="pod.deleting",
        after="False",
        tests=(LOSSES,),
    ),
    Mutant(
        name="a silent kubelet is no witness",
        target="rljob_operator.policies.failure.losses:suspected",
        before="pod.node in observed.silent_nodes",
        after="pod.node is None",
        tests=("tests/unit/operator/readers/test_kubelet_leases.py::test_the_kubelets_silence_is_a_second_witness",),
        canary=True,
    ),
    Mutant(
        name="a silent coordinator counts though its node was lost",
        target="rljob_operator.policies.failure.losses:settle",
        before="node is not None and not node.ready",
        after="False",
        tests=(
            (
                "tests/unit/operator/policies/failure/test_silent_coordinators.py::test_a_coordinator_whose_node_"
                "was_lost_too_costs_no_budget"
            ),
        ),
    ),
    Mutant(
        name="machines of one node that fall one after the other are many nodes",
        target="rljob_operator.policies.failure.mass_failure_hold:_doubted",
        before="lost.node or machine",
        after="machine",
        tests=(f"{HOLD}::test_machines_of_one_node_that_fail_in_sequence_are_one_failure",),
    ),
    Mutant(
        name="a loss that has its successor waits in a pause",
        target="rljob_operator.policies.failure.mass_failure_hold:evaluate",
        before="loss.doubted and loss.pod is observed.current(loss.machine)",
        after="loss.doubted",
        tests=(f"{HOLD}::test_a_successor_that_the_status_lacks_causes_no_hold",),
    ),
    Mutant(
        name="a loss that has its successor is none of those that fell together",
        target="rljob_operator.policies.failure.mass_failure_hold:_many",
        before="{**_doubted(rollout, observed, before, now), **_lost(rollout, losses)}",
        after="_doubted(rollout, observed, before, now)",
        tests=(f"{HOLD}::test_a_successor_that_the_status_lacks_causes_no_hold",),
    ),
    Mutant(
        name="machines of one node are as many failures",
        target="rljob_operator.policies.failure.mass_failure_hold:_many",
        before="set(places.values())",
        after="places",
        tests=(HOLD,),
    ),
    Mutant(
        name="after a pause all are replaced immediately",
        target="rljob_operator.policies.failure.mass_failure_hold:evaluate",
        before="[*certain, doubtful[0]]",
        after="[*certain, *doubtful]",
        tests=(HOLD,),
    ),
    Mutant(
        name="a wave forgets whom it has taken",
        target="rljob_operator.policies.failure.mass_failure_hold:_doubted",
        before="not current.ready and (lost := _just_now(machine, before.replacements, now)) is not None",
        after="(lost := None) is not None",
        tests=(HOLD,),
    ),
    Mutant(
        name="a node that is not ready loses its machines immediately",
        target="rljob_operator.policies.failure.nodes:dead",
        before="(node.name for node in failed if is_past(deadline(node.since, policy.grace_seconds), now))",
        after="(node.name for node in failed )",
        tests=(NODES,),
    ),
    Mutant(
        name="a grace begins again with every look",
        target="rljob_operator.policies.failure.nodes:not_ready",
        before="known.get(name) or NotReadyNode(name=name, since=now)",
        after="NotReadyNode(name=name, since=now)",
        tests=(NODES,),
    ),
    Mutant(
        name="a pod is deleted by force before its node is fenced",
        target="rljob_operator.policies.failure.nodes:stuck",
        before="node.gone or node.fenced",
        after="True",
        tests=(NODES,),
    ),
    Mutant(
        name="an avoided node is left out of one alternative only",
        target="rljob_operator.policies.failure.nodes:affinity",
        before="[_without(term, mine) for term in given if isinstance(term, dict)]",
        after="[_without(term, mine if term is given[0] else []) for term in given]",
        tests=(NODES,),
    ),
    Mutant(
        name="a node that is dead is forgiven",
        target="rljob_operator.policies.failure.nodes:forgive",
        before="node.name in blamed and _may_serve(node.name, observed)",
        after="node.name in blamed",
        tests=(NODES,),
    ),
)
