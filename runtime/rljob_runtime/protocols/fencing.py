"""Term fence: peers refuse commands from an earlier coordinator."""

from __future__ import annotations

from rljob_runtime.protocols.errors import StaleTerm


class TermFence:
    """The highest term that `peer` has seen."""

    def __init__(self, peer: str) -> None:
        self.term = 0
        self._peer = peer

    def check(self, term: int) -> None:
        """Adopt `term`. Raises `StaleTerm` if the peer has seen a higher one."""
        check_term(term, self.term, self._peer)
        self.term = term


def check_term(term: int, seen: int, peer: str) -> None:
    """Raise `StaleTerm` if `peer` has seen the higher term `seen`."""
    if term < seen:
        raise StaleTerm(f"term {term} is over: {peer} follows term {seen}")
