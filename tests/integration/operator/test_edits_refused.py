"""Edits that may not be: the API server refuses them at apply, by the CRD's rules, and the job does not notice."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_kube.errors import ApiError
from tests.support.operator.harness import Server, condition

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"data": {"seed": 7}}, "data.seed is immutable"),
        ({"algorithm": {"learningRate": 2e-5}}, "algorithm can change only while the job is suspended"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "managedBy is immutable"),
        ({"checkpoint": {"volumeClaimName": "late"}}, "checkpoint.volumeClaimName is immutable"),
        ({"rollout": {"tensorParallelSize": 3}}, "tensorParallelSize"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_forbidden_edit_is_refused_at_apply(
    server: Server, operator: Any, edit: dict[str, Any], said: str
) -> None:
    await server.apply_job()
    await server.until(lambda j: (j.get("status") or {}).get("members"))
    await server.start_all()
    before = await server.until(lambda j: condition(j, "Ready") == "True/RoundsProgressing")
    with pytest.raises(ApiError, match=said) as caught:
        await server.apply_job(**edit)
    assert caught.value.status == 422
    after = await server.job()
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["spec"] == before["spec"]
    assert condition(after, "Stalled") is None


async def test_what_wants_suspension_is_accepted_with_it(server: Server, operator: Any) -> None:
    await server.apply_job()
    await server.apply_job(algorithm={"learningRate": 2e-5}, suspend=True)
    job = await server.until(lambda j: condition(j, "Suspended") == "True/SuspendedByUser")
    assert job["spec"]["algorithm"]["learningRate"] == 2e-5
