"""Pod gateway: the coordinator's part of the gateway in its pod.

The gateway is a container beside the coordinator (`gateway_container`). Its folder has the model's text and the
gateway's config, and the link's socket. The keys are in a Secret that only that container mounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from rljob_api import RLJob
from rljob_api import constants as c
from rljob_runtime.coordinator.episodes.book import EpisodeBook
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.job_prompts import tokenizer_folder
from rljob_runtime.gateway.config import GatewayConfig, write_complete
from rljob_runtime.gateway.errors import TemplateNotUsable
from rljob_runtime.gateway.link.connection import LinkSettings
from rljob_runtime.gateway.link.server import LinkServer, serve_link
from rljob_runtime.models.errors import ModelError
from rljob_runtime.protocols import PromptsNotUsable


def config_file(folder: Path) -> Path:
    """Return the file that tells the gateway to serve. It is removed when the coordinator needs no gateway any more."""
    return folder / "gateway.json"


def gateway_config(job: RLJob, folder: Path, keys: Path, host: str) -> GatewayConfig:
    """Return the config of the gateway on `host`. `folder` is shared with its container, and `keys` is the Secret's."""
    link = folder / "link" / "link.sock"
    config = GatewayConfig.of(job, link, keys / c.CAPABILITY_KEY, keys / c.RUNNERS_KEY, folder / "model")
    ports = {"port": c.GATEWAY_PORT, "metrics_port": c.GATEWAY_METRICS_PORT}
    return config.model_copy(update={"host": host, **ports})


class PodGateway:
    """The coordinator's end. `scratch`: the folder below which the job's prompts put the model's tokenizer."""

    def __init__(self, job: RLJob, host: str, scratch: Path, folder: Path, keys: Path) -> None:
        self._job = job
        self._scratch = scratch
        self._folder = folder
        self._config = gateway_config(job, folder, keys, host)
        self._link: LinkServer | None = None

    def why_not_ready(self) -> str | None:
        """Return why agents are not served, once they are to be served; None if they are."""
        return "the gateway container is absent" if self._link is not None and not self._link.used else None

    @contextlib.asynccontextmanager
    async def serve(self, book: EpisodeBook) -> AsyncIterator[None]:
        """Let the gateway serve the book's attempts. Raises `PromptsNotUsable` if turns have no text.

        After an error the config stays: the program that follows in this container goes on with the same gateway.
        """
        await asyncio.to_thread(self._prepare)
        link = LinkSettings(calls=self._config.bounds.calls)
        async with serve_link(self._config.socket, book.turns, book.runners, link) as self._link:
            write_complete(config_file(self._folder), json.dumps(self._config.to_dict()))
            yield
        config_file(self._folder).unlink()

    def _prepare(self) -> None:
        """Copy the model's text, and check that turns can be written with it. Blocks for seconds."""
        # Imported here: transformers takes seconds to import, and most jobs have no environments.
        from rljob_runtime.entrypoints.gateway import open_model

        shutil.copytree(tokenizer_folder(self._scratch), self._config.model_folder, dirs_exist_ok=True)
        try:
            open_model(self._config)
        except (DataError, ModelError) as error:
            raise PromptsNotUsable(f"spec.environments: {error}") from error
        except TemplateNotUsable as error:
            raise PromptsNotUsable(error.told) from error
