"""KV files that could not be removed: asked for again, later each time, and a few times only."""

from itertools import pairwise

from rljob_runtime.scheduling.adaptive_tp.kv_drops import RETRIES, KvDrops


def test_a_file_is_due_until_it_is_removed():
    drops = KvDrops()
    drops.add(["a", "b"], 5.0)
    assert drops.due(4.9) == []
    assert drops.due(5.0) == ["a", "b"]
    drops.record_removed("a")
    assert drops.due(99.0) == ["b"]
    assert (drops.removed, drops.failures, drops.abandoned) == (1, 0, 0)


def test_tries_come_later_each_time_and_end():
    drops, now, tries = KvDrops(), 0.0, []
    drops.add(["a"], now)
    while drops.due(now) and len(tries) < 20:
        tries.append(now)
        if (delay := drops.record_failure("a", now)) is None:
            break
        assert drops.due(now + 0.9 * delay) == []
        now += delay
    assert len(tries) == RETRIES.limit
    waits = [after - before for before, after in pairwise(tries)]
    assert waits == sorted(waits)
    assert waits[0] == RETRIES.initial
    assert drops.due(1e9) == [], "it is not asked any more"
    assert (drops.removed, drops.failures, drops.abandoned) == (0, len(tries), 1)


def test_a_replica_that_writes_another_file_keeps_that_one():
    drops = KvDrops()
    drops.add(["a", "b"], 0.0)
    drops.record_failure("a", 0.0)
    drops.record_written("a")
    assert drops.due(1e9) == ["b"]


def test_a_new_file_has_all_its_tries():
    drops = KvDrops()
    drops.add(["a"], 0.0)
    for _ in range(RETRIES.limit - 1):
        drops.record_failure("a", 0.0)
    drops.add(["a"], 9.0)
    assert drops.due(9.0) == ["a"]
    assert drops.record_failure("a", 9.0) == RETRIES.initial
