"""Environments: programs in which a response takes several turns, and the limits of such an episode."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from rljob_api.fields import CodePath, DnsLabel, FolderPath, FreeForm, HttpUrl, Model, TasksetId
from rljob_api.spec.egress import Egress
from rljob_api.spec.template import PodTemplate

REPORT_SECONDS = 10.0
"""Time of a report beyond that of the scoring: the conversation is read before, and the way there takes time."""
NOT_OF_RUNNERS = ("template", "egress", "state", "minRunners", "maxRunners")
"""Fields of an environment that its runners are not told."""

Argument = Annotated[str, Field(max_length=1024)]


class EnvironmentKind(StrEnum):
    """A kind of environment, by the program that requests the next turn from the model."""

    TOOLS = "Tools"
    AGENT = "Agent"
    OPEN_ENV = "OpenEnv"
    VERIFIERS = "Verifiers"


class EnvironmentState(StrEnum):
    """The state that tools keep between the calls of an episode."""

    STATELESS = "Stateless"
    STATEFUL = "Stateful"


class EpisodeReset(StrEnum):
    """State that each episode of an agent has of its own."""

    PROCESS = "Process"
    GIT_RESTORE = "GitRestore"
    POD = "Pod"


class McpServer(Model):
    """A server of the Model Context Protocol."""

    url: HttpUrl
    """Its address for streamable HTTP, e.g. http://search:8000/mcp."""


class Tool(Model):
    """Tools that the model may call: exactly one of the fields."""

    function: CodePath | None = None
    """A Python function: path.py:name, from the manifest's folder, or module:name. Signature and docstring are its
    schema."""
    mcp: McpServer | None = None
    """An MCP server: all of its tools."""


class OpenEnvServer(Model):
    """An environment server of the OpenEnv project. Each episode has a session of its own with it."""

    url: HttpUrl
    """Its address, e.g. http://wordle:8000."""


class VerifiersEnvironment(Model):
    """An environment of the `verifiers` package. The package and the taskset are installed where its runners run."""

    id: TasksetId
    """The taskset, e.g. gsm8k. A record's field `task` is the place of its task there, from 0."""
    args: FreeForm = Field(default_factory=dict)
    """Settings of the environment, as under `env` in the package's own files: {taskset: {…}, agent: {…}}."""


class Environment(Model):
    """A program in which a response takes several turns. Its runners are pods, or local processes of `rljob run`."""

    name: DnsLabel
    """Name in records and metrics; unique in the list."""
    kind: EnvironmentKind
    """Tools: turns follow until the model calls no tool. Agent: `command` or `function` asks for turns by an
    OpenAI-compatible API. OpenEnv: each answer is an action of an environment behind a server. Verifiers: an
    environment of the `verifiers` package asks for turns."""
    tools: Annotated[tuple[Tool, ...] | None, Field(min_length=1, max_length=32)] = None
    """For Tools: what the model may call."""
    state: EnvironmentState | None = None
    """For Tools: whether an answer depends on the calls before it. If a runner is lost, another one continues its
    episodes. Stateless: they continue at the next turn, and no call is executed again. Stateful, also if absent: the
    calls so far are executed again. The episode begins again if an answer differs."""
    command: Annotated[tuple[Argument, ...] | None, Field(min_length=1, max_length=64)] = None
    """For Agent, unless `function` is set: the program and its arguments. OPENAI_BASE_URL and OPENAI_API_KEY are set.
    RLJOB_TASK names a file with the task as JSON, and RLJOB_RESULT the file for its result, e.g. {reward: 1}."""
    function: CodePath | None = None
    """For Agent, in place of `command`: a Python function, path.py:name, from the manifest's folder, or module:name.
    Called with the task, in a process of its own that has the variables of a command. Returns a reward, an object with
    `reward` and metrics, or None."""
    reset: EpisodeReset | None = None
    """For Agent: what each episode has of its own. Process, also if absent: its process and a HOME; all begin in the
    same folder. GitRestore: also a working copy of a git checkout, in which it begins. The copy has the commit that was
    checked out when the runner started, without files that git does not track, and is removed after the episode. Pod:
    also its pod, which is replaced after the episode; needs episodesPerRunner 1. `rljob run` does as with Process."""
    checkout: FolderPath | None = None
    """For reset GitRestore: a folder of the checkout, from the manifest's folder. Absent: that folder."""
    open_env: OpenEnvServer | None = None
    """For OpenEnv: the server. The record's field `reset` holds the arguments of a reset; its seed follows from the
    record unless `reset` has one."""
    verifiers: VerifiersEnvironment | None = None
    """For Verifiers: the environment."""
    reward: CodePath | None = None
    """A Python function that scores an episode: path.py:name, from the manifest's folder, or module:name. Called with
    (record, messages, answer). For Agent, messages are the conversation up to the model's newest answer, and the
    function works in the folders of the program. Absent: spec.rewards score the last answer. A reward of the agent or
    of the environment itself counts before both, unless spec.rewards has a rule of kind Environment."""
    max_turns: int = Field(default=16, ge=1, le=1024)
    """Most turns of an episode. The model's answer to the last one ends it."""
    timeout_seconds: float = Field(default=300.0, gt=0, le=86_400)
    """Longest episode, in seconds. No turn begins after it."""
    tool_seconds: Annotated[float | None, Field(gt=0, le=3600)] = None
    """For Tools: longest call of a tool, in seconds. The model sees an error in place of a later answer. With `state:
    Stateless` each other answer of a server renews it, up to four times. Absent: 30."""
    reward_seconds: float = Field(default=20.0, gt=0, le=3600)
    """Longest call of `reward`, in seconds, and for Verifiers the longest scoring by the environment. They may end
    after `timeoutSeconds`. One that takes longer is a failure of the environment: the episode begins again."""
    runners: int = Field(default=1, ge=1, le=64)
    """Pods that run the environment, or processes of `rljob run`."""
    min_runners: Annotated[int | None, Field(ge=1, le=64)] = None
    """Fewest pods. Absent: `runners`. Where it is below maxRunners, the operator chooses between the two by the
    episodes of training that were open at a time, starting with `runners`. Evaluations use the same pods and add none.
    `rljob run` has always `runners`."""
    max_runners: Annotated[int | None, Field(ge=1, le=64)] = None
    """Most pods. Absent: `runners`. A queue is asked for quota for all of them."""
    episodes_per_runner: int = Field(default=8, ge=1, le=1024)
    """Episodes that a runner runs concurrently."""
    egress: Egress | None = None
    """What runners may call besides the job's gateway and the servers in `tools` and `openEnv`. `rljob run` limits
    nothing."""
    template: PodTemplate = PodTemplate()
    """Changes to the runners' pods, in which `main` is the runner. Relative paths begin in the folder /code: mount a
    ConfigMap or a volume there."""

    @property
    def fewest_runners(self) -> int:
        """Return the least number of runners that the operator may choose."""
        return self.runners if self.min_runners is None else self.min_runners

    @property
    def most_runners(self) -> int:
        """Return the greatest number of runners that the operator may choose."""
        return self.runners if self.max_runners is None else self.max_runners

    @property
    def gives_reward(self) -> bool:
        """Tell whether its episodes may have a reward without spec.rewards. Only Tools has none of its own."""
        return self.reward is not None or self.kind is not EnvironmentKind.TOOLS

    @property
    def overtime_seconds(self) -> float:
        """Return the seconds after an episode's deadline in which its runner scores and reports it."""
        twice = self.kind is EnvironmentKind.VERIFIERS and self.reward is not None
        return self.reward_seconds * (2 if twice else 1) + REPORT_SECONDS

    def runner_options(self) -> dict[str, Any]:
        """Return the environment's settings for its runners, as JSON values.

        `template`, `egress` and the bounds of `runners` are left out, because they concern the pods. `state` is left
        out, because each episode says it.
        """
        return {name: value for name, value in self.to_dict().items() if name not in NOT_OF_RUNNERS}


class EpisodeVersions(StrEnum):
    """Weights that may generate the turns of one episode. One version always generates a turn."""

    SINGLE = "Single"
    MIXED = "Mixed"


class EpisodeLimits(Model):
    """Limits of every episode, and its weights. One that reaches a limit is truncated and keeps its reward."""

    max_turns: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Most turns, where an environment has no lower maxTurns."""
    max_tokens: Annotated[int | None, Field(ge=2, le=1_048_576)] = None
    """Most tokens: prompt, answers and everything that tools return. Absent: data.maxPromptTokens +
    data.maxResponseTokens, which is also the most."""
    max_forks: Annotated[int | None, Field(ge=0, le=1024)] = None
    """Most branches besides the first: a request whose history differs from the former turns opens one. Absent: no
    limit."""
    versions: EpisodeVersions | None = None
    """Asynchronous: the weights of an episode's turns. Mixed, also if absent: each turn has the newest that its replica
    holds. Single: all turns have those of its draw, and a replica loads newer ones after its last episode. The loss of
    the last replica with such weights costs their episodes. Staleness counts from the draw. Evaluations are Single, and
    so is a round of mode OnPolicy. A change takes effect when the coordinator starts next."""
