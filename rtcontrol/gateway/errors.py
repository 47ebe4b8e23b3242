"""What is wrong with a request, however often it is sent, and which of its tools and parameters that is about."""

from __future__ import annotations

from typing import Any

from rtcontrol.models.errors import UserError

Tools = tuple[dict[str, Any], ...]


class RequestError(UserError):
    """`about` the request's tools or its messages; where it is known, the place of the `tool` among the tools, and its
    `parameter`."""

    def __init__(self, error: UserError, about: str, tools: Tools) -> None:
        super().__init__(error.what, error.remedy)
        self.about = about
        self.tool = _tool(error.what, tools)
        self.parameter = None if self.tool is None else _parameter(error.what, tools[self.tool])


def name_of(tool: Any) -> str | None:
    """A tool's name, with or without the wrapper around it; None where it has none."""
    body = tool.get("function", tool) if isinstance(tool, dict) else None
    name = body.get("name") if isinstance(body, dict) else None
    return name if isinstance(name, str) and name else None


def _tool(what: str, tools: Tools) -> int | None:
    """What is wrong with one begins with its name, `Tool turn, parameter direction: ...`."""
    names = [name_of(tool) for tool in tools]
    if twice := [i for i, name in enumerate(names) if name in names[:i]]:
        return twice[0]
    if None in names:
        return names.index(None)
    spoken_of = [(len(name), i) for i, name in enumerate(names) if name and what.startswith(_beginnings(name))]
    return max(spoken_of)[1] if spoken_of else None


def _beginnings(name: str) -> tuple[str, ...]:
    return tuple(f"Tool {text}{end}" for text in (name[:64], repr(name[:64])) for end in ":,")


def _parameter(what: str, tool: dict[str, Any]) -> str | None:
    body = tool.get("function", tool)
    schema = body.get("parameters") if isinstance(body, dict) else None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    rest = what[len(f"Tool {name_of(tool)}, ") :].removeprefix("parameter ")
    named = [p for p in properties if rest.startswith((f"{p}:", f"{p}."))] if isinstance(properties, dict) else []
    return max(named, key=len, default=None)
