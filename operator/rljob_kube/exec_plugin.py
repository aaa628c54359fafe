"""Exec plug-in: a program that signs a user in, as in kubeconfigs of EKS, GKE and AKS.

kubectl's rules apply (`client.authentication.k8s.io`, v1 and v1beta1). The program may hang, or wait for a browser, so
it runs beside the event loop and for a bounded time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

GROUP = "client.authentication.k8s.io"
VERSIONS = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")

PLUGIN_SECONDS = 60.0
"""Seconds for a plug-in without a terminal."""
INTERACTIVE_SECONDS = 300.0
"""Seconds for a plug-in at a terminal: a person signs in."""
END_SECONDS = 5.0
"""Longest wait for the end of a program that was killed."""
_SHOWN = 1000
"""Characters of a plug-in's complaint in the error."""


class PluginFailed(Exception):
    """The plug-in gave no credential. The message names the command and says what to do."""


@dataclass(frozen=True)
class ExecPlugin:
    """The `exec` entry of a kubeconfig's user."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    version: str = VERSIONS[0]
    interactive_mode: str = "IfAvailable"
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None
    """The server's address and trust, for a plug-in with `provideClusterInfo`."""
    folder: Path = field(default_factory=Path)
    """The kubeconfig's folder: a relative command with a slash is there."""

    @property
    def line(self) -> str:
        """The command as a person would type it."""
        return shlex.join((self.command, *self.arguments))

    @property
    def program(self) -> str:
        """The file to execute, or the name to search in PATH."""
        if os.sep in self.command and not os.path.isabs(self.command):
            return str(self.folder / self.command)
        return self.command


@dataclass(frozen=True)
class ExecCredential:
    """A plug-in's answer: a token, a client certificate with its key, or both."""

    token: str | None = field(default=None, repr=False)
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)
    expires: datetime | None = None


async def run_plugin(plugin: ExecPlugin, seconds: float | None = None) -> ExecCredential:
    """Run the program once and return its credential. `seconds` replaces the bound. Raises `PluginFailed`."""
    interactive = _is_interactive(plugin)
    bound = seconds or (INTERACTIVE_SECONDS if interactive else PLUGIN_SECONDS)
    output = await _output(plugin, interactive, bound)
    return parse(plugin, output)


def _is_interactive(plugin: ExecPlugin) -> bool:
    terminal = sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not terminal:
        raise PluginFailed(f"{plugin.line}: it needs a terminal, and standard input is none: run this in a terminal")
    return terminal and plugin.interactive_mode != "Never"


async def _output(plugin: ExecPlugin, interactive: bool, seconds: float) -> bytes:
    """Return what the program prints.

    A program without a terminal gets a process group of its own, so that all of it can be ended. A program at a
    terminal stays in this process's group: it could not read from the terminal otherwise.
    """
    shown = interactive or (sys.stderr is not None and sys.stderr.isatty())
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            plugin.program,
            *plugin.arguments,
            env={**os.environ, **dict(plugin.environment), "KUBERNETES_EXEC_INFO": _request(plugin, interactive)},
            stdin=None if interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if shown else asyncio.subprocess.PIPE,
            start_new_session=not interactive,
        )
    )
    try:
        # asyncio ends a program whose start is cancelled without its group, and waits for ever if that holds a pipe.
        process = await asyncio.shield(starting)
    except (OSError, ValueError) as error:
        raise PluginFailed(_not_started(plugin, error)) from error
    except asyncio.CancelledError:
        with contextlib.suppress(OSError, ValueError):
            await _end(await starting, interactive)
        raise
    try:
        async with asyncio.timeout(seconds):
            output, complaint = await process.communicate()
    except TimeoutError:
        await _end(process, interactive)
        raise PluginFailed(
            f"{plugin.line}: no answer within {seconds:g} s: run it yourself, and see what it waits for"
        ) from None
    except asyncio.CancelledError:
        await _end(process, interactive)
        raise
    if process.returncode:
        said = (complaint or b"").decode(errors="replace").strip()[-_SHOWN:]
        raise PluginFailed(
            f"{plugin.line}: exit status {process.returncode}: {said or 'it printed no reason'}: "
            "sign in again as the plug-in's vendor says, and run it yourself to see whether it works"
        )
    return output


async def _end(process: asyncio.subprocess.Process, interactive: bool) -> None:
    """Kill the program, and what it started in its group, and wait for its end.

    A group keeps its number until its last member ends.
    """
    with contextlib.suppress(ProcessLookupError):
        if interactive:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    # Its pipes close with it, and have to before the event loop does. What left its group may hold them open.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await process.wait()


def _request(plugin: ExecPlugin, interactive: bool) -> str:
    """Return the variable KUBERNETES_EXEC_INFO."""
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.cluster is not None:
        spec["cluster"] = dict(plugin.cluster)
    return json.dumps({"kind": "ExecCredential", "apiVersion": plugin.version, "spec": spec})


def _not_started(plugin: ExecPlugin, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        hint = plugin.install_hint.strip() or "install it, or correct `command` of the user in the kubeconfig"
        return f"{plugin.line}: no such program: {hint}"
    return f"{plugin.line}: it cannot be started: {error}"


def parse(plugin: ExecPlugin, output: bytes) -> ExecCredential:
    """Return the credential that the program printed. Raises `PluginFailed`."""
    try:
        answer = json.loads(output)
    except ValueError as error:
        raise PluginFailed(f"{plugin.line}: it printed no JSON: {error}: check its options in the kubeconfig") from None
    if not isinstance(answer, dict) or answer.get("kind") != "ExecCredential":
        raise PluginFailed(f"{plugin.line}: it printed no ExecCredential: check its options in the kubeconfig")
    if answer.get("apiVersion") != plugin.version:
        raise PluginFailed(
            f"{plugin.line}: it answered in {answer.get('apiVersion')}, and the kubeconfig says {plugin.version}: "
            "change `apiVersion` there, or update the plug-in"
        )
    status = answer.get("status")
    status = status if isinstance(status, dict) else {}
    token, certificate, key = (
        str(status.get(name) or "") or None for name in ("token", "clientCertificateData", "clientKeyData")
    )
    if (certificate is None) != (key is None):
        raise PluginFailed(f"{plugin.line}: a certificate needs a key, and a key a certificate: update the plug-in")
    if token is None and certificate is None:
        raise PluginFailed(f"{plugin.line}: neither a token nor a certificate is in its answer: sign in again")
    return ExecCredential(token, certificate, key, _expiry(plugin, status.get("expirationTimestamp")))


def _expiry(plugin: ExecPlugin, text: object) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        raise PluginFailed(f"{plugin.line}: expirationTimestamp {text!r} is no time: update the plug-in") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
