"""A test server of OpenAI's chat API over real HTTP, whose answers come from a function of the request's body."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.helpers.web_server import Quiet, http_server

Answer = Callable[[dict[str, Any]], tuple[int, bytes]]


class ChatServer:
    """The address of a running test server, and the bodies of the requests that it got."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []


def completion(*calls: tuple[str, str], content: str | None = None) -> tuple[int, bytes]:
    """Return an answer with these calls, each a name and arguments as JSON."""
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

    class Handler(Quiet):
        def post(self, body: bytes) -> None:
            request = json.loads(body)
            made.bodies.append(request)
            status, data = answer(request)
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with http_server(Handler) as url:
        made.url = f"{url}/v1"
        yield made
