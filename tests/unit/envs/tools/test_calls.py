"""Calls of tools are reported before the next turn, and another runner goes on from the reports."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_runtime.gateway.wire.fields import call_id
from rljob_runtime.protocols.environments import Assignment, Resume, ToolCall
from tests.support.envs.site import MESSAGES, RECORD, Site, call, open_site, scripted

FUNCTIONS = """
import os

def draw(name: str) -> str:
    count = os.path.getsize(name) + 1 if os.path.exists(name) else 1
    with open(name, "a") as table:
        table.write("x")
    return f"card {count}"
"""
DRAW = call("draw", '{"name": "one"}')
SAID = (f"I draw.{DRAW}", f"Again.{DRAW}", "done")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(FUNCTIONS)
    return tmp_path


def drawn(root: Path) -> int:
    """Return how many cards were drawn."""
    path = root / "one"
    return path.stat().st_size if path.exists() else 0


async def resumed(site: Site, root: Path, turns: int, calls: int, replays: bool) -> tuple[Assignment, list[ToolCall]]:
    """Play an episode; return the assignment of another runner after so many turns and calls, and all calls."""
    report = await site.report_of(site.tools(root, "tools.py:draw"))
    assert report.failed is None
    (episode,) = site.environments.reports
    made = [one for _, one in site.environments.calls]
    stored = site.coordinator.stored[episode][:turns]
    request = stored[-1].body if stored else b""
    resume = Resume(request, made[:calls], replays)
    return Assignment(episode, "calc", RECORD, MESSAGES, time.time() + 60.0, resume), made


async def test_each_call_is_reported_before_the_turn_that_follows_from_it(root: Path) -> None:
    async with open_site(scripted(*SAID)) as site, site.stack:
        _, made = await resumed(site, root, 0, 0, replays=False)
        assert [(one.place, one.name, one.observation) for one in made] == [
            (0, "draw", "card 1"),
            (0, "draw", "card 2"),
        ]
        (turns,) = site.coordinator.stored.values()
        assert [one.node for one in made] == [one.turn.node for one in turns[:2]]
        assert site.routes.stats.calls == 2
        second = json.loads(turns[1].body)["messages"]
        assert second[-1] == {"role": "tool", "tool_call_id": call_id(made[0].node, 0), "content": "card 1"}


@pytest.mark.parametrize(
    ("turns", "calls", "replays", "executed"),
    [
        (0, 0, False, 2),  # the first runner asked for nothing
        (1, 0, False, 2),  # it was lost while it executed the first call
        (1, 1, False, 1),  # and between that call and its turn
        (2, 1, False, 1),
        (2, 2, False, 0),
        (2, 2, True, 2),
        (3, 2, True, 2),
    ],
)
async def test_another_runner_executes_what_is_not_stored(
    root: Path, turns: int, calls: int, replays: bool, executed: int
) -> None:
    async with open_site(scripted(*SAID)) as site, site.stack:
        assignment, made = await resumed(site, root, turns, calls, replays)
        # What comes after that moment has not happened yet.
        site.environments.reports.clear()
        site.environments.calls.clear()
        episode = assignment.episode
        site.coordinator.go_back(episode, turns)
        (root / "one").write_text("x" * (0 if replays else calls))
        before = drawn(root)
        await site.environments.put(assignment)
        report = await site.environments.reported(episode)
        assert report.failed is None
        assert drawn(root) - before == executed
        assert report.metrics["turns"] == 3
        assert report.metrics["tool_calls"] == 2
        assert len(site.coordinator.stored[episode]) == 3, "no turn is asked for twice"
        again = [replace(one, seconds=None) for _, one in site.environments.calls]
        assert again == [replace(one, seconds=None) for one in (made if replays else made[calls:])]
