"""A game by the foreign client `neuro-api`: `neuro_foreign.py URL FORCES`. Prints what came of them as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import jsonschema
import trio
from neuro_api.command import Action, ForcePriority
from neuro_api.trio_ws import TrioNeuroAPI
from trio_websocket import open_websocket_url

MOVE = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "enum": ["north", "south"]},
        "steps": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["to", "steps"],
}
ACTIONS = [Action("move", "Walk.", MOVE), Action("look-around", "Look.", None), Action("rest", "Rest.", None)]


class ForeignGame(TrioNeuroAPI):
    def __init__(self, connection: Any) -> None:
        super().__init__("Foreign Game", connection)
        self.answered = self.illegal = 0
        self.allowed: list[str] = []
        self.done = trio.Event()

    async def handle_startup_acknowledgement(self, ack: Any) -> None:
        assert ack.session.session_id

    async def handle_action(self, action: Any) -> None:
        legal = action.name in self.allowed
        try:
            jsonschema.validate(json.loads(action.data or "{}"), MOVE if action.name == "move" else {})
        except (ValueError, jsonschema.ValidationError):
            legal = False
        self.illegal += not legal
        self.answered += 1
        await self.send_action_result(action.id_, True, None)
        self.done.set()


async def main(url: str, forces: int) -> None:
    async with open_websocket_url(url) as socket, trio.open_nursery() as nursery:
        game = ForeignGame(socket)

        async def listen() -> None:
            while True:
                await game.read_message()

        nursery.start_soon(listen)
        await game.send_startup_command()
        await game.register_actions(ACTIONS)
        for number in range(forces):
            game.allowed = [["move", "rest"], ["look-around"], ["rest", "look-around", "move"]][number % 3]
            game.done = trio.Event()
            priority = list(ForcePriority)[number % 4]
            await game.send_force_action(f"turn {number}", "What now?", game.allowed, bool(number % 2), priority)
            with trio.fail_after(20):
                await game.done.wait()
        print(json.dumps({"answered": game.answered, "illegal": game.illegal}))
        nursery.cancel_scope.cancel()


trio.run(main, sys.argv[1], int(sys.argv[2]))
