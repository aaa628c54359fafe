"""RollPacker-like lengths: an approximation of RollPacker's workload, which is not public.

Its Fig. 2a shows short responses with a long tail: a median of about 600 tokens and a third quartile of about 950. The
model is a lognormal body, a share of long answers spread over all lengths up to the cap, and a few at the cap. The
ablation of Fig. 11 (racing prompts gains more than racing responses) requires a similarity within prompts of 0.5 or
more. A result on these lengths shows that a claim is reachable; it does not test the claim.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from rljob_runtime.workloads.parameters import WorkloadParameters
from rljob_runtime.workloads.quantile_distribution import Distribution

_MEDIAN, _THIRD_QUARTILE = 600, 950
_TAIL_SHARE, _TAIL_FROM = 0.03, 2000
_RUNAWAY_SHARE = 0.004
_BODY_SHARE = 1 - _TAIL_SHARE - _RUNAWAY_SHARE
_CORRELATION = 0.5
_INPUT = Distribution.lognormal(median=150, sigma=0.3)


def _body() -> NormalDist:
    """Parameters of the logarithm, for the paper's median and third quartile of all responses, tail included."""
    median, quartile = (NormalDist().inv_cdf(at / _BODY_SHARE) for at in (0.5, 0.75))
    deviation = math.log(_THIRD_QUARTILE / _MEDIAN) / (quartile - median)
    return NormalDist(math.log(_MEDIAN) - median * deviation, deviation)


def rollpacker_like(model: str, cap: int) -> WorkloadParameters:
    """Return the parameters. `cap`: the longest response, in tokens."""
    body = _body()

    def cdf(tokens: float) -> float:
        tail = min(1.0, max(0.0, math.log(tokens / _TAIL_FROM) / math.log(cap / _TAIL_FROM)))
        return _BODY_SHARE * body.cdf(math.log(tokens)) + _TAIL_SHARE * tail

    return WorkloadParameters(
        task=f"rollpacker-{model}-{cap // 1000}k",
        source="fitted to RollPacker Fig. 2a; tail, runaways and correlation assumed",
        input_tokens=_INPUT,
        output_tokens=Distribution.from_cdf(cdf, 1, cap),
        correlation=_CORRELATION,
    )
