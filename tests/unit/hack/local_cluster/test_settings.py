"""Where clusters live and which networks they take."""

import dataclasses
import ipaddress
import multiprocessing
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.local_cluster import settings
from hack.local_cluster.settings import Cluster, ClusterError, Network, free_octet


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RLJOB_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/rljob"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/rljob"),
        ({"RLJOB_CACHE": ""}, "/home/me/.cache/rljob"),
    ],
)
def test_cache_dir(monkeypatch, environment, expected):
    for name in ("RLJOB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(settings.cache_dir()) == expected


@pytest.mark.parametrize(("prefix", "expected"), [("/b/.venv", Path("/b/.venv")), ("/usr", settings.ROOT / ".venv")])
def test_pods_run_the_python_of_the_command(monkeypatch, prefix, expected):
    """The environment of another checkout may be active in the shell."""
    monkeypatch.setenv("VIRTUAL_ENV", "/another/.venv")
    monkeypatch.setattr(settings.sys, "prefix", prefix)
    monkeypatch.setattr(settings.sys, "base_prefix", "/usr")
    assert settings.venv_dir() == expected


@pytest.mark.parametrize(
    ("taken", "routed", "expected"),
    [
        ([], [], 246),
        ([246], ["10.245.1.0/24"], 244),
        ([], ["10.246.3.7", "192.168.0.0/16"], 245),
        ([246, 245], ["10.240.0.0/13", "0.0.0.0/0"], 239),
    ],
)
def test_free_octet(taken, routed, expected):
    assert free_octet(taken, routed) == expected


def test_no_free_network_is_said():
    with pytest.raises(ClusterError, match="no free network"):
        free_octet([], ["10.0.0.0/8"])


@given(st.integers(220, 246))
def test_addresses_of_a_network_do_not_overlap(octet):
    network = Network(octet)
    nodes = range(1, settings.MAX_NODES + 1)
    blocks = [ipaddress.ip_network(network.pods(i)) for i in nodes]
    blocks += [ipaddress.ip_network(f"10.{octet}.0.0/24"), ipaddress.ip_network(network.service_cidr)]
    assert not any(a.overlaps(b) for n, a in enumerate(blocks) for b in blocks[n + 1 :])
    addresses = [network.host, *(network.node(i) for i in nodes)]
    assert len(set(addresses)) == len(addresses)
    assert all(ipaddress.ip_address(a) in ipaddress.ip_network(network.cidr) for a in addresses)
    assert max(len(network.veth(i)) for i in nodes) <= 15, "the kernel's limit of an interface's name"


def test_what_up_decided_is_read_back(monkeypatch, tmp_path):
    monkeypatch.setenv("RLJOB_CACHE", str(tmp_path))
    cluster = Cluster("one", "real", 2, Network(240), "abc", "/venv")
    assert settings.load("one") is None
    cluster.save()
    dataclasses.replace(cluster, name="two").save()
    assert settings.load("one") == cluster
    assert [c.name for c in settings.existing()] == ["one", "two"]


def _hold(started, seconds):
    with settings.locked("x"):
        started.set()
        time.sleep(seconds)


def test_lock_is_waited_for_and_freed_by_death(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("RLJOB_CACHE", str(tmp_path))
    started = multiprocessing.Event()
    holder = multiprocessing.Process(target=_hold, args=(started, 60))
    holder.start()
    try:
        assert started.wait(30)
        with pytest.raises(ClusterError, match="held for 0 s"), settings.locked("x", 0, "waiting"):
            pass
        assert capsys.readouterr().out == "waiting\n"
    finally:
        holder.kill()
        holder.join()
    with settings.locked("x", 30):
        pass
    assert list((tmp_path / "rljob").iterdir()) == []


def _count(path, times):
    for _ in range(times):
        with settings.locked("x", 60):
            number = int(path.read_text())
            path.write_text(str(number + 1))


def test_lock_keeps_others_out_although_its_file_comes_and_goes(monkeypatch, tmp_path):
    monkeypatch.setenv("RLJOB_CACHE", str(tmp_path))
    path = tmp_path / "count"
    path.write_text("0")
    counters = [multiprocessing.Process(target=_count, args=(path, 30)) for _ in range(4)]
    for counter in counters:
        counter.start()
    for counter in counters:
        counter.join(60)
    assert path.read_text() == "120"
