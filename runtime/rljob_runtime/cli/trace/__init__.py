"""`rljob trace`: statistics of a recorded workload, and a generator fitted to it."""

from rljob_runtime.cli.trace.command import trace

__all__ = ["trace"]
