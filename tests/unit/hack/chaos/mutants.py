"""Mutants of hack.chaos."""

from hack.mutants import Mutant

INJECT = "tests/unit/hack/chaos/faults/test_injector.py"
RECOVERY = "tests/unit/hack/chaos/test_recovery.py"
DEMO_FAULTS = "tests/unit/hack/test_demo_faults.py"
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
        name="chaos: a machine that switched before is said to switch",
        target="hack.chaos.faults.in_switch:IN_SWITCH",
        before="fresh = files() - old",
        after="fresh = files()",
        text=True,
        tests=(f"{INJECT}::test_a_fault_in_a_switch_waits_for_its_moment",),
    ),
    Mutant(
        name="chaos: KV that is still written is said to be complete",
        target="hack.chaos.faults.in_switch:IN_SWITCH",
        before='what == "writing" or kv_end(path) is not None',
        after="True",
        text=True,
        tests=(f"{INJECT}::test_a_fault_in_a_switch_waits_for_its_moment",),
    ),
    Mutant(
        name="chaos: a machine goes on before the job is suspended in its switch",
        target="hack.chaos.faults.switches:SwitchFaults._switch_suspended",
        before='self._patch({"suspend": True})',
        after="pass",
        tests=(f"{INJECT}::test_a_machine_stands_still_in_its_switch_until_the_job_was_hit[switch-suspended-story1]",),
    ),
    Mutant(
        name="chaos: damaged KV is what it was before",
        target="hack.chaos.faults.in_switch:DAMAGE_KV",
        before="file.write(data.translate(inverted))",
        after="file.write(data)",
        text=True,
        tests=(f"{INJECT}::test_damaged_kv_is_noticed_and_nothing_else_of_its_file_changes",),
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
)
