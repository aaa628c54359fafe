"""Reference transformer: Llama and Qwen2 in plain torch over a paged KV cache, weights by Hugging Face name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoConfig, PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from rljob_runtime.models.context_length import length_refusal
from rljob_runtime.rollout.engines.weights import WeightMismatch
from rljob_runtime.rollout.kv.copier import KvCopier
from rljob_runtime.rollout.kv.layout import KvShape

Attention = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`attention(layer, q, k, v)` maps [n, heads, head_dim] and twice [n, kv_heads, head_dim] to [n, heads, head_dim]."""

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM")


@dataclass(frozen=True)
class Layer:
    """Parameters of one decoder layer; q, k, v and gate, up are views into the fused tensors."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Transformer:
    """Decoder without weights until `load`. Shapes: tokens [n], hidden [n, hidden], logits [rows, vocabulary]."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, longest: int) -> None:
        config = AutoConfig.from_pretrained(folder)
        self.config, self.architecture = config, supported(config, longest)
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.dtype, self.device = dtype, device
        # Llama's rotary embedding serves both architectures: Qwen2's uses the same formula.
        self._rotary = LlamaRotaryEmbedding(config).to(device)
        self._named: dict[str, torch.Tensor] = {}
        self.embedding = self._make("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self.layers = [self._layer(index) for index in range(config.num_hidden_layers)]
        self.norm = self._make("model.norm.weight", config.hidden_size)
        self.head = self.embedding
        if not config.tie_word_embeddings:
            self.head = self._make("lm_head.weight", config.vocab_size, config.hidden_size)

    def _make(self, name: str, *shape: int) -> torch.Tensor:
        self._named[name] = torch.zeros(shape, dtype=self.dtype, device=self.device)
        return self._named[name]

    def _fused(self, parts: dict[str, int], *rest: int) -> torch.Tensor:
        """Make one tensor for several named ones of `parts[name]` rows each, so that one matmul serves them."""
        fused = torch.zeros((sum(parts.values()), *rest), dtype=self.dtype, device=self.device)
        self._named.update(zip(parts, torch.split(fused, list(parts.values())), strict=True))
        return fused

    def _layer(self, index: int) -> Layer:
        c, prefix = self.config, f"model.layers.{index}."
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        rows = {"q": q, "k": kv, "v": kv}
        biased = self.architecture == "Qwen2ForCausalLM" or getattr(c, "attention_bias", False)
        attention = prefix + "self_attn."
        return Layer(
            input_norm=self._make(prefix + "input_layernorm.weight", c.hidden_size),
            qkv=self._fused({f"{attention}{n}_proj.weight": r for n, r in rows.items()}, c.hidden_size),
            qkv_bias=self._fused({f"{attention}{n}_proj.bias": r for n, r in rows.items()}) if biased else None,
            out=self._make(attention + "o_proj.weight", c.hidden_size, q),
            post_norm=self._make(prefix + "post_attention_layernorm.weight", c.hidden_size),
            gate_up=self._fused(
                {f"{prefix}mlp.{n}_proj.weight": c.intermediate_size for n in ("gate", "up")}, c.hidden_size
            ),
            down=self._make(prefix + "mlp.down_proj.weight", c.hidden_size, c.intermediate_size),
        )

    def release(self) -> None:
        """Release the weights' memory; `reserve` allocates it again. No forward pass may run in between."""
        for tensor in self._named.values():
            tensor.untyped_storage().resize_(0)

    def reserve(self) -> None:
        """Allocate memory for weights again; `load` fills it. Idempotent."""
        for tensor in self._named.values():
            _make_room(tensor)

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy all parameters; raises `WeightMismatch` unless names and shapes are exactly this model's."""
        missing = set(self._named)
        for name, tensor in tensors:
            if name not in self._named:
                raise WeightMismatch(f"tensor {name!r} is not part of {self.architecture}")
            if tensor.shape != self._named[name].shape:
                raise WeightMismatch(
                    f"{name} is {list(tensor.shape)}, the config requires {list(self._named[name].shape)}"
                )
            self._named[name].copy_(tensor)
            missing.discard(name)
        if missing:
            raise WeightMismatch(f"{len(missing)} tensors are missing, the first is {min(missing)!r}")

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Return the hidden states after the final norm; `attention` stores keys and values and attends over them."""
        x = F.embedding(tokens, self.embedding)
        cos, sin = (t[0][:, None, :] for t in self._rotary(x[None], positions[None]))
        for index, layer in enumerate(self.layers):
            x = x + self._attend(self._norm(x, layer.input_norm), layer, index, cos, sin, attention)
            gate, up = F.linear(self._norm(x, layer.post_norm), layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return self._norm(x, self.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [rows, vocabulary] of hidden states [rows, hidden]."""
        return F.linear(hidden, self.head)

    def _attend(
        self, x: torch.Tensor, layer: Layer, index: int, cos: torch.Tensor, sin: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        heads = F.linear(x, layer.qkv, layer.qkv_bias).view(len(x), -1, self.head_dim)
        q, k, v = torch.split(heads, [self.heads, self.kv_heads, self.kv_heads], dim=1)
        mixed = attention(index, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
        return F.linear(mixed.reshape(len(x), -1), layer.out)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return weight * wide.to(x.dtype)


def supported(config: PretrainedConfig, longest: int) -> str:
    """Return the architecture; raise `ValueError` if the engine cannot run it for sequences of `longest` tokens."""
    architecture = (config.architectures or ["none"])[0]
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"the reference engine runs {' and '.join(ARCHITECTURES)}, not {architecture}; use engine VLLM"
        )
    if getattr(config, "use_sliding_window", False):
        raise ValueError("the reference engine has no sliding window attention; use engine VLLM")
    if refusal := length_refusal(config, longest):
        raise ValueError(refusal)
    return architecture


def _make_room(tensor: torch.Tensor) -> bool:
    """Allocate the memory of a tensor, or of its base; return whether it had been released."""
    storage = tensor.untyped_storage()
    if storage.nbytes():
        return False
    storage.resize_(tensor.nbytes if tensor._base is None else tensor._base.nbytes)
    return True


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class PagedCache:
    """Keys and values [layers, 2, blocks * block_size, kv_heads, head_dim]; a sequence's slots follow its blocks."""

    def __init__(self, model: Transformer, blocks: int, block_size: int) -> None:
        shape = (len(model.layers), 2, blocks * block_size, model.kv_heads, model.head_dim)
        self._store = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self._block_size = block_size
        self._grouped = model.heads != model.kv_heads

    @staticmethod
    def block_bytes(model: Transformer, block_size: int) -> int:
        """Return the bytes of one block for this model."""
        per_token = len(model.layers) * 2 * model.kv_heads * model.head_dim
        return int(block_size * per_token * model.dtype.itemsize)

    def release(self) -> None:
        """Release the memory with its content."""
        self._store.untyped_storage().resize_(0)

    def reserve(self) -> None:
        """Allocate the memory again and zero it. Idempotent.

        Masked values are multiplied by zero and must be finite for that.
        """
        if _make_room(self._store):
            self._store.zero_()

    def slots(self, tables: Sequence[Sequence[int]], tokens: int) -> torch.Tensor:
        """Return the slots of each sequence's first `tokens` tokens [sequences, tokens].

        Beyond its own blocks a sequence has block 0.
        """
        longest = max(map(len, tables))
        # Built on the host and moved once: each small tensor would be a separate blocking transfer.
        blocks = torch.tensor([[*table, *[0] * (longest - len(table))] for table in tables])
        blocks = blocks.to(self._store.device)[:, :, None] * self._block_size
        offsets = torch.arange(self._block_size, device=self._store.device)
        return (blocks + offsets).flatten(1)[:, :tokens]

    def prefill(self, slots: torch.Tensor, ready: int = 0) -> Attention:
        """Return the attention of one complete sequence over itself, from token `ready` on.

        Keys and values of the tokens before it are in the cache.
        """
        new = slots[ready:]
        places = torch.arange(len(slots), device=slots.device)
        mask = places[None, :] <= places[ready:, None]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self._store[layer, 0, new], self._store[layer, 1, new] = k, v
            keys, values = self._store[layer, :, slots].transpose(1, 2)
            q = q.transpose(0, 1)
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=self._grouped).transpose(
                0, 1
            )

        return attend

    def copier(self, dtype: str, rank: int) -> KvCopier:
        """Return the copier of this cache. Every rank holds all heads; the first writes them."""
        layers, _, slots, heads, head_dim = self._store.shape
        blocks = slots // self._block_size
        shape = KvShape("reference", dtype, layers, heads, self._block_size, 2 * head_dim * self._store.itemsize)
        by_block = self._store.view(layers, 2, blocks, self._block_size, heads, head_dim).permute(0, 2, 4, 1, 3, 5)
        return KvCopier(list(by_block), shape, range(heads), range(heads) if rank == 0 else range(0))

    def decode(self, tables: Sequence[Sequence[int]], lengths: Sequence[int]) -> Attention:
        """Return the attention of one new token of each sequence; `lengths` count the new token."""
        device, longest = self._store.device, max(lengths)
        slots = self.slots(tables, longest)
        ends = torch.tensor(lengths, device=device)
        newest = slots.gather(1, (ends - 1)[:, None])[:, 0]
        mask = (torch.arange(longest, device=device) < ends[:, None])[:, None, None, :]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self._store[layer, 0, newest], self._store[layer, 1, newest] = k, v
            keys, values = self._store[layer, :, slots].transpose(2, 3)
            mixed = F.scaled_dot_product_attention(
                q[:, :, None], keys, values, attn_mask=mask, enable_gqa=self._grouped
            )
            return mixed[:, :, 0]

        return attend
