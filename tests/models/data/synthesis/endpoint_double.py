"""A test double of a chat endpoint: a server on this machine that speaks `/v1/chat/completions`, and says what the test
has it say. No model is behind it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.helpers.processes import free_port

Say = Callable[[dict[str, Any], int], str | tuple[int, str, dict[str, str]]]


class Double:
    """`say(body, n)` gives the n-th answer's text, or (status, text, headers). `asked`: bodies; `keys`: headers."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.url = ""

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        n = len(self.asked)
        self.asked.append(body)
        self.keys.append(request.headers.get("authorization"))
        said = self.say(body, n)
        if not isinstance(said, str):
            status, text, headers = said
            if status != 200:
                return JSONResponse({"error": {"message": text}}, status, headers)
            return PlainTextResponse(text)
        usage = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
        message = {"role": "assistant", "content": said}
        return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})


@contextmanager
def serving(say: Say) -> Iterator[Double]:
    double, port = Double(say), free_port()
    app = Starlette(routes=[Route("/v1/chat/completions", double.answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    double.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield double
    finally:
        server.should_exit = True
        thread.join(10)


def good_rows(body: dict[str, Any], n: int) -> str:
    """As many right rows as were asked for, all different."""
    asked = body["messages"][-1]["content"]
    name = asked.split("rows that call ")[1].split(" with ")[0]
    count = int(asked.split("Write ")[-1].split(" ")[0])
    tool = next(json.loads(line)["function"] for line in asked.splitlines() if f'"name": "{name}"' in line)
    schema = tool["parameters"]
    required = {key: _one(schema["properties"][key]) for key in schema["required"]}
    key = abs(hash(json.dumps(body, sort_keys=True))) % 10**9
    rows = [{"instruction": f"Do it, {key} {k}.", "call": {"name": name, "arguments": required}} for k in range(count)]
    return json.dumps({"rows": rows})


def _one(schema: dict[str, Any]) -> Any:
    return (
        schema["enum"][0]
        if "enum" in schema
        else {"string": "Oslo", "integer": 1, "number": 0.5, "boolean": True}[schema["type"]]
    )
