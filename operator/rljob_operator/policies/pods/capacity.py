"""Capacity: how many pods a cluster could hold if it ran nothing else.

It is an upper bound, from allocatable resources, labels and taints of the nodes. More pods never fit in the present
cluster; so many may not fit either. Affinity, topology spread, claims and other pods narrow the choice, and are left
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rljob_operator.policies.base.observation import Node

Amounts = Mapping[str, Decimal]

_SUFFIXES = {
    "m": Decimal("0.001"),
    **{name: Decimal(1000) ** power for power, name in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{name: Decimal(1024) ** power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_PASSING = "node.kubernetes.io/"
"""Kubernetes' own taints for a temporary state: not ready, cordoned, or under pressure."""


@dataclass(frozen=True)
class Kind:
    """Pods of one kind: what each requests, and which nodes it may use."""

    asks: Amounts
    selector: Mapping[str, str]
    tolerations: Sequence[Mapping[str, Any]] = ()

    def may_use(self, node: Node) -> bool:
        """Tell whether a node has the labels, and no lasting taint that these pods do not tolerate."""
        if node.gone or any(node.labels.get(key) != value for key, value in self.selector.items()):
            return False
        return all(any(_tolerates(one, taint) for one in self.tolerations) for taint in node.taints if _lasts(taint))

    def fitting(self, node: Node) -> int:
        """Count how many of them an empty node holds."""
        offers = amounts(node.allocatable)
        return int(min(offers.get(name, Decimal(0)) // each for name, each in self.asks.items() if each))


def kind_of(spec: Mapping[str, Any]) -> Kind:
    """Return the kind of a pod with this spec."""
    sidecars: dict[str, Decimal] = {}
    start: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, _asked(container))
        start = _most(start, _sum(sidecars, {} if container.get("restartPolicy") == "Always" else _asked(container)))
    work = sidecars
    for container in spec.get("containers") or ():
        work = _sum(work, _asked(container))
    asks = {"pods": Decimal(1), **_most(start, work)}
    return Kind(asks, spec.get("nodeSelector") or {}, tuple(spec.get("tolerations") or ()))


def fits(wanted: Sequence[tuple[Kind, int]], nodes: Iterable[Node]) -> bool:
    """Tell whether so many pods of each kind fit on these nodes together. False where they never could."""
    nodes, some = list(nodes), [(kind, count) for kind, count in wanted if count > 0]
    usable = [node for node in nodes if any(kind.may_use(node) for kind, _ in some)]
    for kind, count in some:
        if sum(kind.fitting(node) for node in usable if kind.may_use(node)) < count:
            return False
    for name in {name for kind, _ in some for name in kind.asks}:
        asked = sum((kind.asks.get(name, Decimal(0)) * count for kind, count in some), Decimal(0))
        if asked > sum((amounts(node.allocatable).get(name, Decimal(0)) for node in usable), Decimal(0)):
            return False
    return True


def amounts(quantities: Mapping[str, Any]) -> dict[str, Decimal]:
    """Parse quantities of Kubernetes as numbers. Odd ones are left out."""
    found = {name: _amount(str(value)) for name, value in quantities.items()}
    return {name: value for name, value in found.items() if value is not None}


def _amount(text: str) -> Decimal | None:
    number = text.rstrip("kmKMGTPEi")
    try:
        value = Decimal(number)
    except ArithmeticError:
        return None
    suffix = text[len(number) :]
    return value * _SUFFIXES[suffix] if suffix in _SUFFIXES else None if suffix or not value.is_finite() else value


def _asked(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _sum(first: Amounts, second: Amounts) -> dict[str, Decimal]:
    zero = Decimal(0)
    return {name: first.get(name, zero) + second.get(name, zero) for name in {**first, **second}}


def _most(first: Amounts, second: Amounts) -> dict[str, Decimal]:
    zero = Decimal(0)
    return {name: max(first.get(name, zero), second.get(name, zero)) for name in {**first, **second}}


def _lasts(taint: Mapping[str, Any]) -> bool:
    return taint.get("effect") in ("NoSchedule", "NoExecute") and not str(taint.get("key")).startswith(_PASSING)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key, exists = toleration.get("key"), toleration.get("operator") == "Exists"
    if not key:
        return exists
    return key == taint.get("key") and (exists or (toleration.get("value") or "") == (taint.get("value") or ""))
