"""Facts about nodes: what wakes a job, and what is known without the right to see nodes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from rljob_kube.errors import ApiError
from rljob_operator.metrics import Metrics
from rljob_operator.policies.base.observation import Node
from rljob_operator.readers.node_cache import NodeCache
from rljob_operator.watch import WatchHandlers


def _node(name: str = "n1", ready: str = "True", *taints: str, version: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": str(version)},
        "spec": {"taints": [{"key": taint, "effect": "NoExecute"} for taint in taints]},
        "status": {"conditions": [{"type": "Ready", "status": ready}], "images": [{"names": [str(version)]}]},
    }


def _body(name: str, job: str, node: str | None) -> dict[str, Any]:
    labels = {"rljob.dev/job": job}
    meta = {"namespace": "space", "name": name, "uid": f"uid-{name}", "labels": labels, "resourceVersion": "5"}
    return {"metadata": meta, "spec": {"nodeName": node} if node else {}}


class Api:
    """The API server's answers about nodes, counted."""

    def __init__(self, *nodes: dict[str, Any], status: int = 0) -> None:
        self.nodes = {node["metadata"]["name"]: node for node in nodes}
        self.status = status
        self.asked: list[str] = []

    async def read(self, resource: Any, namespace: Any, keep: Any, **_: Any) -> list[Any]:
        if self.status:
            raise ApiError(self.status, "Forbidden", "not allowed")
        return list(map(keep, self.nodes.values()))

    async def get(self, resource: Any, namespace: Any, name: str) -> dict[str, Any]:
        self.asked.append(name)
        if name not in self.nodes:
            raise ApiError(404, "NotFound", "no such node")
        return self.nodes[name]


async def test_a_nodes_report_wakes_only_the_jobs_on_it_and_only_when_it_matters() -> None:
    marks: list[tuple[str, str]] = []
    api = Api(_node("n1"), _node("n2"))
    book = NodeCache(api)  # type: ignore[arg-type]
    await book.prime()
    watch = WatchHandlers(
        lambda key, seconds: marks.append(key), lambda key, uid: None, mock.Mock(), book, mock.Mock(), Metrics()
    )

    def woken() -> list[str]:
        found = sorted({job for _, job in marks})
        marks.clear()
        return found

    for name, job, node in (("a-0", "a", "n1"), ("a-1", "a", "n1"), ("b-0", "b", "n2"), ("c-0", "c", None)):
        watch.pod_event("ADDED", _body(name, job, node))
    marks.clear()
    for version in range(5):
        watch.node_event("MODIFIED", _node("n1", version=version))
    assert woken() == [], "a kubelet reports all day"
    watch.node_event("MODIFIED", _node("n1", "Unknown"))
    assert woken() == ["a"]
    watch.node_event("MODIFIED", _node("n1", "Unknown", "node.kubernetes.io/unreachable"))
    assert woken() == []
    watch.node_event("MODIFIED", _node("n1", "Unknown", "node.kubernetes.io/out-of-service"))
    assert woken() == ["a"]
    watch.node_event("DELETED", _node("n2"))
    assert woken() == ["b"]
    api.nodes = {"n1": _node("n1", "Unknown", "node.kubernetes.io/out-of-service")}
    assert (await book.facts(["n1", "n2"])) == {
        "n1": Node("n1", ready=False, fenced=True),
        "n2": Node("n2", ready=False, gone=True),
    }
    watch.pod_event("MODIFIED", _body("c-0", "c", "n1"))
    for name in ("a-0", "a-1"):
        watch.pod_event("DELETED", _body(name, "a", "n1"))
    marks.clear()
    watch.node_event("MODIFIED", _node("n1"))
    assert woken() == ["c"]


async def test_a_node_counts_as_deleted_on_the_api_servers_word_alone() -> None:
    api = Api(_node("n1"), _node("n2"))
    book = NodeCache(api)  # type: ignore[arg-type]
    assert await book.facts(["n1"]) == {}, "an operator that may not see nodes knows of none"
    await book.prime()
    api.nodes["n3"] = _node("n3", "False")
    assert await book.facts(["n3", "n4"]) == {"n3": Node("n3", ready=False), "n4": Node("n4", ready=False, gone=True)}
    assert api.asked == ["n3", "n4"]
    await book.facts(["n1", "n2"])
    assert api.asked == ["n3", "n4"], "what the watch shows to be ready costs nothing"


async def test_a_watch_that_stands_still_fails_no_node() -> None:
    api = Api(_node("n1", "Unknown"))
    book = NodeCache(api)  # type: ignore[arg-type]
    await book.prime()
    book.hosts("uid", "n1", ("ns", "a"))
    api.nodes["n1"] = _node("n1")
    assert await book.facts(["n1"]) == {"n1": Node("n1")}
    assert book.observe("MODIFIED", _node("n1")) == [("ns", "a")], "its jobs are told when the watch goes on"
    book.observe("DELETED", _node("n1"))
    assert await book.facts(["n1"]) == {"n1": Node("n1")}, "another node of this name is there by now"


async def test_without_the_right_to_see_nodes_the_operator_goes_on() -> None:
    book = NodeCache(Api(status=403))  # type: ignore[arg-type]
    await book.prime()
    assert not book.open
    book = NodeCache(Api(status=500))  # type: ignore[arg-type]
    with pytest.raises(ApiError):
        await book.prime()


async def test_what_a_node_offers_is_known_though_it_wakes_no_job() -> None:
    book = NodeCache(Api(_node("n1"), _node("n2")))  # type: ignore[arg-type]
    assert book.all() is None, "no list has been allowed"
    await book.prime()
    offers = {**_node("n1")}
    offers["status"] = {**offers["status"], "allocatable": {"cpu": "8"}}
    assert book.observe("MODIFIED", offers) == []
    book.observe("DELETED", _node("n2"))
    nodes = book.all()
    assert nodes is not None
    assert [(node.name, node.allocatable) for node in nodes] == [("n1", {"cpu": "8"})]
