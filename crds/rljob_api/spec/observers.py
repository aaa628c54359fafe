"""Observers: programs that receive the metrics of each round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import Field

from rljob_api.errors import FieldError
from rljob_api.fields import DnsLabel, FreeForm, Model


class ObserverSpec(Model):
    """A program that receives the metrics of each round. One that fails costs the job a warning and nothing else."""

    name: DnsLabel
    """Name of its entry point: wandb, mlflow, opentelemetry, or one of a package in the coordinator's image."""
    config: FreeForm = Field(default_factory=dict)
    """Its settings, e.g. {project: math}. Credentials belong into variables of the coordinator's container."""


def check_observers(observers: Sequence[ObserverSpec]) -> Iterator[FieldError]:
    """Yield an error for each name that occurs again."""
    names = [observer.name for observer in observers]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield FieldError(f"spec.observers[{index}].name", name, "must be unique in spec.observers")
