"""The limit: what no schedule of the same work can exceed.

No replica waits, each token comes at the rate of a full batch, the trainer never waits, and the accelerators are split
ideally.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rljob_bench.async_systems.groups import Drawn
from rljob_bench.async_systems.rig import Layout, Rig


def token_seconds(rig: Rig, groups: Sequence[Drawn]) -> float:
    """Return a replica's seconds for each generated token when the KV cache is always as full as it can be.

    The prefill of the prompts is spread over their tokens.
    """
    lengths = [tokens for group in groups for tokens in group.response_tokens]
    # A response that is running at some moment is likely a long one, and half done on average.
    half = sum(tokens * tokens for tokens in lengths) / sum(lengths) / 2
    prompt = sum(group.prompt_tokens * sum(group.response_tokens) for group in groups) / sum(lengths)
    batch = max(1, min(rig.max_sequences, math.floor(rig.kv_tokens / (half + prompt))))
    prompts = sum(group.prompt_tokens * len(group.response_tokens) for group in groups)
    decode = rig.law.step(batch, batch * (half + prompt)) / batch
    return decode + rig.law.prefill_token_seconds * prompts / sum(lengths)


def round_seconds(layout: Layout, groups: Sequence[Drawn]) -> float:
    """Return the seconds of a round with these groups on as many accelerators; `layout`'s own split does not matter.

    Generation on g accelerators takes G/g, training on the rest T/(N - g) and its fixed seconds: the best is where both
    are equal.
    """
    colocated = Layout(layout.model, layout.accelerators, None, layout.tensor_parallel)
    rig, total = colocated.rig(), layout.accelerators
    generated = sum(sum(group.response_tokens) for group in groups)
    generating = token_seconds(rig, groups) * generated * layout.tensor_parallel
    training = rig.token_seconds * total * sum(group.tokens for group in groups)
    low, high = 0.0, float(total)
    for _ in range(60):
        middle = (low + high) / 2
        if generating / max(middle, 1e-9) > training / max(total - middle, 1e-9) + rig.update_seconds:
            low = middle
        else:
            high = middle
    return generating / high
