"""Rules for tensor parallel sizes: those that a job may choose from, and those to which machines switch in a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rljob_api.errors import FieldError
from rljob_api.spec import RLJobSpec, Rollout
from rljob_api.spec.training import AUTO, SwitchState

Errors = Iterator[FieldError]


def divides(rollout: Rollout) -> str:
    """Return what the sizes have to divide: the field that the user has set, with its value."""
    if rollout.accelerators_per_machine:
        return f"must divide acceleratorsPerMachine ({rollout.accelerators_per_machine})"
    if rollout.slots_per_machine is not None:
        return f"must divide slotsPerMachine ({rollout.slots_per_machine})"
    return "must divide acceleratorsPerMachine, or slotsPerMachine on CPUs (neither is set: 1)"


def check_layouts(spec: RLJobSpec) -> Errors:
    """Check `rollout.allowedTensorParallelSizes` and `adaptiveTensorParallel`."""
    yield from _allowed(spec)
    yield from _switches(spec)


def _allowed(spec: RLJobSpec) -> Errors:
    rollout, path = spec.rollout, "spec.rollout.allowedTensorParallelSizes"
    sizes = rollout.allowed_tensor_parallel_sizes
    if sizes is None:
        return
    if rollout.tensor_parallel_size not in sizes:
        start = rollout.tensor_parallel_size
        yield FieldError(path, list(sizes), f"must hold tensorParallelSize ({start}): the choice starts with it")

    def multiple(size: int) -> str | None:
        smallest = f"must be a multiple of the smallest of them ({min(sizes)})"
        return f"{smallest}: a larger replica replaces complete smaller ones" if size % min(sizes) else None

    yield from _each(path, sizes, rollout, multiple)


def _switches(spec: RLJobSpec) -> Errors:
    rollout, adaptive = spec.rollout, spec.adaptive_tensor_parallel
    path, allowed = "spec.adaptiveTensorParallel", rollout.allowed_tensor_parallel_sizes
    if adaptive.enabled is True and len(set(allowed or ())) < 2:
        shown = "absent" if allowed is None else list(allowed)
        yield FieldError(
            f"{path}.enabled",
            True,
            f"needs at least two sizes in spec.rollout.allowedTensorParallelSizes ({shown}): there is nothing to "
            f"switch to; list them, or set it to {AUTO} or false",
        )
    if spec.environments and adaptive.state is SwitchState.MIGRATE:
        advice = "must be Auto or Recompute with spec.environments: keys and values of episodes are not moved"
        yield FieldError(f"{path}.state", adaptive.state.value, advice)
    sizes = adaptive.sizes
    if sizes is None:
        return
    if allowed is None:
        advice = "needs spec.rollout.allowedTensorParallelSizes, which must hold them: machines have engines of those"
        yield FieldError(f"{path}.sizes", list(sizes), advice)
        return
    if len(set(sizes)) < 2:
        yield FieldError(f"{path}.sizes", list(sizes), "must hold at least two sizes: there is nothing to switch to")

    def held(size: int) -> str | None:
        held = f"must be one of spec.rollout.allowedTensorParallelSizes ({list(allowed)})"
        return f"{held}: machines have engines of those" if size not in allowed else None

    yield from _each(f"{path}.sizes", sizes, rollout, held)


def _each(path: str, sizes: Sequence[int], rollout: Rollout, advice_for: Callable[[int], str | None]) -> Errors:
    """Check each size of a list. `advice_for` returns what else is wrong with one."""
    for index, size in enumerate(sizes):
        if size in sizes[:index]:
            advice: str | None = "must be listed once"
        elif rollout.slots % size:
            advice = f"{divides(rollout)}: tensor parallelism stays inside a machine"
        else:
            advice = advice_for(size)
        if advice is not None:
            yield FieldError(f"{path}[{index}]", size, advice)
