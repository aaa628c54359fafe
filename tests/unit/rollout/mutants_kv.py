"""Mutants of how a replica of rljob_runtime.rollout exports and imports KV."""

from hack.mutants import Mutant

TRANSFER = "tests/unit/rollout/engines/test_kv_transfer.py"

MUTANTS = (
    Mutant(
        name="blocks that moved are computed again",
        target="rljob_runtime.rollout.kv_exchange:KvExchange.with_kv",
        before="replace(one, kv=found.get(place))",
        after="one",
        tests=(f"{TRANSFER}::test_sampled_responses_are_those_of_a_run_without_a_move",),
    ),
    Mutant(
        name="damaged KV gets a ticket",
        target="rljob_runtime.rollout.kv_exchange:KvExchange.with_kv",
        before="not intact",
        after="False",
        tests=(f"{TRANSFER}::test_kv_that_cannot_be_used_costs_a_prefill_and_no_token[a wrong bit]",),
    ),
    Mutant(
        name="a KV file outlives its weight version",
        target="rljob_runtime.rollout.replica:RolloutReplica._load",
        before="self._kv.drop_other_versions(loaded)",
        after="None",
        tests=(f"{TRANSFER}::test_a_file_lasts_until_it_is_dropped_or_other_weights_are_loaded",),
    ),
    Mutant(
        name="the KV file of a replica that loads no more outlives its weight version",
        target="rljob_runtime.rollout.kv_exchange:KvExchange.drop_other_versions",
        before="remove_older(self._folder, version)",
        after="None",
        tests=(f"{TRANSFER}::test_files_of_replicas_that_load_no_more_end_with_their_version",),
    ),
    Mutant(
        name="a KV file outlives its coordinator",
        target="rljob_runtime.rollout.replica:RolloutReplica._check_term",
        before="is_new and self._kv is not None",
        after="False",
        tests=(f"{TRANSFER}::test_a_new_coordinator_finds_no_file_of_the_one_before",),
    ),
    Mutant(
        name="an error of an export ends the machine",
        target="rljob_runtime.rollout.kv_exchange:KvExchange._export",
        before="(NoRoom, OSError)",
        after="NoRoom",
        tests=(f"{TRANSFER}::test_an_export_that_fails_stops_the_responses_and_leaves_no_file",),
    ),
    Mutant(
        name="an export forgets to stop its responses",
        target="rljob_runtime.rollout.replica:RolloutReplica._export_kv",
        before="self._abort(engine, self._attempts.abort(attempts))",
        after="None",
        tests=(f"{TRANSFER}::test_without_room_nothing_is_written_and_the_responses_stop",),
    ),
    Mutant(
        name="a repeated export writes another file",
        target="rljob_runtime.rollout.kv_exchange:KvExchange.export",
        before="self._last is not None and self._last[0] == attempts",
        after="False",
        tests=(f"{TRANSFER}::test_a_repeated_export_is_the_same_and_a_new_one_replaces_the_file",),
    ),
    Mutant(
        name="the name of a KV file leads out of its folder",
        target="rljob_runtime.rollout.kv_exchange:KvExchange._index",
        before="Path(file).name != file",
        after="False",
        tests=(f"{TRANSFER}::test_a_name_with_a_path_is_not_opened",),
    ),
)
