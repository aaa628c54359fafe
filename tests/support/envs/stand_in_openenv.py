"""Stand-in OpenEnv server: the wire of OpenEnv 0.10 before a game of numbers, and faults on request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

Json = dict[str, Any]

RIGHT = "5"
METADATA: Json = {"type": "object", "default": {}}
GUESS: Json = {
    "title": "GuessAction",
    "type": "object",
    "properties": {"metadata": METADATA, "guess": {"type": "string"}},
    "required": ["guess"],
}
"""An action of one text."""
BET: Json = {
    "title": "BetAction",
    "type": "object",
    "properties": {"metadata": METADATA, "guess": {"type": "string"}, "stake": {"type": "integer"}},
    "required": ["guess", "stake"],
}
"""An action of two fields."""
CALL: Json = {"title": "CallToolAction", "type": "object", "properties": {"metadata": METADATA}}
"""Actions that are calls of tools."""
TOOL: Json = {
    "name": "guess",
    "description": "Guess the number.",
    "input_schema": {"type": "object", "properties": {"number": {"type": "string"}}},
}


@dataclass
class StandInOpenEnv:
    """A server. `fault`: what goes wrong, and where: `reset` or `step`. `places`: sessions at a time."""

    action: Json = field(default_factory=lambda: GUESS)
    fault: tuple[str, str] = ("", "")
    places: int = 64
    rewards: bool = True
    resets: list[Json] = field(default_factory=list)
    actions: list[Json] = field(default_factory=list)
    sessions: int = 0
    most_sessions: int = 0
    refused: int = 0
    """Sessions for which there was no place."""

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve on loopback; yield the address."""
        app = web.Application()
        app.router.add_get("/schema", self._schema)
        app.router.add_get("/ws", self._session)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _schema(self, request: web.Request) -> web.Response:
        if self.fault[0] == "schema":
            return web.json_response({}, status=500)
        return web.json_response({"action": self.action, "observation": {}, "state": {}})

    async def _session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.sessions >= self.places:
            self.refused += 1
            await socket.send_json(_error("CAPACITY_REACHED", "1 of 1 sessions"))
            await socket.close()
            return socket
        self.sessions += 1
        self.most_sessions = max(self.most_sessions, self.sessions)
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT and not await self._answered(socket, json.loads(message.data)):
                    break
        finally:
            self.sessions -= 1
        return socket

    async def _answered(self, socket: web.WebSocketResponse, request: Json) -> bool:
        """Answer a request; say whether the session goes on."""
        where, what = self.fault
        if where == request["type"]:
            match what:
                case "hangs":
                    await asyncio.sleep(3600)
                case "breaks off":
                    await socket.close()
                    return False
                case "raises":
                    await socket.send_json(_error("EXECUTION_ERROR", "the disk is full"))
                    return True
                case nonsense:
                    await socket.send_str(nonsense)
                    return True
        await socket.send_json(self._reset(request["data"]) if request["type"] == "reset" else self._step(request))
        return True

    def _reset(self, arguments: Json) -> Json:
        self.resets.append(arguments)
        return self._observation({} if self.action is CALL else {"text": "Guess a number."}, None, False)

    def _step(self, request: Json) -> Json:
        action = request["data"]
        if action.get("type") == "list_tools":
            return self._observation({"tools": [TOOL]}, None, False)
        self.actions.append(action)
        if action.get("type") == "call_tool":
            return self._called(action)
        missing = [name for name in self.action["required"] if name not in action]
        if missing:
            errors = [{"loc": [name], "msg": "Field required"} for name in missing]
            return {
                "type": "error",
                "data": {"code": "VALIDATION_ERROR", "message": "Invalid message", "errors": errors},
            }
        right = action["guess"] == RIGHT
        return self._observation({"text": "right" if right else "wrong"}, 1.0 if right else 0.25, right)

    def _called(self, action: Json) -> Json:
        number = action["arguments"].get("number")
        if number is None or number == "gone":
            kind = "transport_error" if number == "gone" else "invalid_args"
            error = {"error_type": kind, "message": f"{kind} of the tool"}
            return self._observation({"tool_name": "guess", "result": None, "error": error}, None, False)
        text = "right" if number == RIGHT else "wrong"
        result = {"content": [{"type": "text", "text": text}], "is_error": False}
        observation = {"tool_name": "guess", "result": result, "error": None}
        return self._observation(observation, 1.0 if number == RIGHT else 0.25, number == RIGHT)

    def _observation(self, fields: Json, reward: float | None, done: bool) -> Json:
        data = {"observation": {**fields, "metadata": {}}, "reward": reward if self.rewards else None, "done": done}
        return {"type": "observation", "data": data}


def _error(code: str, message: str) -> Json:
    return {"type": "error", "data": {"code": code, "message": message}}
