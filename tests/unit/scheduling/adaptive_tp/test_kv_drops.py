"""KV files that could not be removed: asked for again, later each time, and a few times only."""

from itertools import pairwise

from rljob_runtime.scheduling.adaptive_tp.kv_drops import RETRIES, KvDrops, KvDropTotals


def test_a_file_is_due_until_it_is_removed():
    drops = KvDrops()
    drops.add({"a": 10, "b": 20}, 5.0)
    assert drops.due(4.9) == []
    assert drops.due(5.0) == ["a", "b"]
    drops.record_removed("a")
    assert drops.due(99.0) == ["b"]
    assert (drops.totals.removed, drops.totals.failures, drops.totals.abandoned) == (1, 0, 0)


def test_tries_come_later_each_time_and_end():
    drops, now, tries = KvDrops(), 0.0, []
    drops.add({"a": 10}, now)
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
    assert (drops.totals.removed, drops.totals.failures, drops.totals.abandoned) == (0, len(tries), 1)


def test_a_replica_that_writes_another_file_keeps_that_one():
    drops = KvDrops()
    drops.add({"a": 10, "b": 20}, 0.0)
    drops.record_failure("a", 0.0)
    drops.record_written("a")
    assert drops.due(1e9) == ["b"]


def test_a_new_file_has_all_its_tries():
    drops = KvDrops()
    drops.add({"a": 10}, 0.0)
    for _ in range(RETRIES.limit - 1):
        drops.record_failure("a", 0.0)
    drops.add({"a": 10}, 9.0)
    assert drops.due(9.0) == ["a"]
    assert drops.record_failure("a", 9.0) == RETRIES.initial


def test_bytes_are_kept_from_a_failure_until_the_file_is_gone():
    drops = KvDrops()
    drops.add({"a": 10, "b": 20, "c": 40}, 0.0)
    assert drops.kept_bytes == 0, "no removal has failed"
    for replica in "abc":
        drops.record_failure(replica, 0.0)
    assert drops.kept_bytes == 70
    drops.record_removed("a")
    drops.record_written("b")
    assert drops.kept_bytes == 40
    while drops.record_failure("c", 0.0) is not None:
        pass
    assert drops.kept_bytes == 40, "it is not asked any more, and keeps its file"
    drops.add({"c": 80}, 9.0)
    assert drops.kept_bytes == 0, "another file, which no removal has failed for"


def test_machines_share_the_totals_of_their_fleet():
    totals = KvDropTotals()
    one, other = KvDrops(totals), KvDrops(totals)
    for drops in (one, other):
        drops.add({"a": 1}, 0.0)
        drops.begin("a")
        drops.record_failure("a", 0.0)
    one.begin("a")
    one.record_removed("a")
    assert totals == KvDropTotals(removed=1, failures=2, retries=1)
    assert other.due(99.0) == ["a"]
