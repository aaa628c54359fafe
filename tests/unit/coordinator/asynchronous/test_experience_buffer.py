"""The staleness of versions: after a rewind no older one is fresher than a newer one, and what is too stale goes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rljob_api.spec.training import Sampler
from rljob_runtime.coordinator.asynchronous.experience_buffer import ExperienceBuffer
from rljob_runtime.coordinator.asynchronous.group_ends import GroupEnds
from rljob_runtime.coordinator.episodes.episodes import SingleTurns
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.generation.token_receiver import TokenReceiver
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.asynchronous.async_groups import GroupTracker
from rljob_runtime.scheduling.asynchronous.experience_buffer import BufferLimits
from rljob_runtime.scheduling.weight_versions import Versions


def buffer(bound: int | None = None) -> ExperienceBuffer:
    return ExperienceBuffer(Sampler.FIFO, BufferLimits.of(4, None), 4, bound, 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_an_abandoned_version_is_no_fresher_than_the_weights_after_it(restarted):
    """Version 4 had three updates, and version 5 after the rewind has two: it may generate later turns."""
    made, versions = buffer(), Versions()
    for version, step in ((1, 0), (2, 1), (3, 2), (4, 3)):
        versions = versions.publish(version, step)
    versions = versions.rewind(2)
    if restarted:
        made.set_versions(versions.publish(5, 2), taken=2)
    else:
        made.set_versions(versions, taken=2)
        made.published(5, 2)
    for taken in range(2, 6):
        made.taken = taken
        stale = [made.staleness(version) for version in (1, 2, 3, 4, 5)]
        assert min(stale) == stale[4]
        assert stale[3:] == [max(1, taken - 2), taken - 2]


def test_a_version_is_too_stale_over_the_bound_only():
    made = buffer(bound=1)
    made.set_versions(Versions().publish(1, 0), taken=1)
    assert not made.is_too_stale(1)
    made.taken = 2
    assert made.is_too_stale(1)
    assert not buffer().is_too_stale(1), "no bound"


async def test_an_open_group_that_is_too_stale_is_requeued_before_its_end():
    class Lost:
        async def do(self, work: Callable[[Any], int]) -> int:
            return 7

    stale, fresh = PromptKey(0, 1), PromptKey(0, 2)
    made, groups, stats, requeued = buffer(bound=1), GroupTracker(group_size=2), GenerationStats(), list[PromptKey]()
    made.set_versions(Versions().publish(1, 0).publish(2, 1), taken=2)
    groups.add(stale, 1, "a")
    groups.add(fresh, 2, "a")
    settings, queue = SimpleNamespace(responses_per_prompt=2), SimpleNamespace(requeue=requeued.extend)
    context: Any = SimpleNamespace(settings=settings, store=Lost(), episodes=SingleTurns())
    ends = GroupEnds(context, groups, made, cast(Any, queue), TokenReceiver(stats), stats)
    await ends.requeue_too_stale()
    assert (requeued, list(groups)) == ([stale], [fresh])
    assert (stats.requeued_prompts, stats.lost_tokens) == (1, 7)
