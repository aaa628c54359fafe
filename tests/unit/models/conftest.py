"""A tiny model."""

from tests.support.rollout.fixtures import config, model  # noqa: F401
