"""`python -m rljob_operator`: the operator's process. Every option has an environment variable of the same meaning."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api.constants import COORDINATOR_LEASE_SECONDS
from rljob_kube.connection import NoCredentials
from rljob_operator.app import Operator, Options, serve
from rljob_operator.policies.base.config import DEFAULT_RUNTIME_IMAGE, Config

_logger = logging.getLogger("rljob_operator")


def parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser of the command line. Defaults come from the environment."""
    found = argparse.ArgumentParser(prog="rljob-operator", description=__doc__)

    def add(flag: str, variable: str, default: str, text: str, **extra: Any) -> None:
        shown = f"{text} ({variable}; default: {default or 'none'})"
        found.add_argument(flag, default=env.get(variable) or default or None, help=shown, **extra)

    def switch(flag: str, variable: str, text: str) -> None:
        on = env.get(variable, "true").lower() != "false"
        shown = f"{text} ({variable}; default: true)"
        found.add_argument(flag, default=on, help=shown, action=argparse.BooleanOptionalAction)

    found.add_argument(
        "-n",
        "--namespace",
        action="append",
        metavar="NAME",
        dest="namespaces",
        help="serve this namespace only; may be repeated (RLJOB_NAMESPACES, separated by commas; default: all)",
    )
    add("--runtime-image", "RLJOB_RUNTIME_IMAGE", DEFAULT_RUNTIME_IMAGE, "image of pods whose template sets none")
    add(
        "--image-pull-policy",
        "RLJOB_IMAGE_PULL_POLICY",
        "",
        "pull policy of main containers whose template sets none",
        choices=("Always", "IfNotPresent", "Never"),
    )
    switch("--network-policy", "RLJOB_NETWORK_POLICY", "create a NetworkPolicy for each job")
    switch("--leader-elect", "RLJOB_LEADER_ELECT", "act only while holding the Lease")
    namespace = env.get("POD_NAMESPACE") or "default"
    add("--lease-namespace", "RLJOB_LEASE_NAMESPACE", namespace, "where the leader's Lease is")
    add("--lease-name", "RLJOB_LEASE_NAME", "rljob-operator", "name of the leader's Lease")
    add("--workers", "RLJOB_WORKERS", "8", "number of jobs reconciled concurrently", type=_positive)
    add(
        "--coordinator-lease-seconds",
        "RLJOB_COORDINATOR_LEASE_SECONDS",
        str(COORDINATOR_LEASE_SECONDS),
        "seconds without a renewal after which a coordinator is replaced",
        type=_positive,
    )
    add(
        "--resync-seconds", "RLJOB_RESYNC_SECONDS", "300", "seconds between two reconciles of every job", type=_positive
    )
    add("--health-port", "RLJOB_HEALTH_PORT", "8080", "port of /healthz, /readyz and /metrics", type=int)
    levels = ("debug", "info", "warning", "error")
    add("--log-level", "RLJOB_LOG_LEVEL", "info", "lowest level that is logged", choices=levels)
    return found


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def options(arguments: Sequence[str], env: Mapping[str, str]) -> tuple[Options, str]:
    """Parse a command line into options and a log level."""
    given = parser(env).parse_args(arguments)
    found = Options(
        config=Config(
            runtime_image=given.runtime_image,
            image_pull_policy=given.image_pull_policy,
            network_policy=given.network_policy,
            coordinator_lease_seconds=given.coordinator_lease_seconds,
        ),
        namespaces=tuple(given.namespaces or filter(None, env.get("RLJOB_NAMESPACES", "").split(","))),
        leader_elect=given.leader_elect,
        lease_namespace=given.lease_namespace,
        lease_name=given.lease_name,
        identity=env.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
        workers=given.workers,
        resync_seconds=float(given.resync_seconds),
        health_port=given.health_port,
    )
    return found, given.log_level


async def until_told(found: Options) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(lambda: Operator(found), stop)


def main() -> int:
    """Run the operator. Return 0 after a signal, 1 without a cluster."""
    found, level = options(sys.argv[1:], os.environ)
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("kopf").setLevel(logging.WARNING if level != "debug" else logging.DEBUG)
    try:
        asyncio.run(until_told(found))
    except NoCredentials as error:
        _logger.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
