"""A game of the Neuro API over a real WebSocket, and a server for it in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

from rtcontrol.gateway.neuro import NeuroOptions, NeuroServer
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.loop.evidence import PauseWatch
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.pools import Pools
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.telemetry.record_reader import read_record
from tests.helpers.processes import until

PLAY = {
    "name": "play",
    "description": "Put your mark into a cell.",
    "schema": {
        "type": "object",
        "properties": {"cell": {"type": "string", "enum": ["a1", "b2", "c3"]}},
        "required": ["cell"],
    },
}
WAIT = {"name": "wait", "description": "Wait a turn."}


class Game:
    """One connection; `say` sends a command, `hear` waits for the next of a kind."""

    def __init__(self, url: str, name: str = "Board", **options: Any) -> None:
        self.socket = connect(url, **options)
        self.name = name
        self.unread: list[dict[str, Any]] = []

    def say(self, command: str, **data: Any) -> None:
        self.socket.send(json.dumps({"command": command, "game": self.name, **({"data": data} if data else {})}))

    def begin(self, *actions: dict[str, Any]) -> None:
        self.say("startup")
        self.hear("startup")
        self.say("actions/register", actions=list(actions))

    def force(self, *names: str, state: str = "", query: str = "Your turn.", priority: str = "low") -> None:
        self.say("actions/force", state=state, query=query, priority=priority, action_names=list(names))

    def hear(self, command: str, within_s: float = 20.0) -> dict[str, Any]:
        while True:
            for i, one in enumerate(self.unread):
                if one["command"] == command:
                    return dict(self.unread.pop(i).get("data") or {})
            self.unread.append(json.loads(self.socket.recv(within_s)))

    def silent(self, within_s: float = 0.3) -> bool:
        """Whether nothing comes for so long."""
        try:
            self.unread.append(json.loads(self.socket.recv(within_s)))
        except TimeoutError:
            return not self.unread
        return False

    def result(self, action: dict[str, Any], success: bool = True, message: str = "") -> None:
        self.say("action/result", id=action["id"], success=success, message=message)

    def act(self, *names: str, **options: Any) -> tuple[str, Any]:
        """Force one of these, and take it: its name and arguments."""
        self.force(*names, **options)
        action = self.hear("action")
        self.result(action)
        return action["name"], json.loads(action["data"]) if "data" in action else None

    def close(self) -> None:
        self.socket.close()


class Playing:
    """A running server; `lines` are what people were told."""

    def __init__(self, server: NeuroServer, admission: SessionManager, lines: list[str], out: Path) -> None:
        self.server, self.admission, self.lines, self.out = server, admission, lines, out

    @property
    def url(self) -> str:
        return self.server.address

    def said(self, part: str) -> bool:
        return any(part in line for line in self.lines)

    def wait_for(self, part: str) -> None:
        until(lambda: self.said(part), 20)

    def events(self, name: str = "neuro-0001") -> list[dict[str, Any]]:
        return list(read_record(self.out / name / "record.mcap"))

    def report(self, name: str = "neuro-0001") -> dict[str, Any]:
        """Of a game that is gone."""
        path = self.out / name / "report.json"
        until(lambda: self.said(f"{name}: over"), 20)
        told: dict[str, Any] = json.loads(path.read_text())
        return told


@contextmanager
def playing(
    out: Path, model: str | None = "random", play: NeuroOptions | None = None, most: int = 64, **access: Any
) -> Iterator[Playing]:
    lines: list[str] = []
    options = ServeOptions(out=out, model=model, host="inprocess", max_sessions=most)
    with ExitStack() as stack:
        pool = Pools(options)
        pool.start()
        stack.callback(pool.close)
        watch = stack.enter_context(PauseWatch(10_000_000))
        admission = SessionManager(options, pool, watch, lines.append)
        stack.callback(admission.close)
        told = GatewayOptions(**{"port": 0, "model": model, "option": "--neuro", **access})
        server = NeuroServer(admission, told, play or NeuroOptions(), lines.append)
        server.start()
        stack.callback(server.close)
        yield Playing(server, admission, lines, out)
