"""Fencing: a relay accepts commands only with a token at least as high as the highest it has seen. Pure.

A token is (term, epoch, revision). The term orders coordinators; (epoch, revision) orders chains. A lower token belongs
to a replaced coordinator or chain and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_runtime.protocols import Chain


@dataclass(frozen=True)
class FencingToken:
    """Highest numbers seen. `term` orders coordinators; (`epoch`, `revision`) orders chains, as a pair."""

    term: int = 0
    epoch: int = 0
    revision: int = 0

    @property
    def chain(self) -> tuple[int, int]:
        """Pair by which chains are compared."""
        return (self.epoch, self.revision)

    def raised(self, other: FencingToken) -> FencingToken:
        """Return the higher of each number."""
        epoch, revision = max(self.chain, other.chain)
        return FencingToken(max(self.term, other.term), epoch, revision)

    def refusal(self, other: FencingToken) -> str | None:
        """Return why a peer with the token `other` is refused, or None. The token must not be lower in either order."""
        if other.term < self.term:
            return f"term {other.term} is lower than {self.term}"
        if other.chain < self.chain:
            return f"chain {other.epoch}.{other.revision} is older than {self.epoch}.{self.revision}"
        return None


PUBLISHER = "trainer"
"""Name of the trainer in its handshake with the master relay: the predecessor of the first member."""


def predecessor(chain: Chain, machine: str) -> str | None:
    """Return the machine that feeds `machine` in `chain`, or None if it is not a member."""
    names = [PUBLISHER, *(member.machine for member in chain.members)]
    return names[names.index(machine, 1) - 1] if machine in names[1:] else None
