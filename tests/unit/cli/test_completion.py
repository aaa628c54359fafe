"""Completion of a shell: in bash, with the script that the command prints, and as kubectl asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from rljob_runtime.cli import app, kubectl_complete
from tests.support.paths import ROOT
from tests.support.rows import slow

COMMANDS = {name for name in typer.main.get_command(app).commands if name.startswith("s")}
SCRIPT = """
set -euo pipefail
eval "$($1 --show-completion bash)"
function_=$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
for line in "${@:2}"; do
    COMP_WORDS=("$1" $line)
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    "$function_" "$1"
    printf '%s ' "${COMPREPLY[@]}"
    echo
done
"""


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds the programs of this package, as pip installs them."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, place in scripts.items():
        module, _, function = place.partition(":")
        program = tmp_path / name
        program.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        program.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


def completed(programs: dict[str, str], program: str, *lines: str) -> list[list[str]]:
    """What bash offers for the last word of each line."""
    command = ["bash", "-c", SCRIPT, "bash", program, *lines]
    done = subprocess.run(command, env=programs, capture_output=True, text=True, timeout=300, check=True)
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", ["rljob", *slow("kubectl-rljob")])
def test_bash_completes_commands_and_options_of_a_command(programs: dict[str, str], program: str) -> None:
    assert {"samples", "status", "submit"} <= COMMANDS
    commands, options = completed(programs, program, "s", "samples --ht")
    assert set(commands) == COMMANDS
    assert options == ["--html"]


@pytest.mark.timeout(600)
def test_kubectl_gets_the_commands_of_its_plug_in(programs: dict[str, str]) -> None:
    done = subprocess.run(
        ["kubectl_complete-rljob", "s"], env=programs, capture_output=True, text=True, timeout=300, check=True
    )
    *found, directive = done.stdout.splitlines()
    assert set(found) == COMMANDS
    assert directive == ":4", "no names of files beside them"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["samples", "--ht"], ["--html", ":4"]),
        (["samples", "my job", "--html", ""], [":0"]),
    ],
)
def test_kubectl_is_told_when_names_of_files_may_follow(
    words: list[str], lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-rljob", *words])
    kubectl_complete.main()
    assert capsys.readouterr().out.splitlines() == lines
