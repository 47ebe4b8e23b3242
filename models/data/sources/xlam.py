"""xLAM-function-calling-60k (Salesforce/xlam-function-calling-60k, gated): answers and tools as JSON in strings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import Dropped, Sample, Unusable
from rtcontrol.models.data.sources import files
from rtcontrol.models.data.written import annotation, listed, tool

HUB = "Salesforce/xlam-function-calling-60k"


def samples(given: str = HUB) -> Iterator[Sample | Dropped]:
    """The file's samples. Its parameters are flat, with Python's annotations; one is optional where `required` (of the
    set's card) says so, or else its annotation, or where it has a default."""
    path = files.data_file(files.located(given, "xLAM-60k"), "xlam_function_calling_60k.json")
    source = f"xlam-60k ({files.version(path)})"

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        tools = tuple(_tool(one) for one in listed(value["tools"], "tools"))
        calls = tuple(Call(a["name"], dict(a["arguments"])) for a in listed(value["answers"], "answers"))
        if not calls:
            raise Unusable("no call")
        name = value.get("id", where.rpartition("/")[2])
        yield Sample(f"xlam_{name}", source, where, value["query"], "", tools, calls)

    return files.samples(files.items(path), read, source, "a sample of another shape than xLAM's")


def _tool(one: Mapping[str, Any]) -> dict[str, Any]:
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
