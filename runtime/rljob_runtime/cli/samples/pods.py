"""Pod samples: the samples of a job in a cluster, read through the API server's pod proxy with the user's rights.

The user needs `get` on the job, on its pods and their proxy, and on its Secret; the built-in role `edit` has them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Protocol

from rljob_api.constants import AUTH_RELAY_KEY, HEALTH_PORT, SAMPLES_KEY_HEADER, auth_secret_of, samples_key
from rljob_runtime.cli.cluster import Cluster, NoAnswer
from rljob_runtime.cli.samples.source import Report, parse_reports
from rljob_runtime.samples import Sample


class PodText(Protocol):
    """Returns what the coordinator's pod serves at a path. Raises `NoAnswer`."""

    def __call__(self, path: str) -> str: ...


class PodSource:
    """A `SampleSource` of a coordinator's pod."""

    def __init__(self, name: str, text: PodText) -> None:
        self._name = name
        self._text = text

    @classmethod
    def of(cls, job: str, namespace: str | None) -> PodSource:
        """Find the pod of a job in the cluster of the kubeconfig. Raises `Unusable` and `NoAnswer`."""
        cluster = Cluster()
        space = namespace or cluster.namespace
        found = cluster.rljob(space, job)
        secret = cluster.secret(space, auth_secret_of(job, found["metadata"]["uid"]))
        key = samples_key(base64.b64decode(secret["data"][AUTH_RELAY_KEY]).strip())
        pod = cluster.coordinator_pod(space, job)
        return cls(job, lambda path: cluster.proxied(space, f"{pod}:{HEALTH_PORT}", path, {SAMPLES_KEY_HEADER: key}))

    @property
    def name(self) -> str:
        return self._name

    def rounds(self) -> list[int]:
        return [int(number) for number in self._text("samples").split()]

    def samples(self, number: int) -> Iterator[Sample]:
        for text in self._pieces(f"samples/{number}"):
            for line in text.split("\n"):
                if line:
                    yield _sample(number, line)

    def reports(self) -> list[Report]:
        return parse_reports("".join(self._pieces("rounds")).encode())

    def _pieces(self, path: str) -> Iterable[str]:
        """Yield the complete lines of a file, some MB at a time."""
        offset = 0
        while text := self._text(f"{path}/{offset}"):
            yield text
            offset += len(text.encode())


def _sample(number: int, line: str) -> Sample:
    try:
        return Sample.from_json(line)
    except ValueError as error:
        raise NoAnswer(f"round {number}: {error}") from None
