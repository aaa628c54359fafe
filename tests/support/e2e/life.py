"""A job that trains while something happens to its nodes, and the proof that nothing was lost by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from tests.support.e2e.kubectl import Kubectl, claim, is_true, runtime, variant

Figures = list[tuple[int, int]]
"""Round and weight version, as reported one after the other."""


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def begin(kubectl: Kubectl, minimal: dict[str, Any], name: str, **spec: Any) -> None:
    """Apply the job with a claim of its own, and wait for its third round. It writes no checkpoint by itself: what an
    event does not save is lost."""
    checkpoint = {"volumeClaimName": name, "everyRounds": 1000}
    kubectl.apply(claim(name), variant(minimal, name, **{"rounds": 5000, "checkpoint": checkpoint, **spec}))
    goes_on(kubectl, name, 3, 600)
    assert "checkpoint" not in runtime(kubectl.job(name))


def goes_on(kubectl: Kubectl, name: str, rounds: int = 2, seconds: float = 400) -> None:
    """Wait for so many more rounds."""
    reached = kubectl.rounds(name)
    kubectl.wait(f"{rounds} rounds after {reached}", lambda: kubectl.rounds(name) >= reached + rounds, seconds)


@contextmanager
def nothing_goes_back(kubectl: Kubectl, name: str) -> Iterator[Figures]:
    """Look at the job several times a second meanwhile: neither its round nor its weight version may go back."""
    seen: Figures = []
    trouble: list[Exception] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            try:
                said = runtime(kubectl.job(name))
            except Exception as error:  # of a thread it would be lost
                trouble.append(error)
                return
            figures = said.get("round") or 0, said.get("weightVersion") or 0
            if not seen or seen[-1] != figures:
                seen.append(figures)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        done.set()
        looking.join()
    assert not trouble, trouble
    assert len(seen) > 2, "rounds were seen to go on"
    assert all(before <= after for before, after in pairwise(seen)), seen


def ends_with_every_response_trained_on_once(kubectl: Kubectl, name: str) -> None:
    """Let the job complete in a few rounds, and count."""
    kubectl("patch", "rljob", name, "--type=merge", "-p", f'{{"spec":{{"rounds":{kubectl.rounds(name) + 3}}}}}')
    kubectl.wait("the job completes", lambda: is_true(kubectl.job(name), "Complete"))
    spec, report = kubectl.job(name)["spec"], runtime(kubectl.job(name))
    of_a_round = spec["algorithm"]["promptsPerRound"] * spec["algorithm"]["responsesPerPrompt"]
    # A round uses up its responses, one way or the other; an update has only what it is trained on.
    discarded = report["totals"]["discardedTrajectories"] if spec["mode"] == "OnPolicy" else 0
    assert report["totals"]["trainedTrajectories"] + discarded == report["round"] * of_a_round


def drain(kubectl: Kubectl, node: str, seconds: int = 150) -> float:
    """`kubectl drain`; how long it took."""
    clock = Clock()
    kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={seconds}s")
    return clock.seconds


def node_of(kubectl: Kubectl, name: str, role: str) -> str:
    """The node of the only pod of a role."""
    (pod,) = kubectl.pods(name, role)
    return str(pod["spec"]["nodeName"])


def uids(kubectl: Kubectl, name: str) -> dict[str, str]:
    """Of the job's pods by name."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kubectl.pods(name)}
