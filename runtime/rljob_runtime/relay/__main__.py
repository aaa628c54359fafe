"""Relay process: runs one relay, commanded by JSON lines, for tests and benchmarks (in a network namespace).

    python -m rljob_runtime.relay --machine rollout-0 --folder /dev/shm/rljob-x/rollout-0 --key-file K [--host H]

Prints one line of status when it listens. Each line on standard input, `{"join": CHAIN, "term": n}`, `{"status": true,
"term": n}` or `{"probe": MEMBER, "term": n}`, is answered by one line: the status, `{"reached": B}`, or `{"error":
"..."}`. Ends on SIGTERM or end of input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rljob_runtime.protocols import Chain, PeerError, RelayMember
from rljob_runtime.relay.config import RelayConfig
from rljob_runtime.relay.relay import Relay, read_key
from rljob_runtime.relay.settings import RelaySettings


def main() -> None:
    """Run until SIGTERM or the end of input."""
    arguments = _parse()
    logging.basicConfig(level=arguments.log_level, format="%(asctime)s %(message)s")
    signal.signal(signal.SIGTERM, _leave)
    settings = RelaySettings(
        heartbeat_seconds=arguments.heartbeat_seconds, rebuild_timeout_seconds=arguments.rebuild_timeout_seconds
    )
    key = read_key(arguments.key_file)
    try:
        config = RelayConfig(arguments.machine, arguments.incarnation, arguments.folder, key, settings, arguments.host)
        with Relay(config) as relay:
            _say(asdict(asyncio.run(relay.status(0))))
            for line in sys.stdin:
                _say(asyncio.run(_answer(relay, json.loads(line))))
    except _Terminated:
        pass


class _Terminated(BaseException):
    """SIGTERM was received."""


def _leave(*_: object) -> None:
    raise _Terminated


async def _answer(relay: Relay, command: dict[str, Any]) -> dict[str, Any]:
    term = int(command.get("term", 0))
    try:
        if "join" in command:
            await relay.join(term, _chain(command["join"]))
        if "probe" in command:
            return {"reached": await relay.probe(term, RelayMember(**command["probe"]))}
        return asdict(await relay.status(term))
    except PeerError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _chain(fields: dict[str, Any]) -> Chain:
    members = tuple(RelayMember(**member) for member in fields["members"])
    return Chain(fields["epoch"], fields["revision"], members)


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _parse() -> argparse.Namespace:
    defaults = RelaySettings()
    parser = argparse.ArgumentParser(prog="python -m rljob_runtime.relay", description=__doc__)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--incarnation", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="the segment's folder, below /dev/shm")
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument("--host", default=os.environ.get("POD_IP", "127.0.0.1"))
    parser.add_argument("--heartbeat-seconds", type=float, default=defaults.heartbeat_seconds)
    parser.add_argument("--rebuild-timeout-seconds", type=float, default=defaults.rebuild_timeout_seconds)
    parser.add_argument("--log-level", default="WARNING")
    return parser.parse_args()


if __name__ == "__main__":
    main()
