"""Reference: writes the pages of `docs/reference` that repeat the sources. `make reference` runs it.

Fields come from the CRD, commands from typer, metrics from the registry of each process, and conditions from the
operator's catalogue. A test compares the pages with what this module would write.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from prometheus_client import CollectorRegistry

from hack.guard.product import registries
from rljob_api.schema.crd import crd
from rljob_operator.policies.status.catalogue.condition_types import CONDITION_TYPES
from rljob_operator.policies.status.catalogue.event_reasons import EVENT_REASONS
from rljob_operator.policies.status.catalogue.reasons import REASONS, Place, reasons_of
from rljob_runtime.cli import app

DOCS = Path(__file__).resolve().parents[1] / "docs"
FOLDER = DOCS / "reference"
Json = Mapping[str, Any]


# --- fields -----------------------------------------------------------------------------------------------------------


def fields() -> str:
    """Write the page of all fields of an RLJob."""
    properties = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    parts = [
        _head(
            "Fields of an RLJob",
            "Every field, as `kubectl explain rljob --recursive` has it. What they are for: [API](api.md).",
        )
    ]
    for name in ("spec", "status"):
        for path, schema in _objects(properties[name], name):
            parts.append(f"## {path}\n")
            if path != name and (text := _one_line(schema.get("description", ""))):
                parts.append(f"{text}\n")
            parts.append(_table(("field", "type", "default", "meaning"), _rows_of(schema)))
    return "\n".join(parts)


def _objects(schema: Json, path: str) -> Iterator[tuple[str, Json]]:
    """Yield the objects of a schema that have fields, each with its path, parents first."""
    inner = schema.get("items", schema)
    if not inner.get("properties"):
        return
    yield path, inner
    for name, below in inner["properties"].items():
        yield from _objects(below, f"{path}.{name}" + ("[]" if "items" in below else ""))


def _rows_of(schema: Json) -> list[tuple[str, ...]]:
    needed = set(schema.get("required", ()))
    return [
        (f"`{name}`" + (" (required)" if name in needed else ""), _type(field), _default(field), _meaning(field))
        for name, field in schema["properties"].items()
    ]


def _type(field: Json) -> str:
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    if "items" in field:
        return f"list of {_type(field['items'])}"
    if field.get("x-kubernetes-int-or-string"):
        return "integer or text"
    name = str(field.get("type", "any"))
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None or high is not None:
        return f"{name}, {_bound(low)} to {_bound(high)}".rstrip()
    return name


def _bound(value: float | None) -> str:
    return "" if value is None else f"{value:,}" if value == int(value) and abs(value) < 1e9 else f"{value:g}"


def _default(field: Json) -> str:
    value = field.get("default")
    if value is None or isinstance(value, dict | list):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _meaning(field: Json) -> str:
    """Give the description without its default, which has a column."""
    text = field.get("items", {}).get("description") or field.get("description", "")
    return _one_line(re.sub(r"\s*Default: \S+\.$", "", text.strip()))


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Write the page of the command line."""
    parts = [_head("The command line", "Every command of `rljob` with its arguments and options.")]
    for name, command in _commands("rljob", typer.main.get_command(app)):
        parts.append(f"## {name}\n")
        parts.append(f"{_one_line(command.help or '')}\n")
        rows = [_parameter(one) for one in command.params if one.name not in ("install_completion", "show_completion")]
        if rows:
            parts.append(_table(("argument or option", "default", "meaning"), rows))
    return "\n".join(parts)


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if not below:
        yield name, command
    for part, one in sorted((below or {}).items()):
        yield from _commands(f"{name} {part}", one)


def _parameter(parameter: Any) -> tuple[str, ...]:
    names = [*parameter.opts, *parameter.secondary_opts]
    shown = ", ".join(f"`{name}`" for name in names) if names[0].startswith("-") else f"`{names[0].upper()}`"
    value = parameter.default
    default = "" if callable(value) or value in (None, False, (), []) else f"`{getattr(value, 'value', value)}`"
    needed = " (required)" if parameter.required else ""
    return shown + needed, default, _one_line(getattr(parameter, "help", "") or "")


# --- metrics ----------------------------------------------------------------------------------------------------------


def metrics() -> str:
    """Write the page of the metrics that a scrape shows."""
    found = registries()
    processes = {
        "coordinator": "Port `health` of the coordinator's pod.",
        "gateway": "Port `gateway-metrics` of the coordinator's pod, in jobs with `spec.environments`.",
        "operator": "Port `http` of the operator's pod.",
    }
    parts = [_head("Metrics", "What Prometheus reads at `/metrics` of each process.")]
    for process, text in processes.items():
        parts += [f"## {process.capitalize()}\n", f"{text}\n"]
        parts.append(_table(("metric", "kind", "labels", "meaning"), _families(found.pop(process))))
    if found:
        raise ValueError(f"the page of metrics has no section for {', '.join(found)}")
    return "\n".join(parts)


def _families(registry: CollectorRegistry) -> list[tuple[str, ...]]:
    collectors = registry._names_to_collectors
    rows = []
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = getattr(collectors.get(family.name), "_labelnames", None) or getattr(family, "_labelnames", ())
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append((f"`{name}`", family.type, shown, _one_line(family.documentation)))
    return sorted(rows)


# --- conditions -------------------------------------------------------------------------------------------------------

_CURES = {"troubleshooting.md": "", "guides/kueue.md": "Kueue: "}
"""Pages whose tables have reasons in their first column, and how links to them begin."""
_TO_CURE = {("Ready", False), ("Stalled", True), ("Degraded", True), ("Failed", True)}
"""Conditions that a person may have to do something about."""
_SHARED: Mapping[Place, tuple[Place, str]] = {
    ("Ready", False): (("Stalled", True), "the reason of `Stalled`, where the job waits for it"),
    ("Stalled", True): (("Failed", True), "the reason of `Failed`"),
    ("Suspended", True): (("Admitted", False), "the reason of `Admitted=False`"),
}
"""Of a condition that can have another one's reasons: the other one, and what stands for these reasons."""


def conditions() -> str:
    """Write the page of the conditions, their reasons, and the events."""
    order, cures = list(CONDITION_TYPES), _cures()
    types = [
        (f"`{name}`", one.present, one.meaning, _reasons_cell(name, True), _reasons_cell(name, False))
        for name, one in CONDITION_TYPES.items()
    ]
    reasons = [
        (f"`{name}`", _places(sorted(one.places, key=lambda at: order.index(at[0]))), one.meaning, cures.get(name, ""))
        for name, one in sorted(REASONS.items())
    ]
    events = [(f"`{name}`", " or ".join(sorted(one.kinds)), one.meaning) for name, one in sorted(EVENT_REASONS.items())]
    parts = [
        _head(
            "Conditions and events",
            "What an RLJob reports to its user: `kubectl describe rljob NAME` shows all of it. Conditions follow "
            "kstatus. `Ready` is always there, `Reconciling` and `Stalled` only while they are True, and never both. "
            "[Troubleshooting](../troubleshooting.md) begins with symptoms.\n\n"
            "The tables come from `operator/rljob_operator/policies/status/catalogue`. A test compares it in both "
            "directions with what operator and coordinator write.",
        ),
        "## Conditions\n",
        _table(("condition", "present", "True means", "reasons when True", "reasons when False"), types),
        "## Reasons\n",
        "The message of the condition has the names and the numbers. The last column leads to what a person can do.\n",
        _table(("reason", "condition", "meaning", "what to do"), reasons),
        "## Events\n",
        "Besides these, each reason of `Stalled` and of `Admitted=False` is an event when it comes up. That of "
        "`Stalled` is a Warning. That of `Admitted=False` is a Warning if the job was admitted before. The event of a "
        "job that fails is `Failed`, and has the reason in its message.\n",
        _table(("event", "type", "meaning"), events),
    ]
    return "\n".join(parts)


def _places(places: Iterable[Place]) -> str:
    return ", ".join(f"`{type_}={holds}`" for type_, holds in places)


def _reasons_cell(type_: str, holds: bool) -> str:
    other, instead = _SHARED.get((type_, holds), (None, ""))
    own = ", ".join(f"`{name}`" for name in reasons_of(type_, holds) if other not in REASONS[name].places)
    return f"{own}; or {instead}" if instead else own


def _cures() -> dict[str, str]:
    """Map the reasons to links to the tables that have their cures."""
    known = {name for name, one in REASONS.items() if _TO_CURE & {*one.places}} - set(CONDITION_TYPES)
    found: dict[str, str] = {}
    for page, prefix in _CURES.items():
        heading = ""
        for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
            elif line.startswith("|"):
                quoted = " ".join(re.findall(r"`([^`]+)`", line.split("|")[1]))
                link = f"[{prefix}{heading}](../{page}#{_anchor(heading)})"
                found = {name: link for name in re.findall(r"[A-Z]\w+", quoted) if name in known} | found
    return found


def _anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- pages ------------------------------------------------------------------------------------------------------------

PAGES: Mapping[str, Callable[[], str]] = {
    "fields.md": fields,
    "cli.md": commands,
    "metrics.md": metrics,
    "conditions-and-events.md": conditions,
}


def _head(title: str, text: str) -> str:
    return f"# {title}\n\n<!-- Made by `make reference`; do not edit. -->\n\n{text}\n"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


def main() -> int:
    """Write the pages that differ."""
    for name, write in PAGES.items():
        path, text = FOLDER / name, write()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
