"""A tiny model, its weights in a segment, and engines."""

from tests.support.rollout.fixtures import (  # noqa: F401
    config,
    engine,
    engines,
    kind,
    model,
    other_model,
    publisher,
    settings,
)
