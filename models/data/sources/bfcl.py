"""BFCL v3 and v4, single turn: the data files of an installed `bfcl-eval`, which is never imported."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Check
from rtcontrol.models.data.sample import SHAPE_ERRORS, Dropped, Sample, Unusable
from rtcontrol.models.data.sources.files import items
from rtcontrol.models.data.types import tool
from rtcontrol.models.data.values import call_of
from rtcontrol.models.errors import UserError
from rtcontrol.models.interpreters import SECONDS, interpreter

VARIABLE = "RTCONTROL_BFCL"
INSTALL = (
    "`pip install --no-deps bfcl-eval` in an environment of its own, then --python ITS/bin/python (or the variable "
    f"{VARIABLE}: an interpreter, or the package's folder)."
)
CATEGORIES = (
    *("simple_python", "multiple", "parallel", "parallel_multiple"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    *("exec_simple", "exec_multiple"),
)
V3_NAMES = {"simple_python": "simple"}
Optionals = Literal["omit", "give"]


def package_folder(given: Path | None = None) -> Path:
    """The folder of `bfcl_eval`: as given (or as RTCONTROL_BFCL says), a folder or an interpreter that has it, else of
    this interpreter. Raises UserError."""
    place = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if place is not None and place.is_dir():
        for folder in (place, place / "bfcl_eval", place.parent):
            if (folder / "data").is_dir():
                return folder
        raise UserError(f"{place} has no folder `data` of BFCL.", INSTALL)
    python = interpreter(("bfcl_eval",), given, VARIABLE, INSTALL)
    find = "import importlib.util as u; print(u.find_spec('bfcl_eval').submodule_search_locations[0])"
    done = subprocess.run([str(python), "-c", find], capture_output=True, text=True, timeout=SECONDS, check=True)
    return Path(done.stdout.strip())


def version(folder: Path) -> str:
    """Name and version of the package whose folder it is."""
    for info in sorted(folder.parent.glob("bfcl_eval-*.dist-info")):
        return f"bfcl-eval {info.name.removeprefix('bfcl_eval-').removesuffix('.dist-info')}"
    return f"bfcl ({folder.name})"


def samples(category: str, place: Path | None = None, optionals: Optionals = "omit") -> Iterator[Sample | Dropped]:
    """One category. Of a parameter the first allowed value is gold; one that may be left out is (`optionals` "omit"),
    or has its first value all the same ("give")."""
    if category not in CATEGORIES:
        raise UserError(f"BFCL has no single-turn category {category!r}.", f"Choose of: {', '.join(CATEGORIES)}.")
    folder = package_folder(place)
    source = f"{version(folder)}:{category}"
    questions = _file(folder / "data", "question", category)
    answers = {}
    if (path := _file(folder / "data", "possible_answer", category, questions)) is not None:
        answers = {value["id"]: value["ground_truth"] for _, value in items(path)}
    assert questions is not None, "it was looked for without a stand-in"
    for where, value in items(questions):
        try:
            gold = answers[value["id"]] if answers else value["ground_truth"]
            yield _sample(value, gold, category, source, where, optionals)
        except Unusable as error:
            yield Dropped(error.reason, where, error.detail, source)
        except SHAPE_ERRORS as error:
            yield Dropped("a sample of another shape than BFCL's", where, repr(error)[:120], source)


def _file(data: Path, kind: str, category: str, questions: Path | None = None) -> Path | None:
    """Of questions, or of answers (None where the questions' file has them itself, as v3's executable ones)."""
    inside = "" if kind == "question" else f"{kind}/"
    names = {category, V3_NAMES.get(category, category)}
    patterns = [f"{place}BFCL_v*_{name}.json" for name in names for place in (inside, f"unused_datasets/{kind}/")]
    # `*` would take `live_simple` for `simple`, too.
    found = [
        path
        for pattern in patterns
        for path in sorted(data.glob(pattern), reverse=True)
        if path.name.split("_", 2)[2].removesuffix(".json") in names
    ]
    if not found and questions is None:
        raise UserError(f"{data} has no {kind} file of BFCL's {category}.", INSTALL)
    return found[0] if found else None


def _sample(
    value: Mapping[str, Any], gold: Any, category: str, source: str, where: str, optionals: Optionals
) -> Sample:
    turns = value["question"]
    if len(turns) != 1:
        raise Unusable("several turns")
    functions = tuple(value["function"])
    by_name = {f["name"]: f for f in functions}
    calls, checks = [], []
    for answer in gold:
        if isinstance(answer, str):
            call = call_of(answer)
            allowed = {call.name: {k: [v] for k, v in call.arguments.items()}}
        else:
            allowed = answer
            call = _call(answer, by_name, optionals)
        calls.append(call)
        checks.append(Check(category, functions, [allowed]))
    if not calls:
        raise Unusable("no call")
    messages = turns[0]
    return Sample(
        value["id"],
        source,
        where,
        "\n".join(m["content"] for m in messages if m["role"] == "user"),
        "\n".join(m["content"] for m in messages if m["role"] != "user"),
        tuple(tool(f["name"], f.get("description"), f.get("parameters")) for f in functions),
        tuple(calls),
        checks=tuple(checks),
    )


def _call(answer: Mapping[str, Any], functions: Mapping[str, Any], optionals: Optionals) -> Call:
    ((name, allowed),) = answer.items()
    if name not in functions:
        raise Unusable("a call of a function that is not shown", name)
    schema = functions[name].get("parameters") or {}
    return Call(name, _chosen(allowed, schema, optionals))


def _chosen(allowed: Mapping[str, Any], schema: Mapping[str, Any], optionals: Optionals) -> dict[str, Any]:
    """Of each key its first allowed value; "" among them says that it may be left out."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    found = {}
    for key, values in allowed.items():
        choices = values if isinstance(values, list) else [values]  # a bare value occurs
        real = [v for v in choices if v != ""]
        if "" in choices and key not in required and (optionals == "omit" or not real):
            continue
        found[key] = _first((real or choices or [[]])[0], properties.get(key, {}), optionals)
    return found


def _first(value: Any, schema: Mapping[str, Any], optionals: Optionals) -> Any:
    """Objects, and objects in lists, list what is allowed for each of their keys, too."""
    if isinstance(value, Mapping):
        return _chosen(value, schema, optionals)
    if isinstance(value, list):
        return [_first(one, schema.get("items", {}), optionals) for one in value]
    return value
