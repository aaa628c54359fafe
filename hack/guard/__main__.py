"""`python -m hack.guard`: the command line of the guard.

    python -m hack.guard record FILE [--seeds N] [--jobs N] [--skip PART]
    python -m hack.guard compare FILE [--allowed FILE] [--seeds N] [--jobs N] [--skip PART] [--now FILE]

Exit status: 0 when nothing differs, 1 when something does, 2 for input that cannot be used, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from . import allowed, record
from .counts import NotCollected
from .manifests import NoHelm
from .product import ROOT, OtherTree

NOW = Path("build/guard/now.json")


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    # SIGTERM unwinds like Ctrl-C, so that the processes of seeds end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _compare(args) if args.command == "compare" else _record(args)
    except (allowed.BadAllowance, record.BadRecord, record.TreeChanged, NoHelm, NotCollected, OtherTree) as error:
        print(f"guard: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("guard: interrupted; the same command continues with the seeds that are left", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m hack.guard", description=__doc__.split("\n")[0] if __doc__ else None)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    recorder = commands.add_parser("record", help="write what must not change to FILE")
    comparer = commands.add_parser("compare", help="record again, and print what differs from FILE")
    comparer.add_argument("--allowed", type=Path, metavar="FILE", help="YAML: differences that are meant")
    comparer.add_argument(
        "--now", type=Path, default=NOW, metavar="FILE", help="where to keep the new record (default: %(default)s)"
    )
    for one in (recorder, comparer):
        one.add_argument("file", type=Path, metavar="FILE")
        one.add_argument("--seeds", type=_positive, default=300, help="of each mode (default: %(default)s)")
        one.add_argument("--jobs", type=_positive, default=1, help="processes for seeds (default: %(default)s)")
        one.add_argument("--skip", action="append", default=[], choices=record.PARTS, help="leave a part out")
    return top


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _options(args: argparse.Namespace) -> record.Options:
    parts = tuple(part for part in record.PARTS if part not in args.skip)
    return record.Options(parts, args.seeds, args.jobs, partial(print, file=sys.stderr, flush=True))


def _record(args: argparse.Namespace) -> int:
    """Write a record. One of other sources stays as it is: a comparison needs it."""
    if args.file.exists() and record.read_record(args.file)["code"] != record.fingerprint(ROOT):
        raise record.BadRecord(f"{args.file} is a record of other sources; another file would be right")
    record.make_record(args.file, _options(args))
    return 0


def _compare(args: argparse.Namespace) -> int:
    options = _options(args)
    old = record.read_record(args.file)
    allowances = allowed.read(args.allowed) if args.allowed is not None else []
    new = record.make_record(args.now, options)
    found = list(record.differences(old, new, options.parts))
    left, idle = allowed.subtract(found, allowances)
    for difference in left:
        print(difference)
    for allowance in idle:
        print(f"nothing differs as allowed: {allowance.place}: {allowance.old} -> {allowance.new}", file=sys.stderr)
    compared = ", ".join(options.parts)
    print(f"{len(left)} differences, {len(found) - len(left)} allowed ones; compared: {compared}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
