"""Engine layouts: the tensor parallel size that each machine shall have, and how the machine gets it.

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
from rljob_runtime.protocols import KeptEngines, MachinePeers, PeerError, Refused, Replica, StaleTerm
from rljob_runtime.scheduling.fault_detection.layout_refusals import MIN_REFUSALS, LayoutRefusals, refused_again
from rljob_runtime.scheduling.layouts.fleet_layout import RoundLayout

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

    `target` is the tensor parallel size now, except of machines that switched inside the round. `default` is the
    spec's, for a machine that refuses the target. A machine is unable to start only if its refusals span `patience`
    seconds.
    """

    def __init__(self, term: int, default: int, reporter: Reporter, patience: float) -> None:
        self.target = self._default = default
        self._requested: Collection[int] = (default,)
        self._switched: dict[str, int] = {}
        self._visits: dict[str, int] = {}
        """Sizes of resting machines that are to be measured."""
        self._term = term
        self._reporter = reporter
        self._patience = patience
        self._members: frozenset[str] = frozenset()
        self._refused: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self._unable: dict[str, LayoutRefusals] = {}
        self._seconds: dict[str, float] = {}
        """Of the last switch of each machine."""
        self._parts: dict[str, dict[str, float]] = {}
        self._kept: dict[str, frozenset[int]] = {}
        """Sizes that each machine's present processes have engines of, as they said when it last switched."""
        self._ran: defaultdict[str, set[int]] = defaultdict(set)
        """Sizes that they have ever had."""
        self.build_seconds: float | None = None
        """The longest that a machine has taken to build its engines."""

    @property
    def switched(self) -> Mapping[str, int]:
        """The machines whose size is not the target, because they switched inside the round."""
        return self._switched

    def set_target(self, layout: RoundLayout, requested: Collection[int]) -> None:
        """Set the layout from now on. `requested`: all sizes of the operator's target; refusing one is a problem."""
        self.target, self._requested, self._switched = layout.size, requested, dict(layout.machines)
        self._report()

    def is_target(self, layout: RoundLayout, requested: Collection[int]) -> bool:
        """Return whether `set_target` would change nothing."""
        present = RoundLayout(self.target, self._switched)
        return (present, frozenset(self._requested)) == (layout, frozenset(requested))

    def target_of(self, machine: str) -> int:
        """Return the size that a machine shall have."""
        return self._visits.get(machine, self._switched.get(machine, self.target))

    def visit(self, machine: str, tensor_parallel: int | None) -> None:
        """Have a resting machine visit this size; None: end its visit."""
        self._visits.pop(machine, None)
        if tensor_parallel is not None:
            self._visits[machine] = tensor_parallel

    def ran(self, machine: str) -> frozenset[int]:
        """Return the sizes that the machine's present processes have ever had engines of."""
        return frozenset(self._ran.get(machine, ()))

    def built(self, machine: str) -> frozenset[int]:
        """Return the sizes that the machine's present processes have engines of."""
        return self._kept.get(machine, frozenset())

    def set_size(self, machine: str, tensor_parallel: int) -> None:
        """Set the size of one machine, until the next target or until its processes end."""
        self._switched.pop(machine, None)
        if tensor_parallel != self.target:
            self._switched[machine] = tensor_parallel

    def refused(self, machine: str) -> Collection[int]:
        """Return the sizes in which the machine's present processes did not start an engine."""
        return self._refused[machine].keys() if machine in self._refused else ()

    def set_members(self, machines: Collection[str]) -> None:
        """Set the machines of the operator's target. One that has not joined yet may be able to start."""
        self._members = frozenset(machines)

    def needs_switch(self, machine: str, tensor_parallel: int) -> bool:
        """Return whether a machine in this layout has to switch.

        A machine that refused the target is not asked again by the same processes, unless its engines are asleep.
        """
        if tensor_parallel == SLEEPING:
            return True
        target = self.target_of(machine)
        return tensor_parallel != target and target not in self._refused[machine]

    def drain_seconds(self) -> float:
        """Return the duration of the slowest switch since the last call."""
        seconds, self._seconds = max(self._seconds.values(), default=0.0), {}
        return seconds

    def drain_parts(self, machine: str) -> dict[str, float]:
        """Return the seconds of each part of a machine's last switch, which is no switch of a boundary.

        `build` is in place of `start` if an engine of the size had to be built. `failed`: until a size was refused, or
        the machine was lost."""
        self._seconds.pop(machine, None)
        return self._parts.pop(machine, {})

    def processes_ended(self, machine: str) -> None:
        """Forget what a machine refused, and that it switched: new processes start in the target."""
        self._switched.pop(machine, None)
        self._visits.pop(machine, None)
        self._kept.pop(machine, None)
        self._ran.pop(machine, None)
        if self._refused.pop(machine, None):
            self._report()

    def remove(self, machine: str) -> None:
        """Forget a machine whose pod was deleted: the next one of its name may be able to start."""
        self._unable.pop(machine, None)
        self.processes_ended(machine)
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
            # A machine that returns from a loan in its own size has not changed it.
            if before is not None and before != SLEEPING:
                name = machine.member.machine
                self._seconds[name] = max(self._seconds.get(name, 0.0), clock() - since)
            self._report()

    def _record_failure(self, name: str, now: float, error: Refused) -> None:
        reason = f"{name} has no engine of tensor parallel size {self._default}: {error}"
        self._unable[name] = refused_again(self._unable.get(name), now, reason)

    async def _apply(self, machine: MachinePeers, fallback: int) -> tuple[int, tuple[Replica, ...]]:
        name, clock = machine.member.machine, asyncio.get_running_loop().time
        target, began = self.target_of(name), clock()
        self._parts[name] = {}
        try:
            return target, await self._switch(machine, target)
        except StaleTerm:
            raise
        except PeerError as error:
            # Responses wait for it as for any other part.
            self._parts[name]["failed"] = clock() - began
            if not isinstance(error, Refused) or fallback == target:
                raise
            log.warning("%s refused tensor parallel size %d: %s", name, target, error)
            replicas = await self._switch(machine, fallback)
            self.set_size(name, fallback if name in self._switched else self.target)
            self._refused[name][target] = f"{name} keeps tensor parallel size {fallback}, not {target}: {error}"
            return fallback, replicas

    async def _switch(self, machine: MachinePeers, tensor_parallel: int) -> tuple[Replica, ...]:
        leading, clock = machine.leading(tensor_parallel), asyncio.get_running_loop().time
        name, began = machine.member.machine, clock()
        kept = await asyncio.gather(
            *(one.release_accelerators(self._term, tensor_parallel) for one in machine.replicas)
        )
        engines, released = dict(zip((one.name for one in machine.replicas), kept, strict=True)), clock()
        before = sum(one.built for one in engines.values())
        started = await asyncio.gather(*(one.switch_layout(self._term, tensor_parallel) for one in leading))
        engines |= zip((one.name for one in leading), started, strict=True)
        builds, seconds = sum(one.built for one in engines.values()) > before, clock() - released
        self._parts[name] |= {"release": released - began, "build" if builds else "start": seconds}
        if builds:
            self.build_seconds = max(self.build_seconds or 0.0, seconds)
        self._kept[name] = _sizes(machine, engines)
        self._ran[name] |= self._kept[name]
        return leading

    def _report(self) -> None:
        refusals = [text for texts in self._refused.values() for size, text in texts.items() if size in self._requested]
        refusals += [one.reason for one in self._unable.values()]
        problem = StatusWarning(reason=PROBLEM, message="; ".join(sorted(refusals))[:2048]) if refusals else None
        self._reporter.problem(PROBLEM, problem)


def _sizes(machine: MachinePeers, engines: Mapping[str, KeptEngines]) -> frozenset[int]:
    """Return the sizes of which every leading slot has an engine. A slot may have discarded one for its memory."""
    sizes = frozenset[int]().union(*(one.sizes for one in engines.values()))
    return frozenset(size for size in sizes if all(size in engines[one.name].sizes for one in machine.leading(size)))
