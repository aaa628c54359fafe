"""Node cache: the cluster's nodes from one watch for all jobs, so that reading them costs no request.

An operator that serves single namespaces, or has no right to list nodes, has an empty cache.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rljob_kube.client import ANY_VERSION, KubeClient
from rljob_kube.errors import ApiError
from rljob_kube.resources import NODE
from rljob_operator.policies.base.observation import Node, parse_node
from rljob_operator.readers.observer import Key

_logger = logging.getLogger(__name__)

_RIGHT = "not allowed to list nodes: machines are assessed by suspects and pods alone"


class NodeCache:
    """Nodes, and the jobs whose pods run on them."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, dict[str, Key]] = defaultdict(dict)
        self._where: dict[str, str] = {}
        self.open = False
        """Whether nodes are watched."""

    async def prime(self) -> None:
        """List all nodes once before the watch begins.

        Without it, a node that the watch has not shown yet would count as deleted.
        """
        try:
            nodes = await self._kube.read(NODE, None, parse_node, not_older_than=ANY_VERSION)
        except ApiError as error:
            if error.status != 403:
                raise
            _logger.warning("%s: %s", _RIGHT, error.message)
            return
        self._nodes = {node.name: node for node in nodes}
        self.open = True

    def observe(self, kind: str | None, body: Any) -> list[Key]:
        """Record a node that was listed (kind None), added, modified or deleted.

        Return the jobs that are affected.
        """
        node = parse_node(body)
        if kind == "DELETED":
            node = replace(node, ready=False, gone=True)
        before, self._nodes[node.name] = self._nodes.get(node.name), node
        if before == node:
            return []
        jobs = list(dict.fromkeys(self._pods.get(node.name, {}).values()))
        if node.gone and not jobs:
            del self._nodes[node.name]
        return jobs

    def hosts(self, uid: str, node: str | None, key: Key | None) -> None:
        """Record the node of a pod. None: the pod is deleted."""
        before = self._where.get(uid)
        if before is not None and before != node:
            del self._where[uid]
            self._pods[before].pop(uid, None)
            if not self._pods[before]:
                del self._pods[before]
                if before in self._nodes and self._nodes[before].gone:
                    del self._nodes[before]
        if node is not None and key is not None:
            self._where[uid] = node
            self._pods[node][uid] = key

    def all(self) -> tuple[Node, ...] | None:
        """Return all existing nodes; None where nodes are not watched."""
        return tuple(node for node in self._nodes.values() if not node.gone) if self.open else None

    async def facts(self, names: Iterable[str]) -> dict[str, Node]:
        """Return these nodes.

        A node that the watch has not shown, or shows as failed, is read by name: the watch may be late, and only the
        API server can confirm that a node is deleted or still not ready.
        """
        if not self.open:
            return {}
        found = {}
        for name in sorted(set(names)):
            node = self._nodes.get(name)
            found[name] = node if node is not None and node.ready else await self._ask(name)
        return found

    async def _ask(self, name: str) -> Node:
        try:
            node = parse_node(await self._kube.get(NODE, None, name))
        except ApiError as error:
            if not error.not_found:
                raise
            return Node(name, ready=False, gone=True)
        self._nodes.setdefault(name, node)  # what the watch has shown stays: its next event tells all jobs on the node
        return node
