"""Mutants of hack.chaos."""

from hack.mutants import Mutant

AGENT_FAULTS = "tests/unit/hack/chaos/faults/test_agent_faults.py"
INJECT = "tests/unit/hack/chaos/faults/test_injector.py"
RECOVERY = "tests/unit/hack/chaos/test_recovery.py"
DEMO_FAULTS = "tests/unit/hack/test_demo_faults.py"
MEMORY = "tests/unit/hack/chaos/faults/test_in_shared_memory.py"
ENGINES = "tests/unit/hack/chaos/test_failing_engines.py"
LEAKS = "tests/unit/hack/chaos/test_leaks.py"
LONG = "tests/unit/hack/chaos/test_long_episodes.py"

MUTANTS = (
    Mutant(
        name="who is well before the lost machine generates looks away",
        target="hack.chaos.campaign:Campaign._watched",
        before="self._follow(loss)",
        after="pass",
        tests=("tests/unit/hack/chaos/test_campaign.py::test_a_lost_machine_is_followed_until_it_generates",),
    ),
    Mutant(
        name="chaos: all is well although a machine is missing",
        target="hack.chaos.recovery:Recovery._well",
        before="now.healthy and not now.problems - self.before.problems",
        after="True",
        tests=(f"{RECOVERY}::test_a_fault_before_recovery_settled_restarts_the_clock",),
        canary=True,
    ),
    Mutant(
        name="chaos: what no loss explains may be replaced",
        target="hack.chaos.recovery:Recovery.observe",
        before="self.row.replaced is False",
        after="False",
        tests=(f"{RECOVERY}::test_a_fault_outside_the_job_replaces_no_pod",),
    ),
    Mutant(
        name="a fault that finds no target is waited for",
        target="hack.chaos.schedule:first_possible",
        before="next((name for name in due if ROWS[name].victims(seen, Random(0))), due[0])",
        after="due[0]",
        tests=("tests/unit/hack/chaos/test_schedule.py::test_a_row_without_a_target_waits_for_its_turn",),
    ),
    Mutant(
        name="a machine that is back in the chain is said to generate",
        target="hack.chaos.timeline:Timeline._follow",
        before="set(self.machines) <= set(now.generating)",
        after="True",
        tests=(DEMO_FAULTS,),
    ),
    Mutant(
        name="a lost machine's start begins when it was lost",
        target="hack.chaos.timeline:own_start",
        before='moments["joined"] - moments["created"]',
        after='moments["joined"]',
        tests=(DEMO_FAULTS,),
    ),
    Mutant(
        name="tokens of an attempt that failed in vain are not missed",
        target="hack.chaos.long_episodes:read",
        before="{cause: tokens for cause, tokens in db.execute(_LOST) if tokens}",
        after="{}",
        tests=(f"{LONG}::test_tokens_of_an_attempt_that_another_one_came_after_are_lost",),
    ),
    Mutant(
        name="a zero of a failure passes if its attempt has another reward",
        target="hack.chaos.long_episodes:_fake_zeros",
        before="max(attempts, *(_count(db, query) for table, query in _TRAINED_ZEROS.items() if table in tables))",
        after="attempts",
        tests=(f"{LONG}::test_a_reward_of_a_response_that_no_episode_earns_is_told",),
    ),
    Mutant(
        name="short episodes pass for long ones",
        target="hack.chaos.long_episodes:problems",
        before='yield f"a trained episode has too few turns: {told}"',
        after="pass",
        tests=(f"{LONG}::test_an_episode_with_too_few_turns_is_told",),
    ),
    Mutant(
        name="chaos: a full shared memory is seen without a switch",
        target="hack.chaos.rows:_computed_again",
        before="now.switches > 0",
        after="True",
        tests=(f"{RECOVERY}::test_a_full_shared_memory_is_seen_by_switches_that_move_no_kv",),
    ),
    Mutant(
        name="chaos: a fault that cannot be taken back is right",
        target="hack.chaos.campaign:_undone",
        before='return [f"not taken back: {error}"]',
        after="return []",
        tests=("tests/unit/hack/chaos/test_campaign.py::test_a_fault_that_cannot_be_taken_back_counts_as_wrong",),
    ),
    Mutant(
        name="chaos: faults of every kind are those of the plain job",
        target="hack.chaos.every:parts",
        before="faults - sum(counts.values())",
        after="0",
        tests=("tests/unit/hack/chaos/test_every.py::test_all_faults_are_shared_and_each_kind_comes_about_as_often",),
    ),
    Mutant(
        name="chaos: a machine disturbed by a full shared memory passes",
        target="hack.chaos.recovery:Recovery.observe",
        before="self.row.quiet",
        after="False",
        tests=(f"{RECOVERY}::test_a_full_shared_memory_disturbs_no_machine",),
    ),
    Mutant(
        name="chaos: a job is well with fewer machines than before",
        target="hack.chaos.recovery:Recovery._well",
        before="now.desired < self.before.desired",
        after="False",
        tests=(f"{RECOVERY}::test_a_job_with_fewer_machines_than_before_is_not_well",),
    ),
    Mutant(
        name="chaos: a refused size of an earlier round is seen",
        target="hack.chaos.rows:_size_refused",
        before="now.round > before.round and now.refused > 0",
        after="now.refused > 0",
        tests=(f"{RECOVERY}::test_a_refused_size_is_seen",),
    ),
    Mutant(
        name="chaos: a fault that nothing shows is right",
        target="hack.chaos.campaign:_unproved",
        before='return [f"not shown: {error}"]',
        after="return []",
        tests=("tests/unit/hack/chaos/test_campaign.py::test_a_fault_that_nothing_shows_counts_as_wrong",),
    ),
    Mutant(
        name="chaos: an engine of a refused size wakes",
        target="hack.chaos.in_pods.failing_engines:refuse",
        before="return None if is_refused(size) else wake(self, size)",
        after="return wake(self, size)",
        tests=(f"{ENGINES}::test_an_engine_of_a_refused_size_neither_wakes_nor_is_built",),
    ),
    Mutant(
        name="chaos: a replica dies as it stops one of its responses",
        target="hack.chaos.in_pods.failing_engines:stop",
        before="len(self._attempts.active(attempts)) == active",
        after="True",
        tests=(f"{ENGINES}::test_a_replica_dies_as_it_stops_all_its_responses",),
    ),
    Mutant(
        name="chaos: machines move their KV in each switch",
        target="hack.chaos.in_pods.alternate:force",
        before="machine.switches % 2",
        after="False",
        tests=("tests/unit/hack/chaos/test_patching.py::test_a_machine_switches_at_each_look",),
    ),
    Mutant(
        name="chaos: replays that never happened pass",
        target="hack.chaos.long_episodes:problems",
        before="stateful and loses_runners and not found.calls_twice",
        after="False",
        tests=(f"{LONG}::test_episodes_that_execute_calls_again_must_show_it",),
    ),
    Mutant(
        name="chaos: what has the labels of a deleted job is no leak",
        target="hack.chaos.leaks:of_deleted",
        before="_is_of(one, job) or uid in _owners(one)",
        after="uid in _owners(one)",
        tests=(f"{LEAKS}::test_nothing_is_left_of_a_deleted_job",),
    ),
    Mutant(
        name="chaos: what goes within the time is a leak",
        target="hack.chaos.leaks:_until_none",
        before="time.monotonic() < end",
        after="False",
        tests=(f"{LEAKS}::test_what_goes_within_the_time_is_no_leak",),
    ),
    Mutant(
        name="episodes that were handed back count as interrupted",
        target="hack.chaos.history:interrupted_episodes",
        before="[str(cause) for cause in NO_FAILURES]",
        after="['', '-']",
        tests=(f"{LONG}::test_episodes_that_a_loss_interrupted_are_counted",),
    ),
)
