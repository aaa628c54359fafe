"""A rank without an engine, which starts immediately."""

from __future__ import annotations


class IdleRank:
    """Imports nothing and has no commands."""

    @staticmethod
    def warm_up() -> None:
        """Import nothing."""
