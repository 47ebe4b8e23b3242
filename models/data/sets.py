"""Read public data sets by name, as on the command line: `xlam`, `seal-tools:in-domain=FOLDER`, or a file of rows.

The place of a data set is a path, or an id of the Hugging Face hub, which is downloaded on first use.
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
from rtcontrol.models.data import types
from rtcontrol.models.data.chat import WRONG_SHAPE, chat_samples
from rtcontrol.models.data.row import Row, read_json_lines, read_rows
from rtcontrol.models.data.sample import SHAPE_ERRORS, DroppedSample, Sample, UnusableSample
from rtcontrol.models.errors import UserError, decode_utf8, open_input, strict_json, user_path

Samples = Iterator[Sample | DroppedSample]
Items = Iterable[tuple[str, Any]]
SOURCE_FORMAT = "NAME[:PART,...][=PLACE], such as seal-tools:dev=FOLDER or xlam=FILE, or a file of rows (JSONL)"
FILE_PATTERNS = ("*.json", "*.jsonl", "*.json.gz", "*.jsonl.gz")
UNKNOWN_FUNCTION = "a call of an unknown function"


# -- files ------------------------------------------------------------------------------------------------------------


def locate(place: str, name: str) -> Path:
    """Return the file or folder of the data set `name`. `place` is an existing path, or a hub id (OWNER/NAME), which is
    downloaded unless the local cache has it. Raises UserError."""
    path = user_path(place)
    if path.exists():
        return path
    if not hub.is_hub_id(place) or place.endswith((".json", ".jsonl", ".gz")):
        raise UserError(f"There is no {place}.", f"Give the file or folder of {name}, or a hub id OWNER/NAME.")
    from huggingface_hub import snapshot_download

    try:  # without a network, this returns the cached copy
        return Path(snapshot_download(place, repo_type="dataset", allow_patterns=list(FILE_PATTERNS)))
    except Exception as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
        raise UserError(
            f"{place} is not a path, and cannot be downloaded from the hub ({line}).",
            f"Give the file or folder of {name}. For a gated set, accept its terms on the hub and run `hf auth login`. "
            f"Without a network, run `hf download --repo-type dataset {place}` on another machine.",
        ) from None


def find_data_file(place: Path, *names: str) -> Path:
    """Return `place` if it is a file; else its first file that matches a pattern in `names`, or its only JSON file."""
    if place.is_file():
        return place
    for name in names:
        if matches := sorted(place.glob(name)):
            return matches[0]
    files = sorted({path for kind in FILE_PATTERNS for path in place.glob(kind) if path.is_file()})
    if len(files) == 1:
        return files[0]
    listed = ", ".join(path.name for path in files) or "no JSON file"
    raise UserError(f"{place} has none of {', '.join(names)}: {listed}.", "Give the file itself.")


def read_items(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) for each line of a JSONL file (PATH:LINE), or each item of a JSON list (PATH#NUMBER)."""
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        for line, value in read_json_lines(path):
            yield f"{path}:{line}", value
        return
    try:
        with open_input(path) as file:
            raw = file.read()
        values = strict_json(decode_utf8(gzip.decompress(raw) if path.suffix == ".gz" else raw, path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}).", "Give a file of the data set.") from None
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        raise UserError(f"{path} is not JSON ({error}).", "Give the data set's file as published.") from None
    if not isinstance(values, list):
        raise UserError(f"{path} is not a list of samples.", "Give the data set's file as published.")
    for n, value in enumerate(values, 1):
        yield f"{path}#{n}", value


def file_version(path: Path) -> str:
    """Return the version of a file: its revision on the hub, or the first digits of its SHA-256."""
    parts = path.absolute().parts
    if "snapshots" in parts[:-1]:
        return f"revision {parts[parts.index('snapshots') + 1][:8]}"
    with path.open("rb") as file:
        return f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()[:8]}"


def read_samples(values: Items, read: Callable[[Any, str], Samples], source: str, shape: str) -> Samples:
    """Yield the samples that `read(value, place)` returns for each item, and a DroppedSample for an unusable item.
    `shape` is the reason for items with an unexpected shape."""
    for where, value in values:
        try:
            yield from read(value, where)
        except UnusableSample as error:
            yield DroppedSample(error.reason, where, error.detail, source)
        except SHAPE_ERRORS as error:
            yield DroppedSample(shape, where, repr(error)[:120], source)


# -- sets -------------------------------------------------------------------------------------------------------------


def _typed_call(name: str, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> Call:
    """Return a call with values converted to the types of the tool's parameters, because data sets write numbers as
    strings. Raises UnusableSample if no tool has this name."""
    schema = next((t["function"]["parameters"] for t in tools if t["function"]["name"] == name), None)
    if schema is None:
        raise UnusableSample(UNKNOWN_FUNCTION, name)
    return Call(name, {k: types.convert_value(v, schema["properties"].get(k, {})) for k, v in arguments.items()})


def read_openai_chats(_: str, place: str) -> Samples:
    """Read samples from a file of chats in OpenAI's format."""
    path = find_data_file(locate(place, "chats in OpenAI's format"))
    source = f"{path.name} ({file_version(path)})"
    return read_samples(read_items(path), lambda value, where: chat_samples(value, source, where), source, WRONG_SHAPE)


def read_mobile_actions(part: str, place: str) -> Samples:
    """Read the data set Mobile Actions: chats with seven tools, with date and time in the developer message."""
    path = find_data_file(locate(place, "Mobile Actions"), "dataset.jsonl", "*.jsonl")
    source = f"mobile-actions ({file_version(path)}){':' if part else ''}{part}"

    def chosen(value: Any) -> bool:
        return not part or not isinstance(value, Mapping) or value.get("metadata") == part

    lines = ((where, value) for where, value in read_items(path) if chosen(value))
    return read_samples(lines, lambda value, where: chat_samples(value, source, where), source, WRONG_SHAPE)


def read_openfunctions(_: str, place: str) -> Samples:
    """Read OpenFunctions v1's test file: each sample has one function, and the right call as Python source. Functions
    without parameters are dropped, which leaves 109 of 112 samples, as in the SimpleTool paper."""
    path = find_data_file(locate(place, "OpenFunctions v1"), "gorilla_openfunctions_v1_test.json")
    source, numbers = f"openfunctions v1 ({file_version(path)})", count()

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        name, function = f"openfunctions_{next(numbers)}", value["function"]
        parameters = dict(function.get("parameters") or {})
        if not parameters.get("properties"):
            raise UnusableSample("a function without parameters", str(function.get("api_call")))
        if "required" in function:  # one sample has "required" outside of "parameters"
            parameters.setdefault("required", function["required"])
        shown = types.tool_definition(function["api_call"], function.get("description"), parameters)
        call = types.parse_call(value["model_answer"])
        call = _typed_call(call.name, call.arguments, [shown])
        yield Sample(name, source, where, value["question"], "", (shown,), (call,))

    return read_samples(read_items(path), read, source, "a sample of another shape than OpenFunctions's")


def read_xlam(_: str, place: str) -> Samples:
    """Read xLAM-60k: answers and tools are JSON texts, and parameters have Python annotations as types."""
    path = find_data_file(locate(place, "xLAM-60k"), "xlam_function_calling_60k.json")
    source = f"xlam-60k ({file_version(path)})"

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        tools = tuple(_xlam_tool(each) for each in types.parse_list(value["tools"], "tools"))
        calls = tuple(Call(a["name"], dict(a["arguments"])) for a in types.parse_list(value["answers"], "answers"))
        if not calls:
            raise UnusableSample("no call")
        name = value.get("id", where.rpartition("/")[2])
        yield Sample(f"xlam_{name}", source, where, value["query"], "", tools, calls)

    return read_samples(read_items(path), read, source, "a sample of another shape than xLAM's")


def _xlam_tool(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool definition. Without a field `required`, a parameter is optional if its annotation says so or it has
    a default."""
    body = value.get("function") or value  # some copies of the data set have the format of chat APIs
    parameters = body.get("parameters") or {}
    if isinstance(parameters.get("type"), str):  # a JSON schema; a parameter named "type" would have an object here
        return types.tool_definition(body["name"], body.get("description"), parameters)
    properties, required = {}, []
    for name, parameter in parameters.items():
        kind, optional = types.parse_annotation(str(parameter.get("type") or "str"))
        properties[name] = {**kind, "description": str(parameter.get("description") or "")}
        if "default" in parameter:
            properties[name]["default"] = parameter["default"]
            optional = True
        declared = parameter.get("required")
        if declared if isinstance(declared, bool) else not optional:
            required.append(name)
    schema = {"type": "object", "properties": properties, "required": required}
    return types.tool_definition(body["name"], body.get("description"), schema)


SEAL_FILES = {"in-domain": "test_in_domain", "out-domain": "test_out_domain", "dev": "dev", "train": "train"}
SEVERAL = "-several"
SEAL_PARTS = tuple(f"{name}{end}" for name in SEAL_FILES for end in ("", SEVERAL))
SINGLE_CALL = "-easy-"  # ids of samples with only one call contain this
TOOLS_SHOWN = 5
RESULT_REFERENCE = "API_call_"


def read_seal_tools(part: str, place: str) -> Samples:
    """Read a part of Seal-Tools: samples with one call ("in-domain"), or with several calls ("in-domain-several").

    The tools of a sample come from the file for fine-tuning. Without that file, they are the called tools and random
    other tools of `tool.jsonl`, five in all. Samples in which a call uses another call's result are dropped.
    """
    folder = locate(place, "Seal-Tools")
    name = SEAL_FILES[part.removesuffix(SEVERAL)]
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        raise UserError(f"{folder} has no {path.name}.", "Give the folder of Seal-Tools with this part.")
    shown = _seal_prompt_tools(folder, name)
    source = f"seal-tools ({file_version(path)}):{part}{'' if shown else f', {TOOLS_SHOWN} tools'}"
    known = {} if shown else {api["api_name"]: api for _, api in read_items(folder / "tool.jsonl")}

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        if (SINGLE_CALL in value["id"]) == part.endswith(SEVERAL):
            return
        names = [call["api"] for call in value["calling"]]
        apis = shown[value["id"]] if shown else _sample_seal_tools(names, known, value["id"])
        if RESULT_REFERENCE in json.dumps([call["parameters"] for call in value["calling"]]):
            raise UnusableSample("a call that uses the result of another call")
        tools = tuple({api["api_name"]: _seal_tool(api) for api in apis}.values())
        calls = tuple(_typed_call(call["api"], call["parameters"], tools) for call in value["calling"])
        yield Sample(value["id"], source, where, value["query"], "", tools, calls)

    return read_samples(read_items(path), read, source, "a sample of another shape than Seal-Tools's")


def _seal_prompt_tools(folder: Path, name: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return, by sample id, the tools in the prompts for fine-tuning, which are Python literals between two markers."""
    for path in (folder / "dataset_for_finetune" / f"{name}.json{end}" for end in (".gz", "")):
        if path.is_file():
            return {value["id"]: _parse_seal_prompt(value, where) for where, value in read_items(path)}
    return {}


def _parse_seal_prompt(value: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    try:
        prompt = value["conversations"][0]["value"]
        start = prompt.index("api_list = ") + len("api_list = ")
        return list(ast.literal_eval(prompt[start : prompt.index("\ntask_instruction = ", start)]))
    except (LookupError, TypeError, ValueError, SyntaxError):
        message = f"{where}: its prompt has no list of APIs."
        raise UserError(message, "Give Seal-Tools' files as published.") from None


def _sample_seal_tools(names: list[str], known: Mapping[str, Any], seed: str) -> list[Mapping[str, Any]]:
    if missing := [name for name in names if name not in known]:
        raise UnusableSample(UNKNOWN_FUNCTION, missing[0])
    called = list(dict.fromkeys(names))
    rng = random.Random(seed)
    others = rng.sample([name for name in known if name not in called], max(0, TOOLS_SHOWN - len(called)))
    shown = [*called, *others]
    rng.shuffle(shown)
    return [known[name] for name in shown]


def _seal_tool(api: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": api["parameters"], "required": list(api["required"])}
    return types.tool_definition(api["api_name"], api.get("api_description"), schema)


# Matches the text of a parameter, such as "Required. string. One of: [a, b]. Name of the city."
PARAMETER = re.compile(r"\s*(?P<required>Required\.)?\s*(?P<type>[A-Za-z]+(?:\[.*\]|\{.*\})?)\.?\s*(?P<rest>.*)", re.S)
CHOICES = re.compile(r"One of:\s*\[([^\]]*)\]")
NOT_A_FUNCTION = "components"


def read_toolalpaca(_: str, place: str) -> Samples:
    """Read a file of ToolAlpaca. The tools of an instruction are all functions of its API, described in prose.
    Instructions that need several calls are dropped."""
    path = find_data_file(locate(place, "ToolAlpaca"), "eval_simulated.json", "eval_*.json")
    source = f"toolalpaca ({file_version(path)}):{path.stem.removeprefix('eval_')}"

    def read(value: tuple[Mapping[str, Any], int, str, Any], where: str) -> Iterator[Sample]:
        api, n, query, answers = value
        described = api["Function_Description"].items()
        tools = tuple(_alpaca_tool(name, text) for name, text in described if name != NOT_A_FUNCTION)
        if len(answers) != 1:
            raise UnusableSample("several calls" if answers else "no call")
        call = _typed_call(answers[0]["Action"], types.parse_arguments(answers[0]["Action_Input"]), tools)
        yield Sample(f"{path.stem}_{api.get('Name')}_{n}", source, where, query, "", tools, (call,))

    return read_samples(_alpaca_instructions(path), read, source, "a sample of another shape than ToolAlpaca's")


def _alpaca_instructions(path: Path) -> Iterator[tuple[str, tuple[Any, int, str, Any]]]:
    for where, api in read_items(path):
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
        raise UnusableSample("a function whose parameters cannot be read", name) from None
    required, properties = [], {}
    for key, words in parameters.items():
        match = PARAMETER.match(words)
        if match is None:
            raise UnusableSample("a function whose parameters cannot be read", f"{name}.{key}: {words}")
        properties[key] = {**_alpaca_schema(match["type"]), "description": match["rest"].strip()}
        if (choices := CHOICES.search(match["rest"])) and properties[key]["type"] == "string":
            properties[key]["enum"] = [choice.strip() for choice in choices[1].split(",")]
        if match["required"]:
            required.append(key)
    return types.tool_definition(name, about, {"type": "object", "properties": properties, "required": required})


def _alpaca_schema(text: str) -> dict[str, Any]:
    """Return the schema of a type such as `Array[string]` or `Object{...}`. Item types of nested lists are dropped."""
    outer, _, inside = text.partition("[")
    if outer.lower() != "array":
        return {"type": text.partition("{")[0]}
    plain = re.fullmatch(r"(string|integer|number|boolean)\]", inside)
    return {"type": "array", "items": {"type": plain[1]}} if plain else {"type": "array"}


@dataclass(frozen=True)
class DataSet:
    """A public data set. `read(part, place)` yields its samples. `part` is the default among its `parts`. `hub` is its
    id on the Hugging Face hub, the default place (empty: the user must give a place)."""

    read: Callable[[str, str], Samples]
    parts: tuple[str, ...] = ()
    part: str = ""
    hub: str = ""


SETS = {
    "mobile-actions": DataSet(read_mobile_actions, ("train", "eval"), hub="google/mobile-actions"),
    "seal-tools": DataSet(read_seal_tools, SEAL_PARTS, "in-domain"),
    "openfunctions": DataSet(read_openfunctions),
    "toolalpaca": DataSet(read_toolalpaca),
    "xlam": DataSet(read_xlam, hub="Salesforce/xlam-function-calling-60k"),
    "openai": DataSet(read_openai_chats),
}


def read_source(source: str) -> Iterator[Sample | DroppedSample | Row]:
    """Return the samples of a data set, or the rows of a file; see SOURCE_FORMAT for `source`. Raises UserError."""
    head, _, place = source.partition("=")
    name, _, parts = head.partition(":")
    if name not in SETS:
        if not Path(source).is_file():
            hint = f"Write {SOURCE_FORMAT}. Sets: {', '.join(SETS)}."
            raise UserError(f"{source!r} is neither a file nor a data set.", hint)
        return read_rows(Path(source))
    data = SETS[name]
    if not place and not data.hub:
        raise UserError(f"The place of {name} is missing.", f"Write {head}=PLACE: its file or folder, or a hub id.")
    chosen = parts.split(",") if parts else [data.part]
    if unknown := [part for part in chosen if part not in (*data.parts, data.part)]:
        hint = f"Choose one of: {', '.join(data.parts)}." if data.parts else f"Write {name} alone."
        raise UserError(f"{name} has no part {unknown[0]!r}.", hint)
    return (sample for part in chosen for sample in data.read(part, place or data.hub))
