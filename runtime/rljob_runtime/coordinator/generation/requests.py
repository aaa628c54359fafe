"""Requests: what a replica needs to go on with a response from the tokens that were received so far."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.protocols import GenerateRequest, PromptSource
from rljob_runtime.protocols.trajectory import sample_seed
from rljob_runtime.scheduling.partial_responses import Partials
from rljob_runtime.scheduling.round_plan import Launch


@dataclass(frozen=True)
class Requests:
    """Requests of one stage. `partials` has the tokens that were received."""

    settings: Settings
    prompts: PromptSource
    partials: Partials

    def of(
        self, launch: Launch, weight_version: int, draw: int, failures: int, kv_file: str | None = None
    ) -> GenerateRequest:
        """Return the request of a launch.

        `draw` and `failures` enter the seed: a response that begins again must sample other tokens. `draw` differs
        whenever its prompt is drawn, `failures` after a failed reward."""
        prefix, _ = self.partials.tokens_of(launch.key)
        seed = sample_seed(self.settings.seed, draw, launch.key, failures, len(prefix))
        return GenerateRequest(
            key=launch.key,
            attempt=launch.lease.attempt,
            prompt_token_ids=tuple(self.prompts.prompt(launch.key.prompt).token_ids),
            sampling=replace(self.settings.sampling, seed=seed, stop_token_ids=self.prompts.stop_token_ids),
            weight_version=weight_version,
            prefix_token_ids=prefix,
            kv_file=kv_file,
        )
