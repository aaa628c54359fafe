"""What a rollout pod waits for before it ends."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rljob_api.constants import PRE_STOP_PATIENCE
from rljob_runtime.entrypoints.pre_stop import ACTOR, actors, reachable, wait
from rljob_runtime.ray_backend.actors import ActorHost


def test_actors_are_told_from_all_other_processes(tmp_path: Path) -> None:
    titles = {
        "1": b"python\0-m\0rljob_runtime.pod\0worker\0",
        "20": b"ray::ActorHost\0\0\0",
        "21": b"ray::IDLE\0",
        "22": b"ray::ActorHost.call\0",
        "23": b"",
        "25": b"ray::DashboardAgent" + b" " * 40 + b"\0",
        "26": b"ray::RuntimeEnvAgent" + b" " * 40 + b"\0",
        "self": b"ray::ActorHost\0",
    }
    for name, title in titles.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cmdline").write_bytes(title)
    (tmp_path / "24").mkdir()  # has just ended
    (tmp_path / "uptime").write_text("1.0")
    assert actors(tmp_path) == ["ray::ActorHost", "ray::ActorHost.call"]
    assert f"ray::{ActorHost.__ray_actor_class__.__name__}" == ACTOR


@pytest.mark.parametrize(
    ("busy", "answered", "looks", "told"),
    [
        ([False], [], 0, "empty"),
        ([True, True, False], [True, True], 2, "empty"),
        ([True] * 99, [False] * 99, PRE_STOP_PATIENCE - 1, "unreachable"),
        # It was unreachable for a short time.
        ([True] * 7 + [False], [False] * (PRE_STOP_PATIENCE - 1) + [True] + [False] * 3, 7, "empty"),
    ],
)
def test_it_waits_until_empty_or_alone(busy: list[bool], answered: list[bool], looks: int, told: str) -> None:
    slept: list[float] = []
    states, answers = iter(busy), iter(answered)
    assert told in wait(lambda: next(states), lambda: next(answers), slept.append)
    assert len(slept) == looks


def test_a_closed_port_is_no_coordinator() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert reachable("127.0.0.1", port)
    assert not reachable("127.0.0.1", port)
