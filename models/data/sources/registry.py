"""The public sets, by name as the command line has them: `xlam`, `seal-tools:in-domain=FOLDER`, or a file."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import placed
from rtcontrol.models.data.sample import SHAPE_ERRORS, Dropped, PlacedRow, Sample, Unusable
from rtcontrol.models.data.sources import chat, files
from rtcontrol.models.data.sources.files import data_file, located, version
from rtcontrol.models.data.written import annotation, arguments_of, call_of, coerced, listed, tool
from rtcontrol.models.errors import UserError

Found = Iterator[Sample | Dropped]
FORM = "NAME[:PART,...][=PLACE], as seal-tools:dev=FOLDER or toolalpaca=eval_simulated.json, or a file of rows (JSONL)"


def _call(name: str, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> Call:
    """A gold call of one of these tools, its values by their parameters' types: sets write numbers as strings."""
    schema = next((t["function"]["parameters"] for t in tools if t["function"]["name"] == name), None)
    if schema is None:
        raise Unusable("a call of a function that is not shown", name)
    return Call(name, {k: coerced(v, schema["properties"].get(k, {})) for k, v in arguments.items()})


def _read(name: str, path: Path, read: Callable[[Any, str], Found], source: str, items: Any = None) -> Found:
    given = files.items(path) if items is None else items
    return files.samples(given, read, source, f"a sample of another shape than {name}'s")


def _chat(_: str, place: str) -> Found:
    path = data_file(located(place, "chats in OpenAI's format"))
    return chat.samples(path, f"{path.name} ({version(path)})")


def _mobile_actions(part: str, place: str) -> Found:
    """Chats over seven tools, with the date and time in the developer's message."""
    path = data_file(located(place, "Mobile Actions"), "dataset.jsonl", "*.jsonl")
    source = f"mobile-actions ({version(path)}){':' if part else ''}{part}"
    return chat.samples(path, source, {"metadata": part} if part else None)


def openfunctions(_: str, place: str) -> Found:
    """OpenFunctions v1's test file: one function with each question, the answer as a Python call.

    Those whose function takes no parameters are dropped, as the paper's 109 of 112 are. What is called is `api_call`,
    not `name`. Values are read by their parameter's type (one answer has a string for a list, two a bare `true`)."""
    path = data_file(located(place, "OpenFunctions v1"), "gorilla_openfunctions_v1_test.json")
    source, numbers = f"openfunctions v1 ({version(path)})", count()

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        name, function = f"openfunctions_{next(numbers)}", value["function"]
        parameters = dict(function.get("parameters") or {})
        if not parameters.get("properties"):
            raise Unusable("a function without parameters", str(function.get("api_call")))
        if "required" in function:  # one has it beside its parameters
            parameters.setdefault("required", function["required"])
        shown = tool(function["api_call"], function.get("description"), parameters)
        call = call_of(value["model_answer"])
        yield Sample(name, source, where, value["question"], "", (shown,), (_call(call.name, call.arguments, [shown]),))

    return _read("OpenFunctions", path, read, source)


# xLAM-function-calling-60k (gated): answers and tools as JSON in strings.


def xlam(_: str, place: str) -> Found:
    """Its parameters are flat, with Python's annotations; one is optional where `required` (of the set's card) says so,
    or else its annotation, or where it has a default."""
    path = data_file(located(place, "xLAM-60k"), "xlam_function_calling_60k.json")
    source = f"xlam-60k ({version(path)})"

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        tools = tuple(_xlam_tool(one) for one in listed(value["tools"], "tools"))
        calls = tuple(Call(a["name"], dict(a["arguments"])) for a in listed(value["answers"], "answers"))
        if not calls:
            raise Unusable("no call")
        name = value.get("id", where.rpartition("/")[2])
        yield Sample(f"xlam_{name}", source, where, value["query"], "", tools, calls)

    return _read("xLAM", path, read, source)


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


# Seal-Tools: queries over 4,076 made-up tools, five of which are shown with each.


SEAL_FILES = {"in-domain": "test_in_domain", "out-domain": "test_out_domain", "dev": "dev", "train": "train"}
SEVERAL = "-several"
SEAL_PARTS = tuple(f"{name}{end}" for name in SEAL_FILES for end in ("", SEVERAL))
EASY = "-easy-"  # in the ids of samples of one call
SHOWN = 5
REFERENCE = "API_call_"


def seal_tools(part: str, place: str) -> Found:
    """One part, of the set's folder: its samples of one call ("in-domain"), or of several ("in-domain-several"). The
    tools shown are those of the file for fine-tuning where that is there, else the gold ones and others of
    `tool.jsonl`, five together, the same ones each time.

    Later calls that take an earlier one's result are no parallel calls, and are dropped."""
    folder = located(place, "Seal-Tools")
    name = SEAL_FILES[part.removesuffix(SEVERAL)]
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        raise UserError(f"{folder} has no {path.name}.", "Give the folder of Seal-Tools that has this part.")
    shown = _seal_shown(folder, name)
    source = f"seal-tools ({version(path)}):{part}{'' if shown else f', {SHOWN} tools'}"
    known = {} if shown else {api["api_name"]: api for _, api in files.items(folder / "tool.jsonl")}

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        if (EASY in value["id"]) == part.endswith(SEVERAL):
            return
        names = [call["api"] for call in value["calling"]]
        apis = shown[value["id"]] if shown else _seal_drawn(names, known, value["id"])
        if REFERENCE in json.dumps([call["parameters"] for call in value["calling"]]):
            raise Unusable("a call that takes the result of an earlier one")
        tools = tuple({api["api_name"]: _seal_tool(api) for api in apis}.values())
        calls = tuple(_call(call["api"], call["parameters"], tools) for call in value["calling"])
        yield Sample(value["id"], source, where, value["query"], "", tools, calls)

    return _read("Seal-Tools", path, read, source)


def _seal_shown(folder: Path, name: str) -> dict[str, list[Mapping[str, Any]]]:
    """The tools in the prompts for fine-tuning, by sample: a Python literal between two markers."""
    for path in (folder / "dataset_for_finetune" / f"{name}.json{end}" for end in (".gz", "")):
        if path.is_file():
            return {value["id"]: _seal_listed(value, where) for where, value in files.items(path)}
    return {}


def _seal_listed(value: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    try:
        prompt = value["conversations"][0]["value"]
        start = prompt.index("api_list = ") + len("api_list = ")
        return list(ast.literal_eval(prompt[start : prompt.index("\ntask_instruction = ", start)]))
    except (LookupError, TypeError, ValueError, SyntaxError):
        what = f"{where}: its prompt lists no APIs."
        raise UserError(what, "Give Seal-Tools' files as they were published.") from None


def _seal_drawn(names: list[str], known: Mapping[str, Any], seed: str) -> list[Mapping[str, Any]]:
    if missing := [name for name in names if name not in known]:
        raise Unusable("a call of a function that is not shown", missing[0])
    gold = list(dict.fromkeys(names))
    drawn = random.Random(seed)
    others = drawn.sample([name for name in known if name not in gold], max(0, SHOWN - len(gold)))
    both = [*gold, *others]
    drawn.shuffle(both)
    return [known[name] for name in both]


def _seal_tool(api: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": api["parameters"], "required": list(api["required"])}
    return tool(api["api_name"], api.get("api_description"), schema)


# ToolAlpaca's evaluation files: APIs with their functions in prose, instructions and golden answers.


# "Required. string. One of: [a, b]. What it is."
PARAMETER = re.compile(r"\s*(?P<required>Required\.)?\s*(?P<type>[A-Za-z]+(?:\[.*\]|\{.*\})?)\.?\s*(?P<rest>.*)", re.S)
CHOICES = re.compile(r"One of:\s*\[([^\]]*)\]")
NOT_A_FUNCTION = "components"


def toolalpaca(_: str, place: str) -> Found:
    """The instructions of a file, each with all functions of its API. Those that several calls in a row answer are
    dropped, as are arguments that are no JSON."""
    path = data_file(located(place, "ToolAlpaca"), "eval_simulated.json", "eval_*.json")
    source = f"toolalpaca ({version(path)}):{path.stem.removeprefix('eval_')}"

    def read(value: tuple[Mapping[str, Any], int, str, Any], where: str) -> Iterator[Sample]:
        api, n, asked, golden = value
        described = api["Function_Description"].items()
        tools = tuple(_alpaca_tool(name, text) for name, text in described if name != NOT_A_FUNCTION)
        if len(golden) != 1:
            raise Unusable("several calls in a row" if golden else "no call")
        call = _call(golden[0]["Action"], arguments_of(golden[0]["Action_Input"]), tools)
        yield Sample(f"{path.stem}_{api.get('Name')}_{n}", source, where, asked, "", tools, (call,))

    return _read("ToolAlpaca", path, read, source, _alpaca_instructions(path))


def _alpaca_instructions(path: Path) -> Iterator[tuple[str, tuple[Any, int, str, Any]]]:
    for where, api in files.items(path):
        try:
            pairs = list(zip(api["Instructions"], api["Golden_Answers"], strict=True))
        except SHAPE_ERRORS:
            pairs = [("", None)]
        for n, (asked, golden) in enumerate(pairs):
            yield f"{where}, instruction {n + 1}", (api, n, asked, golden)


def _alpaca_tool(name: str, text: str) -> dict[str, Any]:
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
        properties[key] = {**_alpaca_kind(found["type"]), "description": found["rest"].strip()}
        if (choices := CHOICES.search(found["rest"])) and properties[key]["type"] == "string":
            properties[key]["enum"] = [choice.strip() for choice in choices[1].split(",")]
        if found["required"]:
            required.append(key)
    return tool(name, about, {"type": "object", "properties": properties, "required": required})


def _alpaca_kind(text: str) -> dict[str, Any]:
    """`Array[string]`, `Object{...}`: what is inside is kept for lists of plain values alone."""
    outer, _, inside = text.partition("[")
    if outer.lower() != "array":
        return {"type": text.partition("{")[0]}
    plain = re.fullmatch(r"(string|integer|number|boolean)\]", inside)
    return {"type": "array", "items": {"type": plain[1]}} if plain else {"type": "array"}


@dataclass(frozen=True)
class DataSet:
    """`read(part, place)`; `part` is read where none of the `parts` is named. `hub` is where it is from where no place
    is given ("": it must be given)."""

    read: Callable[[str, str], Found]
    parts: tuple[str, ...] = ()
    part: str = ""
    hub: str = ""


SETS = {
    "mobile-actions": DataSet(_mobile_actions, ("train", "eval"), hub="google/mobile-actions"),
    "seal-tools": DataSet(seal_tools, SEAL_PARTS, "in-domain"),
    "openfunctions": DataSet(openfunctions),
    "toolalpaca": DataSet(toolalpaca),
    "xlam": DataSet(xlam, hub="Salesforce/xlam-function-calling-60k"),
    "openai": DataSet(_chat),
}


def read(given: str) -> Iterator[Sample | Dropped | PlacedRow]:
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
    wanted = parts.split(",") if parts else [data.part]
    if unknown := [part for part in wanted if part not in (*data.parts, data.part)]:
        hint = f"Choose of: {', '.join(data.parts)}." if data.parts else f"Write {name} alone."
        raise UserError(f"{name} has no part {unknown[0]!r}.", hint)
    return (one for part in wanted for one in data.read(part, place or data.hub))
