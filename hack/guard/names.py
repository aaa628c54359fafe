"""Names: what users, dashboards and scripts call things by: metrics, conditions, events, options, variables."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import EnumType
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from typer.main import get_command

from . import product
from .flows import Flows
from .sources import Source, is_variable, is_word, literals, read_sources

Names = dict[str, Any]


def record_names(root: Path) -> Names:
    """Record every kind of name of the checkout."""
    sources = read_sources(root / folder for folder in product.SOURCES)
    return {
        "metrics": {process: metrics(registry) for process, registry in product.registries().items()},
        **record_literals(sources),
        "command": command(get_command(product.command_line())),
        "operator options": {
            " ".join(action.option_strings): {"default": action.default, "choices": action.choices}
            for action in product.operator_options()._actions
        },
        "entry points": entry_points(root),
    }


def record_literals(sources: Sequence[Source]) -> Names:
    """Record the names that modules hold as constants. `words` is the coarse net: whatever has a name's shape."""
    flows = Flows(sources)
    reasons = flows.reaching(flows.takers("reason"), "reason")
    texts = {text for source in sources for text in literals(source)}
    variables = {text for source in sources for text in environment(source)}
    return {
        "conditions": _set(flows.reaching([product.CONDITION], "type")),
        "events": _set(filter(is_word, flows.reaching([product.EVENT], "reason"))),
        "reasons": _set(filter(is_word, reasons)),
        "words": _set(filter(is_word, texts)),
        "environment": _set(variables | set(filter(is_variable, texts))),
        "arguments": _set(text for source in sources for text in arguments(source)),
    }


def metrics(registry: CollectorRegistry) -> Names:
    """Each metric with its type and its labels, also of one that has no sample yet."""
    return {
        metric.name: {"type": metric.type, "labels": labels}
        for collector in registry._collector_to_names
        for metric in collector.collect()
        # A family of a collector of ours has its own labels, a metric those of its object.
        for labels in [list(getattr(collector, "_labelnames", getattr(metric, "_labelnames", ())))]
    }


def command(found: Any) -> Names:
    """Return a command in typer's tree: its options, its arguments and the commands below it."""
    names: Names = {"options": {}, "arguments": []}
    for parameter in found.params:
        told = {
            "default": None if callable(parameter.default) else str(parameter.default),
            "required": parameter.required,
            "several": parameter.multiple or parameter.nargs != 1,
            "bounds": [parameter.min, parameter.max],
            "choices": _choices(parameter.type_descriptor.annotation),
            "variable": parameter.envvar,
        }
        if parameter.param_type_name == "argument":
            # Its name is shown in the help only; its place is what counts.
            names["arguments"].append(told)
        else:
            names["options"][" ".join([*parameter.opts, *parameter.secondary_opts])] = told
    below = getattr(found, "commands", {})
    return names | ({"commands": {name: command(one) for name, one in below.items()}} if below else {})


def _choices(annotation: Any) -> list[str] | None:
    """Return the words that an option takes, where they are an enum's."""
    if not isinstance(annotation, EnumType):
        return None
    members: Mapping[str, Any] = annotation.__members__
    return [str(one.value) for one in members.values()]


def environment(source: Source) -> Iterator[str]:
    """Variables that are read from or written to `os.environ`, or a parameter `environment`, under a constant name."""
    for node in source.nodes:
        match node:
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
                yield name
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="environ") | ast.Name(id="environment")),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case ast.Call(func=ast.Attribute(attr="getenv"), args=[ast.Constant(value=str(name)), *_]):
                yield name


def arguments(source: Source) -> Iterator[str]:
    """Options, arguments and choices of the command lines that argparse reads in a process's main function."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            choices = [keyword.value for keyword in node.keywords if keyword.arg == "choices"]
            for given in [*node.args, *choices]:
                yield from (
                    one.value for one in ast.walk(given) if isinstance(one, ast.Constant) and isinstance(one.value, str)
                )


def entry_points(root: Path) -> Names:
    """Return the names that distributions of the checkout register: commands and benchmarks."""
    found: dict[str, set[str]] = {}
    for file in [root / "pyproject.toml", *sorted(root.glob("*/pyproject.toml"))]:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        for group, points in {"scripts": project.get("scripts", {}), **project.get("entry-points", {})}.items():
            found.setdefault(group, set()).update(points)
    return {group: _set(points) for group, points in found.items()}


def _set(names: Iterable[str]) -> dict[str, bool]:
    """Return a set as a JSON object, so that one name more or less is one difference."""
    return dict.fromkeys(sorted(set(names)), True)
