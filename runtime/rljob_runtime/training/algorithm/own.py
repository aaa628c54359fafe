"""Own functions: the user's advantage and loss, loaded and checked.

A function that fails would fail at each try. So every fault is a `FunctionFailed` that names the function, what it did
and what would be right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rljob_runtime.protocols.errors import FunctionFailed
from rljob_runtime.training.algorithm.advantage import ScoredGroup
from rljob_runtime.training.algorithm.loss import LossInput, LossOutput
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.user_functions.loading import FunctionNotLoaded, load_function
from rljob_runtime.user_functions.tracebacks import Tracebacks

MOST_METRICS = 64
METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
LONGEST_REASON = 1000


def _load(field: str, path: str) -> Callable[..., Any]:
    """Import module:function of the spec's `field`. Raises `FunctionFailed`."""
    name = f"algorithm.{field} {path}"
    try:
        return load_function(path, name)
    except FunctionNotLoaded as error:
        advice = "Put it on PYTHONPATH, in a cluster in the templates of trainer and rollout"
        raise FunctionFailed(f"{name}: {error}. {advice}") from error


class OwnAdvantage:
    """The user's advantages. Loading raises `FunctionFailed`."""

    def __init__(self, path: str) -> None:
        self._name = f"algorithm.advantage {path}"
        self._function = _load("advantage", path)
        self._tracebacks = Tracebacks()

    def __call__(self, group: ScoredGroup) -> list[float]:
        """Compute the advantage of each response. Raises `FunctionFailed`."""
        right = f"one finite number for each of {len(group.rewards)} responses is right"
        try:
            found = self._function(group)
        except Exception as error:
            raise _raised(self._name, error, self._tracebacks) from error
        try:
            values = [float(value) for value in found]
        except (TypeError, ValueError) as error:
            raise FunctionFailed(f"{self._name} returned {_shown(found)}; {right}") from error
        if len(values) != len(group.rewards) or not all(map(math.isfinite, values)):
            raise FunctionFailed(f"{self._name} returned {_shown(values)}; {right}")
        return values


class OwnLoss:
    """The user's loss. Loading raises `FunctionFailed`."""

    def __init__(self, path: str) -> None:
        self._name = f"algorithm.loss {path}"
        self._function = _load("loss", path)
        self._tracebacks = Tracebacks()

    def __call__(self, batch: LossInput, config: TrainingConfig) -> LossOutput:
        """Compute the raw loss of the tokens. Raises `FunctionFailed`."""
        try:
            output = self._function(batch, config)
        except Exception as error:
            raise _raised(self._name, error, self._tracebacks) from error
        if not isinstance(output, LossOutput):
            raise self._wrong(f"returned {type(output).__name__}", "LossOutput(sum, metrics) is right")
        self._check_sum(output.sum)
        self._check_metrics(output.metrics)
        return output

    def _check_sum(self, total: object) -> None:
        right = "a scalar tensor is right: the sum over all tokens, as (batch.weights * loss).sum()"
        if not isinstance(total, Tensor):
            raise self._wrong(f"returned a sum of type {type(total).__name__}", right)
        if total.shape != torch.Size([]):
            raise self._wrong(f"returned a sum of shape {list(total.shape)}", right)
        if not total.requires_grad:
            raise self._wrong("returned a sum without a gradient", "one that is computed from batch.logprobs is right")
        if not bool(total.detach().isfinite()):
            raise self._wrong(f"returned a sum of {float(total.detach())}", "a finite number is right")

    def _check_metrics(self, metrics: object) -> None:
        right = "a number, or a pair of numbers (sum, count), is right"
        if not isinstance(metrics, Mapping) or len(metrics) > MOST_METRICS:
            raise self._wrong(f"returned metrics {_shown(metrics)}", f"a mapping of at most {MOST_METRICS} is right")
        for name, value in metrics.items():
            if not isinstance(name, str) or METRIC_NAME.fullmatch(name) is None:
                advice = "letters, digits and _ are right, at most 63, beginning with a letter or _"
                raise self._wrong(f"returned a metric called {name!r}", advice)
            pair = value if isinstance(value, tuple) else (value, 1.0)
            if len(pair) != 2 or not all(map(_is_number, pair)):
                raise self._wrong(f"returned metric {name} as {_shown(value)}", right)

    def _wrong(self, what: str, right: str) -> FunctionFailed:
        return FunctionFailed(f"{self._name} {what}; {right}")


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.shape == torch.Size([]) and bool(value.detach().isfinite())
    return isinstance(value, int | float) and math.isfinite(value)


def _raised(name: str, error: Exception, tracebacks: Tracebacks) -> FunctionFailed:
    """Print the user's traceback to stderr, and return the error with the place that raised it."""
    return FunctionFailed(f"{name} raised {tracebacks.print_once(name, error)[:LONGEST_REASON]}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
