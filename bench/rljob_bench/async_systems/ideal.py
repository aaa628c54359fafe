"""The limit: what no schedule of the same work can exceed.

No replica waits, each token comes at the rate of a full batch, the trainer never waits, and the accelerators are split
ideally.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rljob_bench.async_systems.groups import Drawn, Prompts
from rljob_bench.async_systems.hardware import Hardware, Layout


def token_seconds(hardware: Hardware, groups: Sequence[Drawn]) -> float:
    """Return a replica's seconds for each generated token when the KV cache is always as full as it can be.

    The prefill of prompts and of tools' answers is spread over their tokens. No response waits for a tool.
    """
    spans = [(group.prompt_tokens + one.begin, one.tokens) for group in groups for one in group.spans()]
    generated = sum(tokens for _, tokens in spans)
    # Over all generated tokens. One that is generated at some moment is in the middle of its turn, on average.
    context = sum((before + tokens / 2) * tokens for before, tokens in spans) / generated
    batch = max(1, min(hardware.max_sequences, math.floor(hardware.kv_tokens / context)))
    given = sum(group.tokens for group in groups) - generated
    decode = hardware.latency.step(batch, batch * context) / batch
    return decode + hardware.latency.prefill_token_seconds * given / generated


def round_seconds(layout: Layout, groups: Sequence[Drawn]) -> float:
    """Return the seconds of a round with these groups on as many accelerators; `layout`'s own split does not matter.

    Generation on g accelerators takes G/g, training on the rest T/(N - g) and its fixed seconds: the best is where both
    are equal.
    """
    colocated = Layout(layout.model, layout.accelerators, None, layout.tensor_parallel)
    hardware, total = colocated.hardware(), layout.accelerators
    generated = sum(one.tokens for group in groups for one in group.spans())
    generating = token_seconds(hardware, groups) * generated * layout.tensor_parallel
    training = hardware.token_seconds * total * sum(group.tokens for group in groups)
    low, high = 0.0, float(total)
    for _ in range(60):
        middle = (low + high) / 2
        if generating / max(middle, 1e-9) > training / max(total - middle, 1e-9) + hardware.update_seconds:
            low = middle
        else:
            high = middle
    return generating / high


def throughput(layout: Layout, prompts: Prompts, rounds: int) -> float:
    """Return the tokens trained on a second that no split and no schedule of so many rounds exceeds."""
    batches = [prompts.batch(number) for number in range(rounds)]
    seconds = sum(round_seconds(layout, batch) for batch in batches)
    return sum(group.tokens for batch in batches for group in batch) / seconds
