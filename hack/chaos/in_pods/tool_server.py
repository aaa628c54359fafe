"""Tool server: the calculator as a server of MCP over streamable HTTP, which can die and hang apart from runners.

    python tool_server.py [PORT]

It runs in a pod of its own, beside the calculator, with nothing but Python. Its sessions are in its memory only, so a
server that was started again knows none of them.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8000
SESSION = "Mcp-Session-Id"
TOOL = {
    "name": "calculate",
    "description": "Calculate an expression of integers with +, - and *, e.g. 47 * 68.",
    "inputSchema": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}
INVALID_PARAMS, METHOD_NOT_FOUND = -32602, -32601
sessions: set[str] = set()
"""Sessions that have begun."""


class Handler(BaseHTTPRequestHandler):
    """Answers one request as JSON. `/healthz` says that the server is there."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/healthz" else 405)

    def do_DELETE(self) -> None:
        sessions.discard(self.headers.get(SESSION, ""))
        self._answer(200)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("method") == "initialize":
            sessions.add(session := uuid.uuid4().hex)
            server = {"name": "calculator", "version": "1"}
            given = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server}
            self._answer(200, {"id": body["id"], "result": given}, ((SESSION, session),))
        elif self.headers.get(SESSION) not in sessions:
            self._answer(404)
        elif "id" not in body:  # A notification.
            self._answer(202)
        else:
            self._answer(200, {"id": body["id"], **answered(body["method"], body.get("params") or {})})

    def _answer(
        self, status: int, message: dict[str, Any] | None = None, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        content = b"" if message is None else json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), *headers):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: there are thousands of requests."""


def answered(method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the result or the error of a request."""
    if method == "ping":
        return {"result": {}}
    if method == "tools/list":
        return {"result": {"tools": [TOOL]}}
    if method != "tools/call":
        return {"error": {"code": METHOD_NOT_FOUND, "message": f"{method} is not supported"}}
    expression = (given.get("arguments") or {}).get("expression")
    if given.get("name") != TOOL["name"] or not isinstance(expression, str):
        return {"error": {"code": INVALID_PARAMS, "message": "calculate(expression) would be right"}}
    from calculator import calculate  # Beside this file in a pod.

    return {"result": {"content": [{"type": "text", "text": calculate(expression)}]}}


class Server(ThreadingHTTPServer):
    """A server for as many episodes as begin together."""

    request_queue_size = 128


if __name__ == "__main__":
    server = Server(("", int(sys.argv[1]) if len(sys.argv) > 1 else PORT), Handler)
    print(f"serves on port {server.server_address[1]}", flush=True)
    server.serve_forever()
