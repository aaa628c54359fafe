"""An interrupted run: Ctrl-C on a terminal, and in a notebook, which has an event loop."""

import asyncio
import json
import os
import re
import signal
import sys
import threading

import pytest
import yaml

from rljob_api import load
from rljob_runtime.cli.run.display import STOPPING
from rljob_runtime.cli.run.ending import INTERRUPTED
from tests.support.paths import ROOT
from tests.support.terminal import on_a_terminal

EXAMPLE = ROOT / "examples" / "minimal.yaml"
RLJOB = [sys.executable, "-c", "from rljob_runtime.cli import app; app()"]


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_ctrl_c_on_a_terminal_saves_and_prints_how_to_continue(tmp_path):
    command = [*RLJOB, "run", str(EXAMPLE), "--set", "spec.rounds=500", "--workdir", str(tmp_path / "w")]
    shown = on_a_terminal(command, interrupt_after="round 2/500", seconds=800)
    assert shown.status == INTERRUPTED, shown.lines[-20:]
    assert shown.lines.count(STOPPING) == 1
    *_, said, continues = shown.lines
    found = re.fullmatch(
        r"minimal: interrupted after round (\d+) of 500; its last checkpoint is of round (\d+); logs in .*", said
    )
    assert found is not None, shown.lines[-5:]
    assert found[1] == found[2], "the last update has one"
    assert continues == f"continue with: rljob run {EXAMPLE} --set spec.rounds=500 --workdir {tmp_path / 'w'}"
    assert not any("Traceback" in line for line in shown.lines)
    rounds = [json.loads(line)["round"] for line in (tmp_path / "w/rounds.jsonl").read_text().splitlines()]
    assert rounds == list(range(1, int(found[1]) + 1))


@pytest.mark.slow  # on a terminal it is above
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_an_interrupted_cell_of_a_notebook_stops_the_run_and_it_continues(tmp_path):
    from rljob_runtime.local import run

    manifest = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))

    def interrupt(report, trained):
        if report.round == 2:
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()

    async def cell(rounds, on_round):
        """A cell runs inside the notebook's event loop."""
        manifest["spec"]["rounds"] = rounds
        return run(load(manifest), tmp_path, on_round=on_round)

    # A notebook's kernel leaves Python's own handler in place.
    loop = asyncio.new_event_loop()
    stopped = loop.run_until_complete(cell(500, interrupt))
    assert stopped.finished is None
    assert stopped.round >= 2
    assert stopped.checkpoint.round == stopped.round
    ended = loop.run_until_complete(cell(stopped.round + 1, lambda report, trained: None))
    loop.close()
    assert ended.finished is not None
    assert ended.round == stopped.round + 1
