"""Renamed fields: an earlier name is refused with the present one, in Python and by a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rljob_api import InvalidSpec, load
from rljob_api.admission.last_accepted import accepted_job
from rljob_api.admission.loading import load_status
from rljob_api.admission.renamed import RENAMED
from rljob_api.schema.crd import crd
from rljob_api.status import RuntimeStatus
from tests.support.api.jobs import job
from tests.support.api.kubectl import Kube

# The earlier name, a value, the present name, and the default of earlier servers.
TABLE: list[tuple[str, Any, str, Any]] = [
    ("data.onBadLine", "Skip", "onInvalidRecord", "Fail"),
    ("algorithm.gradientClip", 0.5, "maxGradNorm", 1.0),
    ("algorithm.importanceCap", 5.0, "truncatedImportanceSampling.cap", 2.0),
    ("experience.capacityPrompts", 500, "maxPrompts", None),
    ("failurePolicy.againWithinSeconds", 0.0, "restartWindowSeconds", 600.0),
]
DEFAULTED = [row for row in TABLE if row[3] is not None]
UID = "3c1f0b5e"


def name(path: str) -> str:
    return path.rpartition(".")[2]


def present(path: str, new: str) -> str:
    """`data.onBadLine` → `spec.data.onInvalidRecord`."""
    return f"spec.{path.rpartition('.')[0]}.{new}"


def test_the_table_holds_every_renamed_field() -> None:
    assert {(f"{one.parent}.{one.old}", one.new, one.default) for one in RENAMED} == {
        (path, new, default) for path, _, new, default in TABLE
    }


@pytest.mark.parametrize(("path", "value", "new", "default"), TABLE)
def test_an_earlier_name_is_refused_with_the_present_one(path: str, value: Any, new: str, default: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load(job({f"spec.{path}": value}))
    (error,) = caught.value.errors
    assert (error.path, error.value, error.message) == (f"spec.{path}", value, f"is renamed: set {new} instead")
    load(job({present(path, new): value}))


@pytest.mark.parametrize(("path", "value", "new", "default"), DEFAULTED)
def test_the_default_that_an_earlier_server_filled_in_counts_for_nothing(
    path: str, value: Any, new: str, default: Any
) -> None:
    assert load(job({f"spec.{path}": default})).spec == load(job()).spec
    both = load(job({f"spec.{path}": default, present(path, new): value}))
    assert both.spec == load(job({present(path, new): value})).spec != load(job()).spec


@pytest.mark.parametrize("value", [True, None, "1.0", {}])
def test_an_earlier_name_with_a_value_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(InvalidSpec, match="set maxGradNorm instead"):
        load(job({"spec.algorithm.gradientClip": value}))


def test_all_earlier_names_are_refused_together() -> None:
    with pytest.raises(InvalidSpec) as caught:
        load(job({f"spec.{path}": value for path, value, _, _ in TABLE}))
    assert [error.path for error in caught.value.errors] == [f"spec.{path}" for path, *_ in TABLE]


def test_what_an_earlier_version_accepted_is_read_with_the_present_names() -> None:
    earlier = job({f"spec.{path}": value for path, value, _, _ in TABLE})["spec"]
    memory = {"accepted": {"uid": UID, "spec": json.dumps(earlier)}}
    found = accepted_job({**job({"metadata.uid": UID}), "status": memory})
    assert found is not None
    assert found.spec == load(job({present(path, new): value for path, value, new, _ in TABLE})).spec


def test_a_stored_spec_is_read_with_the_present_path_of_a_reward() -> None:
    def rewarded(module: str) -> dict[str, Any]:
        function = f"rljob_runtime.rewards.{module}:has_number"
        reward = {"name": "number", "kind": "Python", "function": function, "config": {"a": 1}}
        return job({"spec.rewards[1]": reward})

    memory = {"accepted": {"uid": UID, "spec": json.dumps(rewarded("scorers")["spec"])}}
    found = accepted_job({**job({"metadata.uid": UID}), "status": memory})
    assert found is not None
    assert found.spec == load(rewarded("builtin")).spec


def test_a_memory_with_both_names_keeps_the_present_one() -> None:
    spec = job({"spec.algorithm.gradientClip": 1.0, "spec.algorithm.maxGradNorm": 0.5})["spec"]
    found = accepted_job({**job({"metadata.uid": UID}), "status": {"accepted": {"uid": UID, "spec": json.dumps(spec)}}})
    assert found is not None
    assert found.spec.algorithm.max_grad_norm == 0.5


def test_a_status_with_earlier_names_is_read_without_them() -> None:
    last = {"round": 3, "kind": "Long", "longQueue": 2, "lending": "Lent", "lentMachines": 1, "workerGroups": 4}
    problems = [{"reason": "CheckpointFailed", "message": "full"}]
    status = load_status({"runtime": {"round": 3, "longQueue": 2, "problems": problems, "lastRound": last}})
    assert status.runtime == RuntimeStatus.model_validate({"round": 3, "lastRound": {"round": 3, "kind": "Long"}})


def test_an_earlier_name_stays_in_the_schema_and_has_no_default() -> None:
    spec = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for path, _, new, _ in TABLE:
        parent, _, old = path.partition(".")
        earlier = spec[parent]["properties"][old]
        assert earlier["description"].startswith(f"Deprecated: use {new}.")
        assert "default" not in earlier
        assert old not in spec[parent].get("default", {})


@pytest.mark.cluster
@pytest.mark.parametrize(("path", "value", "new", "default"), TABLE)
def test_a_server_refuses_an_earlier_name_with_the_present_one(
    server: Kube, path: str, value: Any, new: str, default: Any
) -> None:
    (refused,) = server.refusals(job({f"spec.{path}": value}), strict=True)
    assert refused.endswith(f"{name(path)} is renamed: set {new} instead")
    assert server.refusals(job({present(path, new): value}), strict=True) == []


@pytest.mark.cluster
def test_a_server_keeps_the_defaults_that_an_earlier_one_filled_in(server: Kube) -> None:
    """The spec of a job that was stored before the names changed may be edited beside them."""
    stored = job({"spec.suspend": True, **{f"spec.{path}": default for path, _, _, default in DEFAULTED}})
    edited = job({present(path, new): value for path, value, new, _ in DEFAULTED}, base=stored)
    assert (
        server.refused_change({**stored, "metadata": {"name": "earlier"}}, {**edited, "metadata": {"name": "earlier"}})
        == []
    )
