"""Bad environments, their runners and their tools."""

from __future__ import annotations

from typing import Any

from rljob_api.errors import ABSENT
from tests.support.api.invalid_specs.case import Case
from tests.support.api.jobs import REMOVE

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
    Case(
        {"spec.environments": [{**_AGENT, "toolSeconds": 60}]},
        "spec.environments[0].toolSeconds",
        "is for kind Tools only",
        value=60.0,
    ),
    _environments("[0].toolSeconds", "must be more than 0", 0, {"toolSeconds": 0}),
    _environments("[0].rewardSeconds", "must be at most 3600", 3601, {"rewardSeconds": 3601}),
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
        value={"maxTurns": 4},
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
