"""What comes off the replicas: tokens of responses under way, judged and kept, until the store has them."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.store.records import Tokens
from rljob_runtime.protocols import Delta
from rljob_runtime.protocols.trajectory import Lease
from rljob_runtime.scheduling.partial_responses import DeltaStatus, Partials


class TokenReceiver:
    """Of one stage. What is new is counted in `tally`."""

    def __init__(self, tally: GenerationStats) -> None:
        self.partials = Partials()
        self._tally = tally
        self._unsaved: list[Tokens] = []

    def take(self, delta: Delta, lease: Lease, current: Lease | None) -> DeltaStatus:
        """Judge one delta, which came under `lease`, and keep what is new in it. `current`: who is to generate this
        response."""
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
            self._tally.tokens += len(fresh)
            self._unsaved.append(Tokens(delta.key, before, fresh, delta.logprobs[known:]))
        return verdict

    def take_unsaved(self) -> Sequence[Tokens]:
        """What the store has not yet, in the order it came; told once."""
        tokens, self._unsaved = self._unsaved, []
        return tokens
