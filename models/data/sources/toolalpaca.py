"""ToolAlpaca's evaluation files: APIs with their functions in prose, instructions and golden answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import Dropped, Sample, Unusable
from rtcontrol.models.data.sources.files import data_file, items, located, version
from rtcontrol.models.data.types import tool
from rtcontrol.models.data.values import arguments_of, coerced

# "Required. string. One of: [a, b]. What it is."
PARAMETER = re.compile(r"\s*(?P<required>Required\.)?\s*(?P<type>[A-Za-z]+(?:\[.*\]|\{.*\})?)\.?\s*(?P<rest>.*)", re.S)
CHOICES = re.compile(r"One of:\s*\[([^\]]*)\]")
NOT_A_FUNCTION = "components"


def samples(given: str) -> Iterator[Sample | Dropped]:
    """The instructions of a file, each with all functions of its API. Those that several calls in a row answer are
    dropped, as are arguments that are no JSON."""
    path = data_file(located(given, "ToolAlpaca"), "eval_simulated.json", "eval_*.json")
    source = f"toolalpaca ({version(path)}):{path.stem.removeprefix('eval_')}"
    for where, api in items(path):
        try:
            tools, broken = _tools(api["Function_Description"]), None
            pairs = list(zip(api["Instructions"], api["Golden_Answers"], strict=True))
        except Unusable as error:
            tools, broken, pairs = (), error, [("", [])]
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            yield Dropped("a sample of another shape than ToolAlpaca's", where, repr(error)[:120], source)
            continue
        for n, (asked, golden) in enumerate(pairs):
            place, name = f"{where}, instruction {n + 1}", f"{path.stem}_{api.get('Name')}_{n}"
            try:
                if broken is not None:
                    raise broken
                yield Sample(name, source, place, asked, "", tools, (_call(golden, tools),))
            except Unusable as error:
                yield Dropped(error.reason, place, error.detail, source)
            except (LookupError, TypeError, AttributeError) as error:
                yield Dropped("a sample of another shape than ToolAlpaca's", place, repr(error)[:120], source)


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
