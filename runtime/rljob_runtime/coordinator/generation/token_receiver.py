"""Token receiver: accepts token deltas from replicas and buffers them until they are stored."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.store.records import Tokens
from rljob_runtime.protocols import Delta
from rljob_runtime.protocols.trajectory import Lease
from rljob_runtime.scheduling.partial_responses import DeltaStatus, Partials


class TokenReceiver:
    """The partial responses of one stage. New tokens are counted in `stats`."""

    def __init__(self, stats: GenerationStats) -> None:
        self.partials = Partials()
        self._stats = stats
        self._unsaved: list[Tokens] = []

    def accept(self, delta: Delta, lease: Lease, current: Lease | None) -> DeltaStatus:
        """Check a delta that arrived under `lease`, and buffer its new tokens. `current`: the response's lease now."""
        if lease != current:
            return DeltaStatus.STALE
        before = self.partials.length_of(delta.key)
        verdict = self.partials.accept(
            delta.key,
            lease,
            delta.offset,
            delta.token_ids,
            delta.logprobs,
            delta.weight_version,
            delta.finish_reason is not None,
        )
        if verdict in (DeltaStatus.ACCEPTED, DeltaStatus.FINISHED):
            known = before - delta.offset
            fresh = delta.token_ids[known:]
            self._stats.tokens += len(fresh)
            self._unsaved.append(Tokens(delta.key, before, fresh, delta.logprobs[known:]))
        return verdict

    def drain_unsaved(self) -> Sequence[Tokens]:
        """Return the tokens that are not stored yet, in order of arrival, and forget them."""
        tokens, self._unsaved = self._unsaved, []
        return tokens
