"""Step meter: what the steps of an engine took, and what they computed. Pure: it receives the seconds.

Only the engine's thread knows this. Between two polls turns of episodes begin and end, an engine waits for tools, and a
preempted request is computed again, and none of that shows in gauges and tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rljob_runtime.perf_model.step_totals import NO_STEPS, StepTotals
from rljob_runtime.rollout.engines.base import EngineRequest, StepOutput


class StepMeter:
    """The steps of one engine slot."""

    def __init__(self) -> None:
        self.decode = NO_STEPS
        self.prefill = NO_STEPS
        self._lengths: dict[str, int] = {}
        """Tokens of each request in the engine."""
        self._new: set[str] = set()
        """The requests without a token of this engine."""
        self._moved: set[str] = set()
        """Those of them whose KV the engine copies in their first steps."""
        self._advanced: set[str] = set()
        """The requests that got a token in the last step, and go on."""

    def start(self, requests: Iterable[EngineRequest]) -> None:
        """Record requests that the engine has now."""
        for one in requests:
            self._lengths[one.id] = len(one.token_ids)
            self._new.add(one.id)
            if one.kv is not None:
                self._moved.add(one.id)

    def forget(self, ids: Iterable[str]) -> None:
        """Record that the engine has these requests no more."""
        for one in ids:
            self._lengths.pop(one, None)
            self._new.discard(one)
            self._moved.discard(one)
            self._advanced.discard(one)

    def step(self, outputs: Sequence[StepOutput], running: int, seconds: float) -> None:
        """Record a step. `running`: requests that run after it; `outputs` has those that ended in it too."""
        made = {one.id: one for one in outputs if one.token_ids}
        ended = {one.id for one in outputs if one.finish_reason is not None}
        grown = [self._grown(one) for one in made.values() if one.id not in self._advanced]
        prompts = sum(tokens - held for held, tokens in grown)
        squares = sum(tokens**2 - held**2 for held, tokens in grown)
        is_decode = self._advanced.issuperset(made) and 0 < len(made) == running + len(ended & made.keys())
        for name, one in made.items():
            self._lengths[name] = self._lengths.get(name, 0) + len(one.token_ids)
        context = sum(self._lengths[name] for name in made)
        totals = StepTotals(1, len(made), context, prompts, seconds, squares)
        # The seconds of a step that copies KV are those of the copy, which counts elsewhere.
        if not self._moved and is_decode:
            self.decode += totals
        elif not self._moved:
            self.prefill += totals
        self._new -= made.keys()
        self._moved -= made.keys()
        self._advanced = made.keys() - ended
        self.forget(ended)

    def _grown(self, one: StepOutput) -> tuple[int, int]:
        """Return the tokens in the KV cache before a step, and with those before its new one: it computed the rest.

        Of a preempted request it computed all."""
        tokens = self._lengths.get(one.id, 0)
        held = one.cached_tokens if one.id in self._new else None
        return min(held or 0, tokens), tokens
