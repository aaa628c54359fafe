"""The coordinator's part of the gateway in its pod: what it leaves for the container, and when it is ready."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api import RLJob
from rljob_api.constants import CAPABILITY_KEY, GATEWAY_PORT
from rljob_api.gateway_bounds import GatewayBounds, bounds_of
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.episodes.book import BookRules, EpisodeBook
from rljob_runtime.data.job_prompts import tokenizer_folder
from rljob_runtime.entrypoints.pod_gateway import PodGateway, config_file
from rljob_runtime.gateway.config import read_config
from rljob_runtime.gateway.link.client import LinkClient
from rljob_runtime.protocols import PromptsNotUsable
from rljob_runtime.simulator.peers.observed_store import InlineStore, ObservedStore
from tests.support.api.jobs import job as job_document
from tests.support.gateway.light_tokenizer import STRIPS_THINKING
from tests.support.gateway.toy_site import toy_files

JOB = RLJob.model_validate(
    job_document(
        {
            "spec.data.chatTemplate": True,
            "spec.environments": [
                {"name": "calc", "kind": "Tools", "tools": [{"function": "tools.py:add"}], "rewardSeconds": 600},
                {"name": "quick", "kind": "Tools", "tools": [{"function": "tools.py:add"}]},
            ],
        }
    )
)


class Site:
    """The folders of a coordinator's pod. `folder` is shared with the container."""

    def __init__(self, base: Path) -> None:
        self.scratch, self.folder, self.keys = (base / name for name in ("scratch", "shared", "keys"))
        for folder in (self.folder, self.keys):
            folder.mkdir(parents=True)
        store = ObservedStore(base / "state.db", "uid", lambda event: None, ())
        self.book = EpisodeBook(InlineStore(store), BookRules(Settings.of(JOB).environments, 1), time.time)
        self.gateway = PodGateway(JOB, "127.0.0.1", self.scratch, self.folder, self.keys)

    def model(self, template: str | None = None) -> None:
        """Do what opening the prompts does."""
        tokenizer_folder(self.scratch).mkdir(parents=True)
        toy_files(tokenizer_folder(self.scratch), template)


@pytest.fixture
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="rljob-") as base:
        yield Site(Path(base))


async def test_the_container_finds_its_config_the_text_and_the_link(site: Site) -> None:
    site.model()
    assert site.gateway.why_not_ready() is None, "no agent is served yet, so no gateway is missed"
    async with site.gateway.serve(site.book):
        config = read_config(config_file(site.folder))
        assert (config.port, config.host) == (GATEWAY_PORT, "127.0.0.1")
        assert config.capability_key_file == site.keys / CAPABILITY_KEY
        assert config.bounds == bounds_of(JOB.spec) != GatewayBounds()
        assert config.overtime_seconds == 610.0, "that of the slowest reward"
        assert site.gateway._link is not None
        assert site.gateway._link._settings.calls == config.bounds.calls
        shutil.rmtree(site.scratch)
        assert (config.model_folder / "tokenizer_config.json").is_file(), "the scratch folder is the coordinator's own"
        assert site.gateway.why_not_ready() == "the gateway container is absent"
        async with asyncio.timeout(60), LinkClient(config.socket) as link:
            while link.why_away is not None:  # noqa: ASYNC110, another task connects
                await asyncio.sleep(0.01)
            assert await link.lease("calc", "runner", 0.0) == []
            assert site.gateway.why_not_ready() is None
    assert not config_file(site.folder).exists(), "the gateway ends with the coordinator"


async def test_after_an_error_the_gateway_goes_on_with_the_next_program(site: Site) -> None:
    site.model()
    with pytest.raises(ZeroDivisionError):
        async with site.gateway.serve(site.book):
            raise ZeroDivisionError
    assert config_file(site.folder).exists()


async def test_a_template_in_which_turns_change_ends_the_job_and_says_so(site: Site) -> None:
    site.model(STRIPS_THINKING)
    with pytest.raises(PromptsNotUsable, match=r"TemplateNotAppendOnly: .*chat template changes earlier turns"):
        async with site.gateway.serve(site.book):
            pytest.fail("nothing is served")
    assert not config_file(site.folder).exists()
