"""Byte budget: who may hold how many bytes of a process's memory, and who waits.

    ask → granted, or it waits → release

Claims are granted in their order. One whose owner holds its share waits, and lets those of others pass. One that lacks
room in the total lets no claim pass, so that a large one is not starved by small ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

A = TypeVar("A", bound=Hashable)
"""What names an owner."""


@dataclass(eq=False)
class Claim(Generic[A]):
    """Bytes of an owner, which it holds once they are granted."""

    owner: A
    amount: int
    granted: bool = False


class ByteBudget(Generic[A]):
    """The claims of one process. `total`: bytes of all owners; `share`: of one; `claims`: claims of one at a time."""

    def __init__(self, total: int, share: int, claims: int) -> None:
        if not 0 < share <= total:
            raise ValueError(f"a share of {share} bytes; 1 to {total}, the total, would be right")
        self.total = total
        self.share = share
        self.claims = claims
        self.held = 0
        """Bytes that are granted."""
        self._held: Counter[A] = Counter()
        self._count: Counter[A] = Counter()
        self._waiting: list[Claim[A]] = []

    def ask(self, owner: A, amount: int) -> Claim[A] | None:
        """Return a claim, which may have to wait; None if its owner has too many, or wants more than its share."""
        if self._count[owner] >= self.claims or amount > self.share:
            return None
        claim = Claim(owner, amount)
        self._count[owner] += 1
        self._waiting.append(claim)
        self._grant()
        return claim

    def count(self, owner: A, amount: int) -> Claim[A]:
        """Return a granted claim for bytes that exist already, whatever is held. Later claims wait for them."""
        claim = Claim(owner, amount, granted=True)
        self._count[owner] += 1
        self._held[owner] += amount
        self.held += amount
        return claim

    def has_room(self, owner: A) -> bool:
        """Tell whether neither the owner's share nor the total is used up."""
        return self._held[owner] < self.share and self.held < self.total

    def change(self, claim: Claim[A], amount: int) -> list[Claim[A]]:
        """Change the bytes of a granted claim; return the claims that are granted by that.

        More bytes are counted without a wait: they exist, and later claims wait for them.
        """
        more, claim.amount = amount - claim.amount, amount
        self._held[claim.owner] += more
        self.held += more
        return self._grant()

    def release(self, claim: Claim[A]) -> list[Claim[A]]:
        """End a claim, granted or not; return the claims that are granted by that."""
        self._count[claim.owner] -= 1
        if claim.granted:
            self._held[claim.owner] -= claim.amount
            self.held -= claim.amount
        else:
            self._waiting.remove(claim)
        if not self._count[claim.owner]:
            del self._count[claim.owner], self._held[claim.owner]
        return self._grant()

    def _grant(self) -> list[Claim[A]]:
        granted, waiting = [], []
        for place, claim in enumerate(self._waiting):
            if self._held[claim.owner] + claim.amount > self.share:
                waiting.append(claim)
            elif self.held + claim.amount > self.total:
                waiting += self._waiting[place:]
                break
            else:
                claim.granted = True
                self._held[claim.owner] += claim.amount
                self.held += claim.amount
                granted.append(claim)
        self._waiting = waiting
        return granted
