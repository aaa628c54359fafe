"""Mutants of rljob_runtime.scheduling.asynchronous: repack."""

from hack.mutants import Mutant

REPACK = "tests/unit/scheduling/asynchronous/test_repack.py"
REPACK_GAIN = "tests/unit/scheduling/asynchronous/test_repack_gain.py"

MUTANTS = (
    Mutant(
        name="a replica that just received is emptied (Algorithm 1 as printed)",
        target="rljob_runtime.scheduling.asynchronous.repack:_pack",
        before="any(merge.destination == source.name for merge in merges)",
        after="False",
        tests=(REPACK,),
    ),
    Mutant(
        name="an emptied replica receives",
        target="rljob_runtime.scheduling.asynchronous.repack:_pack",
        before="bins.pop(source.name, None)",
        after="pass",
        tests=(REPACK,),
    ),
    Mutant(
        name="repack mixes weight versions",
        target="rljob_runtime.scheduling.asynchronous.repack:plan_repack",
        before="[load for load in idle if load.version == version]",
        after="idle",
        tests=(REPACK,),
    ),
    Mutant(
        name="a replica takes part in a second plan while it is filled",
        target="rljob_runtime.scheduling.asynchronous.repack:is_idle",
        before="not load.moving",
        after="True",
        tests=(REPACK,),
    ),
    Mutant(
        name="a receiver's earlier guests are not in the prediction",
        target="rljob_runtime.scheduling.asynchronous.repack:_pack",
        before="best.names.append(source.name)",
        after="",
        tests=(REPACK,),
    ),
    Mutant(
        name="repack fills replicas by what they hold now",
        target="rljob_runtime.scheduling.asynchronous.repack:ReplicaLoad.peak",
        before="max(self.tokens, self.expected_tokens)",
        after="self.tokens",
        tests=(REPACK,),
    ),
    Mutant(
        name="repack counts a receiver's first load only",
        target="rljob_runtime.scheduling.asynchronous.repack:_pack",
        before="best.peak += source.peak",
        after="",
        tests=(REPACK,),
    ),
    Mutant(
        name="repack decodes any number simultaneously",
        target="rljob_runtime.scheduling.asynchronous.repack:_Bin.holds",
        before=(
            "self.trajectories + more.trajectories <= rules.max_batch and self.peak + more.peak <= "
            "rules.kv_cache_threshold * self.load.kv_tokens"
        ),
        after="self.peak + more.peak <= rules.kv_cache_threshold * self.load.kv_tokens",
        tests=(REPACK,),
    ),
    Mutant(
        name="a replica with work waiting counts as idle",
        target="rljob_runtime.scheduling.asynchronous.repack:is_idle",
        before="load.waiting == 0",
        after="True",
        tests=(REPACK,),
    ),
    Mutant(
        name="a replica that fills counts as idle",
        target="rljob_runtime.scheduling.asynchronous.repack:is_idle",
        before="load.tokens <= load.kv_before + load.generated",
        after="True",
        tests=(REPACK,),
    ),
    Mutant(
        name="a replica is idle only when one of its responses ends",
        target="rljob_runtime.scheduling.asynchronous.repack:is_idle",
        before="load.kv_before + load.generated",
        after="load.kv_before",
        tests=(REPACK,),
    ),
    Mutant(
        name="a replica that drains receives",
        target="rljob_runtime.scheduling.asynchronous.repack:_pack",
        before=(
            "{load.name: _Bin(load, load.trajectories, load.peak, [load.name]) for load in ascending if load.receives}"
        ),
        after="{load.name: _Bin(load, load.trajectories, load.peak, [load.name]) for load in ascending}",
        tests=(REPACK,),
    ),
    Mutant(
        name="repack spreads instead of packing",
        target="rljob_runtime.scheduling.asynchronous.repack:_pack",
        before="max(fitting, key=lambda one: (one.peak + source.peak) / one.load.kv_tokens)",
        after="min(fitting, key=lambda one: (one.peak + source.peak) / one.load.kv_tokens)",
        tests=(REPACK,),
    ),
    Mutant(
        name="repack moves though it costs time",
        target="rljob_runtime.scheduling.asynchronous.repack_gain:merges_that_pay",
        before="plan_repack(loads, within(rules, tails.speed), tails.pays)",
        after="plan_repack(loads, within(rules, tails.speed), lambda source, receiver: True)",
        tests=(REPACK_GAIN,),
    ),
    Mutant(
        name="repack packs more than the engine decodes simultaneously",
        target="rljob_runtime.scheduling.asynchronous.repack_gain:merges_that_pay",
        before="within(rules, tails.speed)",
        after="rules",
        tests=(REPACK_GAIN,),
    ),
    Mutant(
        name="what moves is computed again for nothing",
        target="rljob_runtime.scheduling.asynchronous.repack_gain:Tails._seconds",
        before="(self._spread(held), self._spread(come))",
        after="(self._spread(held) + self._spread(come), [])",
        tests=(REPACK_GAIN,),
    ),
)
