"""The guide *Bring your own agent* as data: its blocks by section, and what its settings mean."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from rljob_api.spec.environments import Environment
from rljob_env.config import Config, load_config
from tests.support.paths import ROOT

GUIDE = (ROOT / "docs/guides/bring-your-own-agent.md").read_text(encoding="utf-8")
TOOLS, PROGRAM = "A model with tools", "Any program"
OPEN_ENV, VERIFIERS = "An OpenEnv environment", "An environment of the verifiers package"
CLUSTER, RUNNER = "On a cluster", "The runner"
SECTIONS = (TOOLS, PROGRAM, OPEN_ENV, VERIFIERS, CLUSTER)
"""Those that have environments."""


def blocks(section: str, language: str) -> list[str]:
    """Return the blocks of a language below a heading, as far as the next one of its level."""
    _, heading, rest = GUIDE.partition(f"\n## {section}\n")
    assert heading, f"no section {section}"
    return re.findall(rf"^```{language}\n(.*?)^```$", rest.partition("\n## ")[0], re.MULTILINE | re.DOTALL)


def environment(section: str) -> dict[str, Any]:
    """Return the first environment of a section, as a manifest has it."""
    return environments(section)[0]


def environments(section: str) -> list[dict[str, Any]]:
    """Return all environments of a section's blocks; of several with one name, the first."""
    found = [one for block in environments_of_blocks(section) for one in block]
    return list({one["name"]: one for one in reversed(found)}.values())[::-1]


def environments_of_blocks(section: str) -> list[list[dict[str, Any]]]:
    """Return the environments of each block of a section, as a manifest has them."""
    documents = [yaml.safe_load(block) for block in blocks(section, "yaml")]
    return [one["environments"] if isinstance(one, dict) else one for one in documents]


def write_files(folder: Path, *sections: str) -> list[str]:
    """Write the Python files of these sections; return their names. The first line of a block names its file."""
    names = []
    for block in (block for section in sections for block in blocks(section, "python")):
        if found := re.match(r"# (\w+\.py)\n", block):
            names.append(found[1])
            (folder / found[1]).write_text(block)
    return names


def settings(folder: Path, section: str) -> Config:
    """Return the settings of a runner as `rljob run` writes them for the first environment of a section."""
    options = Environment.model_validate(environment(section)).runner_options()
    given = {"url": "http://gateway", "keyFile": "key", "root": str(folder), "environment": options}
    (folder / "config.json").write_text(json.dumps(given))
    return load_config(str(folder / "config.json"), {})
