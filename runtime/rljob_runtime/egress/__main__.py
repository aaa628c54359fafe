"""`python -m rljob_runtime.egress FILE`: a job's egress proxy, until SIGTERM.

{"port": 3128, "keyFile": "/etc/rljob/egress-key/proxy-key", "hosts": {"calc": ["pypi.org", "*.example.com"]}}
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path

from rljob_runtime.egress.proxy import EgressProxy, ProxyLimits, resolver
from rljob_runtime.egress.rules import BadRules, Rules

END_SECONDS = 20.0
"""Time of open connections after SIGTERM."""
THREADS = 32


def main() -> int:
    """Serve until SIGTERM. Status 2: the settings are wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        given = json.loads(Path(sys.argv[1]).read_text("utf-8"))
        port, rules = int(given["port"]), Rules.parse(given["hosts"])
        key = bytes.fromhex(Path(given["keyFile"]).read_text("utf-8").strip())
    except (IndexError, KeyError, TypeError, OSError, ValueError, BadRules) as error:
        print(f"egress: the settings cannot be read: {error!r}", file=sys.stderr)
        return 2
    asyncio.run(_serve(port, rules, key))
    return 0


async def _serve(port: int, rules: Rules, key: bytes) -> None:
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    proxy = EgressProxy(rules, key, ProxyLimits(), resolver(THREADS))
    async with proxy.serve(None, port, END_SECONDS):
        logging.getLogger(__name__).info("the egress proxy serves %d environments at port %d", len(rules.hosts), port)
        await end.wait()


if __name__ == "__main__":
    sys.exit(main())
