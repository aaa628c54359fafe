"""Tiny models, and processes that fork ranks."""

from tests.support.training.fixtures import (  # noqa: F401
    model_folder,
    norms_in_full_precision,
    one_thread,
    unit_fork_server,
)
