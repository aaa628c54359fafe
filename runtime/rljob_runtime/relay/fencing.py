"""Whom a relay obeys: the order of coordinators (term) and of chains (epoch, revision).

Pure. A token only rises; what is lower comes from a coordinator or a chain that was replaced, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_runtime.protocols import Chain


@dataclass(frozen=True)
class FencingToken:
    """The highest numbers seen. `term` orders coordinators; (`epoch`, `revision`) orders chains, as a pair."""

    term: int = 0
    epoch: int = 0
    revision: int = 0

    @property
    def chain(self) -> tuple[int, int]:
        """The pair by which chains are compared."""
        return (self.epoch, self.revision)

    def raised(self, other: FencingToken) -> FencingToken:
        """The higher of each number."""
        epoch, revision = max(self.chain, other.chain)
        return FencingToken(max(self.term, other.term), epoch, revision)

    def refusal(self, other: FencingToken) -> str | None:
        """Why a peer with token `other` is refused, or None: it must not be lower in either order."""
        if other.term < self.term:
            return f"term {other.term} is lower than {self.term}"
        if other.chain < self.chain:
            return f"chain {other.epoch}.{other.revision} is older than {self.epoch}.{self.revision}"
        return None


PUBLISHER = "trainer"
"""Name under which the trainer presents itself to the master relay: the predecessor of the first member."""


def predecessor(chain: Chain, machine: str) -> str | None:
    """Who feeds `machine` in `chain`, or None when it is no member."""
    names = [PUBLISHER, *(member.machine for member in chain.members)]
    return names[names.index(machine, 1) - 1] if machine in names[1:] else None
