"""KV files of two small responses, for tests of the file and of who leaves one behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from rljob_runtime.rollout.kv.kv_file import Held, KvFileWriter, KvRegions, Origin, digest, plan
from rljob_runtime.rollout.kv.layout import KvShape
from tests.support.paths import ROOT

SHAPE = KvShape("test", "float32", layers=2, kv_heads=2, block_size=4, token_bytes=8)
ORIGIN = Origin("ns/job", "rollout-0-1", 7)
TOKENS = {"a": tuple(range(10, 22)), "b": tuple(range(30, 38))}
HELD = {name: Held(len(tokens), digest(tokens)) for name, tokens in TOKENS.items()}


def create(folder: Path) -> KvFileWriter:
    return KvFileWriter.create(folder, plan(ORIGIN, SHAPE, HELD))


def fill(writer: KvFileWriter, seed: int = 0) -> None:
    """Write random bytes into all regions and seal the file."""
    random, checksums = torch.Generator().manual_seed(seed), {}
    regions = KvRegions(writer.path, writer.index, writable=True)
    heads = range(SHAPE.kv_heads)
    for name in writer.index.responses:
        region = regions.region(name, heads)
        region.copy_(torch.randint(0, 256, region.shape, generator=random))
        checksums[name] = [regions.checksums(name, heads)[head] for head in heads]
    writer.seal(checksums)


def die_with_a_file(folder: Path) -> Path:
    """Return the file of a process that was killed."""
    code = (
        "import os, sys; from pathlib import Path\n"
        f"from {__name__} import create\n"
        "print(create(Path(sys.argv[1])).path, flush=True)\n"
        "os._exit(0)"
    )
    command = [sys.executable, "-c", code, str(folder)]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return Path(run.stdout.strip())
