"""Mutants of rljob_runtime.rollout.kv."""

from hack.mutants import Mutant

LAYOUT = "tests/unit/rollout/kv/test_layout.py"
FILE = "tests/unit/rollout/kv/test_kv_file.py"
COPIER = "tests/unit/rollout/kv/test_copier.py"
ONLY_IF_EQUAL = (f"{FILE}::test_kv_is_used_only_where_everything_agrees",)

MUTANTS = (
    Mutant(
        name="heads of another rank are taken",
        target="rljob_runtime.rollout.kv.layout:heads_of",
        before="range(rank * each, (rank + 1) * each)",
        after="range((ranks - 1 - rank) * each, (ranks - rank) * each)",
        tests=(f"{LAYOUT}::test_the_heads_of_each_rank",),
    ),
    Mutant(
        name="a repeated head is written by all its ranks",
        target="rljob_runtime.rollout.kv.layout:written_by",
        before="range(0) if repeated else own",
        after="own",
        tests=(f"{LAYOUT}::test_every_head_is_written_once_and_by_a_rank_that_holds_it",),
    ),
    Mutant(
        name="KV goes into the first blocks instead of those of the table",
        target="rljob_runtime.rollout.kv.layout:scatter",
        before="torch.tensor(table, dtype=torch.long, device=cache.device)",
        after="torch.arange(len(table), device=cache.device)",
        tests=(f"{LAYOUT}::test_a_response_goes_from_one_layout_to_another_and_back_bit_for_bit",),
    ),
    Mutant(
        name="KV of another version is taken",
        target="rljob_runtime.rollout.kv.kv_file:Index.mismatch",
        before="self.origin.weight_version != origin.weight_version",
        after="False",
        tests=ONLY_IF_EQUAL,
    ),
    Mutant(
        name="KV of another incarnation is taken",
        target="rljob_runtime.rollout.kv.kv_file:Index.mismatch",
        before="(self.origin.job, self.origin.machine) != (origin.job, origin.machine)",
        after="self.origin.job != origin.job",
        tests=ONLY_IF_EQUAL,
    ),
    Mutant(
        name="KV of other tokens is taken",
        target="rljob_runtime.rollout.kv.kv_file:Index.mismatch",
        before="digest(token_ids[: entry.tokens]) != entry.digest",
        after="False",
        tests=ONLY_IF_EQUAL,
    ),
    Mutant(
        name="KV that was damaged is taken",
        target="rljob_runtime.rollout.kv.kv_file:KvRegions.is_intact",
        before="recorded[head] == now",
        after="True",
        tests=(f"{FILE}::test_one_wrong_bit_is_found_in_its_response_and_head_only",),
    ),
    Mutant(
        name="a KV file takes the room of the weights",
        target="rljob_runtime.rollout.kv.kv_file:KvFileWriter._allocate",
        before="size + keep_free > free",
        after="size > free",
        tests=(f"{FILE}::test_too_little_shared_memory_is_refused_with_both_figures",),
    ),
    Mutant(
        name="a KV file of a living writer is swept",
        target="rljob_runtime.rollout.kv.kv_file:sweep_kv",
        before="_is_of_dead_writer(path)",
        after="True",
        tests=(f"{FILE}::test_files_of_dead_writers_are_swept_and_those_of_living_ones_stay",),
    ),
    Mutant(
        name="two KV files take the same room",
        target="rljob_runtime.rollout.kv.kv_file:_locked",
        before="fcntl.LOCK_EX | flags",
        after="fcntl.LOCK_SH | flags",
        tests=(f"{FILE}::test_two_writers_do_not_take_the_same_room",),
    ),
    Mutant(
        name="the folder of a killed run is not swept",
        target="rljob_runtime.rollout.kv.kv_file:sweep_kv_of_all_jobs",
        before="removed += sweep_kv(folder)",
        after="pass",
        tests=(f"{FILE}::test_files_of_runs_that_were_killed_are_swept_in_every_folder",),
    ),
    Mutant(
        name="checksums of KV are computed one after the other",
        target="rljob_runtime.rollout.kv.copier:_concurrently",
        before="ThreadPoolExecutor(CHECKSUM_THREADS)",
        after="ThreadPoolExecutor(1)",
        tests=(f"{COPIER}::test_checksums_are_computed_concurrently",),
    ),
    Mutant(
        name="a response is intact if its first head is",
        target="rljob_runtime.rollout.kv.copier:KvCopier.open",
        before="heads * (place + 1)",
        after="heads * place + 1",
        tests=(f"{COPIER}::test_one_wrong_bit_is_found_in_its_response",),
    ),
    Mutant(
        name="KV is read back to other blocks",
        target="rljob_runtime.rollout.kv.copier:KvCopier.read_back",
        before="table[: source.shape[2]]",
        after="table[-source.shape[2] :]",
        tests=(
            "tests/unit/rollout/engines/test_kv_transfer.py::"
            "test_a_resting_engine_measures_copies_of_its_kv_and_keeps_it[Reference]",
        ),
    ),
)
