"""Which spec holds: edits of every kind, one after the other, as an API server without CEL lets them through."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import InvalidSpec, load
from rljob_api.admission.immutability import NEVER, WHILE_SUSPENDED
from rljob_api.admission.last_accepted import accept
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.lifecycle.admission import Admitted, admit, is_managed
from rljob_operator.policies.plan import plan
from tests.support.examples import examples
from tests.support.operator.harness import manifest, merged

Json = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)

FREE: list[Json] = [{"rounds": 4}, {"rollout": {"machines": 5}}, {"runPolicy": {"drainSeconds": 5}}]
WHEN_SUSPENDED: list[Json] = [
    {"algorithm": {"learningRate": 2e-5}},
    {"data": {"maxResponseTokens": 99}},
    {"trainer": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}},
    {"rewards": [{"name": "right", "kind": "Math", "weight": 2}]},
]
IMMUTABLE: list[Json] = [
    {"model": {"source": "/other"}},
    {"data": {"seed": 7}},
    {"managedBy": "kueue.x-k8s.io/multikueue"},
    {"checkpoint": {"volumeClaimName": "claim"}},
]
BROKEN: list[Json] = [
    {"rounds": 0},
    {"rollout": {"tensorParallelSize": 3}},
    {"adaptiveTensorParallel": {"enabled": True}},
]


class Object:
    """An RLJob in an API server that checks nothing, and what the operator remembers of it."""

    def __init__(self) -> None:
        self.document = manifest()
        self.document["metadata"] |= {"uid": "u-1", "generation": 1, "resourceVersion": "1"}

    def apply(self, *changes: Json) -> None:
        """The complete spec: the first one with these changes."""
        self.document["spec"] = manifest()["spec"]
        for change in changes:
            self.document["spec"] = merged(self.document["spec"], change)
        self.document["metadata"]["generation"] += 1

    def reconcile(self) -> Admitted:
        """What the operator makes of it, remembered as `plan` does."""
        found = admit(self.document)
        self.document["status"] = {"accepted": accept(found.job).to_dict()}
        return found


def running(*changes: Json) -> Object:
    found = Object()
    found.apply(*changes)
    assert found.reconcile().refused is None
    return found


SUSPENDED = {"suspend": True}


@pytest.mark.parametrize("change", [*FREE, *IMMUTABLE, *WHEN_SUSPENDED, *BROKEN], ids=str)
@pytest.mark.parametrize("before", [[], [SUSPENDED]], ids=["running", "suspended"])
@pytest.mark.parametrize("after", [[], [SUSPENDED]], ids=["runs", "is suspended"])
def test_what_is_refused_and_how_it_is_taken_back(change: Json, before: list[Json], after: list[Json]) -> None:
    job = running(*before)
    held = job.reconcile().job.spec
    job.apply(*after, change)
    found = job.reconcile()
    allowed = change in FREE or (change in WHEN_SUSPENDED and bool(before or after))
    assert (found.refused is None) is allowed
    assert found.job.metadata.generation == job.document["metadata"]["generation"]
    if found.refused is not None:
        assert found.refused.reason == "InvalidSpec"
        assert found.refused.message.startswith("spec.")
        assert found.job.spec == held
        assert job.reconcile().refused == found.refused  # as often as it is checked, by any operator
        job.apply(*before)
        assert job.reconcile() == Admitted(job.reconcile().job)
        assert job.reconcile().job.spec == held


def test_a_refused_edit_is_told_with_both_values_and_the_way_on() -> None:
    job = running()
    job.apply({"data": {"seed": 7}, "rounds": 9})
    found = job.reconcile()
    assert found.refused is not None
    assert found.refused.message == "spec.data.seed: 7 is immutable, it was 0; set it back, or make a new RLJob"
    assert found.job.spec.rounds == 3  # nothing of the edit holds
    job.apply({"algorithm": {"learningRate": 2e-5}})
    refused = job.reconcile().refused
    assert refused is not None
    assert "it was 1e-06; set it back, or set spec.suspend: true" in refused.message
    job.apply({"algorithm": {"learningRate": 2e-5}}, SUSPENDED)
    assert job.reconcile().refused is None
    job.apply({"algorithm": {"learningRate": 2e-5}})
    assert job.reconcile().refused is None


def test_without_a_good_spec_there_is_no_job() -> None:
    job = Object()
    job.apply({"rounds": 0})
    with pytest.raises(InvalidSpec, match=r"spec\.rounds: 0 must be at least 1"):
        admit(job.document)


CALC: Json = {"environments": [{"name": "calc", "kind": "Tools", "tools": [{"function": "calculator.py:add"}]}]}


def test_a_job_refused_for_environments_by_an_older_operator_begins() -> None:
    """It was told so in its conditions, and nothing of it was accepted."""
    job = Object()
    job.apply(CALC)
    refused = [{"type": "Ready", "status": "False", "reason": "InvalidSpec"}]
    refused.append({"type": "Stalled", "status": "True", "reason": "InvalidSpec", "message": "must be left out"})
    job.document["status"] = {"observedGeneration": 1, "conditions": refused}
    admitted = admit(job.document)
    assert admitted.refused is None
    begun = plan(admitted.job, Observed(), NOW, Config())
    assert [one["metadata"]["name"] for one in begun.deployments] == ["demo-environment-calc"]
    assert begun.status is not None
    assert begun.status.condition("Stalled") is None
    assert "SpecAccepted" in {event.reason for event in begun.events}


def test_an_ended_job_may_be_edited() -> None:
    """It holds no pods and trains no more: to refuse would only spoil a result."""
    job = running()
    ended = [{"type": "Complete", "status": "True"}]
    job.document["status"]["conditions"] = ended
    for edit in ({"model": {"source": "/other"}}, CALC):
        job.apply(edit)
        assert admit(job.document).refused is None


def test_whose_job_it_is() -> None:
    job = Object()
    assert is_managed(job.document)
    job.apply({"managedBy": "kueue.x-k8s.io/multikueue"})
    assert not is_managed(job.document)
    copied = running()  # a hub shows the status of the job that it keeps in another cluster
    job.document["status"] = {"accepted": {**copied.document["status"]["accepted"], "uid": "u-2"}}
    assert not is_managed(job.document)
    mine = running()
    mine.apply({"managedBy": "kueue.x-k8s.io/multikueue"})
    assert is_managed(mine.document)


edits = st.lists(st.sampled_from([*FREE, *WHEN_SUSPENDED, *IMMUTABLE, *BROKEN, SUSPENDED]), max_size=4)


def _at(spec: Json, path: str) -> Any:
    for step in path.split("."):
        spec = spec.get(step, {})
    return spec


@settings(max_examples=examples(150))
@given(st.lists(edits, min_size=1, max_size=6))
def test_the_spec_that_holds_changes_only_as_it_may(history: list[list[Json]]) -> None:
    job = running()
    held = job.reconcile().job.spec.to_dict()
    for changes in history:
        job.apply(*changes)
        found = job.reconcile()
        now = found.job.spec.to_dict()
        assert all(_at(now, path) == _at(held, path) for path in NEVER)
        if not (held["suspend"] or now["suspend"]):
            assert all(_at(now, path) == _at(held, path) for path in WHILE_SUSPENDED)
        if found.refused is not None:
            assert now == held
        else:
            assert now == load(job.document).spec.to_dict()
        held = now
