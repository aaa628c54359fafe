"""The node under the trainer, or under the coordinator, is drained while the job runs: no finished update is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from e2e_kubectl import Kubectl, claim, is_true, runtime, variant

from rows import slow

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(900)]

JOB = "drained"
GRACE_SECONDS = 75
"""Of a pod: `runPolicy.drainSeconds`, and some for its end."""
Figures = list[tuple[int, int]]
"""Round and weight version, as reported one after the other."""


@pytest.mark.parametrize("mode", ["OnPolicy", *slow("Asynchronous")])
@pytest.mark.parametrize("role", ["trainer", *slow("coordinator")])
def test_a_drained_node_costs_no_finished_update(
    kubectl: Kubectl, minimal: dict[str, Any], role: str, mode: str
) -> None:
    # It writes no checkpoint by itself: what the drain does not save is lost.
    checkpoint = {"volumeClaimName": JOB, "everyRounds": 1000}
    kubectl.apply(claim(JOB), variant(minimal, JOB, mode=mode, rounds=5000, checkpoint=checkpoint))
    kubectl.wait("rounds go on", lambda: kubectl.rounds(JOB) >= 3, 300)
    assert "checkpoint" not in runtime(kubectl.job(JOB))
    (pod,) = kubectl.pods(JOB, role)
    node = pod["spec"]["nodeName"]
    with _figures(kubectl) as reported:
        began = time.monotonic()
        kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=150s")
        drained = time.monotonic() - began
        try:
            kubectl.wait("another pod", lambda: _elsewhere(kubectl, role, node))
            saved = runtime(kubectl.job(JOB))["checkpoint"]["round"]
            kubectl.wait("rounds go on", lambda: kubectl.rounds(JOB) >= saved + 2)
        finally:
            kubectl("uncordon", node)
        went_on = time.monotonic() - began
    assert drained < GRACE_SECONDS, "it was let go, and not killed"
    assert saved >= 3
    assert all(before <= after for before, after in pairwise(reported)), reported
    story = kubectl("describe", "rljob", JOB)
    assert f"{role}-0 is asked to go: it saves its state first" in story
    assert f"{role}-0 is filled again by incarnation 2" in story
    _ends_with_every_response_trained_on_once(kubectl, mode)
    print(f"{role}, {mode}: drained in {drained:.0f} s, two rounds later after {went_on:.0f} s, saved at round {saved}")


@contextmanager
def _figures(kubectl: Kubectl) -> Iterator[Figures]:
    """What the job reports meanwhile, several times a second."""
    seen: Figures = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            said = runtime(kubectl.job(JOB))
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
    assert len(seen) > 2, "rounds were seen to go on"


def _elsewhere(kubectl: Kubectl, role: str, node: str) -> bool:
    return any(pod["spec"].get("nodeName") not in (None, node) for pod in kubectl.pods(JOB, role))


def _ends_with_every_response_trained_on_once(kubectl: Kubectl, mode: str) -> None:
    kubectl("patch", "rljob", JOB, "--type=merge", "-p", f'{{"spec":{{"rounds":{kubectl.rounds(JOB) + 3}}}}}')
    kubectl.wait("the job completes", lambda: is_true(kubectl.job(JOB), "Complete"))
    spec, report = kubectl.job(JOB)["spec"], runtime(kubectl.job(JOB))
    of_a_round = spec["algorithm"]["promptsPerRound"] * spec["algorithm"]["responsesPerPrompt"]
    # A round uses up its responses, one way or the other; an update has only what it is trained on.
    discarded = report["totals"]["discardedTrajectories"] if mode == "OnPolicy" else 0
    assert report["totals"]["trainedTrajectories"] + discarded == report["round"] * of_a_round
