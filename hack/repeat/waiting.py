"""Waiting tests: unit tests whose own calls wait for real time. What a tested function waits for is not seen."""

from __future__ import annotations

import ast
from pathlib import Path

WAITS = {
    "asyncio.sleep",
    "time.sleep",
    "asyncio.timeout",
    "asyncio.wait_for",
    "asyncio.create_subprocess_exec",
    "subprocess.Popen",
    "subprocess.run",
    "threading.Thread",
}
"""Calls that wait, and calls that start a process to wait for."""
HELPERS = {"tests.support.waiting", "tests.support.slow_start"}
"""Modules whose functions wait."""
VIRTUAL = {"virtual_time", "simulated_job"}
"""With these in a module's imports, its clock is virtual."""


def waits(source: str) -> bool:
    """Return True if a test module waits for real time. A sleep of 0 only lets others run."""
    tree = ast.parse(source)
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {part for node in imported for part in [*(node.module or "").split("."), *(one.name for one in node.names)]}
    if names & VIRTUAL:
        return False
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(node.module in HELPERS for node in imported) or any(map(_waits, calls))


def waiting(tests: Path) -> list[Path]:
    """Return the test modules below a folder that wait for real time, by name."""
    return [file for file in sorted(tests.rglob("test_*.py")) if waits(file.read_text(encoding="utf-8"))]


def _waits(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    return ast.unparse(call.func) in WAITS and not (isinstance(first, ast.Constant) and first.value == 0)
