"""CEL rules about changes: what may change in an existing job, as `immutability` decides it.

Transition rules name `oldSelf`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.admission.immutability import NEVER, WHILE_SUSPENDED

ENTRY_FIELDS = (
    "data.sources[].prompts",
    "environments[].kind",
    "environments[].tools",
    "environments[].command",
    "environments[].function",
    "environments[].openEnv",
    "environments[].verifiers",
    "environments[].reward",
)
"""Fields of list entries that have their rules on the entry: there a server matches old and new entries by name."""

_ABSENT = {
    "weight": "0.0",
    "promptsPerRound": "0",
    "rewards": "[]",
    "minRunners": "0",
    "maxRunners": "0",
    "toolSeconds": "0.0",
    "state": "''",
    "reset": "''",
    "checkout": "''",
}
"""Optional fields of entries, with a value that stands for an absent one."""
_ESCAPED = {"function": "__function__"}
"""Fields whose names are words of CEL, as a server writes them in a rule."""


@dataclass(frozen=True)
class Rule:
    """One rule: `expression` must be true; the user reads `message` when it is not."""

    expression: str
    message: str
    optional_old: bool = False
    """`oldSelf` is an optional value, absent at creation. Then the rule holds at creation too."""


def same(path: str) -> str:
    """Render CEL for: the optional field at `path` (at most two steps below the spec) is unchanged.

    An object that comes or goes changes its fields."""
    path = ".".join(_ESCAPED.get(step, step) for step in path.split("."))
    above, each, field = path.partition("[].")
    if each:
        return _same_entries(above, field)
    parent, _, _ = path.rpartition(".")
    now, was = (
        f"has({one}.{path})" if not parent else f"(has({one}.{parent}) && has({one}.{path}))"
        for one in ("self", "oldSelf")
    )
    return f"{now} == {was} && (!{now} || self.{path} == oldSelf.{path})"


def _same_entries(above: str, field: str) -> str:
    """Render CEL for: `field` of the entries of an optional list is unchanged. For `name`, so is their number."""
    now, was = f"self.{above}", f"oldSelf.{above}"
    absent = _ABSENT.get(field)
    value = f"s.{field}" if absent is None else f"has(s.{field}) ? s.{field} : {absent}"
    equal = f"{now}.map(s, {value}) == {was}.map(s, {value})"
    if field == "name":
        return f"has({now}) == has({was}) && (!has({now}) || {equal})"
    return f"!has({now}) || !has({was}) || {equal}"


def transition_rules() -> list[Rule]:
    """Return the rules on `spec` about changes. Those of `ENTRY_FIELDS` are rules of the entries."""
    paths = [path for path in NEVER if path not in ENTRY_FIELDS]
    never = [Rule(same(path), f"{path} is immutable; make a new RLJob") for path in paths]
    suspended = [
        Rule(
            f"self.suspend || oldSelf.suspend || ({same(path)})",
            f"{path} can change only while the job is suspended; set suspend: true first",
        )
        for path in WHILE_SUSPENDED
    ]
    return never + suspended
