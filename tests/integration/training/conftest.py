"""Tiny models."""

from tests.support.training.fixtures import model_folder, one_thread  # noqa: F401
