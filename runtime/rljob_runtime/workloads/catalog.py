"""Catalog: the shipped generators, and one naming scheme for workloads."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from rljob_runtime.workloads.errors import Findings, TraceError
from rljob_runtime.workloads.generator import Generator
from rljob_runtime.workloads.parameters import WorkloadParameters
from rljob_runtime.workloads.replay import Replay
from rljob_runtime.workloads.rollpacker import rollpacker_like
from rljob_runtime.workloads.trace import read_trace
from rljob_runtime.workloads.workload import Workload

_ROLLPACKER = {
    "rollpacker-7b-8k": ("7b", 8_000),
    "rollpacker-14b-16k": ("14b", 16_000),
    "rollpacker-32b-32k": ("32b", 32_000),
}
_FITTED = resources.files("rljob_runtime.workloads") / "fitted"


def names() -> list[str]:
    """Return the names of all generators."""
    fitted = [entry.name.removesuffix(".json") for entry in _FITTED.iterdir() if entry.name.endswith(".json")]
    return sorted([*_ROLLPACKER, *fitted])


def parameters(name: str) -> WorkloadParameters:
    """Return the parameters of a generator. Raises `TraceError` for an unknown name."""
    if name in _ROLLPACKER:
        return rollpacker_like(*_ROLLPACKER[name])
    if name not in names():
        raise TraceError(f"no generator {name!r}; one of {', '.join(names())} would be right")
    return WorkloadParameters.model_validate_json((_FITTED / f"{name}.json").read_bytes())


def open_workload(source: str, seed: int, findings: Findings | None = None) -> Workload:
    """Open a generator by name, one of your own by its JSON file, or the replay of a trace by its folder.

    A name has precedence over a folder in the working directory; `./name` is the folder. Raises `TraceError`."""
    if source in names():
        return Generator(parameters(source), seed)
    path = Path(source)
    if path.is_dir():
        return Replay(read_trace(path, findings), seed)
    if path.is_file():
        return Generator(WorkloadParameters.load(path), seed)
    raise TraceError(
        f"no workload {source!r}; a folder of a trace, a JSON file of `rljob trace fit`, or one of "
        f"{', '.join(names())} would be right"
    )
