"""The calculator as a server of tools: the runner's own client calls it, and a session that it forgot is told."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from hack.chaos import tool_server
from hack.chaos.job import CODE, TOOL_SERVER, manifest
from rljob_env.failures import Failed
from rljob_env.tools.mcp_client import McpClient
from rljob_env.tools.toolbox import ToolError


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run the server on a port of its own, as its pod does."""
    for file in (CODE, TOOL_SERVER):
        shutil.copy(file, folder)
    command = [sys.executable, str(folder / tool_server.PROGRAM), "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().split()[-1]}/mcp"
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def client(url: str) -> AsyncIterator[McpClient]:
    async with httpx.AsyncClient(trust_env=False) as http:
        yield McpClient(http, url, 60.0)


async def test_the_tool_calculates_and_a_wrong_call_is_the_models(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        async with client(url) as tools:
            assert [tool["name"] for tool in await tools.tools()] == ["calculate"]
            assert await tools.call("calculate", {"expression": "47 * 68"}) == "3196"
            assert await tools.call("calculate", {"expression": "1 / 2"}) != ""
            with pytest.raises(ToolError, match="would be right"):
                await tools.call("calculate", {})
            await tools.close()
            with pytest.raises(Failed, match="forgotten its session"):
                await tools.call("calculate", {"expression": "1"})
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(url.replace("/mcp", "/healthz"))).status_code == 200


def test_the_agents_job_calls_a_server_in_a_pod_of_its_own() -> None:
    _, code, deployment, service, job = manifest("Asynchronous", 3, agents=True)
    (environment,) = job["spec"]["environments"]
    assert environment["tools"] == [{"mcp": {"url": tool_server.URL}}]
    assert f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/mcp" == tool_server.URL
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"] == tool_server.LABELS
    assert pod["spec"]["volumes"] == [{"name": "calculator", "configMap": {"name": code["metadata"]["name"]}}]
    assert set(code["data"]) >= {CODE.name, tool_server.PROGRAM}
    trainer = job["spec"]["trainer"]["template"]["spec"]
    assert pod["spec"]["nodeSelector"] == trainer["nodeSelector"], "no fault of a node takes it along"
    assert yaml.safe_load(yaml.safe_dump(deployment)) == deployment
