"""Helpers of the gateway's tests: served sessions, a tool, a token, and the page's modules for Node."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from rtcontrol.gateway.app import Gateway
from rtcontrol.gateway.view import CLIENT, PAGE
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.serve.session_manager import SessionManager

NODE = shutil.which("node")
SCRIPTS = Path(__file__).parent / "page"


def copy_page(folder: Path) -> Path:
    """Copy the page's modules to a folder in which Node can import them."""
    page = folder / "page"
    shutil.copytree(PAGE, page)
    shutil.copytree(CLIENT, page / "client")
    (page / "package.json").write_text('{"type": "module"}')
    return page


TOKEN = "a-token-of-the-tests-0123456789"
TURN: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "turn",
        "description": "Turn the light cycle.",
        "parameters": {
            "type": "object",
            "properties": {"direction": {"type": "string", "enum": ["straight", "left", "right"]}},
            "required": ["direction"],
        },
    },
}


class Served:
    """A server's sessions with their gateway; `url` ends with a slash."""

    def __init__(self, sessions: SessionManager, pool: InProcessPool, gateway: Gateway) -> None:
        self.sessions, self.pool, self.gateway = sessions, pool, gateway
        self.url = gateway.url

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws", 1) + "ws"

    def get(self, path: str) -> str:
        return httpx.get(self.url + path).text

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=json, timeout=60, **options)


Serve = Callable[..., Served]
