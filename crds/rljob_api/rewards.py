"""How responses are scored."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.fields import Bytes, DnsLabel, FieldName, FreeForm, FunctionPath, HttpUrl, Model, VariableName

OUR_PACKAGE = "rljob_runtime."
OLD_BUILTIN, BUILTIN = "rljob_runtime.rewards.scorers:", "rljob_runtime.rewards.builtin:"
"""The module of the reward functions that the runtime ships: its former path, which is refused, and its path."""
DEFAULT_PARALLELISM = 2
"""Of functions."""
FUNCTION_KINDS = ("Math", "ReasoningGym", "Python")
"""Kinds that are computed by functions, in worker processes."""


class RewardKind(StrEnum):
    """How a response is scored."""

    MATH = "Math"
    REASONING_GYM = "ReasoningGym"
    PYTHON = "Python"
    CODE = "Code"
    JUDGE = "Judge"


class RewardTimeout(Model):
    """How long a reward may run. For Code the bound adapts to each test, in processor seconds, and a program that runs
    out of time scores 0. For the other kinds `maxSeconds` bounds a call, and running out of time is a failure of ours:
    the sample is aborted."""

    min_seconds: float = Field(default=2.0, gt=0, le=3600)
    """Code: never less than this."""
    factor: float = Field(default=1.5, ge=1, le=100)
    """Code: times the longest run of a correct response to the same test so far."""
    max_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Never more than this; for Code the bound of every test that has no correct response yet."""


class RewardRange(Model):
    """What a rule's value may be, before its weight. A value beyond it is a failure of the rule, and the sample is
    aborted: one of 1e308 would drown all others."""

    min: float = Field(default=-1e6, ge=-1e9, le=1e9)
    """No value is less."""
    max: float = Field(default=1e6, ge=-1e9, le=1e9)
    """No value is more."""


class CodeScore(StrEnum):
    """What the tests of a program are worth together."""

    ALL_TESTS = "AllTests"
    SHARE_OF_TESTS = "ShareOfTests"


class CodeReward(Model):
    """For kind Code: the program in a response is run in a sandbox against the tests of its prompt."""

    tests_field: FieldName = "tests"
    """The field of the prompt's record that holds its tests."""
    program: Annotated[str | None, Field(max_length=16_384)] = None
    """What is run, with {response} and {question} filled in: "{question}{response}" for models that complete a program.
    Left out: the last fenced block of the response."""
    score: CodeScore = Field(default=CodeScore.ALL_TESTS)
    """AllTests: 1 if every test passes, else 0. ShareOfTests: the share that passes."""
    memory_bytes: Bytes = Field(default=1 << 30, ge=1 << 27, le=1 << 40)
    """Address space of a program."""
    parallelism: int = Field(default=4, ge=1, le=1024)
    """Programs that run at a time."""


class JudgeReward(Model):
    """For kind Judge: a model behind an OpenAI-compatible API scores the response."""

    url: HttpUrl
    """The API's base, as https://judge.example/v1; /chat/completions is appended."""
    model: Annotated[str, Field(max_length=256, min_length=1)]
    """The model's name there."""
    api_key_variable: VariableName | None = None
    """Environment variable of the coordinator's container that holds the key. Set it from a Secret in
    `coordinator.template`."""
    prompt: Annotated[str | None, Field(max_length=16_384)] = None
    """What the judge is asked. {question}, {answer} and {response} are filled in; the reply's last line must be
    "Score: N" with N from 0 to `scale`. Left out: a prompt of ours."""
    scale: float = Field(default=10.0, gt=0, le=1000)
    """The best score; the reward is the judge's score divided by it."""
    max_tokens: int = Field(default=512, ge=1, le=65_536)
    """Longest reply, in tokens."""
    attempts: int = Field(default=3, ge=1, le=20)
    """Requests for one response before the sample is aborted, with growing pauses between them."""
    parallelism: int = Field(default=8, ge=1, le=1024)
    """Requests at a time."""


class Reward(Model):
    """One scoring rule. The reward of a response is the weighted sum over all rules."""

    name: DnsLabel
    """Its name in metrics and logs; unique in the list."""
    kind: RewardKind
    """Math compares final answers by math-verify; ReasoningGym asks the task's own scorer; Python calls `function`;
    Code runs the response's program against tests; Judge asks a model."""
    weight: float = Field(default=1.0, ge=-1000, le=1000)
    """Factor in the sum."""
    function: FunctionPath | None = None
    """For Python: module:function in the runtime image; called with (prompt, response), returns a finite number."""
    code: CodeReward | None = None
    """For Code."""
    judge: JudgeReward | None = None
    """For Judge."""
    config: FreeForm = Field(default_factory=dict)
    """Settings of the rule, passed on as they stand."""
    timeout: RewardTimeout = RewardTimeout()
    """How long it may run."""
    range: RewardRange = RewardRange()
    """What its value may be."""
    parallelism: Annotated[int | None, Field(ge=1, le=256)] = None
    """Responses that are scored at a time. Math, ReasoningGym and Python; left out: 2. Rules share their worker
    processes, so the largest counts. Code and Judge have their own."""

    @property
    def apart(self) -> bool:
        """Whether it runs code that is not ours, and therefore without the coordinator's rights."""
        foreign = self.function is not None and not self.function.startswith(OUR_PACKAGE)
        return self.kind is RewardKind.CODE or (self.kind is RewardKind.PYTHON and foreign)
