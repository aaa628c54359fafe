"""`rljob run`: a complete job on this machine."""

from rljob_runtime.cli.run.command import run

__all__ = ["run"]
