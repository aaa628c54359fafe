"""Who may command: peers refuse a former coordinator."""

from __future__ import annotations

from rljob_runtime.coordinator.protocols import StaleTerm


class Office:
    """The highest term that a peer has seen."""

    def __init__(self) -> None:
        self.term = 0

    def check(self, term: int) -> None:
        """Raises `StaleTerm` for a lower one."""
        if term < self.term:
            raise StaleTerm(f"term {term} is over: {self.term} is in office")
        self.term = term
