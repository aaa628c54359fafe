"""Model verification: checks by computing that packed rows give what the model itself computes.

No list of architectures is complete, so the check measures. Two packs of random tokens are computed as the trainer
does, and one sequence at a time by transformers' own attention. Both use the same weights in the same model, so nothing
is stored twice.

The first pack mixes short responses to two prompts and runs through all layers, forward and backward. The second has a
response longer than every length in config.json (a window, an original context), up to the job's limit. It runs through
the first layers of each kind only. A mechanism of a kind shows in one of its layers, so the check takes seconds for 70
billion weights too.

The check runs in the format of the weights, without autocast, where both computations agree except for rounding.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from rljob_api.spec.algorithm import LossAggregation
from rljob_runtime.training.batch.rows import Block, Ints, Sample, row_of
from rljob_runtime.training.model import attention
from rljob_runtime.training.model.attention import UnsupportedModel
from rljob_runtime.training.model.packing import MicroBatch, pack_row
from rljob_runtime.training.model.sharding import decoder_layers
from rljob_runtime.training.model.token_logprobs import Entropy

if TYPE_CHECKING:
    from rljob_runtime.training.model.policy import Policy

LIMIT = 1e-4
"""Largest difference of log-probabilities, in nats."""
COMPARED_TOKENS = 32
"""Tokens at the end of a sequence that are compared, by their median: rounding may route one token of a mixture of
experts elsewhere."""
DEFAULT_LONGEST = 4096
"""Longest sequence when none is given, in tokens."""
_LENGTH = re.compile(r"window|chunk|position|context|seq|length|block")
_NO_LENGTH = re.compile(
    r"size|dim|rank|vocab|_ids?$|inner|ffn|embd|model|state|factor|theta|heads?$|layers?|expert|group"
)
_SHAPES_ATTENTION = re.compile(r"window|rope_type|alibi|chunk|softcap|attention_types|attn_|position_bias|layer_types")
_MIXTURE = ((5, (23, 1, 9)), (11, (17, 2)))
"""Token counts of the prompts, and of their responses."""


@dataclass(frozen=True)
class _Pack:
    """The blocks of one row."""

    blocks: tuple[Block, ...]

    @property
    def sequences(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return [
            (tuple(block.prompt_token_ids.tolist()), tuple(sample.token_ids.tolist()))
            for block in self.blocks
            for sample in block.samples
        ]


def verify(policy: Policy, longest: int | None) -> None:
    """Raise `UnsupportedModel` unless packed rows match the model's own computation and every weight gets a gradient.

    Sequences have up to `longest` tokens. A collective where the model is sharded.
    """
    model, config = policy.model, policy.model.config
    most = longest or DEFAULT_LONGEST
    if longest is None and (positions := getattr(config, "max_position_embeddings", None)):
        most = min(most, positions)
    try:
        _through_all_layers(policy, most)
        if length := length_to_check(config, most):
            with _first_layers(model):
                _compare(policy, _pack(policy, most, length), "sdpa" if model._supports_sdpa else "eager")
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{config.model_type} cannot be trained: {error}") from error
    except Exception as error:  # a foreign model may raise any error on packed rows
        raise UnsupportedModel(
            f"{config.model_type} cannot be trained: packed rows of it cannot be computed: "
            f"{type(error).__name__}: {error}"
        ) from error


def length_to_check(config: PretrainedConfig, longest: int) -> int | None:
    """Return a sequence length that exceeds by a quarter each length in the config that `longest` exceeds.

    None when `longest` exceeds none.
    """
    exceeded = [length for length in _lengths(config.to_dict()) if length < longest]
    if not exceeded:
        return None
    return min(longest, max(exceeded) + max(COMPARED_TOKENS, max(exceeded) // 4))


def _lengths(fields: Mapping[str, Any]) -> Iterator[int]:
    """Yield every number that may be a number of tokens.

    A name counts unless it plainly names something else.
    """
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _lengths({str(key): inner for key, inner in value.items()})
        elif isinstance(value, int) and not isinstance(value, bool) and value > 1 and _may_be_a_length(name):
            yield value


def _may_be_a_length(name: str) -> bool:
    return bool(_LENGTH.search(name)) or not _NO_LENGTH.search(name)


def _through_all_layers(policy: Policy, longest: int) -> None:
    """Compare and run a backward pass through all layers.

    A backward pass that fails, fails here.
    """
    _compare(policy, pack := _pack(policy, longest), "eager")
    with torch.enable_grad():
        logprobs, _ = policy.logprobs(_row(policy, pack), entropy=Entropy.NONE)
        torch.autograd.backward(logprobs.sum())
    without = [name for name, weight in policy.model.named_parameters() if weight.requires_grad and weight.grad is None]
    policy.model.zero_grad(set_to_none=True)
    if without:
        raise UnsupportedModel(f"its weight {without[0]} takes no part in log-probabilities, so it gets no gradient")


@torch.no_grad()
def _compare(policy: Policy, pack: _Pack, implementation: str) -> None:
    """Raise `UnsupportedModel` for the sequence that differs most."""
    batch = _row(policy, pack)
    lengths = [len(response) for _, response in pack.sequences]
    compared = torch.cat([torch.arange(n) >= n - COMPARED_TOKENS for n in lengths]).to(policy.device)
    found, _ = policy.logprobs(_select_targets(batch, compared), entropy=Entropy.NONE)
    found_by_response = found.split([min(n, COMPARED_TOKENS) for n in lengths])
    with _attention_of(policy.model, implementation):
        expected = [_model_logprobs(policy, prompt, response) for prompt, response in pack.sequences]
    differences = [
        (float((mine - theirs).abs().median()), len(prompt) + len(response))
        for mine, theirs, (prompt, response) in zip(found_by_response, expected, pack.sequences, strict=True)
    ]
    worst, tokens = max((nats if nats == nats else float("inf"), tokens) for nats, tokens in differences)
    if worst > LIMIT:
        raise UnsupportedModel(
            f"in a packed row the log-probabilities of a sequence of {tokens} tokens differ by {worst:.2g} from those "
            f"that the model computes, and {LIMIT:g} is the most ({_fields(policy.model.config)})"
        )


def _model_logprobs(policy: Policy, prompt: tuple[int, ...], response: tuple[int, ...]) -> Tensor:
    """Compute the log-probabilities of the response's last tokens by the model alone."""
    tokens = torch.tensor([*prompt, *response], device=policy.device)
    places = torch.arange(len(tokens) - 1 - min(len(response), COMPARED_TOKENS), len(tokens) - 1, device=policy.device)
    logits = policy.model(input_ids=tokens[None, :-1], logits_to_keep=places, use_cache=False).logits[0]
    every = torch.log_softmax(logits.to(policy.dtype), dim=-1)
    return every.gather(-1, tokens[places + 1][:, None])[:, 0]


def _pack(policy: Policy, longest: int, length: int | None = None) -> _Pack:
    """Build the mixture, with no sequence longer than `longest`.

    With `length`, the first response makes a sequence of that many tokens.
    """
    draw = torch.Generator().manual_seed(1)

    def tokens(count: int) -> Ints:
        drawn = torch.randint(0, policy.vocabulary, (max(1, count),), generator=draw)
        return drawn.to(torch.int32).numpy()

    blocks = []
    for number, (prompt, responses) in enumerate(_MIXTURE):
        prompt = min(prompt, longest - 1)
        counts = [min(count, longest - prompt) for count in responses]
        if length is not None and number == 0:
            counts[0] = length - prompt
        drawn = [tokens(count) for count in counts]
        blocks.append(Block(tokens(prompt), tuple(Sample(each, np.zeros(len(each)), 1.0) for each in drawn)))
    return _Pack(tuple(blocks))


def _row(policy: Policy, pack: _Pack) -> MicroBatch:
    return pack_row(row_of(pack.blocks), LossAggregation.TOKEN_MEAN).to(policy.device, policy.dtype)


def _select_targets(batch: MicroBatch, compared: Tensor) -> MicroBatch:
    """Return the row with these of its targets, because logits are large."""
    rows, target_rows = batch.target_rows[compared].unique(return_inverse=True)
    return dataclasses.replace(
        batch,
        logit_rows=batch.logit_rows[rows],
        target_rows=target_rows,
        targets=batch.targets[compared],
        behaviour=batch.behaviour[compared],
        advantages=batch.advantages[compared],
        weights=batch.weights[compared],
    )


@contextmanager
def _attention_of(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Compute with transformers' attention inside the context."""
    model.set_attn_implementation(implementation)
    if model.config._attn_implementation != implementation:
        raise UnsupportedModel(f"{type(model).__name__} does not take an attention function of another")
    try:
        yield
    finally:
        model.set_attn_implementation(attention.NAME)


@contextmanager
def _first_layers(model: PreTrainedModel) -> Iterator[None]:
    """Compute with the fewest layers that include each kind, at least two, inside the context."""
    layers = decoder_layers(model)
    holder = next((m for m in model.modules() if isinstance(m, nn.ModuleList) and list(m) == layers), None)
    if holder is None or not layers:
        yield
        return
    count = layers_to_check(model.config, layers)
    all_layers = holder._modules
    holder._modules = dict(list(all_layers.items())[:count])
    try:
        yield
    finally:
        holder._modules = all_layers


def layers_to_check(config: PretrainedConfig, layers: Sequence[nn.Module]) -> int:
    """Return how many first layers include one of each kind."""
    declared = getattr(config, "layer_types", None) or [""] * len(layers)
    kinds = [(kind, *_traits(layer)) for kind, layer in zip(declared, layers, strict=False)]
    return max([min(2, len(layers)), *(1 + kinds.index(kind) for kind in set(kinds))])


def _traits(layer: nn.Module) -> tuple[object, ...]:
    """Return what distinguishes kinds of layers: modules and plain attributes, except the number of the layer."""
    return tuple(
        (type(module).__name__, name, value)
        for module in layer.modules()
        for name, value in sorted(vars(module).items())
        if isinstance(value, int | float | str | None) and not re.search(r"i?dx|index|number|layer_?id", name)
    )


def _fields(config: PretrainedConfig) -> str:
    """Describe the attention fields of config.json."""
    shown = [
        f"{name}={value!r}" for name, value in _flat("", config.to_dict()) if _SHAPES_ATTENTION.search(name) and value
    ]
    return "config.json: " + ", ".join([f"model_type={config.model_type!r}", *shown[:8]])


def _flat(path: str, fields: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{path}{name}.", value)
        elif name != "_attn_implementation":
            yield f"{path}{name}", value
