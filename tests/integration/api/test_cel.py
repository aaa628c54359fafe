"""A server refuses by schema and CEL rules what the Python validation refuses, as far as a server can see it."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import InvalidSpec, load
from rljob_api.admission.immutability import NEVER, WHILE_SUSPENDED, validate_update
from tests.support.api.invalid_specs import CALC, CASES, ECHO, UNKNOWN, VERIFIED, Case
from tests.support.api.jobs import REMOVE, job
from tests.support.api.kubectl import Kube

pytestmark = pytest.mark.cluster


def python_refuses(document: dict[str, Any]) -> bool:
    try:
        load(document)
    except InvalidSpec:
        return True
    return False


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_server_refuses_what_it_can_see(server: Kube, case: Case) -> None:
    refused = server.refusals(job(case.edits))
    assert bool(refused) is case.server, refused


@pytest.mark.parametrize("case", UNKNOWN, ids=lambda case: case.id)
def test_kubectl_has_unknown_fields_refused(server: Kube, case: Case) -> None:
    (refused,) = server.refusals(job(case.edits), strict=True)
    assert f'unknown field "{case.path}"' in refused


SWE: dict[str, Any] = {"name": "swe", "kind": "Agent", "command": ["python", "agent.py"]}
SOLVER: dict[str, Any] = {"name": "solver", "kind": "Agent", "function": "agent.py:solve"}

GOOD: list[dict[str, Any]] = [
    {},
    {"metadata.name": "a"},
    {"metadata.name": "a" * 43},
    {"spec.rollout.minMachines": 1, "spec.rollout.maxMachines": 8},
    {
        "spec.data.prompts": REMOVE,
        "spec.data.sources": [
            {"name": "sums", "weight": 0.5, "prompts": {"reasoningGym": {"task": "a"}}},
            {"name": "words", "weight": 3, "prompts": {"file": {"path": "/a"}}, "rewards": ["math"]},
        ],
        "spec.rewards": [{"name": "right", "kind": "ReasoningGym"}, {"name": "math", "kind": "Math"}],
    },
    {"spec.rollout.acceleratorsPerMachine": 8, "spec.rollout.tensorParallelSize": 4},
    {"spec.rollout.slotsPerMachine": 2, "spec.rollout.tensorParallelSize": 2},
    {
        "spec.rollout.acceleratorsPerMachine": 8,
        "spec.rollout.tensorParallelSize": 4,
        "spec.rollout.allowedTensorParallelSizes": [4],
    },
    {
        "spec.rollout.acceleratorsPerMachine": 8,
        "spec.rollout.tensorParallelSize": 4,
        "spec.rollout.allowedTensorParallelSizes": [8, 2, 4],
    },
    *(
        {
            "spec.rollout.acceleratorsPerMachine": 8,
            "spec.rollout.allowedTensorParallelSizes": [1, 2, 4],
            "spec.adaptiveTensorParallel": adaptive,
        }
        for adaptive in (
            {"enabled": True},
            {"enabled": "Auto", "sizes": [4, 2], "state": "Migrate"},
            {"enabled": False, "sizes": [1, 4], "minGain": 0, "maxSwitches": 64},
        )
    ),
    {"spec.adaptiveTensorParallel": {"enabled": "Auto", "state": "Recompute"}},
    {"spec.rollout.machines": 1024, "spec.rollout.acceleratorsPerMachine": 16},
    {"spec.algorithm.promptsPerRound": 1, "spec.algorithm.minibatches": 1},
    {"spec.algorithm.learningRate": 1, "spec.algorithm.clipHigh": 0, "spec.algorithm.betas": [0, 0]},
    {"spec.data.prompts": {"file": {"path": "pvc://claim/a.jsonl"}}, "spec.rewards": [{"name": "m", "kind": "Math"}]},
    {"spec.data.prompts": {"dataset": {"path": "/d"}}, "spec.rewards": [{"name": "m", "kind": "Math", "weight": -1}]},
    {"spec.rewards[1]": {"name": "own", "kind": "Python", "function": "my.rewards:length", "weight": 0}},
    {"spec.rewards[0].timeout": {"minSeconds": 3, "maxSeconds": 3}},
    {"spec.rewards[1]": {"name": "c", "kind": "Code"}},
    {"spec.rewards[1]": {"name": "c", "kind": "Code", "code": {"score": "ShareOfTests", "memoryBytes": "512Mi"}}},
    {
        "spec.rewards[1]": {
            "name": "j",
            "kind": "Judge",
            "judge": {"url": "https://judge:8000/v1", "model": "org/judge"},
        }
    },
    {
        "spec.rewards[1]": {
            "name": "j",
            "kind": "Judge",
            "judge": {
                "url": "http://j",
                "model": "m",
                "apiKeyVariable": "KEY",
                "prompt": "Rate {response}",
                "scale": 1,
            },
        }
    },
    {"spec.environments": [CALC], "spec.streamTraining.enabled": "Auto", "spec.adaptiveTensorParallel.enabled": "Auto"},
    {
        "spec.environments": [
            {
                **CALC,
                "tools": [{"mcp": {"url": "http://tools:8000/mcp"}}, {"function": "pkg.tools:add"}],
                "toolSeconds": 3600,
                "rewardSeconds": 0.5,
            },
            {"name": "swe", "kind": "Agent", "command": ["sh", "-c", "true"], "runners": 64, "timeoutSeconds": 0.5},
            {
                **SWE,
                "name": "out",
                "egress": {
                    "cidrs": [{"cidr": "10.20.0.0/16", "ports": [443]}, {"cidr": "2001:db8::/32"}],
                    "hosts": ["pypi.org", "*.example.com", "example.com:8443"],
                },
            },
        ],
        "spec.episode": {"maxTurns": 4, "maxTokens": 2048, "maxForks": 0, "versions": "Mixed"},
    },
    {
        "spec.environments": [
            {
                **CALC,
                "template": {
                    "spec": {"containers": [{"name": "main", "image": "own:1"}, {"name": "search", "image": "s:1"}]}
                },
            },
            {**SWE, "template": {"metadata": {"labels": {"team": "a"}}, "spec": {"runtimeClassName": "gvisor"}}},
        ],
    },
    {"spec.environments": [{**CALC, "reward": "/envs/calculator.py:score"}], "spec.rewards": REMOVE},
    {
        "spec.environments": [
            {"name": "swe", "kind": "Agent", "command": ["agent"], "reset": "GitRestore", "checkout": "/app/repo"},
            SOLVER,
        ],
        "spec.rewards": REMOVE,
        "spec.episode": {},
        "spec.evaluation": [{"name": "a", "prompts": {"file": {"path": "/p"}}}],
    },
    {"spec.environments": [ECHO, VERIFIED, {**CALC, "reward": "calculator.py:score"}], "spec.rewards": REMOVE},
    {"spec.environments": [SWE], "spec.rewards[1]": {"name": "solved", "kind": "Environment", "weight": 0.8}},
    {
        "spec.environments": [CALC, SWE],
        "spec.data.prompts": REMOVE,
        "spec.data.sources": [{"name": "sums", "weight": 1, "prompts": {"file": {"path": "/a"}}, "rewards": ["math"]}],
        "spec.rewards": [{"name": "math", "kind": "Math"}, {"name": "solved", "kind": "Environment"}],
    },
    {"spec.checkpoint": {"volumeClaimName": "claim", "everyRounds": 1}},
    {"spec.checkpoint": {"emptyDir": {"sizeLimit": "20Gi"}}},
    {"spec.relay": {"chunkBytes": "64Ki", "heartbeatSeconds": 5}},
    {"spec.relay.chunkBytes": "1048576"},
    {"spec.failurePolicy.nodeFailure": {"graceSeconds": 5, "forceDelete": "Always", "avoidFailedNodesSeconds": 0}},
    {"spec.runPolicy": {"startupDeadlineSeconds": 60, "activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 0}},
    {
        "spec.tailBatching": {"enabled": False, "promptFactor": 1},
        "spec.mode": "OnPolicy",
        "spec.scheduling.gang": "None",
    },
    {
        "spec.tailBatching": {"enabled": True, "promptFactor": 4, "responseFactor": 1},
        "spec.algorithm.dynamicSampling": {"enabled": True, "maxPromptFactor": 3},
        "spec.streamTraining.enabled": True,
    },
    {
        "spec.tailBatching": {"enabled": "Auto", "promptFactor": "Auto", "responseFactor": 1},
        "spec.streamTraining.enabled": "Auto",
        "spec.algorithm.minibatches": 2,
    },
    {"spec.tailBatching": {"enabled": True, "promptFactor": "Auto", "responseFactor": "Auto"}},
    {"spec.model.source": "hf://org/name@main", "spec.suspend": True, "spec.managedBy": "kueue.x-k8s.io/multikueue"},
    {"spec.rollout.template.spec.containers": [{"name": "main", "image": "r:1"}, {"name": "proxy", "image": "p:1"}]},
    {"spec.trainer.template.spec": {"restartPolicy": "Never", "hostNetwork": False, "futureField": {"a": 1}}},
    {
        "spec.rewards[1]": {"name": "c", "kind": "Code", "code": {"parallelism": 2, "memoryBytes": "256Mi"}},
        "spec.coordinator.template.spec.containers": [
            {"name": "rewards", "resources": {"limits": {"memory": "1Gi"}}, "env": [{"name": "A", "value": "b"}]}
        ],
    },
    {
        "spec.environments": [CALC],
        "spec.coordinator.template.spec.containers": [{"name": "gateway", "resources": {"limits": {"cpu": "2"}}}],
    },
    {"spec.trainer.template.spec.containers": [{"name": "rewards", "image": "a sidecar like any other:1"}]},
    *(
        {"spec.rollout.acceleratorsPerMachine": 2, "spec.accelerator": accelerator}
        for accelerator in (
            {"resource": "amd.com/gpu"},
            {"deviceClass": "gpu.nvidia.com"},
            {"claimTemplate": "two-of-a-kind"},
            {"kind": "None"},
        )
    ),
    {
        "spec.trainer": {"acceleratorsPerReplica": 8, "accelerator": {"claimTemplate": "linked"}},
        "spec.rollout": {"machines": 2, "acceleratorsPerMachine": 1, "accelerator": {"resource": "google.com/tpu"}},
    },
    {
        "spec.rollout.acceleratorsPerMachine": 2,
        "spec.accelerator": {"resource": "amd.com/gpu"},
        "spec.scheduling.acceleratorResource": "amd.com/gpu",
    },
    {  # as it is stored by a server that filled the old field in
        "spec.rollout.acceleratorsPerMachine": 2,
        "spec.accelerator": {"deviceClass": "gpu.nvidia.com"},
        "spec.scheduling.acceleratorResource": "nvidia.com/gpu",
    },
]


@pytest.mark.parametrize("edits", GOOD, ids=str)
def test_both_accept_good_jobs(server: Kube, edits: dict[str, Any]) -> None:
    document = job(edits)
    load(document)
    assert server.refusals(document, strict=True) == []


def maybe(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([REMOVE, *values])


# Values on both sides of every bound that more than one field draws. REMOVE leaves the field out.
EDITS = st.fixed_dictionaries(
    {
        "spec.rounds": st.sampled_from([1, 2, 24]),
        "spec.rollout.machines": st.sampled_from([1, 2, 3, 1024]),
        "spec.rollout.minMachines": maybe(1, 2, 4),
        "spec.rollout.maxMachines": maybe(1, 2, 4, 1024),
        "spec.rollout.acceleratorsPerMachine": maybe(0, 1, 2, 6, 8, 17),
        "spec.rollout.slotsPerMachine": maybe(1, 2, 6),
        "spec.rollout.tensorParallelSize": maybe(1, 2, 3, 4),
        "spec.rollout.allowedTensorParallelSizes": maybe([1], [1, 2], [4, 2], [2, 2], [3, 1], [2, 3, 6]),
        "spec.adaptiveTensorParallel.sizes": maybe([1], [1, 2], [2, 4], [2, 2], [1, 2, 3]),
        "spec.algorithm.promptsPerRound": maybe(1, 6, 65536),
        "spec.algorithm.responsesPerPrompt": maybe(2, 16, 17),
        "spec.algorithm.minibatches": maybe(1, 2, 4),
        "spec.algorithm.warmupRounds": maybe(0, 2, 3),
        "spec.algorithm.maxTokensPerMicrobatch": maybe(2047, 2048, 1 << 20, 1 << 24),
        "spec.data.maxPromptTokens": maybe(1, 1 << 20),
        "spec.data.maxResponseTokens": maybe(8, 1 << 20),
        "spec.data.systemPrompt": maybe("Think."),
        "spec.data.chatTemplate": maybe(True, False),
        "spec.data.heldOut": maybe({"fraction": 0.1}),
        "spec.evaluation": maybe(
            [],
            [{"name": "a", "prompts": {}}],
            [{"name": "a", "prompts": {"heldOut": True}}],
            [{"name": "a", "prompts": {"heldOut": True, "source": "sums"}}],
            [{"name": "a", "prompts": {"file": {"path": "/p"}, "source": "sums"}}],
            [{"name": "a", "prompts": {"heldOut": True, "file": {"path": "/p"}}}],
            [{"name": "a", "prompts": {"file": {"path": "/p"}, "dataset": {"path": "/p"}}}],
            [{"name": "a", "prompts": {"file": {"path": "/p"}}, "maxPrompts": 65536, "responsesPerPrompt": 2}],
            [{"name": "a", "prompts": {"file": {"path": "/p"}}, "sampling": {"maxResponseTokens": 64}}],
        ),
        "spec.rewards[0].weight": maybe(0, 0.5),
        "spec.rewards[0].kind": st.sampled_from(["ReasoningGym", "Math", "Python", "Code", "Judge"]),
        "spec.rewards[0].code": maybe({}),
        "spec.rewards[0].judge": maybe(
            {"url": "http://j", "model": "m"}, {"url": "http://j", "model": "m", "prompt": "?"}
        ),
        "spec.rewards[0].function": maybe("m:f"),
        "spec.rewards[1]": maybe({"name": "solved", "kind": "Environment"}),
        "spec.rewards[0].timeout.minSeconds": maybe(30, 31),
        "spec.data.prompts.file": maybe({"path": "/p"}),
        "spec.checkpoint.volumeClaimName": maybe("claim"),
        "spec.checkpoint.emptyDir": maybe({}),
        "spec.checkpoint.keepBest": maybe({"evaluation": "a"}, {"evaluation": "b", "metric": "PassAtK"}),
        "spec.relay.heartbeatSeconds": maybe(5, 6),
        "spec.repack.enabled": maybe(False, True),
        "spec.environments": maybe(
            [],
            [CALC],
            [{**CALC, "reward": "calculator.py:score"}],
            [{**CALC, "kind": "Agent"}],
            [ECHO],
            [{**ECHO, "openEnv": {}}],
            [{**VERIFIED, "verifiers": {"id": "sums"}}],
            [{**VERIFIED, "verifiers": {}}],
            [{**CALC, "openEnv": ECHO["openEnv"]}],
            [{"name": "swe", "kind": "Agent", "command": ["agent"]}, {**CALC, "command": ["agent"]}],
            [SOLVER],
            [{**SOLVER, "reset": "GitRestore"}],
            [{**SOLVER, "reset": "Process", "checkout": "repo"}],
            [{**SOLVER, "reset": "Pod"}],
            [{**SOLVER, "reset": "Pod", "episodesPerRunner": 1}],
            [{**CALC, "reset": "Process"}],
            [{**SOLVER, "command": ["agent"]}],
            [{**CALC, "function": "agent.py:solve", "command": ["agent"]}],
            [{**CALC, "tools": [{"function": "m:f", "mcp": {"url": "http://tools"}}]}],
        ),
        "spec.episode": maybe({}, {"maxTokens": 2048}, {"maxTokens": 2049}),
        "spec.streamTraining.enabled": maybe(False, "Auto"),
        "spec.failurePolicy.nodeFailure.graceSeconds": maybe(0, 16, 3601),
        "spec.accelerator": maybe({"resource": "amd.com/gpu"}, {"deviceClass": "gpu.amd.com"}, {"kind": "None"}),
        "spec.trainer.acceleratorsPerReplica": maybe(0, 1),
        "spec.trainer.accelerator": maybe({"claimTemplate": "two"}, {"kind": "None", "claimTemplate": "two"}, {}),
        "spec.scheduling.acceleratorResource": maybe("nvidia.com/gpu", "amd.com/gpu"),
    }
)


@settings(max_examples=150)
@given(EDITS, st.integers(0, 2**32))
def test_both_agree_on_random_jobs(server: Kube, edits: dict[str, Any], keep: int) -> None:
    """A few of the edits at a time, so that about half of the jobs are good."""
    chosen = [item for index, item in enumerate(edits.items()) if keep >> index & 1 and keep >> (index + 7) & 1]
    document = job({path: value for path, value in chosen if value is not REMOVE})
    refused = server.refusals(document)
    assert python_refuses(document) is bool(refused), refused


SUMS: dict[str, Any] = {"name": "sums", "weight": 1, "prompts": {"reasoningGym": {"task": "a"}}}
WORDS: dict[str, Any] = {"name": "words", "weight": 1, "prompts": {"file": {"path": "/a"}}}
OF_SOURCES: dict[str, Any] = {
    "spec.data.prompts": REMOVE,
    "spec.rewards": [{"name": "right", "kind": "Math"}, {"name": "short", "kind": "Math"}],
    "spec.algorithm.promptsPerRound": 8,
}


def _without_weight(source: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in source.items() if name != "weight"}


CHANGES: dict[str, tuple[Any, Any]] = {
    "managedBy": ("rljob.dev/operator", "kueue.x-k8s.io/multikueue"),
    "mode": ("OnPolicy", "Asynchronous"),
    "model": ({"source": "/a"}, {"source": "/b"}),
    "data.prompts": ({"reasoningGym": {"task": "a"}}, {"reasoningGym": {"task": "b"}}),
    "data.sources[].name": ([SUMS, WORDS], [SUMS, {**WORDS, "name": "other"}]),
    "data.sources[].prompts": ([SUMS, WORDS], [SUMS, {**WORDS, "prompts": {"file": {"path": "/b"}}}]),
    "data.sources[].weight": ([SUMS, WORDS], [SUMS, {**WORDS, "weight": 2}]),
    "data.sources[].promptsPerRound": (
        [{**_without_weight(one), "promptsPerRound": 4} for one in (SUMS, WORDS)],
        [{**_without_weight(one), "promptsPerRound": count} for one, count in ((SUMS, 3), (WORDS, 5))],
    ),
    "data.sources[].rewards": ([SUMS, WORDS], [SUMS, {**WORDS, "rewards": ["right"]}]),
    "data.seed": (1, 2),
    "environments[].name": ([CALC], [{**CALC, "name": "other"}]),
    "environments[].kind": ([CALC], [{**SWE, "name": "calc"}]),
    "environments[].tools": ([CALC], [{**CALC, "tools": [{"function": "calculator.py:other"}]}]),
    "environments[].command": ([SWE], [{**SWE, "command": ["python", "other.py"]}]),
    "environments[].function": ([SOLVER], [{**SOLVER, "function": "agent.py:other"}]),
    "environments[].openEnv": ([ECHO], [{**ECHO, "openEnv": {"url": "http://other:8000"}}]),
    "environments[].verifiers": ([VERIFIED], [{**VERIFIED, "verifiers": {"id": "sums"}}]),
    "environments[].reward": ([CALC], [{**CALC, "reward": "calculator.py:score"}]),
    "environments[].state": ([CALC], [{**CALC, "state": "Stateless"}]),
    "environments[].reset": ([SWE], [{**SWE, "reset": "GitRestore"}]),
    "environments[].checkout": (
        [{**SWE, "reset": "GitRestore"}],
        [{**SWE, "reset": "GitRestore", "checkout": "repo"}],
    ),
    "environments[].maxTurns": ([CALC], [{**CALC, "maxTurns": 4}]),
    "environments[].timeoutSeconds": ([CALC], [{**CALC, "timeoutSeconds": 60}]),
    "environments[].toolSeconds": ([CALC], [{**CALC, "toolSeconds": 60}]),
    "environments[].rewardSeconds": ([CALC], [{**CALC, "rewardSeconds": 600}]),
    "environments[].runners": ([CALC, SWE], [CALC, {**SWE, "runners": 2}]),
    "environments[].minRunners": ([CALC, {**SWE, "runners": 2}], [CALC, {**SWE, "runners": 2, "minRunners": 1}]),
    "environments[].maxRunners": ([CALC, SWE], [CALC, {**SWE, "maxRunners": 4}]),
    "environments[].episodesPerRunner": ([CALC], [{**CALC, "episodesPerRunner": 64}]),
    "episode.maxTurns": (REMOVE, 5),
    "episode.maxTokens": (512, 513),
    "episode.maxForks": (0, REMOVE),
    "checkpoint.volumeClaimName": (REMOVE, "claim"),
    "checkpoint.emptyDir": ({}, REMOVE),
    "data.systemPrompt": ("Think.", REMOVE),
    "data.chatTemplate": (True, False),
    "data.chatTemplateFile": ("/a.jinja", "/b.jinja"),
    "data.chatTemplateArguments": (REMOVE, {"enable_thinking": False}),
    "data.chatTemplateRenderer": (REMOVE, "qwen3"),
    "data.onInvalidRecord": ("Fail", "Skip"),
    "data.maxPromptTokens": (64, 65),
    "data.maxResponseTokens": (64, 65),
    "data.stopStrings": (["a"], ["a", "b"]),
    "rewards": ([{"name": "a", "kind": "Math"}], [{"name": "a", "kind": "Math", "weight": 2}]),
    "algorithm": ({"clipLow": 0.1}, {"clipLow": 0.2}),
    "tailBatching": ({}, {"enabled": True}),
    "streamTraining": ({}, {"enabled": True}),
    "experience": ({}, {"sampler": "Uniform"}),
    "repack": ({}, {"enabled": False}),
    "adaptiveTensorParallel": ({}, {"maxSwitches": 1}),
    "accelerator": ({"resource": "amd.com/gpu"}, {"deviceClass": "gpu.amd.com"}),
    "trainer": ({"template": {"spec": {"nodeSelector": {"a": "b"}}}}, {"template": {"spec": {}}}),
    "coordinator": ({"template": {"metadata": {"labels": {"a": "b"}}}}, {}),
    "observers": ([{"name": "a"}], [{"name": "b"}]),
    "evaluation": (
        [{"name": "a", "prompts": {"reasoningGym": {"task": "a"}}}],
        [{"name": "a", "prompts": {"reasoningGym": {"task": "b"}}}],
    ),
    "data.heldOut": ({"fraction": 0.1}, {"fraction": 0.2}),
    "checkpoint.keepBest": ({"evaluation": "a"}, {"evaluation": "a", "metric": "PassAtK"}),
    "relay": ({"chunkBytes": "1Mi"}, {"chunkBytes": "2Mi"}),
    "scheduling": ({}, {"schedulerName": "volcano"}),
    "rollout.acceleratorsPerMachine": (1, 2),
    "rollout.accelerator": (REMOVE, {"claimTemplate": "two"}),
    "rollout.slotsPerMachine": (1, 2),
    "rollout.tensorParallelSize": (1, 2),
    "rollout.allowedTensorParallelSizes": (REMOVE, [1, 2]),
    "rollout.engine": ("VLLM", "Reference"),
    "rollout.engineOptions": ({}, {"maxConcurrentRequests": 8}),
}
CHANGE_WITH = {"environments[].kind": ("environments[].tools", "environments[].command")}
"""Fields that differ whenever another one does."""
BASE = {
    "spec.rollout.acceleratorsPerMachine": 2,
    "spec.evaluation": [{"name": "a", "prompts": {"reasoningGym": {"task": "a"}}}],
}


def pair(path: str, old_suspended: bool, new_suspended: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    before, after = CHANGES[path]
    documents = []
    for value, suspended in ((before, old_suspended), (after, new_suspended)):
        edits = {**({} if path == "rollout.slotsPerMachine" else BASE), "spec.suspend": suspended}
        edits.pop(f"spec.{path}", None)
        field, _, _ = path.partition("[]")  # of the entries of a list, the whole list is given
        edits |= OF_SOURCES if field == "data.sources" else {}
        edits |= {"spec.environments": [CALC]} if field.startswith(("episode", "data.chatTemplateRenderer")) else {}
        documents.append(job({**edits, **({} if value is REMOVE else {f"spec.{field}": value})}))
    return documents[0], documents[1]


def test_every_field_that_may_not_change_has_a_case() -> None:
    assert set(CHANGES) == {*NEVER, *WHILE_SUSPENDED}


@pytest.mark.parametrize("suspended", list(itertools.product([False, True], repeat=2)), ids=str)
@pytest.mark.parametrize("path", list(CHANGES))
def test_changes_are_refused_alike(server: Kube, path: str, suspended: tuple[bool, bool]) -> None:
    old, new = pair(path, *suspended)
    refused = path in NEVER or not any(suspended)
    told = server.refused_change(old, new)
    assert bool(told) is refused, told
    if refused:
        with pytest.raises(InvalidSpec) as caught:
            validate_update(load(old), load(new))
        paths = (path, *CHANGE_WITH.get(path, ()))
        below = tuple(f"spec.{one}" for one in paths)
        assert all(re.sub(r"\[\d+\]", "[]", error.path).startswith(below) for error in caught.value.errors)
        assert len(told) == len(paths)
        text = "is immutable" if path in NEVER else "can change only while the job is suspended"
        assert all(any(f"{one} {text}" in each for each in told) for one in paths)
    else:
        validate_update(load(old), load(new))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"spec.rollout.machines": 5},
        {"spec.rollout.maxMachines": 5},
        {"spec.rounds": 100},
        {"spec.suspend": True},
        {"spec.rollout.template.spec.nodeSelector": {"a": "b"}},
        {"spec.runPolicy.ttlSecondsAfterFinished": 5},
        {"spec.failurePolicy.maxReplacementsPerMachine": 5},
        {"spec.checkpoint.keep": 7},
    ],
    ids=str,
)
def test_the_rest_may_change_while_the_job_runs(server: Kube, change: dict[str, Any]) -> None:
    old, new = job(), job(change)
    assert server.refused_change(old, new) == []
    validate_update(load(old), load(new))


@pytest.mark.parametrize("versions", list(itertools.permutations([REMOVE, "Single", "Mixed"], 2)), ids=str)
def test_the_weights_of_episodes_may_change_while_the_job_runs(server: Kube, versions: tuple[Any, Any]) -> None:
    """An apply of an unchanged manifest gives up the default of an earlier release."""
    episodes = [{"maxTurns": 4, **({} if one is REMOVE else {"versions": one})} for one in versions]
    old, new = (job({"spec.environments": [CALC], "spec.episode": one}) for one in episodes)
    assert server.refused_change(old, new) == []
    validate_update(load(old), load(new))


def test_the_template_of_runners_may_change_while_the_job_runs(server: Kube) -> None:
    image = {"spec": {"containers": [{"name": "main", "image": "own:2"}]}}
    old, new = (job({"spec.environments": [CALC, one]}) for one in (SWE, {**SWE, "template": image}))
    assert server.refused_change(old, new) == []
    validate_update(load(old), load(new))
