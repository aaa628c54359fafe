"""Mutants of rljob_runtime.coordinator.control_plane."""

from hack.mutants import Mutant

KUBERNETES = "tests/unit/coordinator/control_plane/test_kubernetes.py"
LEASE = "tests/unit/coordinator/control_plane/test_lease.py"
PLANNED_LEAVES = "tests/unit/coordinator/test_planned_leaves.py"

MUTANTS = (
    Mutant(
        name="a trainer that is asked to go saves nothing",
        target="rljob_runtime.coordinator.control_plane.commands:BoundaryCommands.apply_trainer_eviction",
        before="await self.save()",
        after="",
        tests=(f"{PLANNED_LEAVES}::test_the_trainers_leave_costs_no_finished_update",),
    ),
    Mutant(
        name="a suspension asks no trainer whose step is not known",
        target="rljob_runtime.coordinator.control_plane.commands:BoundaryCommands.apply_suspend",
        before="not self._follower.suspended or self.may_lose_updates",
        after="not self._follower.suspended",
        tests=(f"{PLANNED_LEAVES}::test_a_suspension_saves_an_update_whose_answer_was_lost",),
    ),
    Mutant(
        name="a coordinator that is cut off ends everybody",
        target="rljob_runtime.coordinator.control_plane.confirmed_term:ConfirmedBackend.release",
        before="await self._confirm()",
        after="pass",
        tests=("tests/simulation/test_fencing.py::test_a_coordinator_that_is_cut_off_ends_no_actor",),
    ),
    Mutant(
        name="a restarted coordinator follows a refused edit",
        target="rljob_runtime.coordinator.control_plane.kubernetes:KubernetesControlPlane.observe",
        before="running_job(newest)",
        after='__import__("rljob_api").load(newest)',
        tests=(f"{KUBERNETES}::test_a_spec_is_followed_once_the_operator_has_accepted_it",),
    ),
    Mutant(
        name="a lease that another one holds is given back",
        target="rljob_runtime.coordinator.control_plane.lease:TermLease.release",
        before='lease["spec"].get("holderIdentity") == self._holder',
        after="True",
        tests=(f"{KUBERNETES}::test_who_leaves_gives_the_lease_back_and_the_term_rises_all_the_same",),
    ),
    Mutant(
        name="a coordinator that cannot renew the Lease keeps its term",
        target="rljob_runtime.coordinator.control_plane.lease:TermLease.keep",
        before="left <= 0",
        after="False",
        tests=(f"{LEASE}::test_who_cannot_renew_for_the_duration_lets_go",),
    ),
    Mutant(
        name="a renewal under way confirms the term",
        target="rljob_runtime.coordinator.control_plane.lease:TermLease.keep",
        before="_notify(waiting)",
        after="_notify(waiting + self._waiting)",
        tests=(f"{LEASE}::test_a_renewal_under_way_confirms_nothing",),
    ),
    Mutant(
        name="each call that asks for the term renews the Lease",
        target="rljob_runtime.coordinator.control_plane.lease:TermLease._until_requested",
        before="asyncio.sleep(least)",
        after="asyncio.sleep(0)",
        tests=(f"{LEASE}::test_many_who_ask_in_turn_cause_a_few_renewals",),
    ),
    Mutant(
        name="a later pod is taken over from",
        target="rljob_runtime.coordinator.control_plane.lease:TermLease._check",
        before="is_later(holder, self._holder)",
        after="False",
        tests=(f"{LEASE}::test_a_later_pod_is_never_taken_over_from",),
    ),
    Mutant(
        name="a layout is applied before it is in force",
        target="rljob_runtime.coordinator.control_plane.target_follower:TargetFollower.apply_target",
        before="await self._fleet.weights.switch_layout(kept or wanted, requested)",
        after="self._fleet.layouts.set_target(kept or wanted, requested)",
        tests=("tests/unit/coordinator/fleet/test_layouts.py::test_applied_is_said_when_the_layout_is_in_force",),
        canary=True,
    ),
    Mutant(
        name="a target is in force since the round before",
        target="rljob_runtime.coordinator.control_plane.target_follower:TargetFollower._in_force",
        before="draft.applied_round if draft.applied == target.revision else draft.round",
        after="draft.applied_round if draft.applied == target.revision else draft.round - 1",
        tests=("tests/unit/coordinator/on_policy/test_loop.py::test_what_is_told_of_a_target_that_was_applied",),
    ),
    Mutant(
        name="a trainer that is asked where it stands is forgotten at a suspension",
        target="rljob_runtime.coordinator.control_plane.target_follower:TargetFollower.unless_suspended",
        before="self.suspended and not self.needs_trainer_state()",
        after="self.suspended",
        tests=(f"{PLANNED_LEAVES}::test_a_suspension_during_a_start_saves_what_the_trainer_holds",),
    ),
)
