"""What a game says by the Neuro API (VedalAI/neuro-sdk, `API/SPECIFICATION.md`), read leniently."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

PRIORITIES = ("low", "medium", "high", "critical")
MOST_ACTIONS = 256  # of a message, and of a game
MOST_NAME, MOST_GAME, MOST_SAID = 256, 128, 65_536  # characters
# Keywords that cost no time to read, whatever their values are.
PLAIN_KEYWORDS = {
    *("$schema", "title", "description", "default", "type", "properties", "required", "additionalProperties"),
    *("enum", "const", "minimum", "maximum", "multipleOf", "minLength", "maxLength"),
}
PLAIN_CHARACTERS = 4096


def _cut(value: Any) -> Any:
    return value[:MOST_SAID] if isinstance(value, str) else value


GameText = Annotated[str, BeforeValidator(_cut)]  # a force or a result that is refused leaves a game waiting


class MisreadMessage(ValueError):
    """The message is none of the API's; the text says why."""


class _GameData(BaseModel):
    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _missing(cls, data: Any) -> Any:
        """Some SDKs write null for what is not there."""
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class GameAction(_GameData):
    name: str = Field(min_length=1, max_length=MOST_NAME)
    description: str = Field("", max_length=MOST_SAID)
    parameters: dict[str, Any] = Field(default_factory=dict, alias="schema")

    @property
    def plain(self) -> bool:
        """Whether its schema is small, and of keywords alone that are read at once."""
        return len(json.dumps(self.parameters)) <= PLAIN_CHARACTERS and _plain(self.parameters)

    def tool(self) -> dict[str, Any]:
        """As an OpenAI-style definition."""
        schema = {"type": "object", "properties": {}, **self.parameters}
        return {"name": self.name, "description": self.description, "parameters": schema}


class Startup(_GameData):
    pass


class GameContext(_GameData):
    message: GameText
    silent: bool = True


class RegisterActions(_GameData):
    actions: list[GameAction] = Field(max_length=MOST_ACTIONS)


class UnregisterActions(_GameData):
    action_names: list[str] = Field(max_length=MOST_ACTIONS)


class ForceActions(_GameData):
    query: GameText = ""
    state: GameText = ""
    priority: str = "low"
    ephemeral_context: bool = False
    action_names: list[str] = Field(max_length=MOST_ACTIONS)


class ActionResult(_GameData):
    id: str
    success: bool
    message: GameText = ""


class ShutdownReady(_GameData):
    pass


GameMessage = Startup | GameContext | RegisterActions | UnregisterActions | ForceActions | ActionResult | ShutdownReady
COMMANDS: dict[str, type[_GameData]] = {
    "startup": Startup,
    "context": GameContext,
    "actions/register": RegisterActions,
    "actions/unregister": UnregisterActions,
    "actions/force": ForceActions,
    "action/result": ActionResult,
    "shutdown/ready": ShutdownReady,
}


def read(text: str) -> tuple[str, Any]:
    """The game's name and its message, one of `GameMessage`. Raises MisreadMessage."""
    try:
        told = json.loads(text)
        if "\\ud" in text.lower():  # half a character, of a text that was cut: no UTF-8, and so no record, has it
            told = json.loads(json.dumps(told, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise MisreadMessage("it is no JSON") from None
    if not isinstance(told, dict):
        raise MisreadMessage("it is no JSON object")
    command, game = told.get("command"), told.get("game")
    kind = COMMANDS.get(command) if isinstance(command, str) else None
    if kind is None:
        raise MisreadMessage(f"there is no command {str(command)[:80]!r}")
    if not isinstance(game, str) or not game or len(game) > MOST_GAME:
        raise MisreadMessage(f"{command}: `game` is no name of 1 to {MOST_GAME} characters")
    data = told.get("data")
    try:
        return game, kind.model_validate({} if data is None else data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, ("data", *first["loc"])))
        raise MisreadMessage(f"{command}: {where}: {first['msg']}") from None


def startup_reply(session: str) -> dict[str, Any]:
    told = {"sessionId": session, "characterId": "rtcontrol", "displayName": "rtcontrol"}
    return {"command": "startup", "data": {"session": told}}


def action(number: str, name: str, arguments: dict[str, Any] | None) -> dict[str, Any]:
    """`arguments` None: the action has no schema."""
    data: dict[str, Any] = {"id": number, "name": name}
    return {"command": "action", "data": data if arguments is None else data | {"data": json.dumps(arguments)}}


REREGISTER: dict[str, Any] = {"command": "actions/reregister_all"}
SHUT_DOWN: dict[str, Any] = {"command": "shutdown/graceful", "data": {"wants_shutdown": True}}
SHUT_DOWN_NOW: dict[str, Any] = {"command": "shutdown/immediate"}


def _plain(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    inner = schema.get("properties", {})
    named = isinstance(inner, dict) and all(map(_plain, inner.values()))
    return named and PLAIN_KEYWORDS.issuperset(schema) and schema.get("additionalProperties", False) in (True, False)
