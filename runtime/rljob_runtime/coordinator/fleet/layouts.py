"""Engine layouts: the tensor parallel size that the machines shall have, and how each machine gets it.

A change takes two rounds of calls. First every engine slot in another layout releases its accelerators. Then the
leading slots start their engines on them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from rljob_api.status import StatusWarning
from rljob_runtime.coordinator.core.errors import LayoutNotUsable
from rljob_runtime.coordinator.fleet.machine import SLEEPING, release_accelerators
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.perf_model.model_shape import ModelShape
from rljob_runtime.protocols import MachinePeers, Refused, Replica, StaleTerm
from rljob_runtime.scheduling.layout_refusals import MIN_REFUSALS, LayoutRefusals, refused_again

log = logging.getLogger(__name__)

PROBLEM = "LayoutRefused"


def check_layouts(model_files: Mapping[str, bytes], sizes: Sequence[int]) -> None:
    """Check that each size splits the heads of the model; raise `LayoutNotUsable` if one does not.

    Sizes for an unknown architecture are left to the engine.
    """
    wider = [size for size in sizes if size > 1]
    if not wider:
        return
    try:
        shape = ModelShape.from_config("the model", json.loads(model_files.get("config.json", b"{}")))
    except ValueError as error:
        log.warning("the engine has to check tensor parallel sizes %s: %s", wider, error)
        return
    for size in wider:
        try:
            shape.check_layout(size)
        except ValueError as error:
            raise LayoutNotUsable(f"spec.rollout: {error}") from error


class Layouts:
    """The target layout of a fleet and the machines that refuse it.

    `target` is the tensor parallel size now. `default` is the spec's, for a machine that refuses the target. A machine
    is unable to start only if its refusals span `patience` seconds.
    """

    def __init__(self, term: int, default: int, reporter: Reporter, patience: float) -> None:
        self.target = self._default = default
        self._requested: Collection[int] = (default,)
        self._term = term
        self._reporter = reporter
        self._patience = patience
        self._members: frozenset[str] = frozenset()
        self._refused: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self._unable: dict[str, LayoutRefusals] = {}
        self._seconds = 0.0

    def set_target(self, tensor_parallel: int, requested: Collection[int]) -> None:
        """Set the layout from now on. `requested`: all sizes of the operator's target; refusing one is a problem."""
        self.target, self._requested = tensor_parallel, requested
        self._report()

    def is_target(self, tensor_parallel: int, requested: Collection[int]) -> bool:
        """Return whether `set_target` would change nothing."""
        return (self.target, frozenset(self._requested)) == (tensor_parallel, frozenset(requested))

    def set_members(self, machines: Collection[str]) -> None:
        """Set the machines of the operator's target. One that has not joined yet may be able to start."""
        self._members = frozenset(machines)

    def needs_switch(self, machine: str, tensor_parallel: int) -> bool:
        """Return whether a machine in this layout has to switch.

        A machine that refused the target is not asked again by the same processes, unless its engines are asleep.
        """
        if tensor_parallel == SLEEPING:
            return True
        return tensor_parallel != self.target and self.target not in self._refused[machine]

    def drain_seconds(self) -> float:
        """Return the duration of the slowest switch since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def forget_refusals(self, machine: str) -> None:
        """Forget what a machine refused: its processes have ended."""
        if self._refused.pop(machine, None):
            self._report()

    def remove(self, machine: str) -> None:
        """Forget a machine whose pod was deleted: the next one of its name may be able to start."""
        self._unable.pop(machine, None)
        self.forget_refusals(machine)
        self._report()

    def unable_to_start(self, machines: Collection[str]) -> bool:
        """Return whether no machine, of these and of the target, can start an engine."""
        failures = [self._unable.get(name) for name in {*machines, *self._members}]
        return bool(failures) and all(one is not None and one.unable(self._patience) for one in failures)

    def check_able(self, machines: Collection[str]) -> None:
        """Raise `LayoutNotUsable` if no machine can start an engine."""
        if self.unable_to_start(machines):
            errors = "; ".join(sorted({one.reason for one in self._unable.values()}))
            raise LayoutNotUsable(
                f"no rollout machine can start its engines, at least {MIN_REFUSALS} tries each: {errors}"
            )

    async def apply(self, machine: MachinePeers, before: int | None = None) -> tuple[int, tuple[Replica, ...]]:
        """Switch a machine to the target layout and end its loan; return its layout and the replicas that generate.

        A machine that refuses the target goes back to `before`, or to the default layout if it has just joined.
        Replicas hold no weights after a switch. Raises what the peers raise, and `Refused` if both layouts fail.
        """
        clock = asyncio.get_running_loop().time
        since = clock()
        await release_accelerators(machine, self._term)
        try:
            applied = await self._apply(machine, before or self._default)
            self._unable.pop(machine.member.machine, None)
            return applied
        except StaleTerm:
            raise
        except Refused as error:
            if before is None:
                self._record_failure(machine.member.machine, clock(), error)
            raise
        finally:
            if before is not None:
                self._seconds = max(self._seconds, clock() - since)
            self._report()

    def _record_failure(self, name: str, now: float, error: Refused) -> None:
        reason = f"{name} has no engine of tensor parallel size {self._default}: {error}"
        self._unable[name] = refused_again(self._unable.get(name), now, reason)

    async def _apply(self, machine: MachinePeers, fallback: int) -> tuple[int, tuple[Replica, ...]]:
        name, target = machine.member.machine, self.target
        try:
            return target, await self._switch(machine, target)
        except StaleTerm:
            raise
        except Refused as error:
            if fallback == target:
                raise
            log.warning("%s refused tensor parallel size %d: %s", name, target, error)
            replicas = await self._switch(machine, fallback)
            self._refused[name][target] = f"{name} keeps tensor parallel size {fallback}, not {target}: {error}"
            return fallback, replicas

    async def _switch(self, machine: MachinePeers, tensor_parallel: int) -> tuple[Replica, ...]:
        leading = machine.leading(tensor_parallel)
        await asyncio.gather(*(one.release_accelerators(self._term, tensor_parallel) for one in machine.replicas))
        await asyncio.gather(*(one.switch_layout(self._term, tensor_parallel) for one in leading))
        return leading

    def _report(self) -> None:
        refusals = [text for texts in self._refused.values() for size, text in texts.items() if size in self._requested]
        refusals += [one.reason for one in self._unable.values()]
        problem = StatusWarning(reason=PROBLEM, message="; ".join(sorted(refusals))[:2048]) if refusals else None
        self._reporter.problem(PROBLEM, problem)
