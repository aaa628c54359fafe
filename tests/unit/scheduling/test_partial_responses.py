"""Partial responses: repeated and overlapping polls, leases and versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols.trajectory import FinishReason, Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.partial_responses import DeltaStatus, Partials

A = PromptKey(0, 1)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=30))
def test_polls_may_repeat_and_overlap_and_the_tokens_come_out_once(deltas):
    """Any delivery of slices of one true response: what is held is always its beginning."""
    truth = list(range(20))
    partials, key, lease = Partials(), TrajectoryKey(A, 0), Lease("r", 1)
    partials.open(key, lease, 7)
    for start, length in deltas:
        held = len(partials.tokens_of(key)[0])
        piece = truth[start : start + length]
        verdict = partials.accept(key, lease, start, piece, [-0.5] * len(piece), 7, finished=False)
        tokens, logprobs = partials.tokens_of(key)
        assert list(tokens) == truth[: len(tokens)]
        assert len(logprobs) == len(tokens) >= held
        assert (verdict is DeltaStatus.GAP) == (start > held)


@pytest.mark.parametrize(
    ("lease", "version", "verdict"),
    [
        (Lease("r", 1), 7, DeltaStatus.STALE),
        (Lease("q", 2), 7, DeltaStatus.STALE),
        (Lease("r", 2), 8, DeltaStatus.WRONG_VERSION),
        (Lease("r", 2), 7, DeltaStatus.ACCEPTED),
    ],
)
def test_only_the_lease_and_the_version_in_force_extend_a_response(lease, version, verdict):
    partials, key = Partials(), TrajectoryKey(A, 0)
    partials.open(key, Lease("r", 1), 7)
    partials.open(key, Lease("r", 2), 7)
    assert partials.accept(key, lease, 0, [5], [-1.0], version, finished=False) is verdict
    assert len(partials.tokens_of(key)[0]) == (1 if verdict is DeltaStatus.ACCEPTED else 0)


def test_a_response_continues_with_a_new_lease_and_restarts_with_a_version():
    partials, key = Partials(), TrajectoryKey(A, 0)
    partials.open(key, Lease("r", 1), 7)
    partials.accept(key, Lease("r", 1), 0, [5, 6], [-1.0, -2.0], 7, finished=False)
    partials.open(key, Lease("q", 2), 7)
    assert partials.tokens_of(key) == ((5, 6), (-1.0, -2.0))
    assert partials.accept(key, Lease("q", 2), 2, [9], [-3.0], 7, finished=True) is DeltaStatus.FINISHED
    response = partials.close(key, FinishReason.STOP)
    assert (response.token_ids.tolist(), response.replica, response.attempt) == ([5, 6, 9], "q", 2)
    partials.open(key, Lease("q", 3), 8)
    assert partials.tokens_of(key) == ((), ())
    with pytest.raises(ValueError, match="attempt 3 is not above 3"):
        partials.open(key, Lease("r", 3), 8)
