"""Mutants of rljob_runtime.scheduling.asynchronous: asynchronous training."""

from hack.mutants import Mutant

LOOP = "tests/unit/coordinator/asynchronous/test_loop.py"
ASYNC_GROUPS = "tests/unit/scheduling/asynchronous/test_async_groups.py"
EXPERIENCE_BUFFER = "tests/unit/scheduling/asynchronous/test_experience_buffer.py"
REPLICA_ASSIGNMENT = "tests/unit/scheduling/asynchronous/test_replica_assignment.py"

MUTANTS = (
    Mutant(
        name="a source keeps what it has handed over",
        target="rljob_runtime.scheduling.asynchronous.async_groups:GroupTracker.relaunch",
        before="self._release(key, lease)",
        after="pass",
        tests=(
            "tests/unit/scheduling/asynchronous/test_async_groups.py"
            "::test_episodes_are_handed_over_immediately_and_the_former_leases_end",
        ),
    ),
    Mutant(
        name="a replica does not know of moves to it",
        target="rljob_runtime.scheduling.asynchronous.async_groups:GroupTracker.has_move",
        before="(self._samples[key].move is not None for key in self._held.get(replica, ()))",
        after="(self._samples[one.key].move is not None for one in self.running_on(replica))",
        tests=("tests/unit/scheduling/asynchronous/test_repack.py",),
    ),
    Mutant(
        name="a response goes on with other weights",
        target="rljob_runtime.scheduling.asynchronous.async_groups:GroupTracker._fits",
        before="version >= group.version if self._mixed else version == group.version",
        after="version >= group.version",
        tests=(f"{ASYNC_GROUPS}::test_what_a_lost_replica_generated_goes_on_with_the_same_weights_only",),
    ),
    Mutant(
        name="a turn of newer weights waits for the old ones",
        target="rljob_runtime.scheduling.asynchronous.async_groups:GroupTracker._fits",
        before="version >= group.version if self._mixed else version == group.version",
        after="version == group.version",
        tests=(f"{ASYNC_GROUPS}::test_a_mixed_group_continues_on_newer_weights_but_not_on_older_ones",),
    ),
    Mutant(
        name="newer weights wait for the last response, though turns may be mixed",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:ReplicaState.may_load",
        before="self.load == 0 or (self.mixes and not self.evaluations)",
        after="self.load == 0",
        tests=(f"{REPLICA_ASSIGNMENT}::test_what_replicas_are_given",),
    ),
    Mutant(
        name="weights are loaded between two turns of an evaluation",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:ReplicaState.may_load",
        before="not self.evaluations",
        after="True",
        tests=(f"{REPLICA_ASSIGNMENT}::test_what_replicas_are_given",),
    ),
    Mutant(
        name="a moving response has two owners",
        target="rljob_runtime.scheduling.asynchronous.async_groups:GroupTracker.commit_move",
        before="self._aborts.append(Launch(key, sample.lease))",
        after="",
        tests=(f"{ASYNC_GROUPS}::test_the_destinations_first_token_is_the_commit",),
        canary=True,
    ),
    Mutant(
        name="the reward of a response that moved is not awaited",
        target="rljob_runtime.scheduling.asynchronous.async_groups:GroupTracker._awaiting",
        before="sample.completed_attempt",
        after="sample.attempt",
        tests=(f"{ASYNC_GROUPS}::test_a_source_that_ends_first_keeps_its_response",),
    ),
    Mutant(
        name="a group is orphaned while it is generated",
        target="rljob_runtime.scheduling.asynchronous.async_groups:GroupTracker.orphaned",
        before="(key.prompt for key in self._waiting)",
        after="self._groups",
        tests=(f"{ASYNC_GROUPS}::test_a_group_whose_weights_no_machine_holds_is_orphaned",),
    ),
    Mutant(
        name="a group that is due is not waited for",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:over_staleness_bound",
        before="any(place >= slack * count for place, slack in enumerate(slacks))",
        after="False",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="groups in flight are waited for only at the bound itself",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:over_staleness_bound",
        before="any(place >= slack * count for place, slack in enumerate(slacks))",
        after="0 in slacks",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="groups that are due do not go first",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:sample",
        before="[*urgent.values(), *(one for one in usable if one.prompt not in urgent)]",
        after="usable",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="groups in flight keep no place in later updates",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:_urgent",
        before="(*in_flight, *(one.staleness for one in ranked))",
        after="(one.staleness for one in ranked)",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="what is over the bound is trained on",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:sample",
        before="[one for one in chosen if one.staleness <= bound]",
        after="chosen",
        tests=(EXPERIENCE_BUFFER,),
        canary=True,
    ),
    Mutant(
        name="more groups are begun than updates take in time",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:inflight_limit",
        before="room = min(room, (date + 1) * count - sum(slack <= date for slack in slacks))",
        after="pass",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="old weights begin as many groups as new ones",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:inflight_limit",
        before="bound - max(0, weights)",
        after="bound",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="a full buffer closes nothing",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:inflight_limit",
        before="max(0, capacity - len(opened))",
        after="capacity",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="weights over the bound begin groups",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:inflight_limit",
        before="""
            if weights > bound:
                return 0
        """,
        after="weights = min(weights, bound)",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="what teaches little is never trained on",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:_ranked",
        before="-(-count // OLDEST_SHARE)",
        after="0",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="a uniform sample is the same at every update",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:_lot",
        before='f"{seed}/{prompt}"',
        after='f"{prompt}"',
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="the freshest are trained on first",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:_ranked",
        before="-one.staleness",
        after="one.staleness",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="engines that are full are given more to wait for",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:capacity_after",
        before="capacity + quarter if fullness <= FULL else capacity",
        after="capacity + quarter",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="groups that lie ready let as many more be begun",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:capacity_after",
        before="capacity - max(0, left - quarter) // 2",
        after="capacity",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="a capacity that was given moves",
        target="rljob_runtime.scheduling.asynchronous.experience_buffer:BufferLimits.of",
        before="cls(given, given, given)",
        after="cls(given, count, 4 * given)",
        tests=(EXPERIENCE_BUFFER,),
    ),
    Mutant(
        name="a replica is given more than its share",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:split_quota",
        before="load + limits.group_size > limits.most * limits.group_size",
        after="load > limits.most * limits.group_size",
        tests=(REPLICA_ASSIGNMENT,),
    ),
    Mutant(
        name="what is left goes to one replica after the other",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:split_quota",
        before="heapreplace(places, (load + limits.group_size, name))",
        after="places[0] = (load + limits.group_size, name)",
        tests=(REPLICA_ASSIGNMENT,),
    ),
    Mutant(
        name="who stands still is given work before those that are at work",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:split_quota",
        before="-loads[name]",
        after="loads[name]",
        tests=(REPLICA_ASSIGNMENT,),
    ),
    Mutant(
        name="a larger capacity does not reach the replicas",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:ReplicaLimits.of",
        before="max(prompts_per_round, min(capacity - prompts_per_round, MOST_SHARES * prompts_per_round))",
        after="prompts_per_round",
        tests=(REPLICA_ASSIGNMENT,),
    ),
    Mutant(
        name="replicas draw only when they have nothing left",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:assign",
        before="state.version is not None",
        after="state.version is not None and not state.load",
        tests=(
            f"{REPLICA_ASSIGNMENT}::test_what_replicas_are_given",
            f"{LOOP}::test_a_replica_draws_again_while_its_weights_are_the_newest",
        ),
    ),
    Mutant(
        name="replicas draw with old weights while they have something left",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:assign",
        before="state.newer is not None",
        after="state.newer is not None and not state.load",
        tests=(
            f"{REPLICA_ASSIGNMENT}::test_what_replicas_are_given",
            f"{LOOP}::test_a_replica_draws_nothing_with_old_weights",
        ),
    ),
    Mutant(
        name="replicas with something left are told to take newer weights",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:assign",
        before="loads += [WeightLoad(state.replica, state.newer)] if state.may_load else []",
        after="loads.append(WeightLoad(state.replica, state.newer))",
        tests=(f"{REPLICA_ASSIGNMENT}::test_what_replicas_are_given",),
    ),
    Mutant(
        name="replicas never take newer weights",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:next_version",
        before="held is None or newest > held",
        after="held is None",
        tests=(f"{LOOP}::test_a_job_runs_to_its_end",),
    ),
    Mutant(
        name="the full buffer does not close admission",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:assign",
        before="min(admit(version, begun), wanted - len(begun))",
        after="wanted - len(begun)",
        tests=(
            f"{REPLICA_ASSIGNMENT}::test_what_replicas_are_given",
            f"{LOOP}::test_a_full_buffer_slows_generation_and_loses_nothing",
        ),
    ),
    Mutant(
        name="more is begun than will be trained on",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:assign",
        before="min(admit(version, begun), wanted - len(begun))",
        after="admit(version, begun)",
        tests=(
            f"{REPLICA_ASSIGNMENT}::test_what_replicas_are_given",
            f"{LOOP}::test_groups_beyond_the_last_update_are_not_begun",
        ),
    ),
    Mutant(
        name="what is begun in one look takes no room from those after it",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:assign",
        before="begun += [version] * sum(shares.values())",
        after="",
        tests=(f"{REPLICA_ASSIGNMENT}::test_what_replicas_are_given",),
    ),
    Mutant(
        name="an idle replica draws with old weights",
        target="rljob_runtime.scheduling.asynchronous.replica_assignment:assign",
        before="state.newer is not None",
        after="state.newer is not None and state.version is None",
        tests=(f"{REPLICA_ASSIGNMENT}::test_what_replicas_are_given",),
    ),
)
