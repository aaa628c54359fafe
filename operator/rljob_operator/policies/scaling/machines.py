"""Machines: how many rollout machines a job should have, and which."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rljob_api.constants import ROLE_ROLLOUT, machine_name
from rljob_api.spec import Rollout
from rljob_operator.policies.base.names import machine_index


def wanted_count(rollout: Rollout) -> int:
    """Return `machines` within its bounds."""
    return max(rollout.smallest, min(rollout.machines, rollout.largest))


def choose_machines(
    current: Sequence[str], count: int, broken: Collection[str], barred: Collection[str] = ()
) -> tuple[str, ...]:
    """Choose `count` machine names with as few changes from `current` as possible.

    Growing takes the lowest free names. Shrinking removes `broken` machines first (without a working pod), then the
    highest numbers. `barred` names are not used. The result is sorted by number.
    """
    kept = sorted(set(current) - set(barred), key=machine_index)
    while len(kept) > count:
        victim = max(kept, key=lambda machine: (machine in broken, machine_index(machine)))
        kept.remove(victim)
    taken = {*kept, *barred}
    free = (name for index in range(count + len(taken)) if (name := machine_name(ROLE_ROLLOUT, index)) not in taken)
    kept += [next(free) for _ in range(count - len(kept))]
    return tuple(sorted(kept, key=machine_index))
