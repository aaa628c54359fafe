"""The operator's process: its options, and its leadership."""

from __future__ import annotations

import asyncio

import pytest

from rljob_kube.leader_election import LeadershipLost
from rljob_operator.__main__ import options
from rljob_operator.app import serve


def test_options_from_flags_and_environment() -> None:
    env = {"POD_NAME": "op-1", "POD_NAMESPACE": "rl", "RLJOB_RUNTIME_IMAGE": "a:1", "RLJOB_NAMESPACES": "x,y"}
    found, level = options([], env)
    assert (found.identity, found.lease_namespace, found.namespaces) == ("op-1", "rl", ("x", "y"))
    assert (found.config.runtime_image, found.config.network_policy, level) == ("a:1", True, "info")
    found, level = options(["-n", "z", "--runtime-image=b:2", "--no-network-policy", "--log-level=debug"], env)
    assert (found.namespaces, found.config.runtime_image, level) == (("z",), "b:2", "debug")
    assert found.config.network_policy is False
    assert options([], {})[0].scopes == (None,)


@pytest.mark.parametrize("bad", [["--workers=0"], ["--workers=many"], ["--log-level=loud"]])
def test_bad_options_are_refused(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(bad, {})
    assert bad[0].partition("=")[0] in capsys.readouterr().err


async def test_who_loses_the_lease_is_followed_by_one_that_knows_nothing() -> None:
    stop = asyncio.Event()
    lives: list[int] = []

    class StandIn:
        def __init__(self) -> None:
            self.life = len(lives)

        async def run(self, stop: asyncio.Event) -> None:
            lives.append(self.life)
            if self.life < 2:
                raise LeadershipLost("the Lease could not be renewed")
            stop.set()

    await serve(StandIn, stop)  # type: ignore[arg-type]
    assert lives == [0, 1, 2]


async def test_what_an_operator_dies_of_otherwise_ends_the_process() -> None:
    class StandIn:
        async def run(self, stop: asyncio.Event) -> None:
            raise RuntimeError("kopf ended by itself")

    with pytest.raises(RuntimeError, match="kopf ended"):
        await serve(StandIn, asyncio.Event())  # type: ignore[arg-type]
