"""`rljob profile`: measures this machine's engine."""

from rljob_runtime.cli.profile.command import profile

__all__ = ["profile"]
