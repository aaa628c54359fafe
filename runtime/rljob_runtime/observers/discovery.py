"""Discovery: finds an observer by the name of its entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from rljob_runtime.observers.protocol import ObserverFactory, ObserverUnavailable

GROUP = "rljob.observers"
EXTRAS = {"wandb": "wandb", "mlflow": "mlflow", "opentelemetry": "opentelemetry"}
"""Extra of `rljob` that an observer of ours needs, by its name."""


def factory(name: str) -> ObserverFactory:
    """Return what makes the observer. Raises `ObserverUnavailable` if nothing of this name is installed."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ObserverUnavailable(f"no observer {name!r} is installed; installed are: {known}")
    return _load(found[name])


def _load(point: EntryPoint) -> ObserverFactory:
    try:
        made: ObserverFactory = point.load()
    except ImportError as error:
        extra = EXTRAS.get(point.name)
        cure = f"pip install 'rljob[{extra}]' in the image" if extra else f"repair the package of {point.value}"
        raise ObserverUnavailable(f"observer {point.name!r} cannot be imported ({error}); {cure}") from error
    return made
