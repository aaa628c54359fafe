"""Gateway config: what the gateway's process is told, as a JSON file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError

from rljob_api import RLJob
from rljob_api.fields import Model
from rljob_api.gateway_bounds import GatewayBounds, bounds_of
from rljob_api.spec.training import DataSpec

Positive = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65_535)]
LEAST_KEY_BYTES = 16


class BadConfig(Exception):
    """The file cannot be used. The message names the field."""


class GatewayConfig(Model):
    """The gateway of one job."""

    socket: Path
    """The coordinator's end of the link."""
    capability_key_file: Path
    """Key of the keys that agents get (`capability.gateway_key`)."""
    runners_key_file: Path
    """Key of the keys of runners (`runner_key.runners_key`)."""
    model: str
    """Name under which agents ask for the model."""
    model_folder: Path
    """Folder with the model's tokenizer and config."""
    known_model: str | None = None
    """The model's name on the hub, e.g. Qwen/Qwen3-8B, if it comes from there: a renderer may know its template."""
    data: DataSpec
    """`spec.data`: the chat template with its arguments and its renderer, and the stop strings."""
    context_tokens: Positive
    """Tokens of the longest sequence."""
    max_tokens: Positive
    """Most tokens of a turn."""
    host: str = "127.0.0.1"
    port: Port = 0
    """0: any free one."""
    port_file: Path | None = None
    """The port in use is written to it when requests are answered."""
    metrics_port: Port | None = None
    """Port of `/metrics`, `/healthz` and `/readyz`, which need no key. Absent: they are not served."""
    threads: Positive = 2
    overtime_seconds: Annotated[float, Field(ge=0)] = 0.0
    """The longest time after an episode's deadline in which a runner of the job scores and reports it."""
    bounds: GatewayBounds = GatewayBounds()
    """What is held at a time. A container with less memory gets smaller ones."""
    parent: Positive | None = None
    """A process that the gateway does not outlive."""

    @classmethod
    def of(
        cls, job: RLJob, socket: Path, capability_key_file: Path, runners_key_file: Path, model_folder: Path
    ) -> Self:
        """Return the config of a job's gateway: what its spec decides, and these places."""
        data, source = job.spec.data, job.spec.model.source
        return cls(
            socket=socket,
            capability_key_file=capability_key_file,
            runners_key_file=runners_key_file,
            model=job.name,
            model_folder=model_folder,
            known_model=hub_name(source),
            data=data,
            context_tokens=data.max_prompt_tokens + data.max_response_tokens,
            max_tokens=data.max_response_tokens,
            overtime_seconds=max((one.overtime_seconds for one in job.spec.environments), default=0.0),
            bounds=bounds_of(job.spec),
        )


def hub_name(source: str) -> str | None:
    """Return the name of a model of the hub, without a revision; None for any other source.

    >>> hub_name("hf://Qwen/Qwen3-8B@main")
    'Qwen/Qwen3-8B'
    """
    scheme, _, name = source.partition("hf://")
    return None if scheme or not name else name.partition("@")[0]


def read_config(path: Path) -> GatewayConfig:
    """Return the config in a file. Raises `BadConfig`."""
    try:
        return GatewayConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'file'}: {one['msg']}" for one in error.errors())
        raise BadConfig(f"{path}: {found}") from error


def read_key(path: Path) -> bytes:
    """Return the key in a file, which has it in hexadecimal digits. Raises `BadConfig`, without the key."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise BadConfig(f"the key {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        text = ""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) < LEAST_KEY_BYTES:
        raise BadConfig(f"the key {path} is none; at least {LEAST_KEY_BYTES} bytes in hexadecimal would be right")
    return key


def write_complete(path: Path, text: str) -> None:
    """Write the complete text or nothing: another process waits for the file."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
