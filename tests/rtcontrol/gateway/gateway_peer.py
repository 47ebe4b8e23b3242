"""Helpers of the gateway's tests: served sessions, a tool, a token, and the page's modules for Node."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai

from rtcontrol.gateway.app import Gateway
from rtcontrol.gateway.view import CLIENT, PAGE
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.serve.session_manager import SessionManager
from tests.helpers.processes import Program
from tests.rtcontrol.commands import EXPERT

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

    @property
    def openai(self) -> openai.OpenAI:
        """Return the official client, which does not retry."""
        return openai.OpenAI(base_url=self.url + "v1", api_key="none", max_retries=0)

    def get(self, path: str) -> str:
        return httpx.get(self.url + path).text

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=json, timeout=60, **options)


class Flying(Program):
    """A run of the lander with a live view; `url` is the address of the page."""

    def __init__(self, folder: Path, *more: str) -> None:
        folder.mkdir(exist_ok=True)
        self.out = folder / "run"
        arguments = ("-m", "rtcontrol", *EXPERT, "--view", "--set", "view.stdin=true", "--episodes", "1000")
        arguments += ("--out", str(self.out), *more)
        super().__init__(arguments, folder / "log", stdin=subprocess.PIPE)
        self.says("watch it at http://127.0.0.1:")
        matches = re.search(r"watch it at (\S+)", self.log())
        assert matches is not None
        self.url = matches[1]


Serve = Callable[..., Served]
