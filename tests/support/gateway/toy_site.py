"""The toy model's tokenizer on disk, and an engine that speaks in its tokens, for tests of the gateway's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rljob_api.spec.training import DataSpec
from rljob_runtime.models.toy import toy_model, toy_tokenizer
from tests.support.gateway.stand_in_coordinator import RecordingEngine, StandInCoordinator

DATA = DataSpec.model_validate(
    {"prompts": {"file": {"path": "/unused"}}, "maxPromptTokens": 256, "maxResponseTokens": 64}
)


class ToySpelling:
    """The part of `LightTokenizer` that the recording engine uses."""

    def __init__(self) -> None:
        self._tokenizer = toy_tokenizer()
        self.end = self._tokenizer.eos_token_id

    def spelled(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids)))


def toy_files(folder: Path, template: str | None = None) -> Path:
    """Write the toy model's config and tokenizer, without weights."""
    tokenizer = toy_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    toy_model().config.save_pretrained(folder)
    return folder


def toy_coordinator(script: Callable[[str, int], str]) -> StandInCoordinator:
    return StandInCoordinator(RecordingEngine(ToySpelling(), script))  # type: ignore[arg-type]
