"""Rewards: how responses are scored."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.fields import Bytes, DnsLabel, FieldName, FreeForm, FunctionPath, HttpUrl, Model, VariableName

OUR_PACKAGE = "rljob_runtime."
FORMER_BUILTIN, BUILTIN = "rljob_runtime.rewards.scorers:", "rljob_runtime.rewards.builtin:"
"""The module of the reward functions that the runtime ships: its former path, which is refused, and its path."""
DEFAULT_PARALLELISM = 2
"""Parallelism of functions."""
FUNCTION_KINDS = ("Math", "ReasoningGym", "Python")
"""Kinds that functions compute, in worker processes."""


def present_path(function: str) -> str:
    """Replace the former path of a reward function that the runtime ships; return any other path unchanged."""
    return BUILTIN + function.removeprefix(FORMER_BUILTIN) if function.startswith(FORMER_BUILTIN) else function


class RewardKind(StrEnum):
    """A way to score a response."""

    MATH = "Math"
    REASONING_GYM = "ReasoningGym"
    PYTHON = "Python"
    CODE = "Code"
    JUDGE = "Judge"
    ENVIRONMENT = "Environment"


class RewardTimeout(Model):
    """The time that a reward may run.

    For Code the bound adapts to each test, in processor seconds, and a program that exceeds it scores 0. For the other
    kinds `maxSeconds` bounds a call. A call that exceeds it is a failure of the system: the sample is aborted.
    """

    min_seconds: float = Field(default=2.0, gt=0, le=3600)
    """Code: lower bound of the adaptive timeout."""
    factor: float = Field(default=1.5, ge=1, le=100)
    """Code: multiple of the longest run of a correct response to the same test so far."""
    max_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Upper bound. For Code the bound of every test without a correct response yet."""


class RewardRange(Model):
    """Bounds of a rule's value, before its weight.

    A value outside is a failure of the rule, and the sample is aborted: one of 1e308 would outweigh all others.
    """

    min: float = Field(default=-1e6, ge=-1e9, le=1e9)
    """Smallest value."""
    max: float = Field(default=1e6, ge=-1e9, le=1e9)
    """Largest value."""


class CodeScore(StrEnum):
    """The rule that combines the tests of a program."""

    ALL_TESTS = "AllTests"
    SHARE_OF_TESTS = "ShareOfTests"


class CodeReward(Model):
    """For kind Code: a sandbox runs the program in a response against the tests of its prompt."""

    tests_field: FieldName = "tests"
    """Field of the prompt's record with its tests."""
    program: Annotated[str | None, Field(max_length=16_384)] = None
    """The program, with {response} and {question} filled in: "{question}{response}" for models that complete a program.
    Absent: the last fenced block of the response."""
    score: CodeScore = Field(default=CodeScore.ALL_TESTS)
    """AllTests: 1 if every test passes, else 0. ShareOfTests: the share that passes."""
    memory_bytes: Bytes = Field(default=1 << 30, ge=1 << 27, le=1 << 40)
    """Address space of a program."""
    parallelism: int = Field(default=4, ge=1, le=1024)
    """Programs that run concurrently."""


class JudgeReward(Model):
    """For kind Judge: a model behind an OpenAI-compatible API scores the response."""

    url: HttpUrl
    """Base address of the API, as https://judge.example/v1; /chat/completions is appended."""
    model: Annotated[str, Field(max_length=256, min_length=1)]
    """Name of the model."""
    api_key_variable: VariableName | None = None
    """Environment variable of the coordinator's container with the key. Set it from a Secret in
    `coordinator.template`."""
    prompt: Annotated[str | None, Field(max_length=16_384)] = None
    """Prompt of the judge. {question}, {answer} and {response} are filled in. The reply's last line must be "Score: N"
    with N from 0 to `scale`. Absent: a built-in prompt."""
    scale: float = Field(default=10.0, gt=0, le=1000)
    """Best score; the reward is the judge's score divided by it."""
    max_tokens: int = Field(default=512, ge=1, le=65_536)
    """Longest reply, in tokens."""
    attempts: int = Field(default=3, ge=1, le=20)
    """Requests for one response before the sample is aborted, with growing pauses between them."""
    parallelism: int = Field(default=8, ge=1, le=1024)
    """Concurrent requests."""


class Reward(Model):
    """One scoring rule. The reward of a response is the weighted sum over all rules."""

    name: DnsLabel
    """Name in metrics and logs; unique in the list."""
    kind: RewardKind
    """Math compares final answers by math-verify. ReasoningGym calls the task's own scorer. Python calls `function`.
    Code runs the response's program against tests. Judge sends the response to a model. Environment is the reward that
    the episode's environment gave: with such a rule it is a term of the sum, and without one it counts in place of the
    sum. An episode without it has no reward, and its group is filtered (RewardFailed)."""
    weight: float = Field(default=1.0, ge=-1000, le=1000)
    """Factor in the sum."""
    function: FunctionPath | None = None
    """For Python: module:function in the runtime image; called with (prompt, response), returns a finite number."""
    code: CodeReward | None = None
    """For Code."""
    judge: JudgeReward | None = None
    """For Judge."""
    config: FreeForm = Field(default_factory=dict)
    """Settings of the rule, passed on unchanged."""
    timeout: RewardTimeout = RewardTimeout()
    """The time that it may run."""
    range: RewardRange = RewardRange()
    """Bounds of its value."""
    parallelism: Annotated[int | None, Field(ge=1, le=256)] = None
    """Responses that are scored concurrently. Math, ReasoningGym and Python; absent: 2. Rules share their worker
    processes, so the largest counts. Code and Judge have their own."""

    @property
    def apart(self) -> bool:
        """Tell whether it runs foreign code, which must not have the coordinator's rights."""
        foreign = self.function is not None and not self.function.startswith(OUR_PACKAGE)
        return self.kind is RewardKind.CODE or (self.kind is RewardKind.PYTHON and foreign)
