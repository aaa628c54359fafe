"""The benches run, and their figures mean what they say."""

from __future__ import annotations

import kopf
import pytest

from rljob_operator import benchmarks
from rljob_operator.benchmarks import operator_bench, recovery_bench

pytestmark = pytest.mark.cluster


async def test_operator_bench_in_small(connection: kopf.ConnectionInfo) -> None:
    report = await operator_bench(connection, jobs=4)
    figures = {figure["name"]: figure for figure in report["figures"]}
    requests = figures["API requests per job"]
    assert requests["value"] >= requests["limit"] - 1  # all but the job itself are the operator's
    assert requests["value"] <= requests["limit"] + 8, "the operator has become talkative"
    assert figures["apply to all pods created, p50"]["value"] > 0
    assert [row["who"] for row in report["rows"]] == ["bare client", "operator"]


async def test_recovery_bench_in_small(connection: kopf.ConnectionInfo) -> None:
    report = await recovery_bench(connection, failures=4, jobs=2)
    assert len(report["rows"]) == 4
    assert all(row["seconds"] > 0 for row in report["rows"])


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 50), (0.99, 99), (1.0, 100)])
def test_quantiles_are_values_that_occurred(share: float, wanted: int) -> None:
    assert benchmarks._quantile(range(100, 0, -1), share) == wanted
    assert benchmarks._quantile([7.0], share) == 7.0
