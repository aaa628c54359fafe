"""The operator as the chart's Deployment would run it, as a process here: the same command line, the same rights."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hack.local_cluster.process import free_ports
from tests.support.charts.tools import Tools


def wait(what: str, holds: Callable[[], bool], seconds: float = 60) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.3)


@dataclass(frozen=True)
class OperatorProcess:
    """A running operator."""

    port: int

    def metrics(self) -> str:
        """Its metrics' text, once it answers."""
        url, text = f"http://127.0.0.1:{self.port}/metrics", ""

        def answers() -> bool:
            nonlocal text
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as it:
                text = str(it.read().decode())
            return bool(text)

        wait("the operator's metrics", answers)
        return text


@contextlib.contextmanager
def operator_process(server: Tools, namespace: str, folder: Path) -> Iterator[OperatorProcess]:
    """The operator of the release in a namespace. Its log is printed at the end, and it must end well."""
    deployment = server.json("deployment", "rljob", "-n", namespace)
    (port,) = free_ports(1)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(_as_service_account(server, namespace, folder)),
        "POD_NAME": "operator-0",
        "POD_NAMESPACE": namespace,
        "RLJOB_HEALTH_PORT": str(port),
    }
    log = folder / "operator.log"
    with log.open("wb") as sink:
        command = [sys.executable, *container["command"][1:], *container["args"]]
        process = subprocess.Popen(command, env=environment, stdout=sink, stderr=sink)
    try:
        yield OperatorProcess(port)
    finally:
        process.terminate()
        ended = process.wait(30)
        print(log.read_text()[-5000:])  # shown when the test fails
    assert ended == 0


def _as_service_account(server: Tools, namespace: str, folder: Path) -> Path:
    """A kubeconfig whose only credential is a token of the chart's service account."""
    assert server.kubeconfig is not None
    config: dict[str, Any] = yaml.safe_load(server.kubeconfig.read_text())
    token = server.kubectl("-n", namespace, "create", "token", "rljob", "--duration=1h").strip()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path
