"""ToolAlpaca's evaluation files: APIs with their functions in prose, instructions and golden answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import SHAPE_ERRORS, Dropped, Sample, Unusable
from rtcontrol.models.data.sources import files
from rtcontrol.models.data.written import arguments_of, coerced, tool

# "Required. string. One of: [a, b]. What it is."
PARAMETER = re.compile(r"\s*(?P<required>Required\.)?\s*(?P<type>[A-Za-z]+(?:\[.*\]|\{.*\})?)\.?\s*(?P<rest>.*)", re.S)
CHOICES = re.compile(r"One of:\s*\[([^\]]*)\]")
NOT_A_FUNCTION = "components"


def samples(given: str) -> Iterator[Sample | Dropped]:
    """The instructions of a file, each with all functions of its API. Those that several calls in a row answer are
    dropped, as are arguments that are no JSON."""
    path = files.data_file(files.located(given, "ToolAlpaca"), "eval_simulated.json", "eval_*.json")
    source = f"toolalpaca ({files.version(path)}):{path.stem.removeprefix('eval_')}"

    def read(value: tuple[Mapping[str, Any], int, str, Any], where: str) -> Iterator[Sample]:
        api, n, asked, golden = value
        tools = _tools(api["Function_Description"])
        name = f"{path.stem}_{api.get('Name')}_{n}"
        yield Sample(name, source, where, asked, "", tools, (_call(golden, tools),))

    return files.samples(_instructions(path), read, source, "a sample of another shape than ToolAlpaca's")


def _instructions(path: Path) -> Iterator[tuple[str, tuple[Any, int, str, Any]]]:
    for where, api in files.items(path):
        try:
            pairs = list(zip(api["Instructions"], api["Golden_Answers"], strict=True))
        except SHAPE_ERRORS:
            pairs = [("", None)]
        for n, (asked, golden) in enumerate(pairs):
            yield f"{where}, instruction {n + 1}", (api, n, asked, golden)


def _tools(described: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    return tuple(_tool(name, text) for name, text in described.items() if name != NOT_A_FUNCTION)


def _tool(name: str, text: str) -> dict[str, Any]:
    about, marker, behind = text.partition("\nParameters: ")
    try:
        told = json.JSONDecoder().raw_decode(behind)[0] if marker else {}
    except ValueError:
        raise Unusable("a function whose parameters cannot be read", name) from None
    required, properties = [], {}
    for key, words in told.items():
        found = PARAMETER.match(words)
        if found is None:
            raise Unusable("a function whose parameters cannot be read", f"{name}.{key}: {words}")
        properties[key] = {**_kind(found["type"]), "description": found["rest"].strip()}
        if (choices := CHOICES.search(found["rest"])) and properties[key]["type"] == "string":
            properties[key]["enum"] = [choice.strip() for choice in choices[1].split(",")]
        if found["required"]:
            required.append(key)
    return tool(name, about, {"type": "object", "properties": properties, "required": required})


def _kind(text: str) -> dict[str, Any]:
    """`Array[string]`, `Object{...}`: what is inside is kept for lists of plain values alone."""
    outer, _, inside = text.partition("[")
    if outer.lower() != "array":
        return {"type": text.partition("{")[0]}
    plain = re.fullmatch(r"(string|integer|number|boolean)\]", inside)
    return {"type": "array", "items": {"type": plain[1]}} if plain else {"type": "array"}


def _call(golden: Any, tools: tuple[dict[str, Any], ...]) -> Call:
    if len(golden) != 1:
        raise Unusable("several calls in a row" if golden else "no call")
    properties = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tools}
    action = golden[0]["Action"]
    if action not in properties:
        raise Unusable("a call of a function that is not shown", action)
    given = arguments_of(golden[0]["Action_Input"])
    return Call(action, {k: coerced(v, properties[action].get(k, {})) for k, v in given.items()})
