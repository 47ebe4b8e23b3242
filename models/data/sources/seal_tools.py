"""Seal-Tools: queries over 4,076 made-up tools, five of which are shown with each."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import Dropped, Sample, Unusable
from rtcontrol.models.data.sources import files
from rtcontrol.models.data.written import coerced, tool
from rtcontrol.models.errors import UserError

FILES = {"in-domain": "test_in_domain", "out-domain": "test_out_domain", "dev": "dev", "train": "train"}
SEVERAL = "-several"
PARTS = tuple(f"{name}{end}" for name in FILES for end in ("", SEVERAL))
EASY = "-easy-"  # in the ids of samples of one call
SHOWN = 5
REFERENCE = "API_call_"


def samples(part: str, given: str) -> Iterator[Sample | Dropped]:
    """One part, of the set's folder: its samples of one call ("in-domain"), or of several ("in-domain-several"). The
    tools shown are those of the file for fine-tuning where that is there, else the gold ones and others of
    `tool.jsonl`, five together, the same ones each time.

    Gold numbers are strings: they are read by their parameter's type. Later calls that take an earlier one's result are
    no parallel calls, and are dropped.
    """
    if part not in PARTS:
        raise UserError(f"Seal-Tools has no part {part!r}.", f"Choose of: {', '.join(PARTS)}.")
    folder = files.located(given, "Seal-Tools")
    if folder.is_file():
        raise UserError(f"{folder} is a file.", "Give the folder of Seal-Tools, with tool.jsonl in it.")
    name = FILES[part.removesuffix(SEVERAL)]
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        raise UserError(f"{folder} has no {path.name}.", "Give the folder of Seal-Tools that has this part.")
    shown = _shown(folder, name)
    source = f"seal-tools ({files.version(path)}):{part}{'' if shown else f', {SHOWN} tools'}"
    known = {} if shown else {api["api_name"]: api for _, api in files.items(folder / "tool.jsonl")}

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        if (EASY in value["id"]) != part.endswith(SEVERAL):
            names = [call["api"] for call in value["calling"]]
            apis = shown[value["id"]] if shown else _drawn(names, known, value["id"])
            yield _sample(value, apis, source, where)

    return files.samples(files.items(path), read, source, "a sample of another shape than Seal-Tools's")


def _shown(folder: Path, name: str) -> dict[str, list[Mapping[str, Any]]]:
    """The tools in the prompts for fine-tuning, by sample: a Python literal between two markers."""
    for path in (folder / "dataset_for_finetune" / f"{name}.json{end}" for end in (".gz", "")):
        if path.is_file():
            return {value["id"]: _listed(value, where) for where, value in files.items(path)}
    return {}


def _listed(value: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    try:
        prompt = value["conversations"][0]["value"]
        start = prompt.index("api_list = ") + len("api_list = ")
        return list(ast.literal_eval(prompt[start : prompt.index("\ntask_instruction = ", start)]))
    except (LookupError, TypeError, ValueError, SyntaxError):
        raise UserError(
            f"{where}: its prompt lists no APIs.", "Give Seal-Tools' files as they were published."
        ) from None


def _drawn(names: list[str], known: Mapping[str, Any], seed: str) -> list[Mapping[str, Any]]:
    if missing := [name for name in names if name not in known]:
        raise Unusable("a call of a function that is not shown", missing[0])
    gold = list(dict.fromkeys(names))
    drawn = random.Random(seed)
    others = drawn.sample([name for name in known if name not in gold], max(0, SHOWN - len(gold)))
    both = [*gold, *others]
    drawn.shuffle(both)
    return [known[name] for name in both]


def _sample(value: Mapping[str, Any], apis: list[Mapping[str, Any]], source: str, where: str) -> Sample:
    if REFERENCE in json.dumps([call["parameters"] for call in value["calling"]]):
        raise Unusable("a call that takes the result of an earlier one")
    by_name = {api["api_name"]: api for api in apis}
    tools = {name: _tool(api) for name, api in by_name.items()}
    calls = []
    for call in value["calling"]:
        if call["api"] not in tools:
            raise Unusable("a call of a function that is not shown", call["api"])
        properties = tools[call["api"]]["function"]["parameters"]["properties"]
        calls.append(Call(call["api"], {k: coerced(v, properties.get(k, {})) for k, v in call["parameters"].items()}))
    return Sample(value["id"], source, where, value["query"], "", tuple(tools.values()), tuple(calls))


def _tool(api: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": api["parameters"], "required": list(api["required"])}
    return tool(api["api_name"], api.get("api_description"), schema)
