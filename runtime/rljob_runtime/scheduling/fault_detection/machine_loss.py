"""Machine loss: whether a loss suggests a broken machine."""

from __future__ import annotations

SILENT = "HeartbeatLost"
"""Why a machine is lost that does not answer. Its processes may still run."""
NOT_SHIPPED = "WeightsNotShipped"
"""Why a master is lost if the trainer sends it nothing, and sent the master before it nothing."""


def suggests_broken_machine(reason: str, refused: bool) -> bool:
    """Return whether a loss counts towards `KeepsFailing`.

    A silent machine may only be unreachable. A machine that has refused a call still works. Weights that the trainer
    does not send cannot be received.

    >>> suggests_broken_machine("ProcessExited", refused=False), suggests_broken_machine(SILENT, refused=False)
    (True, False)
    """
    return reason not in (SILENT, NOT_SHIPPED) and not refused
