"""Which layout (tensor parallel size) the rollout machines are to have, and how each of them comes to it.

A change takes two rounds of calls: every seat that is not in the wanted layout gives its accelerators back, and only
then the seats that lead start their engines on them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from rljob_api.status import StatusWarning
from rljob_runtime.coordinator.core.errors import LayoutNotUsable
from rljob_runtime.coordinator.fleet.machine import RESTING, vacate
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.perf_model.model_shape import ModelShape
from rljob_runtime.protocols import MachinePeers, Refused, Replica, StaleTerm
from rljob_runtime.scheduling.layout_refusals import MIN_REFUSALS, LayoutRefusals, refused_again

log = logging.getLogger(__name__)

PROBLEM = "LayoutRefused"


def check_layouts(model_files: Mapping[str, bytes], sizes: Sequence[int]) -> None:
    """Raises `LayoutNotUsable` when one of these sizes does not split the heads of the model. Of an architecture that
    is not known here the engine is the judge."""
    wider = [size for size in sizes if size > 1]
    if not wider:
        return
    try:
        shape = ModelShape.from_config("the model", json.loads(model_files.get("config.json", b"{}")))
    except ValueError as error:
        log.warning("whether tensor parallel sizes %s fit is left to the engine: %s", wider, error)
        return
    for size in wider:
        try:
            shape.check_layout(size)
        except ValueError as error:
            raise LayoutNotUsable(f"spec.rollout: {error}") from error


class Layouts:
    """`wanted` is the tensor parallel size now; `usual` the spec's, for a machine whose engines cannot start in the
    wanted one. `patience`: seconds over which a machine must have refused before it counts as unable."""

    def __init__(self, term: int, usual: int, reporter: Reporter, patience: float) -> None:
        self.wanted = self._usual = usual
        self._asked: Collection[int] = (usual,)
        self._term = term
        self._reporter = reporter
        self._patience = patience
        self._expected: frozenset[str] = frozenset()
        self._refused: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self._unable: dict[str, LayoutRefusals] = {}
        self._seconds = 0.0

    def want(self, tensor_parallel: int, asked: Collection[int]) -> None:
        """The layout from now on. `asked`: all that the target asks for; to refuse one of these is a problem, in
        whatever kind of round."""
        self.wanted, self._asked = tensor_parallel, asked
        self._tell()

    def is_wanted(self, tensor_parallel: int, asked: Collection[int]) -> bool:
        """Whether `want` would change nothing."""
        return (self.wanted, frozenset(self._asked)) == (tensor_parallel, frozenset(asked))

    def expect(self, machines: Collection[str]) -> None:
        """The job is to have these machines, wherever they are now: one that is not here yet may be able."""
        self._expected = frozenset(machines)

    def due(self, machine: str, tensor_parallel: int) -> bool:
        """Whether a machine in this layout is to be laid out anew. One that refused the wanted layout is not asked
        again before its processes are new ones, unless it rests."""
        if tensor_parallel == RESTING:
            return True
        return tensor_parallel != self.wanted and self.wanted not in self._refused[machine]

    def take_seconds(self) -> float:
        """How long the slowest change of a machine took since the last look."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def forget(self, machine: str) -> None:
        """Its processes are gone, and what they refused with them."""
        if self._refused.pop(machine, None):
            self._tell()

    def leave(self, machine: str) -> None:
        """Its pod is gone: another one of its name may be able."""
        self._unable.pop(machine, None)
        self.forget(machine)
        self._tell()

    def unable(self, machines: Collection[str]) -> bool:
        """Whether no machine of the job, these and all that are expected, can start an engine."""
        told = [self._unable.get(name) for name in {*machines, *self._expected}]
        return bool(told) and all(one is not None and one.unable(self._patience) for one in told)

    def check_able(self, machines: Collection[str]) -> None:
        """Raises `LayoutNotUsable` where `unable`."""
        if self.unable(machines):
            told = "; ".join(sorted({one.reason for one in self._unable.values()}))
            raise LayoutNotUsable(
                f"no rollout machine can start its engines, at least {MIN_REFUSALS} tries each: {told}"
            )

    async def settle(self, machine: MachinePeers, before: int | None = None) -> tuple[int, tuple[Replica, ...]]:
        """Bring a machine to the wanted layout, or back to the one `before` (the usual one for a newcomer) when it
        refuses: the layout in force and the replicas that generate in it. They hold no weights after a change. A loan
        of the machine ends before. Raises what its peers raise, `Refused` when neither can be had."""
        clock = asyncio.get_running_loop().time
        since = clock()
        await vacate(machine, self._term)
        try:
            settled = await self._settle(machine, before or self._usual)
            self._unable.pop(machine.member.machine, None)
            return settled
        except StaleTerm:
            raise
        except Refused as error:
            if before is None:
                name = machine.member.machine
                reason = f"{name} has no engine of tensor parallel size {self._usual}: {error}"
                self._unable[name] = refused_again(self._unable.get(name), clock(), reason)
            raise
        finally:
            if before is not None:
                self._seconds = max(self._seconds, clock() - since)
            self._tell()

    async def _settle(self, machine: MachinePeers, fallback: int) -> tuple[int, tuple[Replica, ...]]:
        name, wanted = machine.member.machine, self.wanted
        try:
            return wanted, await self._lay_out(machine, wanted)
        except StaleTerm:
            raise
        except Refused as error:
            if fallback == wanted:
                raise
            log.warning("%s refused tensor parallel size %d: %s", name, wanted, error)
            replicas = await self._lay_out(machine, fallback)
            self._refused[name][wanted] = f"{name} goes on with tensor parallel size {fallback}, not {wanted}: {error}"
            return fallback, replicas

    async def _lay_out(self, machine: MachinePeers, tensor_parallel: int) -> tuple[Replica, ...]:
        leading = machine.leading(tensor_parallel)
        await asyncio.gather(*(seat.make_room(self._term, tensor_parallel) for seat in machine.seats))
        await asyncio.gather(*(seat.lay_out(self._term, tensor_parallel) for seat in leading))
        return leading

    def _tell(self) -> None:
        refusals = [text for told in self._refused.values() for size, text in told.items() if size in self._asked]
        refusals += [one.reason for one in self._unable.values()]
        problem = StatusWarning(reason=PROBLEM, message="; ".join(sorted(refusals))[:2048]) if refusals else None
        self._reporter.problem(PROBLEM, problem)
