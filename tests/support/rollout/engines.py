"""What the rollout tests share besides fixtures: publishing weights, running requests, the trainer's side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rljob_runtime.relay.manifest import checksum, layout
from rljob_runtime.relay.segment import SegmentWriter
from rljob_runtime.relay.tensors import describe, gather
from rljob_runtime.rollout.engines.base import Engine, EngineRequest, StepOutput

ENGINES = ["Reference", "VLLM"]
EOS = 2
LOGPROB_TOLERANCE = 2e-6


class Publisher:
    """Puts models into a segment as the relay does, under ascending versions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = 0
        self._writer = SegmentWriter.open(folder)

    def publish(self, model: torch.nn.Module) -> int:
        self.version += 1
        tensors = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
        slot = self._writer.begin(layout(self.version, describe(tensors, torch.float32), chunk_bytes=1 << 16))
        gather(tensors, slot.manifest, slot.buffer())
        slot.seal([checksum(slot.chunk(i)) for i in range(slot.manifest.chunks)])
        self._writer.commit(slot)
        return self.version

    def close(self) -> None:
        self._writer.close()


def tiny_config(**changes: Any) -> LlamaConfig:
    """Two layers of width 64 in fp32, with these changes."""
    settings: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "architectures": ["LlamaForCausalLM"],
        "dtype": "float32",
    }
    return LlamaConfig(**(settings | changes))


def tiny_model(seed: int, config: LlamaConfig) -> LlamaForCausalLM:
    """Random weights wide enough that the distributions are far from flat."""
    torch.manual_seed(seed)
    model: LlamaForCausalLM = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.07)
    return model


@dataclass
class Generated:
    """What a request produced, put together from its steps."""

    tokens: list[int]
    logprobs: list[float]
    finish: str | None = None


def collect(outputs: list[StepOutput], into: dict[str, Generated]) -> None:
    for output in outputs:
        got = into.setdefault(output.id, Generated([], []))
        assert got.finish is None, f"{output.id} goes on after its end"
        got.tokens += output.token_ids
        got.logprobs += output.logprobs
        got.finish = output.finish_reason


def run(engine: Engine, requests: list[EngineRequest]) -> dict[str, Generated]:
    """Generate all to the end."""
    for request in requests:
        engine.add(request)
    results: dict[str, Generated] = {}
    while engine.busy:
        collect(engine.step(), results)
    return results


def prompts(count: int, length: int = 12) -> list[tuple[int, ...]]:
    """Different prompts of different lengths."""
    return [tuple(3 + (17 * i + 5 * j + i * j) % 120 for j in range(length + i % 5)) for i in range(count)]


@torch.inference_mode()
def trainer_logprobs(
    model: LlamaForCausalLM, prompt: tuple[int, ...], tokens: list[int], temperature: float
) -> list[float]:
    """Logprobs of `tokens` after `prompt` as a trainer computes them: one forward pass over the whole sequence."""
    ids = torch.tensor([list(prompt) + tokens])
    logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / (temperature or 1.0)
    found: list[float] = logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    return found


def assert_trainer_logprobs(
    model: LlamaForCausalLM, prompt: tuple[int, ...], got: Generated, temperature: float
) -> None:
    """The behaviour logprobs are the trainer's, within the rounding of fp32."""
    expected = trainer_logprobs(model, prompt, got.tokens, temperature)
    torch.testing.assert_close(got.logprobs, expected, atol=LOGPROB_TOLERANCE, rtol=0.0)
