"""The benchmark of deaths in mid-broadcast, on the smallest chain."""

import pytest

from rljob_bench import relay_kill
from rljob_bench.lib import netns
from rljob_bench.relay_kill import Plan

NO_NAMESPACES = netns.unavailable()


@pytest.mark.slow  # in make test: tests/unit/relay/test_subprocess.py
@pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))
def test_it_measures_every_place_with_and_without_power(monkeypatch):
    monkeypatch.setattr(relay_kill, "QUICK", Plan(nbytes=1 << 20, chunks=8, relays=2, moments=(0.5,)))
    result = relay_kill.measure(quick=True, seed=0)
    assert [(row["power"], row["place"]) for row in result["rows"]] == [
        (False, 0),
        (False, 1),
        (True, 0),
        (True, 1),
    ]
    figures = {figure["name"]: figure["value"] for figure in result["figures"]}
    assert figures["chunks_received_twice"] == 0
    assert set(figures) == {"repair_seconds_worst", "noticed_seconds_worst", "chunks_received_twice"}
