"""Mutants of rljob_runtime.rollout."""

from hack.mutants import Mutant

CLIENTS = "tests/integration/envs/test_engine_clients.py"
REPACK = "tests/integration/coordinator/test_repack.py"
ENGINE_CACHE = "tests/unit/rollout/test_engine_cache.py"
ENGINE_THREAD = "tests/unit/rollout/test_engine_thread.py"
STEP_METER = "tests/unit/rollout/test_step_meter.py"
STOPS = "tests/unit/rollout/test_stop_strings.py"
REPLICA = "tests/unit/rollout/test_replica.py"

MUTANTS = (
    Mutant(
        name="engines of every job serve requests by priority",
        target="rljob_runtime.rollout.factory:make_replica",
        before="bool(spec.environments)",
        after="True",
        tests=("tests/unit/rollout/test_factory.py::test_only_requests_of_episodes_have_priorities",),
    ),
    Mutant(
        name="no token of the model ends a turn",
        target="rljob_runtime.rollout.factory:make_replica",
        before="eos_token_ids(model_files)",
        after="frozenset()",
        tests=(f"{CLIENTS}::test_turns_end_with_the_models_own_token_and_go_on_without_a_fork[Reference]",),
    ),
    Mutant(
        name="an attempt that is repeated generates again",
        target="rljob_runtime.rollout.attempts:AttemptTracker.admit",
        before="seen is not None and request.attempt <= seen",
        after="False",
        tests=(
            f"{REPLICA}::test_an_older_term_is_refused_by_every_command",
            f"{REPLICA}::test_repeated_and_late_attempts_generate_nothing",
            f"{REPLICA}::test_a_load_that_the_relay_cannot_serve_keeps_the_old_version",
        ),
    ),
    Mutant(
        name="what an engine held of a request is lost on its way",
        target="rljob_runtime.rollout.outbox:_joined",
        before="then.cached_tokens",
        after="first.cached_tokens",
        tests=(
            "tests/unit/rollout/test_bookkeeping.py::test_what_an_engine_held_of_a_request_travels_with_its_tokens",
        ),
    ),
    Mutant(
        name="a late abort ends a later attempt",
        target="rljob_runtime.rollout.attempts:AttemptTracker.abort",
        before="self._attempts.get(key, 0) <= attempt",
        after="attempt",
        tests=("tests/unit/rollout/test_bookkeeping.py::test_an_attempt_starts_at_most_once_and_only_upwards",),
        canary=True,
    ),
    Mutant(
        name="the source of a move is not released",
        target="rljob_runtime.rollout.attempts:AttemptTracker.abort",
        before="stopped += self._drop(key)",
        after="pass",
        tests=(f"{REPACK}::test_the_source_is_released_and_goes_on_with_new_weights_and_prompts[Reference]",),
    ),
    Mutant(
        name="a stop string is sought in the new tokens only",
        target="rljob_runtime.rollout.stop_strings:StopStrings.start",
        before="_Watch(strings, self._pieces, prefix)",
        after="_Watch(strings, self._pieces, ())",
        tests=(f"{STOPS}::test_the_last_token_is_the_one_that_completes_a_string",),
    ),
    Mutant(
        name="a stop string is sought in too few tokens",
        target="rljob_runtime.rollout.stop_strings:_Watch.__init__",
        before="maxlen=longest + MARGIN",
        after="maxlen=2",
        tests=(f"{STOPS}::test_the_last_token_is_the_one_that_completes_a_string",),
    ),
    Mutant(
        name="special tokens fill the window of a stop string",
        target="rljob_runtime.rollout.stop_strings:_Watch.completed_by",
        before="not piece",
        after="False",
        tests=(f"{STOPS}::test_special_tokens_take_no_place_in_the_window",),
    ),
    Mutant(
        name="tokens after a stop string are kept",
        target="rljob_runtime.rollout.stop_strings:StopStrings._cut",
        before="output.token_ids[:count], output.logprobs[:count]",
        after="output.token_ids, output.logprobs",
        tests=(f"{STOPS}::test_the_last_token_is_the_one_that_completes_a_string",),
    ),
    Mutant(
        name="an engine continues after a stop string",
        target="rljob_runtime.rollout.replica:RolloutReplica._changed",
        before="engine.abort(ended)",
        after="pass",
        tests=(f"{REPLICA}::test_a_response_ends_with_the_token_that_completes_a_stop_string[Reference]",),
    ),
    Mutant(
        name="an engine is kept for two layouts only",
        target="rljob_runtime.rollout.engine_cache:EngineCache._build",
        before="engine = self._make(tensor_parallel)",
        after="[self._discard(self._kept.pop(next(iter(self._kept)))) for _ in list(self._kept)[1:]]; "
        "engine = self._make(tensor_parallel)",
        tests=(f"{ENGINE_CACHE}::test_a_job_of_four_sizes_rebuilds_nothing",),
    ),
    Mutant(
        name="the engine that a failed switch returns to is discarded",
        target="rljob_runtime.rollout.engine_cache:EngineCache._build",
        before="len(self._kept) < 2",
        after="not self._kept",
        tests=(f"{ENGINE_CACHE}::test_memory_for_one_engine_only_is_refused_and_the_last_one_stays",),
    ),
    Mutant(
        name="a caller that waits for an engine that failed gets no error",
        target="rljob_runtime.rollout.engine_thread:EngineThread._end",
        before="item[1].set_exception(self._died())",
        after="pass",
        tests=(f"{ENGINE_THREAD}::test_every_caller_receives_the_failure_of_an_engine_step",),
    ),
    Mutant(
        name="an engine that failed is not looked after",
        target="rljob_runtime.rollout.engine_thread:EngineThread._end",
        before="self._on_end()",
        after="pass",
        tests=(f"{ENGINE_THREAD}::test_every_caller_receives_the_failure_of_an_engine_step",),
    ),
    Mutant(
        name="a call is left without an answer",
        target="rljob_runtime.rollout.engine_thread:EngineThread._answer",
        before="Exception",
        after="EngineDied",
        tests=(f"{ENGINE_THREAD}::test_a_failed_call_raises_for_its_caller_alone",),
    ),
    Mutant(
        name="the figures of a step come after its tokens",
        target="rljob_runtime.rollout.outbox:Outbox.put",
        before="stats, weight_version",
        after="self._stats if deltas else stats, weight_version",
        tests=(f"{REPLICA}::test_a_report_holds_the_tokens_of_a_step_and_its_figures_or_neither[Reference]",),
    ),
    Mutant(
        name="a replica that newer weights overtook takes none",
        target="rljob_runtime.rollout.replica:RolloutReplica._load_newest",
        before="version = error.held",
        after="raise",
        tests=(f"{REPLICA}::test_a_load_takes_the_newer_version_that_is_there_by_now",),
    ),
    Mutant(
        name="a change of layout starts the replica again",
        target="rljob_runtime.rollout.replica:RolloutReplica._release_accelerators",
        before="self._cache.sleep()",
        after="self._cache.sleep(); self._outbox._boot = uuid.uuid4().hex",
        tests=(f"{ENGINE_CACHE}::test_a_change_of_layout_keeps_the_boot_and_drops_requests_and_weights",),
    ),
    Mutant(
        name="a response goes on without having read what was made of it",
        target="rljob_runtime.rollout.replica:RolloutReplica._engine_request",
        before="request.prompt_token_ids + request.prefix_token_ids",
        after="request.prompt_token_ids",
        tests=(f"{REPACK}::test_a_moved_response_has_the_tokens_and_logprobs_of_one_that_stayed[Reference]",),
    ),
    Mutant(
        name="a full volume in a probe of KV ends the step of its engine",
        target="rljob_runtime.rollout.kv_exchange:KvExchange.probe",
        before='log.info("moves of KV are not measured: %s", error)',
        after="raise",
        nth=2,
        tests=("tests/unit/rollout/engines/test_kv_transfer.py::test_a_profile_moves_kv_within_its_bounds",),
    ),
    Mutant(
        name="the step that computes a prompt counts as a decode step",
        target="rljob_runtime.rollout.step_meter:StepMeter.step",
        before="self._advanced.issuperset(made)",
        after="True",
        tests=(f"{STEP_METER}::test_what_the_engine_held_of_a_prompt_is_not_computed",),
    ),
    Mutant(
        name="the share of attention grows with each kept engine",
        target="rljob_runtime.rollout.engine_cache:GAUGES",
        before='"square_tokens"',
        after='"kv_size"',
        tests=("tests/unit/rollout/test_engine_cache.py::test_a_job_of_four_sizes_rebuilds_nothing",),
    ),
    Mutant(
        name="the squares of what the engine held count as computed",
        target="rljob_runtime.rollout.step_meter:StepMeter.step",
        before="tokens**2 - held**2",
        after="tokens**2",
        tests=(f"{STEP_METER}::test_what_the_engine_held_of_a_prompt_is_not_computed",),
    ),
    Mutant(
        name="a decode step may leave out requests that run",
        target="rljob_runtime.rollout.step_meter:StepMeter.step",
        before="0 < len(made) == running + len(ended & made.keys())",
        after="bool(made)",
        tests=(
            f"{STEP_METER}::test_a_step_in_which_a_running_request_gets_no_token_is_no_decode_step"
            "[a prompt is computed in parts]",
        ),
    ),
    Mutant(
        name="the copy of KV is taken for computed prompts",
        target="rljob_runtime.rollout.step_meter:StepMeter.start",
        before="one.kv is not None",
        after="False",
        tests=(f"{STEP_METER}::test_steps_that_copy_kv_are_not_counted",),
    ),
    Mutant(
        name="a step begins with the engine's last step, however long it was idle",
        target="rljob_runtime.rollout.engine_thread:EngineThread._answer",
        before="self._since = self._clock()",
        after="pass",
        tests=(f"{ENGINE_THREAD}::test_a_step_begins_with_the_end_of_what_came_before_it",),
    ),
)
