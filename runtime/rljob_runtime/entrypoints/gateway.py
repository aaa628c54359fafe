"""Gateway process: the door of agents, without Ray, a Kubernetes token or credentials but its keys.

It serves as soon as it has the model's tokenizer, and reaches the coordinator by the link. A model or a template that
cannot be used ends it with status 2 and one line: another start gives the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rljob_api.gateway_bounds import MIB, GatewayBounds
from rljob_kube.bounded_server import SHARE_OF_DESCRIPTORS, ConnectionStats
from rljob_runtime.data.chat_template import ChatTemplate
from rljob_runtime.data.errors import DataError
from rljob_runtime.entrypoints import health
from rljob_runtime.gateway.config import BadConfig, GatewayConfig, read_config, read_key, write_complete
from rljob_runtime.gateway.environment_routes import AgentSide, EnvironmentRoutes, RunnerAccess
from rljob_runtime.gateway.errors import TemplateNotUsable
from rljob_runtime.gateway.gateway import Gateway, GatewaySettings
from rljob_runtime.gateway.link.client import LinkClient
from rljob_runtime.gateway.link.connection import LinkSettings
from rljob_runtime.gateway.metrics import GatewayMetrics, GatewayParts
from rljob_runtime.gateway.own_share import OwnShare
from rljob_runtime.gateway.server import ServerSettings, serve
from rljob_runtime.gateway.steady_clock import steady_clock
from rljob_runtime.gateway.text.forked_text import bounded
from rljob_runtime.gateway.text.known_text import renderer_of
from rljob_runtime.gateway.text.open_text import open_text
from rljob_runtime.gateway.text.turn_text import TurnText
from rljob_runtime.models.errors import ModelError
from rljob_runtime.models.stop_tokens import CONFIG, GENERATION_CONFIG, stop_token_ids
from rljob_runtime.sandbox.syscalls import PR_SET_PDEATHSIG, prctl
from rljob_runtime.training.model.memory import host_memory

log = logging.getLogger(__name__)

FAILED, REFUSED = 1, 2
"""Exit status: another start may succeed; another start gives the same."""
REFUSALS = (BadConfig, DataError, ModelError, TemplateNotUsable)
"""Why another start gives the same."""


def leave_out_torch() -> None:
    """Let transformers believe that torch is not installed: tokenizers need none, and it costs 2 s and 500 MB.

    For a process that is a gateway and nothing else, before it imports transformers.
    """
    # Of the absence that is meant here transformers would warn.
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    # So Python notes that a module cannot be imported. Text processes, which are forked, inherit it.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]


async def run(file: Path) -> int:
    """Serve until cancelled (SIGTERM). Return `FAILED` or `REFUSED` with a line on standard error."""
    try:
        config = read_config(file)
        if not _tied_to(config.parent):
            return 0
        keys = read_key(config.capability_key_file), read_key(config.runners_key_file)
        text, vocabulary = await asyncio.to_thread(open_model, config)
    except REFUSALS as error:
        return _refused(error)
    try:
        await _serve(config, text, vocabulary, *keys)
    except (OSError, health.PortTaken) as error:
        return _say(error, FAILED)
    return 0


def check(file: Path) -> int:
    """Open the model and check its template; serve nothing. Return 0, or `REFUSED` with a line on standard error."""
    try:
        config = read_config(file)
        if _tied_to(config.parent):
            open_model(config)
    except REFUSALS as error:
        return _refused(error)
    return 0


def open_model(config: GatewayConfig) -> tuple[TurnText, int]:
    """Return the model's text and the size of its vocabulary. Blocks for seconds.

    Raises `DataError`, `ModelError` and `TemplateNotUsable`.
    """
    from transformers import AutoConfig, AutoTokenizer

    folder, data = config.model_folder, config.data
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        vocabulary = int(AutoConfig.from_pretrained(folder).get_text_config().vocab_size)
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{folder}: config or tokenizer cannot be read: {error}") from error
    files = {name: (folder / name).read_bytes() for name in (CONFIG, GENERATION_CONFIG) if (folder / name).is_file()}
    stops = stop_token_ids(files, tokenizer, data.stop_strings)
    template = ChatTemplate(tokenizer, data)
    model = config.known_model
    renderer = renderer_of(data.chat_template_renderer, model, data.chat_template_file is None)
    try:
        return open_text(tokenizer, template.text, stops, model, data.chat_template_arguments, renderer), vocabulary
    except ValueError as error:  # a renderer says with it which arguments it does not take
        raise DataError(f"spec.data.chatTemplateArguments: {error}") from error


async def _serve(
    config: GatewayConfig, text: TurnText, vocabulary: int, capability_key: bytes, runners_key: bytes
) -> None:
    bounds = fitting_bounds(config.bounds, host_memory())
    most = bounds.history_bytes, bounds.requests
    settings = GatewaySettings(config.model, config.context_tokens, vocabulary, config.max_tokens, *most)
    server = ServerSettings.of(bounds, config.overtime_seconds)
    allow_descriptors(server.connections.total)
    async with contextlib.AsyncExitStack() as stack:
        # Before anything is opened: what is forked later would hold it.
        text, texts = stack.enter_context(bounded(text, config.threads))
        executor = stack.enter_context(ThreadPoolExecutor(config.threads, thread_name_prefix="gateway"))
        link = await stack.enter_async_context(LinkClient(config.socket, LinkSettings(calls=bounds.calls)))
        now = steady_clock()
        gateway = Gateway(link, text, settings, executor, now)
        memory, connections, own = server.memory(), ConnectionStats(), OwnShare()
        access = RunnerAccess(runners_key, capability_key, config.model)
        agents = AgentSide(memory, gateway.histories, gateway.context_limit, gateway.repeats)
        routes = EnvironmentRoutes(link, access, now, agents)
        port = await stack.enter_async_context(
            serve(gateway, capability_key, now, config.host, config.port, server, routes, memory, connections, own)
        )
        if config.metrics_port is not None:
            parts = GatewayParts(
                gateway=gateway.stats,
                histories=gateway.histories.stats,
                repeats=gateway.repeats.stats,
                memory=memory.stats,
                runners=routes.stats,
                runner_memory=routes.memory.stats,
                link=link.stats,
                texts=texts,
                connections=connections,
                own=own,
            )
            registry = GatewayMetrics(parts).registry()
            await stack.enter_async_context(
                health.serve(config.host, lambda: link.why_away, registry, config.metrics_port)
            )
        if config.port_file is not None:
            write_complete(config.port_file, str(port))
        log.info("agents are served on %s:%d", config.host, port)
        try:
            await asyncio.Event().wait()
        finally:
            # Requests that wait for the coordinator end now: the server waits for those that are open.
            await link.close()


def fitting_bounds(wanted: GatewayBounds, memory: int) -> GatewayBounds:
    """Return the bounds that fit into so many bytes."""
    bounds = wanted.within(memory)
    if bounds != wanted:
        log.warning(
            "the gateway may use %d MiB; its job may need %d MiB: requests wait sooner, and turns are read again",
            *(memory // MIB, wanted.memory // MIB),
        )
    return bounds


def allow_descriptors(connections: int) -> None:
    """Let this process open so many connections, as far as it may. Some systems begin with 1,024 descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(int(connections / SHARE_OF_DESCRIPTORS), hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tied_to(parent: int | None) -> bool:
    """End with the parent; return whether it lives."""
    if parent is None:
        return True
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent


def _refused(error: Exception) -> int:
    return _say(error.told if isinstance(error, TemplateNotUsable) else error, REFUSED)


def _say(error: object, status: int) -> int:
    print(f"gateway: {' '.join(str(error).split())}", file=sys.stderr)
    return status
