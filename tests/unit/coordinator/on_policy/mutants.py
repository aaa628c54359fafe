"""Mutants of rljob_runtime.coordinator.on_policy."""

from hack.mutants import Mutant

RUNS = "tests/simulation/test_runs.py"
BENCHMARKS = "tests/unit/bench/simulated/test_benchmarks.py"
LOOP = "tests/unit/coordinator/on_policy/test_loop.py"
PLAN_NEXT_ROUND = "tests/unit/coordinator/on_policy/test_plan_next_round.py"
LOANS = "tests/unit/coordinator/stream_training/test_loans.py"

MUTANTS = (
    Mutant(
        name="a loaned machine is launched upon",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._launch",
        before="without=self._loans.loaned",
        after="",
        tests=(f"{LOANS}::test_responses_of_a_loaned_machine_continue_from_received_tokens",),
    ),
    Mutant(
        name="losers run on",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._abort_losers",
        before="await self._pool.abort(aborts)",
        after="assert aborts",
        tests=("tests/unit/scheduling/test_tail_batching.py::test_what_lost_is_aborted_on_its_engine",),
    ),
    Mutant(
        name="losers of a dead coordinator run on",
        target="rljob_runtime.coordinator.on_policy.generation:Generation.run",
        before="await self._track_replicas()",
        after="",
        nth=1,
        tests=("tests/unit/coordinator/test_crashes.py::test_killed_before_and_after_every_store_call_of_a_race[3]",),
    ),
    Mutant(
        name="a restart begins a response again from nothing",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._restore",
        before="self._partials.restore(key, partial)",
        after="pass",
        tests=(
            f"{RUNS}::test_seeds_hold_every_invariant[0-OnPolicy]",
            f"{RUNS}::test_seeds_hold_every_invariant[1-OnPolicy]",
            f"{RUNS}::test_seeds_hold_every_invariant[2-OnPolicy]",
        ),
    ),
    Mutant(
        name="a round that does not stream lends machines",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._generate",
        before="self._context.settings.lending if streams else None",
        after="self._context.settings.lending",
        tests=(f"{LOANS}::test_auto_loans_only_where_it_streams",),
    ),
    Mutant(
        name="groups fetched at once are fetched as they end",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._generate",
        before="streaming.offer if self._context.settings.fetch_as_they_end else held.extend",
        after="streaming.offer",
        tests=(f"{BENCHMARKS}::test_groups_fetched_together_are_shared_with_loaned_machines",),
    ),
    Mutant(
        name="groups fetched at once are not shared with lent machines",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._generate",
        before="streaming.offer(held)",
        after="pass",
        tests=(f"{BENCHMARKS}::test_groups_fetched_together_are_shared_with_loaned_machines",),
    ),
    Mutant(
        name="responses are not assigned before they are trained on",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._train",
        before="await self._context.store.do(lambda store: store.assign(step, keys))",
        after="assert keys",
        tests=(
            f"{LOOP}::test_a_job_runs_to_its_end",
            f"{LOOP}::test_a_failed_reward_is_no_zero_and_is_tried_again",
        ),
    ),
    Mutant(
        name="anchors are not stored",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._close",
        before="self._context.rewards.take_anchors()",
        after="{}",
        tests=(
            "tests/unit/coordinator/generation/test_scoring.py::test_a_coordinator_that_comes_back_has_its_anchors",
        ),
    ),
    Mutant(
        name="engines are counted for machines",
        target="rljob_runtime.coordinator.on_policy.plan_next_round:_machines",
        before="fleet.replicas * layout // settings.slots",
        after="fleet.replicas",
        tests=(f"{PLAN_NEXT_ROUND}::test_no_machine_beyond_a_bound_is_predicted",),
    ),
    Mutant(
        name="every layout is foretold with the engines of the present one",
        target="rljob_runtime.coordinator.on_policy.plan_next_round:_layouts",
        before="fit_latency(speeds), fleet.replicas * layout // size, speeds[-1]",
        after="fleet.latency, fleet.replicas, speeds[-1]",
        tests=(f"{PLAN_NEXT_ROUND}::test_a_round_is_predicted_in_every_observed_layout",),
    ),
)
