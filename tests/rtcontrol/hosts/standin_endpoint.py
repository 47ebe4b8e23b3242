"""A stand-in for a hosted decision API: a real HTTP server of both API forms, with chosen faults and latency."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.helpers.web_server import Quiet, http_server

Choose = Callable[[str, str, list[str]], str]  # from what is told, a question's name and its options


def first(told: str, name: str, options: list[str]) -> str:
    return options[0]


class Standin:
    """A server for which `plan(n)` gives the n-th request's delay in s and fault: None, a status, "drop", "garbage",
    "deep", "short", "odd"; bodies and headers of requests are kept. `dropped` counts those whose client went away
    meanwhile."""

    def __init__(self, plan: Callable[[int], tuple[float, Any]], choose: Choose) -> None:
        self.plan, self.choose = plan, choose
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = self.dropped = 0
        self.lock = threading.Lock()
        self.url = ""

    def reply(self, path: str, body: dict[str, Any], fault: Any) -> tuple[int, bytes]:
        """Return the HTTP status and the body of the answer."""
        if isinstance(fault, int):
            return fault, json.dumps({"error": {"message": f"status {fault}"}}).encode()
        found = {"garbage": b"<html>", "deep": b"[" * 100_000}.get(fault)
        return 200, found or json.dumps(self.answer(path, body, fault)).encode()

    def answer(self, path: str, body: dict[str, Any], fault: Any) -> Any:
        asked = body["questions"]
        if path.endswith("/decisions"):
            made = [
                self._answer(q["name"], [c["value"] for c in q["choices"]], body["input"], fault, rows=True)
                for q in asked
            ]
            return {"model": "standin", "answers": made[1:] if fault == "short" else made, **self._usage()}
        named = {
            name: self._answer(name, list(q["criteria"]), body["state"], fault, rows=False)
            for name, q in asked.items()
            if fault != "short"
        }
        return {"model": "standin", "answers": named, **self._usage()}

    def _answer(self, name: str, options: list[str], told: str, fault: Any, rows: bool) -> dict[str, Any]:
        if fault == "refuse":
            return {"type": "refusal", "name": name}
        choice = "no such option" if fault == "odd" else self.choose(told, name, options)
        shares = {option: 0.8 if option == choice else 0.2 / max(len(options) - 1, 1) for option in options}
        listed = [{"value": k, "probability": v} for k, v in shares.items()]
        return {"type": "choice", "choice": choice, "confidence": 0.5, "probabilities": listed if rows else shares}

    def _usage(self) -> dict[str, Any]:
        return {"usage": {"input_tokens": 40, "input_tokens_details": {"cached_tokens": 30}, "output_tokens": 0}}


@contextmanager
def standin(
    plan: Callable[[int], tuple[float, Any]] = lambda n: (0.0, None), choose: Choose = first
) -> Iterator[Standin]:
    standin = Standin(plan, choose)

    class Handler(Quiet):
        def setup(self) -> None:
            super().setup()
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with standin.lock:
                standin.connections += 1

        def post(self, body: bytes) -> None:
            with standin.lock:
                seconds, fault = standin.plan(len(standin.bodies))
                standin.bodies.append(json.loads(body))
                standin.headers.append(dict(self.headers))
            # Nothing but the connection's end can come now.
            self.close_connection = bool(select.select([self.connection], [], [], seconds)[0]) or fault == "drop"
            standin.dropped += self.close_connection and fault != "drop"
            if self.close_connection:
                return
            status, data = standin.reply(self.path, json.loads(body), fault)
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with http_server(Handler) as url:
        standin.url = f"{url}/v1"
        yield standin
