"""Names in backticks are in the sources: fields, functions, metrics, options, messages. A page that names what was
renamed or removed fails here."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from hack.guard.product import registries
from rljob_runtime.cli import app
from tests.support.docs import INDEX, PAGES, quoted, rows, text_of
from tests.support.paths import ROOT

IDS = [str(path.relative_to(ROOT)) for path in PAGES]
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OTHERS = {
    "kubernetes": {"InvalidAuthToken", "apiserver_terminated_watchers_total", "ConfigMaps", "ServiceAccounts"},
    "kueue": {"manageJobsWithoutQueueName", "externalFrameworks"},
    "git ops": {"dependsOn", "PostSync"},
    "kernel": {"br_netfilter", "rX"},
    "vllm": {"VLLM_USE_FLASHINFER_SAMPLER", "include_stop_str_in_output"},
    "models": {"im_end"},
    "torch": {"acc_policy", "linear_cross_entropy"},
    "suffixes": {"_30", "_40"},
}
"""Names of other projects, and ends of our own."""


def _sources() -> Iterator[str]:
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in names.stdout.splitlines():
        path = ROOT / name
        if name.startswith("docs/") or name.endswith((".md", "go.sum", ".jsonl")) or not path.is_file():
            continue
        yield f"{path.stem} {path.read_text(encoding='utf-8', errors='ignore')}"


@cache
def _known() -> frozenset[str]:
    words = {word for text in _sources() for word in WORD.findall(text)}
    camel = {first + "".join(map(str.capitalize, rest)) for word in words for first, *rest in [word.split("_")] if rest}
    prefixes = {name[: end.end()] for name in _metrics() for end in re.finditer("_", name)}
    return frozenset(words | camel | _metrics() | prefixes | {one for names in OTHERS.values() for one in names})


@cache
def _metrics() -> frozenset[str]:
    """Of every process, as a scrape has them."""
    families = [family for registry in registries().values() for family in registry.collect()]
    return frozenset(f"{one.name}_total" if one.type == "counter" else one.name for one in families)


def _names(text: str) -> Iterator[str]:
    for name in WORD.findall(text):
        if re.search(r"[a-z][A-Z]|_", name):
            yield name


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_names_are_in_the_sources(path: Path) -> None:
    known = _known()
    parts = [part for text in quoted(text_of(path)) for part in re.split(r"…\w+", text)]
    assert sorted({name for part in parts for name in _names(part)} - known) == []


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_metrics_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    told = set(re.findall(r"\brljob_(?:coordinator|gateway|operator)_\w+", text))
    told = {name for name in told if not name.endswith("_")}
    if any("coordinator" in name for name in told):
        told |= {f"rljob_coordinator{end}" for end in re.findall(r"`…(_\w+)`", text)}
    assert told - _metrics() == set()


# --- modules ----------------------------------------------------------------------------------------------------------

HERE = [ROOT / name for name in ("", "operator", "operator/rljob_operator", "operator/rljob_operator/policies", "crds")]
HERE += [ROOT / "operator/rljob_kube", ROOT / "runtime", ROOT / "runtime/rljob_runtime", ROOT / "bench/rljob_bench"]
MADE = {"build", "runs"}
FOLDERS = {path.name for root in HERE for path in root.iterdir() if path.is_dir()} - MADE
NO_MODULES = {"coordinator/api"}
"""A target of faults."""


def _is_there(name: str) -> bool:
    return any((root / name).exists() or (root / f"{name}.py").exists() for root in HERE)


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_modules_and_files_that_are_named_exist(path: Path) -> None:
    found = [
        name.rstrip("/.")
        for text in quoted(text_of(path))
        for name in re.findall(r"(?<![\w./~$<-])([a-z_]+(?:/[a-z_0-9.]+)+/?)(?![\w<*/{-])", text)
    ]
    assert [
        name for name in found if name.split("/")[0] in FOLDERS and name not in NO_MODULES and not _is_there(name)
    ] == []


OF_USERS = {"agent.py", "my_rewards.py"}
"""Files that a page asks its reader to write."""


@cache
def _files() -> tuple[str, ...]:
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    return tuple(f"/{name}" for name in names.stdout.splitlines() if (ROOT / name).is_file())


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_files_that_are_named_by_the_end_of_their_path_exist(path: Path) -> None:
    found = {
        name
        for text in quoted(text_of(path))
        for name in re.findall(r"(?<![\w./*<{-])[a-z_0-9/]+\.py(?!\w)", text)
        if name not in OF_USERS
    }
    assert sorted(name for name in found if not any(one.endswith(f"/{name}") for one in _files())) == []


def test_modules_of_the_index_exist() -> None:
    """Where a cell names several modules of one folder, the first has it."""
    for _, note, cell in rows(INDEX, "## Design notes"):
        folder = ""
        for name in quoted(cell):
            folder = name.rpartition("/")[0] if "/" in name else folder
            assert _is_there(name.rstrip("/") if "/" in name else f"{folder}/{name}"), f"{note}: {name}"


# --- commands ---------------------------------------------------------------------------------------------------------


@cache
def _options() -> dict[str, frozenset[str]]:
    """By command, as `bench` and `trace fit`."""
    found: dict[str, frozenset[str]] = {}

    def look(prefix: str, command: object) -> None:
        for name, below in getattr(command, "commands", {}).items():
            full = f"{prefix} {name}".strip()
            options = (option for parameter in below.params for option in parameter.opts)
            found[full] = frozenset(option for option in options if option.startswith("-"))
            look(full, below)

    look("", typer.main.get_command(app))
    return found


COMMAND = re.compile(r"\brljob (bench|check|profile|run|simulate|status|trace (?:inspect|fit|convert))\b([^`\n#|]*)")


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_commands_take_the_options_that_are_shown(path: Path) -> None:
    """In one line: what is wrapped in a text is not followed."""
    wrong = []
    for command, rest in COMMAND.findall(path.read_text(encoding="utf-8")):
        for option in re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)", rest.partition(";")[0].partition(" hack/")[0]):
            if option not in {*_options()[command], "--help"}:
                wrong.append(f"{command} {option}")
    assert wrong == []


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_benchmarks_that_are_named_exist(path: Path) -> None:
    project = tomllib.loads((ROOT / "bench/pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = set(project["entry-points"]["rljob.benchmarks"])
    told = set(re.findall(r"(?:rljob|hack/)(?: )?bench ([a-z][a-z-]+)", path.read_text(encoding="utf-8")))
    assert told - known == set()


# --- messages ---------------------------------------------------------------------------------------------------------

SYMPTOMS = re.compile(r"symptom|you see|shown", re.IGNORECASE)
OF_OTHERS = (
    "no matches for kind",
    "strict decoding error",
    "Invalid value",
    "Insufficient nvidia.com/gpu",
    "pod has unbound immediate PersistentVolumeClaims",
    "cannot allocate all claims",
    "device class … does not exist",
    "invalid ownership metadata",
    "values don't meet the specifications",
    "chart requires kubeVersion",
    "Address already in use",
    "chat template refuses it",
)
"""Of kubectl, the API server, the scheduler, helm and kernels; and one of ours that is put together from two texts."""


@cache
def _texts() -> tuple[frozenset[str], ...]:
    """The longer words of each text in the sources, as far as they are in small letters."""
    found = set()
    for folder in ("crds", "operator", "runtime", "bench", "hack", "charts"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix == ".py":
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                    if isinstance(node, ast.JoinedStr):
                        parts = (one.value for one in node.values if isinstance(one, ast.Constant))
                        found.add(_letters(" ".join(map(str, parts))))
                    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                        found.add(_letters(node.value))
            elif path.suffix in (".yaml", ".tpl"):
                found |= {_letters(line) for line in path.read_text(encoding="utf-8").splitlines()}
    return tuple(one for one in found if len(one) >= 2)


def _letters(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"(?<![\w.-])[a-z]{4,}(?![\w.]|-\d)", text))


def _symptoms(path: Path) -> Iterator[str]:
    """Texts in the first column of tables of symptoms."""
    inside = False
    for line in text_of(path).splitlines():
        if not line.startswith("|"):
            inside = False
        elif SYMPTOMS.search(line.split("|")[1]):
            inside = True
        elif inside:
            yield from (text for text in quoted(line.split("|")[1]) if " " in text)


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_messages_in_tables_of_symptoms_are_ours(path: Path) -> None:
    """Each with its words in one text of the sources; what is filled in stands in capitals, figures or dots."""
    lost = []
    for message in _symptoms(path):
        if any(other in message for other in OF_OTHERS):
            continue
        for part in re.split(r"[:;]\s|…|[()]", message):
            words = _letters(part)
            if len(words) >= 3 and not any(words <= text for text in _texts()):
                lost.append(part)
    assert lost == []
