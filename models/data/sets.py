"""The public sets by name, as on the command line: `xlam`, `seal-tools:in-domain=FOLDER`, or a file of rows.

A place is a path, or an id of the Hugging Face hub that is downloaded on first use.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import random
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint import hub
from rtcontrol.models.data.chat import SHAPE, chat
from rtcontrol.models.data.row import Row, json_lines, read_rows
from rtcontrol.models.data.sample import SHAPE_ERRORS, Dropped, Sample, Unusable
from rtcontrol.models.data.types import annotation, arguments_of, call_of, coerced, list_of, tool
from rtcontrol.models.errors import UserError, decoded, strict_json, user_path

Samples = Iterator[Sample | Dropped]
Items = Iterable[tuple[str, Any]]
FORM = "NAME[:PART,...][=PLACE], as seal-tools:dev=FOLDER or toolalpaca=eval_simulated.json, or a file of rows (JSONL)"
KINDS = ("*.json", "*.jsonl", "*.json.gz", "*.jsonl.gz")
NOT_SHOWN = "a call of a function that is not shown"


# -- files ------------------------------------------------------------------------------------------------------------


def located(place: str, name: str) -> Path:
    """Return the file or folder of the set `name`: a path that exists, else a hub id (OWNER/NAME), from the local cache
    or downloaded. Raises UserError."""
    path = user_path(place)
    if path.exists():
        return path
    if not hub.is_id(place) or place.endswith((".json", ".jsonl", ".gz")):
        raise UserError(f"There is no {place}.", f"Give the file or folder of {name}, or a hub id OWNER/NAME.")
    from huggingface_hub import snapshot_download

    try:  # without a network it is what the cache has
        return Path(snapshot_download(place, repo_type="dataset", allow_patterns=list(KINDS)))
    except Exception as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
        raise UserError(
            f"{place} is neither a path nor to be had from the hub ({line}).",
            f"Give the file or folder of {name}. A gated set needs its terms accepted on its page, then `hf auth "
            f"login`; on a machine with a network: `hf download --repo-type dataset {place}`.",
        ) from None


def data_file(place: Path, *names: str) -> Path:
    """Return the file itself, or the first of these names (patterns) in a folder, or its only one. Raises UserError."""
    if place.is_file():
        return place
    for name in names:
        if matches := sorted(place.glob(name)):
            return matches[0]
    files = sorted({path for kind in KINDS for path in place.glob(kind) if path.is_file()})
    if len(files) == 1:
        return files[0]
    listed = ", ".join(path.name for path in files) or "no JSON file"
    raise UserError(f"{place} has none of {', '.join(names)}: {listed}.", "Give the file itself.")


def items(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield place and value of each item of a file: a line each (JSONL), or of one JSON list (PATH#3: the third)."""
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        for line, value in json_lines(path):
            yield f"{path}:{line}", value
        return
    try:
        raw = path.read_bytes()
        values = strict_json(decoded(gzip.decompress(raw) if path.suffix == ".gz" else raw, path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}).", "Give the set's file.") from None
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        raise UserError(f"{path} is not JSON ({error}).", "Give the set's file as it was published.") from None
    if not isinstance(values, list):
        raise UserError(f"{path} is not a list of samples.", "Give the set's file as it was published.")
    for n, value in enumerate(values, 1):
        yield f"{path}#{n}", value


def version(path: Path) -> str:
    """Return the version of a file: the hub's revision, else the first digits of its SHA-256."""
    parts = path.absolute().parts
    if "snapshots" in parts[:-1]:
        return f"revision {parts[parts.index('snapshots') + 1][:8]}"
    with path.open("rb") as file:
        return f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()[:8]}"


def samples(values: Items, read: Callable[[Any, str], Samples], source: str, shape: str) -> Samples:
    """Yield the samples that `read` returns for each value and its place; `shape` is the reason for a value of another
    shape."""
    for where, value in values:
        try:
            yield from read(value, where)
        except Unusable as error:
            yield Dropped(error.reason, where, error.detail, source)
        except SHAPE_ERRORS as error:
            yield Dropped(shape, where, repr(error)[:120], source)


# -- sets -------------------------------------------------------------------------------------------------------------


def _expected(name: str, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> Call:
    """Return a call of one of these tools, with values converted to their parameters' types, since sets write numbers
    as strings."""
    schema = next((t["function"]["parameters"] for t in tools if t["function"]["name"] == name), None)
    if schema is None:
        raise Unusable(NOT_SHOWN, name)
    return Call(name, {k: coerced(v, schema["properties"].get(k, {})) for k, v in arguments.items()})


def chats(_: str, place: str) -> Samples:
    """Yield the samples of chats in OpenAI's format."""
    path = data_file(located(place, "chats in OpenAI's format"))
    source = f"{path.name} ({version(path)})"
    return samples(items(path), lambda value, where: chat(value, source, where), source, SHAPE)


def mobile_actions(part: str, place: str) -> Samples:
    """Yield chats over seven tools, with date and time in the developer's message."""
    path = data_file(located(place, "Mobile Actions"), "dataset.jsonl", "*.jsonl")
    source = f"mobile-actions ({version(path)}){':' if part else ''}{part}"

    def chosen(value: Any) -> bool:
        return not part or not isinstance(value, Mapping) or value.get("metadata") == part

    lines = ((where, value) for where, value in items(path) if chosen(value))
    return samples(lines, lambda value, where: chat(value, source, where), source, SHAPE)


def openfunctions(_: str, place: str) -> Samples:
    """Yield OpenFunctions v1's test file: one function with each question, the answer as a Python call.

    Functions without parameters are dropped, which leaves the paper's 109 of 112. `api_call` is the called function,
    not `name`.
    """
    path = data_file(located(place, "OpenFunctions v1"), "gorilla_openfunctions_v1_test.json")
    source, numbers = f"openfunctions v1 ({version(path)})", count()

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        name, function = f"openfunctions_{next(numbers)}", value["function"]
        parameters = dict(function.get("parameters") or {})
        if not parameters.get("properties"):
            raise Unusable("a function without parameters", str(function.get("api_call")))
        if "required" in function:  # once it is next to the parameters
            parameters.setdefault("required", function["required"])
        shown = tool(function["api_call"], function.get("description"), parameters)
        call = call_of(value["model_answer"])
        call = _expected(call.name, call.arguments, [shown])
        yield Sample(name, source, where, value["question"], "", (shown,), (call,))

    return samples(items(path), read, source, "a sample of another shape than OpenFunctions's")


def xlam(_: str, place: str) -> Samples:
    """Yield xLAM-60k: answers and tools are JSON in strings, parameters flat, with Python's annotations."""
    path = data_file(located(place, "xLAM-60k"), "xlam_function_calling_60k.json")
    source = f"xlam-60k ({version(path)})"

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        tools = tuple(_xlam_tool(each) for each in list_of(value["tools"], "tools"))
        calls = tuple(Call(a["name"], dict(a["arguments"])) for a in list_of(value["answers"], "answers"))
        if not calls:
            raise Unusable("no call")
        name = value.get("id", where.rpartition("/")[2])
        yield Sample(f"xlam_{name}", source, where, value["query"], "", tools, calls)

    return samples(items(path), read, source, "a sample of another shape than xLAM's")


def _xlam_tool(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool; a parameter is optional by `required` (of the set's card), else by annotation or a default."""
    body = value.get("function") or value  # some copies of the set wrap it as chat APIs do
    parameters = body.get("parameters") or {}
    if isinstance(parameters.get("type"), str):  # and some have a schema: a parameter of that name is an object
        return tool(body["name"], body.get("description"), parameters)
    properties, required = {}, []
    for name, parameter in parameters.items():
        kind, optional = annotation(str(parameter.get("type") or "str"))
        properties[name] = {**kind, "description": str(parameter.get("description") or "")}
        if "default" in parameter:
            properties[name]["default"] = parameter["default"]
            optional = True
        declared = parameter.get("required")
        if declared if isinstance(declared, bool) else not optional:
            required.append(name)
    schema = {"type": "object", "properties": properties, "required": required}
    return tool(body["name"], body.get("description"), schema)


SEAL_FILES = {"in-domain": "test_in_domain", "out-domain": "test_out_domain", "dev": "dev", "train": "train"}
SEVERAL = "-several"
SEAL_PARTS = tuple(f"{name}{end}" for name in SEAL_FILES for end in ("", SEVERAL))
EASY = "-easy-"  # in the ids of samples of one call
SHOWN = 5
REFERENCE = "API_call_"


def seal_tools(part: str, place: str) -> Samples:
    """Yield a part of Seal-Tools: its samples of one call ("in-domain"), or of several ("in-domain-several").

    The tools are those of the file for fine-tuning, else the called ones and others of `tool.jsonl`, five together. A
    call that needs an earlier one's result is dropped.
    """
    folder = located(place, "Seal-Tools")
    name = SEAL_FILES[part.removesuffix(SEVERAL)]
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        raise UserError(f"{folder} has no {path.name}.", "Give the folder of Seal-Tools that has this part.")
    shown = _seal_shown(folder, name)
    source = f"seal-tools ({version(path)}):{part}{'' if shown else f', {SHOWN} tools'}"
    known = {} if shown else {api["api_name"]: api for _, api in items(folder / "tool.jsonl")}

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        if (EASY in value["id"]) == part.endswith(SEVERAL):
            return
        names = [call["api"] for call in value["calling"]]
        apis = shown[value["id"]] if shown else _seal_sampled(names, known, value["id"])
        if REFERENCE in json.dumps([call["parameters"] for call in value["calling"]]):
            raise Unusable("a call that takes the result of an earlier one")
        tools = tuple({api["api_name"]: _seal_tool(api) for api in apis}.values())
        calls = tuple(_expected(call["api"], call["parameters"], tools) for call in value["calling"])
        yield Sample(value["id"], source, where, value["query"], "", tools, calls)

    return samples(items(path), read, source, "a sample of another shape than Seal-Tools's")


def _seal_shown(folder: Path, name: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return the tools in the prompts for fine-tuning, by sample: a Python literal between two markers."""
    for path in (folder / "dataset_for_finetune" / f"{name}.json{end}" for end in (".gz", "")):
        if path.is_file():
            return {value["id"]: _seal_listed(value, where) for where, value in items(path)}
    return {}


def _seal_listed(value: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    try:
        prompt = value["conversations"][0]["value"]
        start = prompt.index("api_list = ") + len("api_list = ")
        return list(ast.literal_eval(prompt[start : prompt.index("\ntask_instruction = ", start)]))
    except (LookupError, TypeError, ValueError, SyntaxError):
        message = f"{where}: its prompt lists no APIs."
        raise UserError(message, "Give Seal-Tools' files as they were published.") from None


def _seal_sampled(names: list[str], known: Mapping[str, Any], seed: str) -> list[Mapping[str, Any]]:
    if missing := [name for name in names if name not in known]:
        raise Unusable(NOT_SHOWN, missing[0])
    called = list(dict.fromkeys(names))
    rng = random.Random(seed)
    others = rng.sample([name for name in known if name not in called], max(0, SHOWN - len(called)))
    shown = [*called, *others]
    rng.shuffle(shown)
    return [known[name] for name in shown]


def _seal_tool(api: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": api["parameters"], "required": list(api["required"])}
    return tool(api["api_name"], api.get("api_description"), schema)


# "Required. string. One of: [a, b]. What it is."
PARAMETER = re.compile(r"\s*(?P<required>Required\.)?\s*(?P<type>[A-Za-z]+(?:\[.*\]|\{.*\})?)\.?\s*(?P<rest>.*)", re.S)
CHOICES = re.compile(r"One of:\s*\[([^\]]*)\]")
NOT_A_FUNCTION = "components"


def toolalpaca(_: str, place: str) -> Samples:
    """Yield a file of ToolAlpaca's instructions, each with all functions of its API, which are described in prose.

    Instructions that need several calls in a row are dropped.
    """
    path = data_file(located(place, "ToolAlpaca"), "eval_simulated.json", "eval_*.json")
    source = f"toolalpaca ({version(path)}):{path.stem.removeprefix('eval_')}"

    def read(value: tuple[Mapping[str, Any], int, str, Any], where: str) -> Iterator[Sample]:
        api, n, query, answers = value
        described = api["Function_Description"].items()
        tools = tuple(_alpaca_tool(name, text) for name, text in described if name != NOT_A_FUNCTION)
        if len(answers) != 1:
            raise Unusable("several calls in a row" if answers else "no call")
        call = _expected(answers[0]["Action"], arguments_of(answers[0]["Action_Input"]), tools)
        yield Sample(f"{path.stem}_{api.get('Name')}_{n}", source, where, query, "", tools, (call,))

    return samples(_alpaca_instructions(path), read, source, "a sample of another shape than ToolAlpaca's")


def _alpaca_instructions(path: Path) -> Iterator[tuple[str, tuple[Any, int, str, Any]]]:
    for where, api in items(path):
        try:
            pairs = list(zip(api["Instructions"], api["Golden_Answers"], strict=True))
        except SHAPE_ERRORS:
            pairs = [("", None)]
        for n, (query, answers) in enumerate(pairs):
            yield f"{where}, instruction {n + 1}", (api, n, query, answers)


def _alpaca_tool(name: str, text: str) -> dict[str, Any]:
    about, marker, rest = text.partition("\nParameters: ")
    try:
        parameters = json.JSONDecoder().raw_decode(rest)[0] if marker else {}
    except ValueError:
        raise Unusable("a function whose parameters cannot be read", name) from None
    required, properties = [], {}
    for key, words in parameters.items():
        match = PARAMETER.match(words)
        if match is None:
            raise Unusable("a function whose parameters cannot be read", f"{name}.{key}: {words}")
        properties[key] = {**_alpaca_kind(match["type"]), "description": match["rest"].strip()}
        if (choices := CHOICES.search(match["rest"])) and properties[key]["type"] == "string":
            properties[key]["enum"] = [choice.strip() for choice in choices[1].split(",")]
        if match["required"]:
            required.append(key)
    return tool(name, about, {"type": "object", "properties": properties, "required": required})


def _alpaca_kind(text: str) -> dict[str, Any]:
    """Read `Array[string]`, `Object{...}`; item types are kept for lists of plain values only."""
    outer, _, inside = text.partition("[")
    if outer.lower() != "array":
        return {"type": text.partition("{")[0]}
    plain = re.fullmatch(r"(string|integer|number|boolean)\]", inside)
    return {"type": "array", "items": {"type": plain[1]}} if plain else {"type": "array"}


@dataclass(frozen=True)
class DataSet:
    """A public set: `read(part, place)`; `part` is the default of its `parts`, `hub` the default place (empty: one must
    be given)."""

    read: Callable[[str, str], Samples]
    parts: tuple[str, ...] = ()
    part: str = ""
    hub: str = ""


SETS = {
    "mobile-actions": DataSet(mobile_actions, ("train", "eval"), hub="google/mobile-actions"),
    "seal-tools": DataSet(seal_tools, SEAL_PARTS, "in-domain"),
    "openfunctions": DataSet(openfunctions),
    "toolalpaca": DataSet(toolalpaca),
    "xlam": DataSet(xlam, hub="Salesforce/xlam-function-calling-60k"),
    "openai": DataSet(chats),
}


def read(source: str) -> Iterator[Sample | Dropped | Row]:
    """Yield the samples or rows of a source, which is the name of a set or a file of rows. Raises UserError."""
    head, _, place = source.partition("=")
    name, _, parts = head.partition(":")
    if name not in SETS:
        if not Path(source).is_file():
            raise UserError(f"{source!r} is neither a file nor a set.", f"Write {FORM}. Sets: {', '.join(SETS)}.")
        return read_rows(Path(source))
    data = SETS[name]
    if not place and not data.hub:
        raise UserError(f"There is no place of {name}.", f"Write {head}=PLACE: its file or folder, or a hub id.")
    chosen = parts.split(",") if parts else [data.part]
    if unknown := [part for part in chosen if part not in (*data.parts, data.part)]:
        hint = f"Choose of: {', '.join(data.parts)}." if data.parts else f"Write {name} alone."
        raise UserError(f"{name} has no part {unknown[0]!r}.", hint)
    return (sample for part in chosen for sample in data.read(part, place or data.hub))
