"""`rljob episodes`: shows the episodes of a job's store, and writes them for other programs."""

from rljob_runtime.cli.episodes.command import episodes

__all__ = ["episodes"]
