"""Byte budget: who may hold how many bytes of a process's memory, and who waits.

    ask → granted, or it waits → release

Claims are granted in their order. One whose owner holds its share waits, and lets those of others pass. One that lacks
room in the total, or a place, lets no claim pass, so that a large one is not starved by small ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

A = TypeVar("A", bound=Hashable)
"""What names an owner."""


class Denial(StrEnum):
    """Why a claim is refused and does not even wait."""

    CLAIMS = "its owner has as many claims as it may"
    SHARE = "it is larger than the share of an owner"
    QUEUE = "as many claims wait as may"


@dataclass(eq=False)
class Claim(Generic[A]):
    """Bytes of an owner, which it holds once they are granted."""

    owner: A
    amount: int
    granted: bool = False


class ByteBudget(Generic[A]):
    """The claims of one process.

    `total`: bytes of all owners; `share`: of one; `claims`: claims of one owner at a time. `places`: claims that are
    granted at a time, and as many that may wait; None for any number.
    """

    def __init__(self, total: int, share: int, claims: int, places: int | None = None) -> None:
        if not 0 < share <= total:
            raise ValueError(f"a share of {share} bytes; 1 to {total}, the total, would be right")
        self.total = total
        self.share = share
        self.claims = claims
        self.places = places
        self.held = 0
        """Bytes that are granted."""
        self._granted = 0
        self._held: Counter[A] = Counter()
        self._count: Counter[A] = Counter()
        self._waiting: list[Claim[A]] = []

    def ask(self, owner: A, amount: int) -> Claim[A] | Denial:
        """Return a claim, which may have to wait, or why there is none."""
        if self._count[owner] >= self.claims:
            return Denial.CLAIMS
        if amount > self.share:
            return Denial.SHARE
        claim = Claim(owner, amount)
        self._count[owner] += 1
        self._waiting.append(claim)
        self._grant()
        if not claim.granted and self.places is not None and len(self._waiting) > self.places:
            self.release(claim)
            return Denial.QUEUE
        return claim

    def waits_for_own(self, claim: Claim[A]) -> bool:
        """Tell whether a claim waits for its owner's other ones, and not for those of others."""
        return not claim.granted and self._held[claim.owner] + claim.amount > self.share

    def count(self, owner: A, amount: int) -> Claim[A]:
        """Return a granted claim for bytes that exist already, whatever is held. Later claims wait for them."""
        claim = Claim(owner, amount)
        self._count[owner] += 1
        self._hold(claim)
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
            self._granted -= 1
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
            elif self.held + claim.amount > self.total or self._granted == self.places:
                waiting += self._waiting[place:]
                break
            else:
                self._hold(claim)
                granted.append(claim)
        self._waiting = waiting
        return granted

    def _hold(self, claim: Claim[A]) -> None:
        claim.granted = True
        self._granted += 1
        self._held[claim.owner] += claim.amount
        self.held += claim.amount
