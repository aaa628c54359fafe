"""The Kubernetes client: lists that are read in pages of one version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kopf
import pytest

from rljob_operator.kube.client import Kube
from rljob_operator.kube.credentials import Credentials
from rljob_operator.kube.errors import ApiError
from rljob_operator.kube.resources import POD, Json, Resource
from rljob_operator.metrics import Metrics


class Pages(Kube):
    """A stand-in for the server's side: five items in pages of two. It drops the version `expiries` times."""

    def __init__(self, expiries: int) -> None:
        super().__init__(Credentials(kopf.ConnectionInfo(server="http://127.0.0.1:1")), Metrics())
        self.expiries = expiries
        self.asked: list[Mapping[str, str]] = []

    async def _request(self, verb: str, resource: Resource, method: str, path: str, *args: Any, **named: Any) -> Json:
        params: Mapping[str, str] = named["params"]
        self.asked.append(params)
        assert len(self.asked) < 20, "the same page was asked for without end"
        start = int(params.get("continue", "0"))
        if start and self.expiries:
            self.expiries -= 1
            raise ApiError(410, "Expired", "The provided continue parameter is too old")
        token = {"continue": str(start + 2)} if start + 2 < 5 else {}
        return {"items": [{"number": n} for n in range(start, min(start + 2, 5))], "metadata": token}


@pytest.mark.parametrize("expiries", [0, 1, 2])
async def test_a_list_whose_version_is_dropped_begins_anew(expiries: int) -> None:
    kube = Pages(expiries)
    items = await kube.list(POD, "default", page=2, not_older_than="7")
    assert [item["number"] for item in items] == [0, 1, 2, 3, 4]
    first = [params for params in kube.asked if "continue" not in params]
    assert len(first) == 1 + expiries
    assert all(params["resourceVersion"] == "7" for params in first)
    assert not any("resourceVersion" in params for params in kube.asked if "continue" in params)


async def test_a_version_that_is_dropped_each_time_is_an_error() -> None:
    with pytest.raises(ApiError, match="410 Expired"):
        await Pages(expiries=99).list(POD, "default", page=2)


async def test_any_other_error_is_not_tried_again() -> None:
    class Forbidden(Pages):
        async def _request(self, *args: Any, **named: Any) -> Json:
            self.asked.append(named["params"])
            raise ApiError(403, "Forbidden", "no")

    kube = Forbidden(0)
    with pytest.raises(ApiError, match="403"):
        await kube.list(POD, "default", page=2)
    assert len(kube.asked) == 1
