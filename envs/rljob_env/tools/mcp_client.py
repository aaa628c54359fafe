"""MCP client: the tools of a server over streamable HTTP, in a session of its own.

A server that is gone, lies or forgets its session fails the attempt. What it answers to the arguments of a call is an
observation. A request is sent again only where the server cannot have acted on it twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import httpx

from rljob_env.episode import Json
from rljob_env.failures import Failed, Part
from rljob_env.retrying import delay
from rljob_env.tools.call_limits import CallLimits
from rljob_env.tools.json_rpc import Malformed, RpcError, result_of
from rljob_env.tools.toolbox import ToolError

PROTOCOL = "2025-06-18"
CLIENT = {"name": "rljob-env", "version": "0.1.0"}
SESSION, VERSION = "Mcp-Session-Id", "MCP-Protocol-Version"
INVALID_PARAMS, METHOD_NOT_FOUND = -32602, -32601
NOT_ACCEPTED = frozenset((429, 503))
"""Statuses of requests that a server did not begin."""
MOST_TRIES = 4
MOST_PAGES = 64
MOST_TOOLS = 1024
CONNECT_SECONDS = 5.0
PING_SECONDS = 5.0
CLOSE_SECONDS = 2.0


class McpClient:
    """A session with one server. `seconds`: the time of one call.

    `limits`: those of the calls of all sessions, where calls run concurrently. None: no call waits for another.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, seconds: float, limits: CallLimits | None = None) -> None:
        self.sent_again = 0
        self._http = http
        self._url = url
        self._seconds = seconds
        self._limits = limits or CallLimits(seconds, times=1)
        self._session_seconds = seconds * self._limits.times
        """Time to begin the session: its requests wait for calls of other sessions."""
        self._ids = itertools.count(1)
        self._headers = {"Accept": "application/json, text/event-stream"}

    async def tools(self) -> Sequence[Json]:
        """Begin the session and return the server's tools. Raises `Failed`."""
        try:
            async with asyncio.timeout(self._session_seconds):
                await self._initialize()
                return await self._list()
        except RpcError as error:
            raise self._failed(f"answers an error: {error}") from error
        except TimeoutError as error:
            raise self._failed(f"did not begin a session within {self._session_seconds:g} s") from error

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return what a tool answers. Raises `ToolError` and `Failed`."""
        try:
            async with self._limits.call():
                result = await self._request("tools/call", {"name": name, "arguments": dict(arguments)})
        except RpcError as error:
            if error.code == INVALID_PARAMS:
                raise ToolError(str(error)) from error
            raise self._failed(f"answers an error: {error}") from error
        except TimeoutError as error:
            await self._ping()
            raise ToolError(f"no answer within {self._seconds:g} s") from error
        text = self._text_of(result)
        if result.get("isError"):
            raise ToolError(text)
        return text

    async def close(self) -> None:
        """End the session. A server need not know how."""
        if SESSION in self._headers:
            with contextlib.suppress(httpx.HTTPError):
                await self._http.delete(self._url, headers=self._headers, timeout=CLOSE_SECONDS)

    async def _initialize(self) -> None:
        given = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": CLIENT}
        result = await self._request("initialize", given, repeatable=True)
        version, capabilities = result.get("protocolVersion"), result.get("capabilities")
        if not _is_header(version) or not isinstance(capabilities, dict) or "tools" not in capabilities:
            raise self._failed(
                "says nothing of tools when a session begins; a protocolVersion and the capability tools would be right"
            )
        self._headers[VERSION] = version
        await self._notify("notifications/initialized", {})

    async def _list(self) -> list[Json]:
        found: list[Json] = []
        cursor: Any = None
        for _ in range(MOST_PAGES):
            given = {} if cursor is None else {"cursor": cursor}
            page = await self._request("tools/list", given, repeatable=True)
            tools = page.get("tools")
            if not isinstance(tools, list):
                raise self._failed(f"lists no tools, but {str(tools)[:100]!r}; a list would be right")
            if len(found) + len(tools) > MOST_TOOLS:
                raise self._failed(f"lists {len(found) + len(tools)} tools; at most {MOST_TOOLS} would be right")
            found += [self._tool(one) for one in tools]
            cursor = page.get("nextCursor")
            if cursor is None:
                return found
        raise self._failed(f"lists tools on more than {MOST_PAGES} pages")

    def _tool(self, given: Any) -> Json:
        """Return a tool as OpenAI's protocol has it."""
        if (
            isinstance(given, dict)
            and isinstance(given.get("name"), str)
            and isinstance(given.get("inputSchema"), dict)
        ):
            description = given.get("description") or ""
            return {"name": given["name"], "description": str(description), "parameters": given["inputSchema"]}
        raise self._failed(f"lists {str(given)[:100]!r} as a tool; a name and an inputSchema would be right")

    def _text_of(self, result: Json) -> str:
        """Return a result as a text: its texts, or its structure, and a word for all that is none."""
        content = result.get("content", [])
        if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
            raise self._failed(
                f"answers a call with the content {str(content)[:100]!r}; a list of objects would be right"
            )
        if not content and result.get("structuredContent") is not None:
            return json.dumps(result["structuredContent"], ensure_ascii=False)
        return text_of_content(content)

    async def _ping(self) -> None:
        """Find out whether a slow server is there at all. Raises `Failed` if it is not."""
        try:
            async with asyncio.timeout(PING_SECONDS * self._limits.times):
                await self._request("ping", {})
        except TimeoutError as error:
            raise self._failed(f"answers neither a call within {self._seconds:g} s nor a ping") from error
        except RpcError:
            return  # An answer shows that it is there, whatever it says.

    async def _request(self, method: str, given: Json, repeatable: bool = False) -> Json:
        """Return the result of a request. Raises `Failed`, `RpcError`."""
        id = next(self._ids)
        body = {"jsonrpc": "2.0", "id": id, "method": method, "params": given}
        for tries in range(1, MOST_TRIES + 1):
            response: httpx.Response | None = None
            try:
                async with self._stream(body) as response:
                    if response.status_code not in NOT_ACCEPTED:
                        return await self._result(response, id)
                why = f"status {response.status_code}"
            except httpx.TransportError as error:
                not_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                if not (not_sent or repeatable):
                    raise self._failed(f"broke off in {method}: {error!r}") from error
                why = repr(error)
            except (Malformed, httpx.DecodingError) as error:
                raise self._failed(f"in {method}: {error}") from error
            if tries < MOST_TRIES:
                self.sent_again += 1
                await asyncio.sleep(delay(tries, response))
        raise self._failed(f"does not accept {method} after {MOST_TRIES} tries: {why}")

    async def _result(self, response: httpx.Response, id: int) -> Json:
        if response.status_code == 404 and SESSION in self._headers:
            raise self._failed("has forgotten its session")
        if response.status_code != 200:
            raise self._failed(f"answers with status {response.status_code}")
        if SESSION in response.headers:
            session = response.headers[SESSION]
            if not _is_header(session):
                raise self._failed(f"gives its session the id {session!r:.100}; visible characters of ASCII are right")
            self._headers[SESSION] = session
        return await result_of(response, id, self._reply)

    async def _reply(self, message: Json) -> None:
        """Answer a request of the server: it may ask whether this client lives, and nothing else."""
        if "id" not in message:
            return  # A notification.
        answer: Json = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "ping":
            answer["result"] = {}
        else:
            answer["error"] = {"code": METHOD_NOT_FOUND, "message": f"{message['method']} is not supported"}
        await self._post(answer)

    async def _notify(self, method: str, given: Json) -> None:
        response = await self._post({"jsonrpc": "2.0", "method": method, "params": given})
        if response.status_code >= 400:
            raise self._failed(f"answers {method} with status {response.status_code}")

    async def _post(self, body: Json) -> httpx.Response:
        try:
            return await self._http.post(self._url, **self._sent(body), timeout=self._session_seconds)
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise self._failed(repr(error)) from error

    def _stream(self, body: Json) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        return self._http.stream("POST", self._url, **self._sent(body), timeout=timeout)

    def _sent(self, body: Json) -> dict[str, Any]:
        """Return a message as a request has it. What a server said may be in it, halves of characters too."""
        return {"content": json.dumps(body), "headers": {**self._headers, "Content-Type": "application/json"}}

    def _failed(self, what: str) -> Failed:
        return Failed(Part.TOOL_SERVER, f"the MCP server {self._url} {what}")


def _is_header(value: Any) -> TypeGuard[str]:
    """Say whether a server's value can be sent back to it in a header."""
    return isinstance(value, str) and value.isascii() and value.isprintable()


def text_of_content(content: Sequence[Mapping[str, Any]]) -> str:
    """Return the texts of a result's parts, and a word for each part that is none."""
    return "\n".join(str(one.get("text")) if one.get("type") == "text" else f"[{one.get('type')}]" for one in content)
