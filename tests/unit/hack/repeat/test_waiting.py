"""Which test modules wait for real time."""

import pytest

from hack.loop.imports import ROOT
from hack.repeat.waiting import waiting, waits


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import asyncio\nasync def test_a():\n    await asyncio.sleep(0.1)", True),
        ("import asyncio\nasync def test_a():\n    await asyncio.sleep(0)", False),
        ("import asyncio\nasync def test_a(seconds):\n    await asyncio.sleep(seconds)", True),
        ("import time\ndef test_a():\n    time.sleep(1)", True),
        ("import asyncio\nasync def test_a():\n    async with asyncio.timeout(5): ...", True),
        ("import subprocess\ndef test_a():\n    subprocess.Popen(['true']).wait()", True),
        ("from tests.support.waiting import until", True),
        ("from tests.support.simulated_job import until\nimport asyncio\nasyncio.sleep(5)", False),
        ("from rljob_runtime.simulator.core import virtual_time\nimport asyncio\nasyncio.sleep(5)", False),
        ("from rljob_runtime.simulator.core.virtual_time import run\nimport asyncio\nasyncio.sleep(5)", False),
        ("def test_a():\n    assert 1 + 1 == 2", False),
    ],
)
def test_a_module_waits_for_real_time_unless_its_clock_is_virtual(source: str, expected: bool) -> None:
    assert waits(source) is expected


def test_tests_of_processes_are_found_and_those_of_policies_are_not() -> None:
    units = ROOT / "tests/unit"
    folders = ("relay", "sandbox", "envs", "scheduling", "coordinator/on_policy")
    found = {str(file.relative_to(units)) for folder in folders for file in waiting(units / folder)}
    assert {"relay/test_chain.py", "sandbox/test_escapes.py", "envs/test_runner.py"} <= found
    assert not found & {"scheduling/test_round.py", "coordinator/on_policy/test_switcher.py"}
