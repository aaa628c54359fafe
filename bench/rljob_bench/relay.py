"""`rljob bench relay`: the chain broadcast against its formula, a hop against a raw copy, the stall against a copy.

Relays run as processes in network namespaces joined by links of a fixed rate (`netns.Line`), so a time on the wire is
what is measured, not two processors shared by everyone. All goals are ratios within one run:

- `chain_over_formula`: (T(p, k) / T(2, k)) / ((p + k - 2) / k), Laminar's appendix C; the worst row counts. p counts
  the master, k the chunks; T runs from the order to broadcast until the last relay has the version whole.
- `hop_over_raw_tcp`: bytes per second of one hop over those of a bare sendfile/recv of the same bytes on the same link.
- `stall_over_copy`: how long `Publisher.publish` stops the trainer over the same cast and gather into plain memory.
"""

from __future__ import annotations

import secrets
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rljob_bench import relay_kill
from rljob_bench.lib import netns
from rljob_bench.lib.netns import Line
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.protocols import Chain
from rljob_runtime.relay import tensors as flat
from rljob_runtime.relay.manifest import Manifest, layout
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import read_key
from rljob_runtime.relay.segment import SHARED_MEMORY
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.subprocess import RelayCommand, RelayProcess

Row = dict[str, Any]

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.002
STALL_TENSORS, STALL_COLUMNS = 64, 512


@dataclass(frozen=True)
class Plan:
    """What is measured: a version of `nbytes` in `chunks` for each chain length, `repeats` times each."""

    rate: int = 50_000_000
    """Bits per second of every link: low enough that a process which waits for a busy processor delays nothing."""
    nbytes: int = 12 << 20
    shapes: tuple[tuple[int, int], ...] = ((3, 12), (5, 12), (3, 48), (5, 48), (8, 48))
    """(p, k): relays, the master included, and chunks."""
    repeats: int = 3
    stall_elements: int = 16 << 20
    stall_repeats: int = 41


QUICK = Plan(nbytes=3 << 20, shapes=((3, 12), (5, 12)), repeats=2, stall_elements=8 << 20, stall_repeats=21)


def relay(*, quick: bool, seed: int, kill: bool = False) -> dict[str, Any]:
    """Measure all three; with `kill` what a death costs instead.

    Raises RuntimeError where network namespaces cannot be made.
    """
    if kill:
        return relay_kill.measure(quick=quick, seed=seed)
    reason = netns.unavailable()
    if reason is not None:
        raise RuntimeError(f"bench relay: {reason}")
    plan = QUICK if quick else Plan()
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory(prefix="rljob-bench-", dir=SHARED_MEMORY) as folder:
        hops = _measure_hops(plan, Path(folder))
        chains = _measure_chains(plan, Path(folder), {row["k"]: row["seconds"] for row in hops})
        stall = _measure_stall(plan, Path(folder))
    worst = max(chains, key=lambda row: row["over_formula"])
    hop = statistics.median(row["over_raw_tcp"] for row in hops)
    figures = [
        figure(
            "chain_over_formula", worst["over_formula"], 1.1, "Laminar, appendix C, equation 1", 1.0, better="lower"
        ),
        figure("hop_over_raw_tcp", hop, 0.9, "sendfile and recv of the same bytes on the same link", 1.0),
        figure(
            "stall_over_copy", stall["ratio"], 1.1, "the same cast and gather into plain memory", 1.0, better="lower"
        ),
    ]
    settings = {"rate_bits_per_second": plan.rate, "bytes": plan.nbytes, "repeats": plan.repeats, "quick": quick}
    return {
        "bench": "relay",
        "seed": seed,
        "settings": settings,
        "figures": figures,
        "rows": [*hops, *chains, stall],
    }


# --- broadcasts ------------------------------------------------------------------------------------------------------


def _measure_hops(plan: Plan, folder: Path) -> list[Row]:
    """One hop at each number of chunks, and the raw copy of the same bytes, in turns."""
    rows = []
    for chunks in sorted({chunks for _, chunks in plan.shapes}):
        raw, ours = [], []
        with Line(2, plan.rate) as line, _Broadcaster(line, folder, plan.nbytes, chunks) as broadcaster:
            for _ in range(plan.repeats):
                raw.append(_raw_copy(line, folder, plan.nbytes))
                ours.append(broadcaster.once())
        seconds, raw_seconds = statistics.median(ours), statistics.median(raw)
        row = {"measured": "hop", "p": 2, "k": chunks, "seconds": seconds, "raw_tcp_seconds": raw_seconds}
        rows.append({**row, "over_raw_tcp": raw_seconds / seconds})
    return rows


def _measure_chains(plan: Plan, folder: Path, one_hop: dict[int, float]) -> list[Row]:
    rows = []
    for relays, chunks in plan.shapes:
        with Line(relays, plan.rate) as line, _Broadcaster(line, folder, plan.nbytes, chunks) as broadcaster:
            seconds = statistics.median(broadcaster.once() for _ in range(plan.repeats))
        ratio, formula = seconds / one_hop[chunks], (relays + chunks - 2) / chunks
        row = {"measured": "chain", "p": relays, "k": chunks, "seconds": seconds}
        rows.append({**row, "over_one_hop": ratio, "formula": formula, "over_formula": ratio / formula})
    return rows


class _Broadcaster:
    """A relay process in every node of a line, and the trainer beside the first."""

    def __init__(self, line: Line, folder: Path, nbytes: int, chunks: int) -> None:
        self._stack = ExitStack()
        self._weights = {"w": torch.randint(0, 256, (nbytes,), dtype=torch.uint8)}
        self._version = 0
        key_file = folder / "relay-key"
        key_file.write_text(secrets.token_hex(16))
        settings = RelaySettings(chunk_bytes=-(-nbytes // chunks))
        with line.inside(0):  # The threads made here, and their sockets, stay in the first node.
            trainer = Publisher(folder / "trainer", read_key(key_file), settings, torch.bfloat16)
        self._trainer = self._stack.enter_context(trainer)
        self._relays = [
            self._stack.enter_context(_relay_at(line, node, folder, key_file)) for node in range(line.nodes)
        ]

    def once(self) -> float:
        """Return the seconds from the order to broadcast a version of the master until the last relay has all of it."""
        self._version += 1
        master, last = self._relays[0], self._relays[-1]
        alone = Chain(self._version, 0, (master.member,))
        master.join(alone)
        self._trainer.ship(1, alone)
        self._trainer.publish(self._version, self._weights)
        if not self._trainer.wait_delivered(self._version, WAIT_SECONDS):
            raise RuntimeError(f"the master did not get version {self._version}: {self._trainer.link}")
        chain = Chain(self._version, 1, tuple(relay.member for relay in self._relays))
        for relay in self._relays[1:]:
            relay.join(chain)
        began = time.perf_counter()
        master.join(chain)
        while last.segment.version() != self._version:
            if time.perf_counter() - began > WAIT_SECONDS:
                raise RuntimeError(f"version {self._version} did not arrive: {last.status()}")
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - began

    def __enter__(self) -> _Broadcaster:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


def _relay_at(line: Line, node: int, folder: Path, key_file: Path) -> RelayProcess:
    machine = f"rollout-{node}"
    return RelayProcess(
        RelayCommand(machine, folder / machine, key_file, line.address(node), prefix=line.command(node))
    )


def _raw_copy(line: Line, folder: Path, nbytes: int) -> float:
    """Seconds from connecting until `nbytes` of a file in shared memory have arrived in memory one link further."""
    source = folder / "raw"
    source.write_bytes(bytes(nbytes))
    target = memoryview(bytearray(nbytes))
    with line.inside(1):
        listener = socket.create_server((line.address(1), 0))
    with listener, line.inside(0), socket.socket() as sender, source.open("rb") as file:
        sender.settimeout(WAIT_SECONDS)
        feeder = threading.Thread(target=sender.sendfile, args=(file,))
        began = time.perf_counter()
        sender.connect(listener.getsockname())
        feeder.start()
        receiver, _ = listener.accept()
        with receiver:
            done = 0
            while done < nbytes:
                done += receiver.recv_into(target[done:])
        elapsed = time.perf_counter() - began
        feeder.join()
    source.unlink()
    return elapsed


# --- the trainer's stall ---------------------------------------------------------------------------------------------


def _measure_stall(plan: Plan, folder: Path) -> Row:
    """`publish` between two plain copies, many times, on fp32 weights rounded to bfloat16: the median ratio.

    Slots and buffer are warm, and one thread copies: what another process takes from the processors hits both alike."""
    rows = plan.stall_elements // STALL_COLUMNS // STALL_TENSORS
    weights = {f"layers.{i}.weight": torch.randn(rows, STALL_COLUMNS) for i in range(STALL_TENSORS)}
    settings = RelaySettings()
    place = layout(0, flat.describe(weights.items(), torch.bfloat16), settings.chunk_bytes)
    buffer = memoryview(bytearray(place.total_bytes))
    pairs: list[tuple[float, float]] = []
    with _one_thread(), Publisher(folder / "trainer", secrets.token_bytes(16), settings, torch.bfloat16) as trainer:
        for version in range(1, 3 + plan.stall_repeats):
            before = _copy_seconds(weights, place, buffer)
            stall = trainer.publish(version, weights).stall_seconds
            trainer.settle()
            pairs.append((stall, (before + _copy_seconds(weights, place, buffer)) / 2))
    cold, warm = pairs[:2], pairs[2:]
    return {
        "measured": "stall",
        "bytes": place.total_bytes,
        "stall_seconds": statistics.median(stall for stall, _ in warm),
        "copy_seconds": statistics.median(copy for _, copy in warm),
        "cold_stall_seconds": max(stall for stall, _ in cold),
        "ratio": statistics.median(stall / copy for stall, copy in warm),
    }


def _copy_seconds(weights: dict[str, torch.Tensor], place: Manifest, buffer: memoryview) -> float:
    began = time.perf_counter()
    flat.gather(weights.items(), place, buffer)
    return time.perf_counter() - began


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
