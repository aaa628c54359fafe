"""Mutants of rljob_runtime.rollout.engines."""

from hack.mutants import Mutant

CONTRACT = "tests/unit/rollout/engines/test_contract.py"
ENGINE_CACHE = "tests/unit/rollout/test_engine_cache.py"
REPLICA = "tests/unit/rollout/test_replica.py"
VLLM_KV = "tests/unit/rollout/engines/test_vllm_kv.py"
TRANSFER = "tests/unit/rollout/engines/test_kv_transfer.py"
ALL_TOKENS = f"{CONTRACT}::test_tokens_are_drawn_from_what_is_left_and_the_logprobs_know_all"
VLLM = (
    f"{CONTRACT}::test_loaded_weights_are_the_trainers[VLLM]",
    f"{CONTRACT}::test_logprobs_are_the_trainers_at_the_same_temperature[VLLM-0.7]",
)

MUTANTS = (
    Mutant(
        name="vLLM computes in the published format on every device",
        target="rljob_runtime.rollout.engines.vllm:engine_args",
        before='product_dtype(settings.dtype, "cpu" if on_cpu else "cuda")',
        after="settings.dtype",
        tests=("tests/unit/rollout/test_factory.py::test_vllm_computes_in_a_format_that_the_processor_has",),
    ),
    Mutant(
        name="ranks may disagree",
        target="rljob_runtime.rollout.engines.multi_process:MultiProcessEngine.step",
        before="len({agreement for _, agreement, _ in answers}) > 1",
        after="not answers",
        tests=(f"{ENGINE_CACHE}::test_ranks_that_make_different_tokens_end_the_engine",),
    ),
    Mutant(
        name="a rank that is only slow is ended",
        target="rljob_runtime.rollout.engines.rank_processes:RankProcesses._receive_all",
        before="max(0.0, ends - time.monotonic())",
        after="0.0",
        tests=(f"{ENGINE_CACHE}::test_an_error_is_not_told_before_the_others_had_time_to_answer",),
    ),
    Mutant(
        name="an error is told for the end of the rank that caused it",
        target="rljob_runtime.rollout.engines.rank_processes:RankProcesses._receive_all",
        before="raise self._died(connection) from (failure or error)",
        after="raise failure or self._died(connection) from error",
        tests=(f"{ENGINE_CACHE}::test_the_end_of_a_rank_is_told_before_the_errors_that_it_causes",),
    ),
    Mutant(
        name="late answers of a rank are taken for those of the next command",
        target="rljob_runtime.rollout.engines.rank_processes:RankProcesses._receive_all",
        before="self._kill_silent(silent)",
        after="pass",
        tests=(f"{ENGINE_CACHE}::test_an_error_of_one_rank_is_told_though_the_other_waits_for_ever",),
    ),
    Mutant(
        name="an engine that sleeps keeps its cache",
        target="rljob_runtime.rollout.engines.reference.engine:ReferenceEngine.sleep",
        before="self._cache.release()",
        after="pass",
        tests=(f"{CONTRACT}::test_the_reference_engine_gives_its_memory_back_while_it_sleeps",),
    ),
    Mutant(
        name="an engine that wakes finds what the memory held",
        target="rljob_runtime.rollout.engines.reference.transformer:PagedCache.reserve",
        before="self._store.zero_()",
        after='self._store.fill_(float("nan"))',
        tests=(f"{CONTRACT}::test_the_reference_engine_gives_its_memory_back_while_it_sleeps",),
    ),
    Mutant(
        name="the prefix cache outlives its weights",
        target="rljob_runtime.rollout.engines.vllm:VllmEngine.load",
        before="not self._engine.reset_prefix_cache()",
        after="False",
        tests=VLLM,
    ),
    Mutant(
        name="log-probabilities ignore the temperature",
        target="rljob_runtime.rollout.engines.vllm_compat:report_all_tokens",
        before="metadata.temperature is not None",
        after="False",
        tests=VLLM,
    ),
    Mutant(
        name="log-probabilities are those of the tokens that top k and top p leave",
        target="rljob_runtime.rollout.engines.vllm:VllmEngine.__init__",
        before='self._engine.collective_rpc("report_all_tokens")',
        after="pass",
        tests=(f"{ALL_TOKENS}[VLLM-{{'top_p': 0.4}}-None]",),
    ),
    Mutant(
        name="min p is not passed to the engine",
        target="rljob_runtime.rollout.engines.vllm:sampling_params",
        before="min_p=request.min_p",
        after="min_p=0.0",
        tests=(f"{ALL_TOKENS}[VLLM-{{'min_p': 0.5}}-None]",),
    ),
    Mutant(
        name="top p leaves less than its probability",
        target="rljob_runtime.rollout.engines.reference.sampling:kept_tokens",
        before="before < top_p * falling.sum()",
        after="before + falling <= top_p * falling.sum()",
        tests=("tests/unit/rollout/test_bookkeeping.py::test_top_k_top_p_and_min_p_leave_the_most_probable_tokens",),
    ),
    Mutant(
        name="vLLM knows no priorities",
        target="rljob_runtime.rollout.engines.vllm:VllmEngine._place",
        before='{"priority": request.priority, "arrival_time": float(self._arrivals)}',
        after="{}",
        tests=(f"{CONTRACT}::test_lower_priority_values_start_first_equal_ones_in_arrival_order[VLLM]",),
    ),
    Mutant(
        name="the reference engine knows no priorities",
        target="rljob_runtime.rollout.engines.reference.engine:_Sequence.place",
        before="self.request.priority",
        after="0",
        tests=(
            f"{CONTRACT}::test_lower_priority_values_start_first_equal_ones_in_arrival_order[Reference]",
            f"{CONTRACT}::test_of_two_requests_that_do_not_fit_the_one_of_the_lower_value_stays[Reference]",
        ),
    ),
    Mutant(
        name="a tied head keeps its old weights",
        target="rljob_runtime.rollout.engines.vllm_worker:RelayWeights.load_from_relay",
        before="repair_tied_head(self.model_runner.model)",
        after="pass",
        tests=VLLM,
    ),
    Mutant(
        name="whatever version the relay holds is loaded",
        target="rljob_runtime.rollout.engines.weights:open_version",
        before="weights.manifest.version != version",
        after="False",
        tests=(
            f"{REPLICA}::test_an_older_term_is_refused_by_every_command",
            f"{REPLICA}::test_repeated_and_late_attempts_generate_nothing",
            f"{REPLICA}::test_a_load_that_the_relay_cannot_serve_keeps_the_old_version",
        ),
    ),
    Mutant(
        name="the last token's KV is thought to be there",
        target="rljob_runtime.rollout.engines.reference.engine:ReferenceEngine._full_blocks",
        before="len(sequence.tokens) - 1",
        after="len(sequence.tokens) + size - 1",
        tests=(f"{TRANSFER}::test_sampled_responses_are_those_of_a_run_without_a_move",),
    ),
    Mutant(
        name="KV that one rank cannot read is used by the others",
        target="rljob_runtime.rollout.engines.multi_process:MultiProcessEngine.kv_open",
        before="all(answers)",
        after="any(answers)",
        tests=(f"{TRANSFER}::test_kv_that_one_rank_cannot_read_is_used_by_none",),
    ),
    Mutant(
        name="the null blocks behind a window are transferred",
        target="rljob_runtime.rollout.engines.vllm_kv:FileConnector._copier",
        before="not keeps_all_blocks(groups[0].kv_cache_spec)",
        after="False",
        tests=(f"{VLLM_KV}::test_only_models_that_keep_the_block_of_every_token_transfer",),
    ),
    Mutant(
        name="KV of the first blocks goes into those after the prefix cache",
        target="rljob_runtime.rollout.engines.vllm_kv:FileConnector.update_state_after_alloc",
        before="source[:, :, begin * split : end * split]",
        after="source[:, :, : (end - begin) * split]",
        tests=(f"{VLLM_KV}::test_blocks_of_the_prefix_cache_are_not_copied",),
    ),
    Mutant(
        name="a block of the scheduler is one of the kernel",
        target="rljob_runtime.rollout.engines.vllm_kv:KvPort.expanded",
        before="block * self.split + part",
        after="block + part",
        tests=(f"{VLLM_KV}::test_each_block_of_the_scheduler_is_several_of_the_kernel",),
    ),
)
