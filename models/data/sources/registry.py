"""The sets by name, as the command line has them: `xlam`, `mobile-actions:eval=FOLDER`, or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import placed
from rtcontrol.models.data.sample import Dropped, PlacedRow, Sample, Unusable
from rtcontrol.models.data.sources import chat, files
from rtcontrol.models.data.sources.files import data_file, located, version
from rtcontrol.models.data.written import annotation, listed, tool
from rtcontrol.models.errors import UserError

Found = Iterator[Sample | Dropped | PlacedRow]
FORM = "NAME[:PART,...][=PLACE], as mobile-actions:eval or openai=chats.jsonl, or a file of rows (JSONL)"


@dataclass(frozen=True)
class DataSet:
    """`read(part, place)`; `hub` is where it is from where no place is given ("": it must be given)."""

    read: Callable[[str, str], Iterator[Sample | Dropped]]
    parts: tuple[str, ...] = ()
    hub: str = ""


def _chat(_: str, place: str) -> Iterator[Sample | Dropped]:
    path = data_file(located(place, "chats in OpenAI's format"))
    return chat.samples(path, f"{path.name} ({version(path)})")


def _mobile_actions(part: str, place: str) -> Iterator[Sample | Dropped]:
    """Chats over seven tools, with the date and time in the developer's message."""
    path = data_file(located(place, "Mobile Actions"), "dataset.jsonl", "*.jsonl")
    source = f"mobile-actions ({version(path)}){':' if part else ''}{part}"
    return chat.samples(path, source, {"metadata": part} if part else None)


def xlam(_: str, place: str) -> Iterator[Sample | Dropped]:
    """The samples of xLAM-60k: answers and tools are JSON in strings.

    Its parameters are flat, with Python's annotations; one is optional where `required` (of the set's card) says so, or
    else its annotation, or where it has a default."""
    path = data_file(located(place, "xLAM-60k"), "xlam_function_calling_60k.json")
    source = f"xlam-60k ({version(path)})"

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        tools = tuple(_xlam_tool(one) for one in listed(value["tools"], "tools"))
        calls = tuple(Call(a["name"], dict(a["arguments"])) for a in listed(value["answers"], "answers"))
        if not calls:
            raise Unusable("no call")
        name = value.get("id", where.rpartition("/")[2])
        yield Sample(f"xlam_{name}", source, where, value["query"], "", tools, calls)

    return files.samples(files.items(path), read, source, "a sample of another shape than xLAM's")


def _xlam_tool(one: Mapping[str, Any]) -> dict[str, Any]:
    body = one.get("function") or one  # some copies of the set wrap it as chat APIs do
    parameters = body.get("parameters") or {}
    if isinstance(parameters.get("type"), str):  # and some have a schema: a parameter of that name is an object
        return tool(body["name"], body.get("description"), parameters)
    properties, required = {}, []
    for name, given in parameters.items():
        kind, optional = annotation(str(given.get("type") or "str"))
        properties[name] = {**kind, "description": str(given.get("description") or "")}
        if "default" in given:
            properties[name]["default"] = given["default"]
            optional = True
        says = given.get("required")
        if says if isinstance(says, bool) else not optional:
            required.append(name)
    schema = {"type": "object", "properties": properties, "required": required}
    return tool(body["name"], body.get("description"), schema)


SETS = {
    "mobile-actions": DataSet(_mobile_actions, ("train", "eval"), hub="google/mobile-actions"),
    "xlam": DataSet(xlam, hub="Salesforce/xlam-function-calling-60k"),  # gated
    "openai": DataSet(_chat),
}


def read(given: str) -> Found:
    """What a source gives, by its name or as a file of rows. Raises UserError."""
    head, _, place = given.partition("=")
    name, _, parts = head.partition(":")
    if name not in SETS:
        if not Path(given).is_file():
            raise UserError(f"{given!r} is neither a file nor a set.", f"Write {FORM}. Sets: {', '.join(SETS)}.")
        return (PlacedRow(row, where) for where, row in placed(Path(given)))
    data = SETS[name]
    if not place and not data.hub:
        raise UserError(f"Where {name} is was not said.", f"Write {head}=PLACE: its file or folder, or a hub id.")
    wanted = parts.split(",") if parts else [""]
    if unknown := [part for part in wanted if part not in (*data.parts, "")]:
        hint = f"Choose of: {', '.join(data.parts)}." if data.parts else f"Write {name} alone."
        raise UserError(f"{name} has no part {unknown[0]!r}.", hint)
    return (one for part in wanted for one in data.read(part, place or data.hub))
