"""Restore: rebuilds the state of `mode: Asynchronous` from the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import pstdev

from rljob_runtime.coordinator.asynchronous.experience_buffer import ReadyGroup
from rljob_runtime.coordinator.generation.scoring import RewardRequests
from rljob_runtime.coordinator.generation.token_receiver import TokenReceiver
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.store.tables.groups import KeptGroup
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.asynchronous.async_groups import GroupTracker
from rljob_runtime.scheduling.partial_responses import Partial
from rljob_runtime.scheduling.round_plan import RestoredSample


def ready_groups(groups: Iterable[KeptGroup]) -> Iterator[ReadyGroup]:
    """Return the groups that wait for an update."""
    for group in groups:
        if group.ready is not None and group.step is None:
            rewards = [sample.reward for sample in group.samples if sample.reward is not None]
            yield ReadyGroup(group.prompt, group.version, group.ready, pstdev(rewards))


async def restore(
    groups: Iterable[KeptGroup],
    store: StoreAccess,
    groups_in_flight: GroupTracker,
    receiver: TokenReceiver,
    scoring: RewardRequests,
) -> None:
    """Restore groups in flight: tokens are held again, complete responses are scored, the others wait for a replica."""
    for group in groups:
        for kept in group.samples:
            if kept.tokens or kept.finish is not None:
                receiver.partials.restore(kept.key, await _partial(store, kept.key))
        saved = {
            one.key: RestoredSample(one.attempt, one.failures, one.finish is not None, one.reward, one.failure)
            for one in group.samples
        }
        groups_in_flight.add(group.prompt, group.version, group.replica, saved)
        for kept in group.samples:
            if kept.finish is not None and kept.reward is None and group.prompt in groups_in_flight:
                scoring.start(receiver.partials.close(kept.key, kept.finish))


async def _partial(store: StoreAccess, key: TrajectoryKey) -> Partial:
    return await store.do(lambda s: s.experience.partial(key))
