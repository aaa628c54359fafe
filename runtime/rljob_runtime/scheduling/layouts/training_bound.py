"""Training bound: how much of the generation time that switches save ends the round earlier.

A streaming trainer processes groups as they become complete. If it ends later than generation anyway, a shorter
generation saves nothing: it only has more groups to catch up with. Groups are assumed to become complete earlier by the
same share as generation ends earlier.
"""

from __future__ import annotations

from statistics import fmean

from rljob_runtime.scheduling.lending.gain import RoundSnapshot, arrivals, drawn, training_end


def trained_gain(saved: float, round_: RoundSnapshot, token: float | None) -> float | None:
    """Return the seconds by which training ends earlier if generation takes the share `saved` less.

    `token`: the trainer's seconds per loss token; None if unknown, or if the trainer does not stream. Returns None if
    `token` is None or the engines' speed is unknown."""
    if token is None or round_.speed is None:
        return None
    gains = []
    for outcome in drawn(round_):
        complete = arrivals(outcome, round_.speed)
        earlier = [(at * (1 - saved), tokens) for at, tokens in complete]
        gains.append(training_end(round_.backlog, complete, token) - training_end(round_.backlog, earlier, token))
    return fmean(gains)
