"""kubectl, and a client with a connection of its own, as the tests use them."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hack.local_cluster.kube import Api, ApiError
from rljob_api.constants import API_VERSION, PLURAL


@dataclass(frozen=True)
class Kube:
    """One namespace of one server: kubectl for what users do, requests of milliseconds for case after case."""

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

    @cached_property
    def api(self) -> Api:
        return Api(self.kubeconfig, timeout=60)

    @property
    def path(self) -> str:
        """Where the namespace's RLJobs are."""
        return f"/apis/{API_VERSION}/namespaces/{self.namespace}/{PLURAL}"

    def get(self, *args: str) -> dict[str, Any]:
        """An object."""
        found: dict[str, Any] = json.loads(self.run("get", *args, "--show-managed-fields", "-o", "json").stdout)
        return found

    def admitted(self, document: object) -> dict[str, Any]:
        """The object as the server would store it: pruned, with defaults. Raises ApiError where it refuses it."""
        found: dict[str, Any] = self.api.call("POST", f"{self.path}?dryRun=All", document)
        return found

    def refusals(self, document: object, *, strict: bool = False) -> list[str]:
        """What the server says against creating a job, without creating it: empty when it would.

        `strict` refuses unknown and doubled fields too, as kubectl asks for; else they are dropped.
        """
        validation = "Strict" if strict else "Warn"
        try:
            self.api.call("POST", f"{self.path}?dryRun=All&fieldValidation={validation}", document)
        except ApiError as error:
            return _causes(error)
        return []

    def refused_change(self, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
        """What the server says against `new` in the place of `old`, a job that is there: empty when it would do it."""
        made = self.api.call("POST", self.path, old)
        path = f"{self.path}/{made['metadata']['name']}"
        metadata = {**new["metadata"], "resourceVersion": made["metadata"]["resourceVersion"]}
        try:
            self.api.call("PUT", f"{path}?dryRun=All", {**new, "metadata": metadata})
        except ApiError as error:
            return _causes(error)
        finally:
            self.api.call("DELETE", path)
        return []

    def apply(self, document: object, manager: str, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Server-side apply."""
        return self.run(
            "apply", "--server-side", f"--field-manager={manager}", *args, "-f", "-", stdin=document, check=check
        )


def _causes(error: ApiError) -> list[str]:
    """The messages of a refusal; an answer that is none is the test's own fault."""
    if error.status not in (400, 422):
        raise error
    status = json.loads(error.answer)
    causes = (status.get("details") or {}).get("causes") or []
    return [f"{cause.get('field')}: {cause['message']}" for cause in causes] or [status["message"]]
