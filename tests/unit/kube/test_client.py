"""The Kubernetes client: lists that are read in pages of one version."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from rljob_kube.client import ANY_VERSION, KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError
from rljob_kube.resources import POD, RLJOB, Json, Resource
from tests.support.operator.harness import Server

TWO = replace(POD, page=2)


class Pages(KubeClient):
    """A stand-in for the server's side: five items in pages of two. It drops the version `expiries` times."""

    def __init__(self, expiries: int) -> None:
        super().__init__(Credentials(Connection("http://127.0.0.1:1")))
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
async def test_a_list_whose_version_is_dropped_begins_again(expiries: int) -> None:
    kube = Pages(expiries)
    items = await kube.list(TWO, "default", not_older_than="7")
    assert [item["number"] for item in items] == [0, 1, 2, 3, 4]
    first = [params for params in kube.asked if "continue" not in params]
    assert len(first) == 1 + expiries
    assert all(params["resourceVersion"] == "7" for params in first)
    assert all(params["limit"] == "2" for params in kube.asked)
    assert not any("resourceVersion" in params for params in kube.asked if "continue" in params)


async def test_a_version_that_is_dropped_each_time_is_an_error() -> None:
    with pytest.raises(ApiError, match="410 Expired"):
        await Pages(expiries=99).list(TWO, "default")


async def test_any_other_error_is_not_tried_again() -> None:
    class Forbidden(Pages):
        async def _request(self, *args: Any, **named: Any) -> Json:
            self.asked.append(named["params"])
            raise ApiError(403, "Forbidden", "no")

    kube = Forbidden(0)
    with pytest.raises(ApiError, match="403"):
        await kube.list(TWO, "default")
    assert len(kube.asked) == 1


# --- memory -----------------------------------------------------------------------------------------------------------


class Large(KubeClient):
    """A stand-in for a server with `count` jobs of 64 KiB each, which sends no more than it is asked for."""

    def __init__(self, count: int) -> None:
        super().__init__(Credentials(Connection("http://127.0.0.1:1")))
        self.count = count

    async def _send(self, method: str, path: str, data: Any, params: Mapping[str, str], headers: Any) -> Json:
        start = int(params.get("continue", "0"))
        stop = min(self.count, start + int(params.get("limit", self.count)))
        items = [{"metadata": {"name": f"job-{n}"}, "spec": {"prompt": "x" * (64 << 10)}} for n in range(start, stop)]
        token = {"continue": str(stop)} if stop < self.count else {}
        decoded: Json = json.loads(json.dumps({"items": items, "metadata": token}))
        return decoded


async def _most_memory(count: int) -> int:
    """Bytes at most while the names of so many jobs are read."""
    kube = Large(count)
    gc.collect()
    tracemalloc.start()
    try:
        names = await kube.read(RLJOB, None, lambda item: str(item["metadata"]["name"]))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert names == [f"job-{n}" for n in range(count)]
    return most


async def test_memory_does_not_grow_with_the_length_of_a_list() -> None:
    few, many = await _most_memory(2 * RLJOB.page), await _most_memory(20 * RLJOB.page)
    assert many <= 1.2 * few


@pytest.mark.cluster
async def test_a_server_gives_no_more_than_a_page_from_its_cache(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube, sent = server.kube, []
    for number in range(5):
        newest = (await server.apply_job(f"job-{number}"))["metadata"]["resourceVersion"]
    # The cache may be behind the last write: a list that asks for it waits for the cache.
    await kube.list(RLJOB, server.namespace, not_older_than=newest)
    real = kube._send

    async def counted(method: str, path: str, *args: Any) -> Json:
        sent.append(path)
        return await real(method, path, *args)

    monkeypatch.setattr(kube, "_send", counted)
    names = await kube.read(
        replace(RLJOB, page=2), server.namespace, lambda item: str(item["metadata"]["name"]), not_older_than=ANY_VERSION
    )
    assert names == [f"job-{number}" for number in range(5)]
    assert len(sent) == 3, "a server takes no notice of the limit with resource version 0"
