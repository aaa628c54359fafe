"""`hack/local_cluster/cluster`: the command line of the local cluster."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import lifecycle
from .control_plane.control_plane import Stopwatch
from .programs import build, recipe, tools
from .settings import ClusterError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="cluster", description="A Kubernetes cluster on this machine, without Docker.")
    name = os.environ.get("RLJOB_CLUSTER", "default")
    top.add_argument("--name", default=name, help="which cluster, if several ($RLJOB_CLUSTER; default: %(default)s)")
    sub = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    item = sub.add_parser(
        "build", help="build Kubernetes into the cache (once; `up` does it when needed); $KUBERNETES names the minor"
    )
    item.add_argument("programs", nargs="*", metavar="PROGRAM", help="some programs only; default: all of a cluster")

    item = sub.add_parser("up", help="bring a cluster up and wait until its nodes are Ready")
    item.add_argument("--nodes", type=int, default=3, metavar="N")
    item.add_argument("--kubernetes", choices=recipe.MINORS, help="which minor ($KUBERNETES; default: the newest)")
    item.add_argument("--kind", action="store_true", help="use kind (needs Docker), with three workers")

    sub.add_parser("down", help="take the cluster down; nothing but the cache stays")
    sub.add_parser("status", help="what runs, and which nodes are Ready")
    sub.add_parser("kubeconfig", help="print the kubeconfig's path")
    sub.add_parser("env", help='print export lines: eval "$(cluster env)"')
    sub.add_parser("tools", help="build kubectl and helm into the cache and print their folder")

    item = sub.add_parser("node", help="power and cable of one node")
    item.add_argument("action", choices=("kill", "up", "cut", "join", "deafen", "hear"))
    item.add_argument("index", type=int, metavar="N")
    item.add_argument("--no-wait", action="store_true", help="do not wait for Ready after `up`")
    item.add_argument("--kubernetes", choices=recipe.MINORS, help="of the node after `up` (default: the cluster's own)")

    item = sub.add_parser("network-policies", help="whether nodes enforce NetworkPolicies; at first they do not")
    item.add_argument("action", choices=("enforce", "ignore"))

    item = sub.add_parser("load-image", help="put an image archive on every node")
    item.add_argument("file", type=Path, metavar="FILE")

    item = sub.add_parser("logs", help="show a component's log; without a name, list them")
    item.add_argument("component", nargs="?")
    item.add_argument("-f", "--follow", action="store_true")
    item.add_argument("-n", "--lines", type=int, default=50)
    return top


def show_logs(name: str, component: str | None, follow: bool, lines: int) -> None:
    cluster = lifecycle.require(name)
    available = sorted(p.stem for p in cluster.logs.glob("*.log"))
    if component is None:
        print("\n".join(available))
    elif component not in available:
        raise ClusterError(f"no log of {component}; there are: {', '.join(available)}")
    else:
        tail = ["tail", "-n", str(lines), *(["-F"] if follow else []), str(cluster.logs / f"{component}.log")]
        subprocess.run(tail, check=False)


def run(args: argparse.Namespace) -> None:
    match args.command:
        case "build":
            watch = Stopwatch()
            folder = build.binaries(args.programs or recipe.CLUSTER)
            watch.say(f"binaries are in {folder}")
        case "up" if args.kind:
            print(f"export KUBECONFIG={lifecycle.up_kind(args.name, args.kubernetes).kubeconfig}")
        case "up":
            cluster = lifecycle.up(args.name, args.nodes, args.kubernetes)
            print(f"export KUBECONFIG={cluster.kubeconfig}")
        case "down":
            print(f"cluster {args.name} {'is down' if lifecycle.down(args.name) else 'was not up'}")
        case "status":
            print(lifecycle.status(args.name))
        case "kubeconfig":
            print(lifecycle.require(args.name).kubeconfig)
        case "env":
            print(lifecycle.environment(lifecycle.require(args.name), tools.folder()))
        case "tools":
            print(tools.folder())
        case "node":
            lifecycle.node_command(args.name, args.action, args.index, not args.no_wait, args.kubernetes)
        case "network-policies":
            on = ", ".join(lifecycle.network_policies(args.name, enforced=args.action == "enforce"))
            print(f"NetworkPolicies are {args.action}d on {on}")
        case "load-image":
            print("loaded on", ", ".join(lifecycle.load_image(args.name, args.file)))
        case "logs":
            show_logs(args.name, args.component, args.follow, args.lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 with a message on stderr, or 130 when interrupted."""
    args = parser().parse_args(argv)
    # SIGTERM unwinds like Ctrl-C, so that a half-made cluster is taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(args)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: interrupted", file=sys.stderr)
        return 130
    return 0
