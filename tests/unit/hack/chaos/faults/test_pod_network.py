"""The network of a pod is found by its control group, and cut in both directions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from hack.chaos.faults import pod_network
from hack.chaos.faults.injector import Injector
from hack.chaos.faults.pods import NotPossible
from rljob_api.constants import GATEWAY_PORT
from tests.support.chaos import HEALTHY

UID = "12ab-34cd"


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ("5:memory:/n/kubepods/burstable/pod12ab-34cd/abc", 31),
        ("0::/kubepods.slice/kubepods-pod12ab_34cd.slice/abc", 31),
        ("5:memory:/n/kubepods/burstable/pod99/abc", None),
    ],
    ids=["cgroupfs", "systemd", "another pod"],
)
def test_a_pods_process_is_found_by_its_control_group(tmp_path: Path, groups: str, found: int | None) -> None:
    for pid, command in ((7, "/usr/bin/containerd-shim-runc-v2\0"), (31, "/pause\0"), (32, "python\0")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(groups)
        (tmp_path / str(pid) / "cmdline").write_text(command)
    (tmp_path / "8").mkdir()
    assert pod_network.process_of(UID, tmp_path) == found


class Runs:
    """The commands of a pod's network, of which one may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: str = "none") -> None:
        self.commands: list[str] = []
        self._fails = fails
        monkeypatch.setattr(pod_network, "process_of", lambda uid: os.getpid())
        monkeypatch.setattr(subprocess, "run", self._run)

    def _run(self, command: list[str], **how: object) -> SimpleNamespace:
        self.commands.append(" ".join(command[command.index("iptables") :]))
        return SimpleNamespace(returncode=int(self._fails in self.commands[-1]), stderr="no such rule\n")


@pytest.fixture
def injector(monkeypatch: pytest.MonkeyPatch) -> Injector:
    made = Injector("no-job", "nowhere")
    monkeypatch.setattr(made, "kubectl", lambda *args, **how: "pod/one pod/two" if "pods" in args else UID)
    return made


def test_a_runner_is_cut_off_from_the_gateway_and_joined_once(
    monkeypatch: pytest.MonkeyPatch, injector: Injector
) -> None:
    ran = Runs(monkeypatch)
    injected = injector.inject("runner-cut", ("",), HEALTHY)
    out, back = f"OUTPUT -p tcp --dport {GATEWAY_PORT} -j DROP", f"INPUT -p tcp --sport {GATEWAY_PORT} -j DROP"
    assert ran.commands == [f"iptables -w -I {out}", f"iptables -w -I {back}"]
    injected.undo()
    injected.undo()
    assert ran.commands[2:] == [f"iptables -w -D {out}", f"iptables -w -D {back}"]


def test_a_runner_that_cannot_be_cut_off_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, injector: Injector) -> None:
    ran = Runs(monkeypatch, fails="-I INPUT")
    with pytest.raises(NotPossible, match="no such rule"):
        injector.inject("runner-cut", ("",), HEALTHY)
    assert [command.split()[2] for command in ran.commands] == ["-I", "-I", "-D", "-D"]
    monkeypatch.setattr(pod_network, "process_of", lambda uid: None)
    with pytest.raises(NotPossible, match="no process"):
        injector.inject("runner-cut", ("",), HEALTHY)
