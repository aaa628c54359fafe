"""Refused layouts: engines of a simulated replica by tensor parallel size, of which a fault lets only the first start.

The first size is the spec's, so new processes can always start. A machine whose size before the switch is refused, too,
is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rljob_runtime.simulator.peers.engines.engine_kind import EngineKind


class RefusedLayouts(Mapping[int, EngineKind]):
    """The engines by size. While `refuses` returns True, it has only that of the size `first`."""

    def __init__(self, engines: Mapping[int, EngineKind], first: int, refuses: Callable[[], bool]) -> None:
        self._engines = engines
        self._first = first
        self._refuses = refuses

    def __getitem__(self, size: int) -> EngineKind:
        if size != self._first and self._refuses():
            raise KeyError(size)
        return self._engines[size]

    def __iter__(self) -> Iterator[int]:
        if self._refuses():
            return iter((self._first,))
        return iter(self._engines)

    def __len__(self) -> int:
        return 1 if self._refuses() else len(self._engines)
