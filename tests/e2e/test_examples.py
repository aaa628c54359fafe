"""The examples that fit a machine without accelerators, run to their end: the smallest one as it is, and the demo's cut
down to two small rounds, which is the real language model on the real vLLM. A job switches the layout of its machine.

That the API server takes every example is tested in tests/integration/charts/test_examples.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from hack.chaos.faults.in_pod import TEXT
from hack.chaos.history import check_volume
from hack.chaos.job import switching
from tests.support.e2e.kubectl import Kubectl, claim, is_true, runtime, variant
from tests.support.paths import ROOT

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(900)]

EXAMPLES = ROOT / "examples"

ENGINES = f"""{TEXT}
print(json.dumps([p.name for p in pathlib.Path("/proc").glob("[0-9]*") if "/vllm/" in text(p / "maps")]))
"""
"""Processes that have vLLM's compiled kernels mapped."""

MODEL = """
import json, pathlib, sys
import safetensors
folder = pathlib.Path(sys.argv[1])
with safetensors.safe_open(folder / "model.safetensors", "numpy") as file:
    print(json.dumps({"files": sorted(f.name for f in folder.iterdir()), "tensors": len(list(file.keys()))}))
"""


@pytest.mark.slow  # a whole life, with its end and what describe tells, is in tests/e2e/test_real_nodes.py
def test_minimal_completes_and_describe_tells_it(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "minimal.yaml"))
    kubectl.wait("minimal completes", lambda: is_true(kubectl.job("minimal"), "Complete"))

    report = runtime(kubectl.job("minimal"))
    assert (report["round"], report["weightVersion"]) == (8, 9), "the first weights are version 1, then one a round"
    assert report["totals"]["trainedTrajectories"] == 8 * 8 * 8
    assert report["rewardLast"] > report["rewardFirst"]
    assert f"8 rounds are done; the model is at {report['modelPath']}" in kubectl("describe", "rljob", "minimal")
    kubectl.wait("the end is told", lambda: "Completed" in _reasons(kubectl, "minimal"))  # after the status
    reasons = _reasons(kubectl, "minimal")
    for earlier, later in (("Created", "Running"), ("Running", "Completed")):
        assert reasons.index(earlier) < reasons.index(later)


def _reasons(kubectl: Kubectl, job: str) -> list[str]:
    """Of the operator's events, as `describe` shows them. The condition Ready has the reason Completed, too."""
    events = kubectl("describe", "rljob", job).partition("Events:")[2].splitlines()
    return [line.split()[1] for line in events if "rljob-operator" in line]


def test_a_real_model_trains_with_vllm(kubectl: Kubectl) -> None:
    kubectl.apply(*_two_rounds_of_the_demo())
    name = "addition-smollm2"
    kubectl.wait("its first round", lambda: kubectl.rounds(name) >= 1)
    (rollout,) = kubectl.pods(name, "rollout")
    assert json.loads(kubectl("exec", rollout["metadata"]["name"], "--", "python", "-c", ENGINES))
    kubectl.wait("it completes", lambda: is_true(kubectl.job(name), "Complete"))

    report = runtime(kubectl.job(name))
    assert (report["round"], report["weightVersion"]) == (2, 3)
    assert report["totals"]["trainedTrajectories"] == 2 * 2 * 4
    assert 0 <= report["reward"] <= 1.1, "a right number gives 1, any number 0.1 more"
    (evaluation,) = report["evaluations"]
    assert (evaluation["name"], evaluation["first"]["round"], evaluation["last"]["round"]) == ("unseen", 0, 2)
    assert 0 <= evaluation["last"]["average"] <= 1.1
    (trainer,) = kubectl.pods(name, "trainer")
    shown = kubectl("exec", trainer["metadata"]["name"], "--", "python", "-c", MODEL, report["modelPath"])
    exported = json.loads(shown)
    assert {"config.json", "tokenizer.json"} <= set(exported["files"])
    assert exported["tensors"] == 272, "of SmolLM2-135M; its head is tied to the embedding"


@pytest.mark.slow
def test_both_sizes_become_known_and_switches_are_described(kubectl: Kubectl) -> None:
    """At temperature 10 the toy seldom ends, so rounds have long tails. They begin in the wider size."""
    job = yaml.safe_load((EXAMPLES / "adaptive-tp.yaml").read_text(encoding="utf-8"))
    job["spec"]["algorithm"]["temperature"] = 10
    job["spec"]["data"]["maxResponseTokens"] = 400
    kubectl.apply(job)
    kubectl.wait("it completes", lambda: is_true(kubectl.job("adaptive-tp"), "Complete"), seconds=800)

    report = runtime(kubectl.job("adaptive-tp"))
    assert report["totals"]["trainedTrajectories"] == 8 * 8 * 8
    last = report["lastRound"]
    assert last["maxResponseTokens"] > 2 * last["responseTokensP50"], "a long tail"
    assert {one["tensorParallelSize"] for one in last["layoutForecasts"]} == {1, 2}, "the speed of both is known"
    switches = last["layoutSwitches"]
    if switches["state"] == "Switched":
        assert all(one["reachedSize"] == one["toSize"] for one in switches["switches"])
        assert switches["responses"] > 0
    else:
        assert switches["reason"] in {"NoGain", "Later"}, switches["message"]
    story = kubectl("describe", "rljob", "adaptive-tp")
    assert "Layout Switches:" in story
    assert switches.get("message", "Reached Size:") in story


SWITCHING = "switching"


def test_machines_switch_with_their_kv_and_it_is_told(kubectl: Kubectl, real_nodes: Any) -> None:
    """The toy's responses are too short for a switch to pay. So the policy is replaced, as in a campaign of chaos."""
    example = yaml.safe_load((EXAMPLES / "adaptive-tp.yaml").read_text(encoding="utf-8"))
    job = variant(example, SWITCHING, rounds=5000, checkpoint={"volumeClaimName": SWITCHING})
    kubectl.apply(claim(SWITCHING), switching(job["spec"]), job)
    kubectl.wait("the first round", lambda: kubectl.rounds(SWITCHING) >= 1, 300)

    def switched() -> dict[str, Any] | None:
        report: dict[str, Any] = runtime(kubectl.job(SWITCHING))["lastRound"].get("layoutSwitches", {})
        return report if report.get("made") and report.get("kvBytes") else None

    report = kubectl.wait("a round switches and moves KV", switched, 120)
    assert (report["state"], report["failed"]) == ("Switched", 0)
    assert all(one["reachedSize"] == one["toSize"] != one["fromSize"] for one in report["switches"])
    assert any(one["state"] == "Migrate" and one["kvBytes"] and one["responses"] for one in report["switches"])
    kubectl.wait("the event", lambda: "LayoutSwitched" in _reasons(kubectl, SWITCHING), 120)
    found = {(one.name, one.labels.get("outcome")): one.value for one in kubectl.metrics(SWITCHING)}
    assert found["rljob_coordinator_layout_switches_total", "reached"] >= report["made"]
    assert found["rljob_coordinator_layout_switch_kv_bytes_total", None] >= report["kvBytes"]
    story = kubectl("describe", "rljob", SWITCHING)
    assert "Layout Switches:" in story

    rounds = json.dumps({"spec": {"rounds": kubectl.rounds(SWITCHING) + 1}})
    kubectl("patch", "rljob", SWITCHING, "--type=merge", "-p", rounds)
    kubectl.wait("it completes", lambda: is_true(kubectl.job(SWITCHING), "Complete"))
    verdict = check_volume(real_nodes.volumes / kubectl.get("pvc", SWITCHING)["spec"]["volumeName"])
    assert (verdict["lost"], verdict["duplicated"], verdict["findings"]) == (0, 0, [])


def _two_rounds_of_the_demo() -> list[dict[str, Any]]:
    text = (EXAMPLES / "addition-smollm2.yaml").read_text(encoding="utf-8")
    documents = [document for document in yaml.safe_load_all(text) if document]
    spec = next(document["spec"] for document in documents if document["kind"] == "RLJob")
    spec["rounds"] = 2
    spec["algorithm"] |= {"promptsPerRound": 2, "responsesPerPrompt": 4}
    spec["evaluation"][0]["maxPrompts"] = 4
    spec["rollout"] |= {"machines": 1, "engineOptions": {"maxConcurrentRequests": 8, "kvCacheBytes": "64Mi"}}
    # The trainer's pod stays, so that one can look at the model.
    spec["runPolicy"] |= {"cleanPodPolicy": "None"}
    return documents
