"""A server of OpenAI's chat API, over real HTTP: what it answers is told by a function of the request's body."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], tuple[int, bytes]]


class ChatServer:
    """Its address, and the bodies and paths of requests."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []


def completion(*calls: tuple[str, str], content: str | None = None) -> tuple[int, bytes]:
    """An answer with these calls: names, and arguments as JSON."""
    listed = [
        {"id": str(n), "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, **({"tool_calls": listed} if listed else {})}
    usage = {"prompt_tokens": 40, "completion_tokens": 9}
    return 200, json.dumps({"choices": [{"index": 0, "message": message}], "usage": usage}).encode()


@contextmanager
def chat_server(answer: Answer) -> Iterator[ChatServer]:
    made = ChatServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *unused: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            made.bodies.append(body)
            made.paths.append(self.path)
            status, data = answer(body)
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
