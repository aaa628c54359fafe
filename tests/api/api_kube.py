"""kubectl, as the tests use it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.cluster.kube import Api, ApiError

from rljob_api.constants import API_VERSION, PLURAL


@dataclass(frozen=True)
class Kube:
    """kubectl in one namespace of one server."""

    kubectl: Path
    kubeconfig: Path
    namespace: str

    def run(self, *args: str, stdin: object = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl; `stdin` is sent as JSON."""
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.kubeconfig.parent / "kube-cache"),
        }
        command = [str(self.kubectl), f"--namespace={self.namespace}", *args]
        text = None if stdin is None else json.dumps(stdin)
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, timeout=120)
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(args)}: {done.stderr}")
        return done

    @property
    def path(self) -> str:
        """Where the namespace's RLJobs are."""
        return f"/apis/{API_VERSION}/namespaces/{self.namespace}/{PLURAL}"

    def get(self, *args: str) -> dict[str, Any]:
        """An object."""
        found: dict[str, Any] = json.loads(self.run("get", *args, "--show-managed-fields", "-o", "json").stdout)
        return found

    def refusal(self, document: object) -> str | None:
        """What the server says against creating a job, without creating it; None when it would."""
        try:
            Api(self.kubeconfig, timeout=60).call("POST", f"{self.path}?dryRun=All", document)
        except ApiError as error:
            return str(error)
        return None

    def apply(self, document: object, manager: str, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Server-side apply."""
        return self.run(
            "apply", "--server-side", f"--field-manager={manager}", *args, "-f", "-", stdin=document, check=check
        )
