"""The target's revision rises when the target changes."""

from __future__ import annotations

from rljob_api.status import Target, TargetPhase, TargetTensorParallel
from rljob_operator.policies.scaling.target import next_target


def test_the_revision_rises_with_changes_only() -> None:
    one, two = TargetTensorParallel(), TargetTensorParallel(short=2, long=1)
    first = next_target(None, ["rollout-0"], one, TargetPhase.RUN, "Started")
    same = next_target(first, ["rollout-0"], one, TargetPhase.RUN, "another reason")
    assert (first.revision, same) == (1, first)
    for machines, sizes, phase in (
        (["rollout-0"], one, TargetPhase.SUSPEND),
        (["rollout-0"], two, TargetPhase.RUN),
        (["rollout-1"], one, TargetPhase.RUN),
    ):
        assert next_target(first, machines, sizes, phase, "").revision == 2
    assert next_target(Target(), [], one, TargetPhase.RUN, "").revision == 0
