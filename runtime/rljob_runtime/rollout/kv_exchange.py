"""KV exchange: the KV files that one replica writes and uses. It decides what may be used, engines copy.

KV is an optimisation: whatever is wrong with it, the request is computed from its tokens. So no error of a file is
raised to the caller; each is counted by its cause.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rljob_runtime.protocols import GenerateRequest, KvExport, KvRefusal, KvSize, KvStats, Mismatch
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.rollout.engines.base import EngineRequest, KvEngine, KvTicket
from rljob_runtime.rollout.kv.kv_file import (
    Held,
    Index,
    KvFileWriter,
    NoRoom,
    Origin,
    Unusable,
    needed_for_weights,
    plan,
    read_index,
    remove_older,
    room_beside,
    sweep_kv_of_all_jobs,
    written_bytes,
)

log = logging.getLogger(__name__)

PROBED_BYTES = 1 << 28
"""KV after which a rate of copies is known. A probe of more than one request moves no more."""


class KvExchange:
    """KV files of one replica in `folder`, which all replicas of the machine share: `<root>/rljob-<job>/<machine>-kv`.

    `machine` contains the incarnation. `segment` is the folder of the relay's weights, which must keep room for two
    versions. One thread uses it.
    """

    def __init__(self, folder: Path, job: str, machine: str, segment: Path) -> None:
        self._folder = folder
        self._job, self._machine = job, machine
        self._segment = segment
        self._written: KvFileWriter | None = None
        self._last: tuple[dict[TrajectoryKey, int], KvExport] | None = None
        self.stats = KvStats()
        self.size: KvSize | None = None
        """As `measure` found it."""
        sweep_kv_of_all_jobs(folder.parents[1])

    def measure(self, engine: KvEngine) -> None:
        """Measure the KV that `engine` can move, and the room for it. Engines ask their ranks, so not at each step."""
        shape, self.size = engine.kv_shape(), None
        if shape is not None:
            try:
                # Files of this machine are dropped before it writes others.
                room = room_beside(self._segment) + written_bytes(self._folder)
            except OSError as error:
                log.warning("the room for KV is unknown, so none is moved: %s", error)
            else:
                self.size = KvSize(shape.kv_heads, shape.layers * shape.token_bytes, room)

    # --- export ---

    def export(
        self, engine: KvEngine, attempts: Mapping[TrajectoryKey, int], ids: Mapping[str, TrajectoryKey]
    ) -> KvExport:
        """Write the KV of the requests `ids` (engine id → key). `attempts` identify a repeated command."""
        if self._last is not None and self._last[0] == attempts:
            return self._last[1]
        self.drop()
        began = time.perf_counter()
        receipt = self._export(engine, ids)
        receipt = replace(receipt, seconds=time.perf_counter() - began)
        self.stats += KvStats(
            exported_tokens=sum(receipt.tokens.values()), exported_bytes=receipt.nbytes, export_seconds=receipt.seconds
        )
        self._last = (dict(attempts), receipt)
        return receipt

    def _export(self, engine: KvEngine, ids: Mapping[str, TrajectoryKey]) -> KvExport:
        version, shape = engine.weight_version, engine.kv_shape()
        if version is None or shape is None:
            return KvExport(None, {}, 0, 0.0, KvRefusal.UNSUPPORTED, "the engine transfers no KV")
        held = engine.kv_held(list(ids))
        if not held:
            return KvExport(None, {}, 0, 0.0, KvRefusal.NO_BLOCK, "no response has a full block")
        planned = plan(self._origin(version), shape, {str(ids[id]): one for id, one in held.items()})
        try:
            writer = self._written = KvFileWriter.create(self._folder, planned, needed_for_weights(self._segment))
            checksums = engine.kv_write(writer.path, planned, {id: str(ids[id]) for id in held})
            writer.seal({name: [each[head] for head in range(shape.kv_heads)] for name, each in checksums.items()})
        except (NoRoom, OSError) as error:
            log.warning("KV is computed again instead of moved: %s", error)
            self.drop()
            refusal = KvRefusal.NO_ROOM if isinstance(error, NoRoom) else KvRefusal.NOT_WRITTEN
            return KvExport(None, {}, 0, 0.0, refusal, str(error))
        tokens = {ids[id]: one.tokens for id, one in held.items()}
        return KvExport(writer.path.name, tokens, writer.nbytes, 0.0)

    def probe(self, engine: KvEngine, ids: Sequence[str]) -> KvStats:
        """Write KV of the first of these running requests, and read it back; return what both took.

        The requests continue. The file does not outlast the call, and the replica's totals do not count it.
        """
        version, shape = engine.weight_version, engine.kv_shape()
        if version is None or shape is None or self._written is not None:
            return KvStats()
        held, nbytes = dict[str, Held](), 0
        for id, one in engine.kv_held(ids).items():
            nbytes += shape.response_bytes(one.tokens)
            if held and nbytes > PROBED_BYTES:
                break
            held[id] = one
        if not held:
            return KvStats()
        began, planned = time.perf_counter(), plan(self._origin(version), shape, held)
        try:
            writer = KvFileWriter.create(self._folder, planned, needed_for_weights(self._segment))
        except (NoRoom, OSError) as error:
            log.info("moves of KV are not measured: %s", error)
            return KvStats()
        try:
            checksums = engine.kv_write(writer.path, planned, {id: id for id in held})
            writer.seal({id: [each[head] for head in range(shape.kv_heads)] for id, each in checksums.items()})
            opened = time.perf_counter()
            tickets = {id: KvTicket(writer.path, id, one.tokens) for id, one in held.items()}
            intact = engine.kv_open(list(tickets.values()))
            verified = time.perf_counter()
            read = engine.kv_read({id: one for (id, one), right in zip(tickets.items(), intact, strict=True) if right})
        except OSError as error:
            log.info("moves of KV are not measured: %s", error)
            return KvStats()
        finally:
            writer.close()
        tokens = sum(one.tokens for one in held.values())
        moved = replace(read, import_seconds=read.import_seconds + verified - opened)
        return moved + KvStats(exported_tokens=tokens, exported_bytes=writer.nbytes, export_seconds=opened - began)

    def drop(self) -> None:
        """Remove the file of the last export."""
        self._last = None
        if self._written is not None:
            self._written.close()
            self._written = None

    def drop_other_versions(self, version: int) -> None:
        """Remove the file unless it belongs to this weight version, and the machine's files of earlier ones.

        A replica whose engine sleeps in the new layout loads nothing, so the replicas that load remove its file.
        """
        if self._written is not None and self._written.index.origin.weight_version != version:
            self.drop()
        remove_older(self._folder, version)

    # --- import ---

    def with_kv(
        self, engine: KvEngine, requests: Sequence[GenerateRequest], asked: Sequence[EngineRequest]
    ) -> list[EngineRequest]:
        """Return the engine's requests, those with usable KV with a ticket for it."""
        if all(request.kv_file is None for request in requests):
            return list(asked)
        began = time.perf_counter()
        indexes: dict[str, Index | Mismatch] = {}
        causes: Counter[Mismatch] = Counter()
        found: dict[int, KvTicket] = {}
        for place, request in enumerate(requests):
            if request.kv_file is not None:
                if request.kv_file not in indexes:
                    indexes[request.kv_file] = self._index(request.kv_file)
                ticket = self._ticket(engine, request, indexes[request.kv_file])
                if isinstance(ticket, KvTicket):
                    found[place] = ticket
                else:
                    causes[ticket] += 1
        for place, intact in zip(list(found), engine.kv_open(list(found.values())), strict=True):
            if not intact:
                causes[Mismatch.DAMAGED] += 1
                del found[place]
        for cause, count in causes.items():
            log.warning("the KV of %d responses is computed again: %s", count, cause)
        made = [replace(one, kv=found.get(place)) for place, one in enumerate(asked)]
        self.stats += KvStats(
            import_seconds=time.perf_counter() - began,
            recomputed_tokens=sum(
                len(one.token_ids) - (one.kv.tokens if one.kv else 0)
                for one, request in zip(made, requests, strict=True)
                if request.kv_file is not None
            ),
            **{cause.value: count for cause, count in causes.items()},
        )
        return made

    def _ticket(self, engine: KvEngine, request: GenerateRequest, index: Index | Mismatch) -> KvTicket | Mismatch:
        if isinstance(index, Mismatch):
            return index
        assert request.kv_file is not None
        name, tokens = str(request.key), request.prompt_token_ids + request.prefix_token_ids
        cause = index.mismatch(self._origin(request.weight_version), engine.kv_shape(), name, tokens)
        return cause or KvTicket(self._folder / request.kv_file, name, index.responses[name].tokens)

    def _index(self, file: str) -> Index | Mismatch:
        if Path(file).name != file:
            return Mismatch.MISSING  # No path leads out of the folder.
        try:
            return read_index(self._folder / file)
        except Unusable as error:
            return error.cause

    def _origin(self, version: int) -> Origin:
        return Origin(self._job, self._machine, version)
