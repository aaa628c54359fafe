"""Mutants of rljob_bench.async_systems."""

from hack.mutants import Mutant

SYSTEMS = "tests/unit/bench/async_systems/test_systems.py"
TURNS = "tests/unit/bench/async_systems/test_turns.py"

MUTANTS = (
    Mutant(
        name="the model's admission is not told that the trainer waits",
        target="rljob_bench.async_systems.admission:Admission.trained",
        before="waited / (end - self._ended) if waited else 0.0",
        after="0.0",
        tests=(f"{SYSTEMS}::test_as_much_is_open_as_the_trainer_needs",),
    ),
    Mutant(
        name="the model's replicas draw for newer weights than they hold",
        target="rljob_bench.async_systems.asynchronous:Job._draws",
        before="replica.version == self._newest and not replica.loads and not replica.moves",
        after="not replica.loads and not replica.moves",
        tests=(f"{SYSTEMS}::test_every_group_is_trained_on_once_with_all_its_tokens",),
    ),
    Mutant(
        name="a move takes no time in the model",
        target="rljob_bench.async_systems.asynchronous:Job._move",
        before="self._clock.at(now + self.policy.move_seconds, take_over)",
        after="take_over(now)",
        tests=(f"{SYSTEMS}::test_two_tails_are_packed_on_one_replica_and_the_other_goes_on",),
    ),
    Mutant(
        name="a released replica stands",
        target="rljob_bench.async_systems.asynchronous:Job._move.take_over",
        before="self._fill([source, destination], now)",
        after="pass",
        tests=(f"{SYSTEMS}::test_two_tails_are_packed_on_one_replica_and_the_other_goes_on",),
    ),
    Mutant(
        name="the model's updates do not look at the bound",
        target="rljob_bench.async_systems.asynchronous:Job._sampled",
        before="self.policy.max_staleness",
        after="None",
        tests=(f"{SYSTEMS}::test_the_bound_on_staleness_is_kept_and_costs_speed",),
    ),
    Mutant(
        name="a partial rollout takes new weights immediately",
        target="rljob_bench.async_systems.partial:PartialJob._interrupt",
        before="now + self.hardware.load_seconds",
        after="now",
        tests=(f"{SYSTEMS}::test_partial_rollout_interrupts_and_goes_on",),
    ),
    Mutant(
        name="one-step staleness does not wait for its generation",
        target="rljob_bench.async_systems.staged:one_step",
        before="beside + hardware.load_seconds",
        after="training + hardware.load_seconds",
        tests=(f"{SYSTEMS}::test_one_step_staleness_takes_the_longer_of_the_two",),
    ),
    Mutant(
        name="stream generation runs ahead without bound",
        target="rljob_bench.async_systems.staged:stream",
        before="max(generated, ends[max(0, number - 1)])",
        after="generated",
        tests=(f"{SYSTEMS}::test_stream_generation_runs_one_update_ahead_at_most",),
    ),
    Mutant(
        name="tools of the model take no time",
        target="rljob_bench.async_systems.turns:TurnEngine._take",
        before="episode.request.turns[episode.turn - 1].seconds",
        after="0.0",
        tests=(f"{TURNS}::test_a_response_waits_for_its_tool_outside_of_the_engine",),
    ),
    Mutant(
        name="an answer of a tool adds no token in the model",
        target="rljob_bench.async_systems.turns:stretches",
        before="turn.tokens + turn.tool_tokens",
        after="turn.tokens",
        tests=(f"{TURNS}::test_a_response_ends_with_the_turn_that_leaves_no_room",),
    ),
    Mutant(
        name="a response that moves does not wait for its tool",
        target="rljob_bench.async_systems.turns:TurnEngine.submit",
        before="turn and request.generated_tokens <= episode.stretch.begin and request.due > now",
        after="False",
        tests=(f"{TURNS}::test_a_tool_whose_answer_has_no_token_is_waited_for_after_a_move",),
    ),
    Mutant(
        name="a context that is gone is not computed again",
        target="rljob_bench.async_systems.turns:TurnEngine._back",
        before="episode.cached if fits else 0",
        after="episode.cached",
        tests=(f"{TURNS}::test_a_context_is_computed_again_where_the_cache_had_no_room_for_it",),
    ),
)
