"""The event recorder: events are counted, and stop no work."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_kube.errors import ApiError
from rljob_kube.event_recorder import EventRecorder, event_name
from tests.support.operator.harness import NOW


class Events:
    """As much of a client as the recorder needs."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.broken = False

    async def create(self, resource: Any, manifest: dict[str, Any]) -> None:
        if self.broken:
            raise ApiError(500, "InternalError", "no events today")
        name = manifest["metadata"]["name"]
        if name in self.objects:
            raise ApiError(409, "AlreadyExists", name)
        self.objects[name] = manifest

    async def get(self, resource: Any, namespace: str, name: str) -> dict[str, Any]:
        return self.objects[name]

    async def merge(self, resource: Any, namespace: str, name: str, patch: dict[str, Any]) -> None:
        if name not in self.objects:
            raise ApiError(404, "NotFound", name)
        self.objects[name] |= patch


async def test_an_event_is_counted_not_repeated() -> None:
    client: Any = Events()
    first, second = EventRecorder(client, clock=lambda: NOW), EventRecorder(client, clock=lambda: NOW)
    for recorder in (first, first, second):  # the second is the first's successor after a restart
        await recorder.record("ns", "demo", "uid", "Warning", "MachineLost", "rollout-0")
    (event,) = client.objects.values()
    assert event["count"] == 3
    assert event["involvedObject"]["uid"] == "uid"
    client.objects.clear()  # an hour later
    await first.record("ns", "demo", "uid", "Warning", "MachineLost", "rollout-0")
    await first.record("ns", "demo", "uid", "Warning", "MachineLost", "rollout-0")
    assert len(client.objects) == 1


async def test_an_event_that_cannot_be_written_stops_no_work(caplog: pytest.LogCaptureFixture) -> None:
    client: Any = Events()
    client.broken = True
    await EventRecorder(client).record("ns", "demo", "uid", "Normal", "Created", "text")
    assert "no events today" in caplog.text


def test_event_names_tell_jobs_and_texts_apart() -> None:
    names = {event_name("demo", uid, reason, text) for uid in "ab" for reason in "cd" for text in "ef"}
    assert len(names) == 8
    assert event_name("demo", "a", "c", "e") in names
