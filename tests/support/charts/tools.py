"""`helm` and `kubectl` as a test runs them, and where the project's files are."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

CHART = ROOT / "charts/rljob"
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


class GoLoader(yaml.CSafeLoader):
    """YAML as Helm and kubectl read it: to them `1e-06` is a number, to PyYAML a string."""


GoLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass(frozen=True)
class Tools:
    """`helm` and `kubectl`, with a home of their own and, where a test needs it, a cluster."""

    path: Path
    home: Path
    kubeconfig: Path | None = None

    def run(self, *command: str, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """The finished process; with `check` a failing one fails the test with what it said."""
        environment = {
            "PATH": f"{self.path}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.home),
            "KUBECONFIG": str(self.kubeconfig or os.devnull),
        }
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=120, check=False, env=environment
        )
        if check and done.returncode != 0:
            pytest.fail(f"{' '.join(command[:4])} … exit {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)
        return done

    def helm(self, *args: str, check: bool = True) -> str:
        done = self.run("helm", *args, check=check)
        return done.stdout if check else done.stdout + done.stderr

    def kubectl(self, *args: str, check: bool = True, stdin: str | None = None) -> str:
        done = self.run("kubectl", *args, check=check, stdin=stdin)
        return done.stdout if check else done.stdout + done.stderr

    def json(self, *args: str) -> dict[str, Any]:
        """What `kubectl get` shows, managed fields and all."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *args, "--show-managed-fields", "-o", "json"))
        return found

    def remove_crd(self) -> None:
        """What `helm uninstall` leaves: the CRD with its jobs, and the policy that guards it."""
        policy = "validatingadmissionpolicy,validatingadmissionpolicybinding"
        self.kubectl("delete", policy, "downgrade.rljobs.rljob.dev", "--ignore-not-found", "--wait")
        self.kubectl("delete", "crd", "rljobs.rljob.dev", "--ignore-not-found", "--wait")

    def template(self, *args: str) -> list[dict[str, Any]]:
        """What `helm template` renders, without empty documents."""
        rendered = self.helm("template", "rljob", str(CHART), "--namespace", "rljob-system", *args)
        return [document for document in yaml.load_all(rendered, GoLoader) if document]
