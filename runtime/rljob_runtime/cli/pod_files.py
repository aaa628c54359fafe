"""Pod files: files of a job in a cluster, read through the API server's pod proxy with the user's rights.

The user needs `get` on the job, on its pods and their proxy, and on its Secret; the built-in role `edit` has them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Protocol

from rljob_api.constants import AUTH_RELAY_KEY, HEALTH_PORT, SAMPLES_KEY_HEADER, auth_secret_of, samples_key
from rljob_runtime.cli.cluster import Cluster


class PodText(Protocol):
    """Returns what the coordinator's pod serves at a path. Raises `NoAnswer`."""

    def __call__(self, path: str) -> str: ...


def pod_text(job: str, namespace: str | None, absent: str = "") -> PodText:
    """Find the coordinator's pod of a job in the cluster of the kubeconfig. Raises `Unusable` and `NoAnswer`.

    `absent`: why the pod may serve no such path."""
    cluster = Cluster()
    space = namespace or cluster.namespace
    found = cluster.rljob(space, job)
    secret = cluster.secret(space, auth_secret_of(job, found["metadata"]["uid"]))
    key = samples_key(base64.b64decode(secret["data"][AUTH_RELAY_KEY]).strip())
    pod = cluster.coordinator_pod(space, job)
    return lambda path: cluster.proxied(space, f"{pod}:{HEALTH_PORT}", path, {SAMPLES_KEY_HEADER: key}, absent)


def pieces(text: PodText, path: str) -> Iterator[str]:
    """Yield the complete lines of a file, some MB at a time. Raises `NoAnswer`."""
    offset = 0
    while found := text(f"{path}/{offset}"):
        yield found
        offset += len(found.encode())
