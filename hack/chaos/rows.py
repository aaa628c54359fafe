"""Rows: the kinds of faults, with victims, signs of detection and recovery, and bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .observation import Observation

Victims = Callable[[Observation, Random], tuple[str, ...]]


@dataclass(frozen=True)
class Row:
    """A kind of fault.

    `victims` returns the machines or nodes to hit; () if it is not possible now. `watches`: whose problems show the
    fault: the victims', those of machines on these nodes, or none. `seen`: another sign; `busy`: a sign of unfinished
    recovery. `replaced`: each pod must be replaced (True), none may be (False), or either (None). `lasts`: seconds
    until the fault is undone; None if the job recovers without that. `bound`: seconds until recovery. `quiet`: no
    machine may be troubled.
    """

    name: str
    victims: Victims
    bound: float
    watches: str = "victims"
    replaced: bool | None = None
    lasts: float | None = None
    seen: Callable[[Observation, Observation], bool] = lambda before, now: False
    busy: Callable[[Observation], bool] = lambda now: False
    must_be_seen: bool = True
    quiet: bool = False


def _rollout(seen: Observation, rng: Random) -> tuple[str, ...]:
    machines = [pod.machine for pod in seen.of_role("rollout") if pod.ready]
    return (rng.choice(machines),) if machines else ()


def _last_rollout(seen: Observation, rng: Random) -> tuple[str, ...]:
    """Return the machine that leaves a job that shrinks, unless it is the only one."""
    machines = [pod.machine for pod in seen.of_role("rollout") if pod.ready]
    return (max(machines, key=lambda name: int(name.rpartition("-")[2])),) if len(machines) > 1 else ()


def _trainer(seen: Observation, rng: Random) -> tuple[str, ...]:
    return tuple(pod.machine for pod in seen.of_role("trainer"))[:1]


def _coordinator(seen: Observation, rng: Random) -> tuple[str, ...]:
    return tuple(pod.machine for pod in seen.of_role("coordinator"))[:1]


def _coordinators_node(seen: Observation, rng: Random) -> tuple[str, ...]:
    """Return the coordinator's node if the trainer is on another one, which stays."""
    kept = {pod.node for pod in seen.of_role("trainer")}
    nodes = [pod.node for pod in seen.of_role("coordinator") if pod.node is not None and pod.node not in kept]
    return tuple(nodes[:1])


def _no_machine(seen: Observation, rng: Random) -> tuple[str, ...]:
    return ("",)


def spare_nodes(seen: Observation) -> list[str]:
    """Return nodes with rollout machines and without coordinator and trainer, the fullest first."""
    kept = {pod.node for role in ("coordinator", "trainer") for pod in seen.of_role(role)}
    counts = Counter(pod.node for pod in seen.of_role("rollout") if pod.node is not None and pod.node not in kept)
    return sorted(counts, key=lambda node: (-counts[node], node))


def _node(seen: Observation, rng: Random) -> tuple[str, ...]:
    nodes = spare_nodes(seen)
    return (rng.choice(nodes),) if nodes else ()


def _nodes(seen: Observation, rng: Random) -> tuple[str, ...]:
    """Return nodes with more than half of the rollout machines: at least two, and all only if there are just two."""
    nodes, machines = spare_nodes(seen), seen.of_role("rollout")
    for count in range(2, len(nodes) + 1):
        if 2 * len(machines_on(seen, tuple(nodes[:count]))) > len(machines):
            return tuple(nodes[:count])
    return ()


def _two_checkpoints(seen: Observation, rng: Random) -> tuple[str, ...]:
    return _trainer(seen, rng) if seen.checkpoint else ()


def machines_on(seen: Observation, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the rollout machines on these nodes."""
    return tuple(pod.machine for pod in seen.of_role("rollout") if pod.node in nodes)


def _starting(now: Observation) -> bool:
    return now.stage == "Starting"


def _rewound(before: Observation, now: Observation) -> bool:
    return _starting(now) or now.round < before.round


def _new_term(before: Observation, now: Observation) -> bool:
    return now.term > before.term


def _computed_again(before: Observation, now: Observation) -> bool:
    return now.round > before.round + 1 and now.switches > 0 and now.moved_bytes == 0


def _size_refused(before: Observation, now: Observation) -> bool:
    # At a boundary it is a warning, inside a round a switch that failed.
    return "LayoutRefused" in now.problems or (now.round > before.round and now.refused > 0)


def _smaller(before: Observation, now: Observation) -> bool:
    return now.desired < before.desired


def _suspended(before: Observation, now: Observation) -> bool:
    # All pods may be gone only after the job is resumed.
    return now.phase in ("Suspending", "Suspended")


def _disk_is_full(before: Observation, now: Observation) -> bool:
    return "CheckpointFailed" in now.problems


ROWS = {
    row.name: row
    for row in (
        Row("replica-killed", _rollout, 90),
        Row("replica-hung", _rollout, 150),
        Row("replica-again", _rollout, 150, replaced=True),
        Row("relay-killed", _rollout, 90),
        Row("node-off", _node, 180, watches="nodes", replaced=True),
        Row("cable-cut", _node, 180, watches="nodes", replaced=True),
        Row("many-nodes", _nodes, 300, watches="nodes", lasts=20, seen=lambda before, now: now.paused),
        Row("trainer-killed", _trainer, 120, seen=_rewound, busy=_starting),
        Row("trainer-deleted", _trainer, 120, replaced=True, seen=_rewound, busy=_starting),
        Row("coordinator-killed", _coordinator, 120, seen=_new_term),
        Row("coordinator-deleted", _coordinator, 120, replaced=True, seen=_new_term),
        Row("coordinator-deaf", _coordinators_node, 300, watches="none", seen=_new_term),
        Row("coordinator-cut", _coordinators_node, 300, watches="none", seen=_new_term),
        Row("gateway-killed", _coordinator, 90, watches="none", replaced=False, must_be_seen=False),
        Row("gateway-hung", _coordinator, 90, watches="none", replaced=False, lasts=12, must_be_seen=False),
        Row("runner-deleted", _no_machine, 90, watches="none", replaced=False, must_be_seen=False),
        Row("runner-hung", _no_machine, 90, watches="none", replaced=False, must_be_seen=False),
        Row("runner-cut", _no_machine, 120, watches="none", replaced=False, lasts=40, must_be_seen=False),
        Row("tool-server-killed", _no_machine, 120, watches="none", replaced=False, must_be_seen=False),
        Row("tool-server-hung", _no_machine, 180, watches="none", replaced=False, lasts=45, must_be_seen=False),
        Row("operator-killed", _no_machine, 90, watches="none", replaced=False, must_be_seen=False),
        Row("api-paused", _no_machine, 120, watches="none", replaced=False, lasts=15, must_be_seen=False),
        Row("etcd-paused", _no_machine, 120, watches="none", replaced=False, lasts=15, must_be_seen=False),
        Row("disk-full", _trainer, 120, watches="none", replaced=False, lasts=20, seen=_disk_is_full),
        Row("checkpoint-corrupt", _two_checkpoints, 150, seen=_rewound, busy=_starting),
        Row("switch-killed-writing", _rollout, 150),
        Row("switch-killed-loading", _rollout, 150),
        Row("switch-killed-reading", _rollout, 150),
        Row("switch-killed-stopping", _rollout, 150),
        Row("switch-killed-asleep", _rollout, 150),
        Row("switch-refused", _rollout, 240, watches="none", lasts=20, seen=_size_refused),
        Row("switch-hung", _rollout, 240),
        Row("switch-relay-killed", _rollout, 150),
        Row("switch-coordinator-killed", _coordinator, 150, seen=_new_term),
        Row("switch-trainer-killed", _trainer, 150, seen=_rewound, busy=_starting),
        Row("switch-scaled", _last_rollout, 240, watches="none", lasts=20, seen=_smaller),
        Row("switch-suspended", _no_machine, 240, watches="none", lasts=20, seen=_suspended),
        Row("switch-kv-damaged", _no_machine, 150, watches="none", replaced=False, lasts=20, seen=_computed_again),
        Row("switch-node-off", _node, 240, watches="nodes", replaced=True),
        Row(
            "switch-no-room",
            _no_machine,
            150,
            watches="none",
            replaced=False,
            lasts=20,
            seen=_computed_again,
            quiet=True,
        ),
        Row("shared-memory-full", _no_machine, 150, watches="none", replaced=False, lasts=20, seen=_computed_again),
    )
}
"""All rows: processes, nodes, trainer, coordinator, agents, control plane, disks, switches."""

TOOLS = frozenset({"tool-server-killed", "tool-server-hung"})
"""Rows of a job whose tool is a server of its own. Long episodes have none: a call that it loses ends its attempt."""

AGENTS = TOOLS | {name for name in ROWS if name.startswith(("gateway-", "runner-"))}
"""Rows of a job with environments."""

SWITCHES = frozenset(name for name in ROWS if name.startswith("switch-")) | {"shared-memory-full"}
"""Rows of a job whose machines switch their tensor parallel size in each round."""

MOVING = frozenset({"coordinator-deaf", "coordinator-cut"})
"""Rows in which the coordinator loses its node: it runs on a node without the trainer and can move to others."""
