"""`rljob samples`: shows what the model answered."""

from rljob_runtime.cli.samples.command import samples

__all__ = ["samples"]
