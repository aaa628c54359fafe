"""Simulated KV files: keys and values of responses in a machine's shared memory, as `rollout/kv` has them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_runtime.protocols import GenerateRequest, KvSize
from rljob_runtime.protocols.trajectory import TrajectoryKey

KV_BLOCK = 32
"""Tokens of a KV block. Only full blocks move between engines."""


def full_blocks(tokens: int) -> int:
    """Return the tokens that are in full blocks."""
    return tokens // KV_BLOCK * KV_BLOCK


@dataclass(frozen=True)
class KvFile:
    """KV of responses: the tokens of each. `writer`: the replica that holds it."""

    writer: str
    version: int
    tokens: Mapping[TrajectoryKey, int]
    nbytes: int
    damaged: bool


@dataclass
class KvMemory:
    """A machine's KV files. It outlives the machine's processes. `damaging`: number of faults that damage new files."""

    files: dict[str, KvFile] = field(default_factory=dict)
    damaging: int = 0
    _names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def write(self, writer: str, version: int, tokens: Mapping[TrajectoryKey, int], size: KvSize) -> str | None:
        """Write a file and return its name; None without room."""
        nbytes = sum(tokens.values()) * size.token_bytes
        if nbytes + sum(file.nbytes for file in self.files.values()) > size.room_bytes:
            return None
        name = f"{next(self._names)}.kv"
        self.files[name] = KvFile(writer, version, tokens, nbytes, bool(self.damaging))
        return name

    def usable(self, request: GenerateRequest) -> tuple[int, str]:
        """Return the tokens of a request whose KV is in its file, or 0 and why not."""
        file = self.files.get(request.kv_file or "")
        held = file.tokens.get(request.key) if file is not None else None
        if file is None or held is None:
            return 0, "missing"
        if file.version != request.weight_version:
            return 0, "version"
        if held > len(request.prompt_token_ids) + len(request.prefix_token_ids):
            return 0, "tokens"
        return (0, "damaged") if file.damaged else (held, "")

    def version_of(self, name: str) -> int | None:
        """Return the weight version of a file; None if there is no such file."""
        file = self.files.get(name)
        return file.version if file is not None else None

    def drop(self, writer: str) -> None:
        """Remove the files of a replica."""
        self.files = {name: file for name, file in self.files.items() if file.writer != writer}

    def drop_older(self, version: int) -> None:
        """Remove the files of earlier weight versions."""
        self.files = {name: file for name, file in self.files.items() if file.version >= version}
