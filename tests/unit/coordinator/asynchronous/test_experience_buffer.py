"""The staleness of versions: after a rewind, no older version is fresher than a newer one."""

import pytest

from rljob_api.spec_training import Sampler
from rljob_runtime.coordinator.asynchronous.experience_buffer import ExperienceBuffer
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
