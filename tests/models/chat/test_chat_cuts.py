"""How often a call that is cut at its values has other tokens than its whole text, with Qwen's own tokenizer."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.chat_template import HERMES, encode_marked
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.chat_plan import ChatPlan
from rtcontrol.models.decode.grammar import Grammars
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from rtcontrol.run import assembly
from tests.models.chat.families import calls_of

Case = tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]  # tools, and calls of theirs
TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
EVERY = 16  # of seal_tools, whose tools are all different
MIXED: dict[str, Any] = {
    "text": {"enum": ["left", "left turn", "grün", "v2"]},
    "edge": {"enum": ['a "b"', "stop!", " go"]},
    "number": {"type": "integer", "minimum": -3, "maximum": 12},
    "share": {"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.5},
    "any": {"anyOf": [{"enum": ["go", "stop"]}, {"type": "integer", "minimum": -2, "maximum": 2}, {"type": "null"}]},
    "flag": {"type": "boolean"},
    "list": {"type": "array", "items": {"enum": [-1, 2]}, "minItems": 0, "maxItems": 2},
}


def bundled(data: Path) -> Iterator[Case]:
    for agent in assembly.agents().values():
        calls = [(t.name, c) for t in agent.tools.schemas for c in calls_of(t, 2000)]
        yield agent.tools.openai(), calls


def mixed(data: Path) -> Iterator[Case]:
    """Two parameters of every kind, and each alone."""
    for first in MIXED:
        for second in MIXED:
            properties = {"a": MIXED[first], "b": MIXED[second]}
            tool = {"name": "go", "parameters": {"properties": properties, "required": ["a"]}}
            (schema,) = tool_schemas([tool])
            yield [tool], [("go", c) for c in calls_of(schema, 500)]


def seal_tools(data: Path) -> Iterator[Case]:
    """What people's calls say, by the type that their tool declares."""
    rows = [json.loads(line) for line in (data / "seal_tools" / "tool.jsonl").read_text("utf-8").splitlines()]
    known = {row["api_name"]: row for row in rows}
    for line in (data / "seal_tools" / "dev.jsonl").read_text("utf-8").splitlines()[::EVERY]:
        for told in json.loads(line)["calling"]:
            row = known.get(told["api"])
            if row is None or not set(told["parameters"]) <= set(row["parameters"]):
                continue
            properties = {p: {"type": TYPES[row["parameters"][p]["type"]]} for p in told["parameters"]}
            given = {p: _as(properties[p]["type"], v) for p, v in told["parameters"].items()}
            parameters = {"properties": properties, "required": list(properties)}
            yield [{"name": told["api"], "parameters": parameters}], [(told["api"], given)]


def openfunctions(data: Path) -> Iterator[Case]:
    for row in json.loads((data / "openfunctions_v1" / "gorilla_openfunctions_v1_test.json").read_text("utf-8")):
        try:
            call: Any = ast.parse(row["model_answer"], mode="eval").body
            given = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
        except (AttributeError, SyntaxError, ValueError):
            continue
        kinds = {str: "string", int: "integer", float: "number", bool: "boolean"}
        if any(type(v) not in {*kinds, list} for v in given.values()):
            continue
        properties = {k: {"type": kinds.get(type(v), "array"), "items": {}} for k, v in given.items()}
        for name, value in given.items():
            if not isinstance(value, list):
                properties[name].pop("items")
        name = row["function"]["api_call"]
        yield [{"name": name, "parameters": {"properties": properties, "required": list(properties)}}], [(name, given)]


def mobile_actions(data: Path) -> Iterator[Case]:
    for line in (data / "mobile_actions" / "notebook_examples.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        for call in row["messages"][-1]["tool_calls"]:
            tools = json.loads(json.dumps(row["tools"]).replace('"STRING"', '"string"').replace('"OBJECT"', '"object"'))
            yield tools, [(call["function"]["name"], call["function"]["arguments"])]


def _as(kind: str, value: Any) -> Any:
    try:
        return {"string": str, "integer": int, "number": float, "boolean": bool}[kind](value)
    except (TypeError, ValueError):
        return str(value)


def count(tokenizer: STTokenizer, cases: Iterator[Case]) -> tuple[int, Counter[str]]:
    """Calls, and of those whose tokens differ what their values have."""
    grammars, calls, other = Grammars(tokenizer, tokenizer.size), 0, Counter[str]()
    for given, said in cases:
        try:
            tools = tool_schemas(given)
            plan = ChatPlan(tools, tokenizer, HERMES, grammars, parallel=False)
        except UserError:
            continue
        for name, arguments in said:
            tool = next(t for t in tools if t.name == name)
            ordered = {p.name: arguments[p.name] for p in tool.parameters if p.name in arguments}
            pieces = plan.pieces(Call(name, ordered))
            written = json.dumps({"name": name, "arguments": ordered}, ensure_ascii=False)
            calls += 1
            if [t for p in pieces for t in p] != encode_marked(tokenizer, f"<tool_call>\n{written}\n</tool_call>"):
                other[_why(tool, ordered)] += 1
    return calls, other


def _why(tool: ToolSchema, arguments: dict[str, Any]) -> str:
    values = list(arguments.values())
    if any(isinstance(v, str) and v and not (v[0].isalnum() and v[-1].isalnum()) for v in values):
        return "a text begins or ends with no letter or digit"
    if any(isinstance(v, float) and "e" in repr(v) for v in values):
        return "a number that is written with an exponent"
    return "a list or an object" if any(isinstance(v, list | dict) for v in values) else "else"


@pytest.mark.parametrize(
    ("cases", "least", "reasons"),
    [
        (bundled, 1.0, set()),
        (mixed, 0.8, {"a text begins or ends with no letter or digit", "a list or an object"}),
        (
            seal_tools,
            0.9,
            {"a text begins or ends with no letter or digit", "a number that is written with an exponent"},
        ),
        (openfunctions, 0.9, {"a text begins or ends with no letter or digit", "a list or an object"}),
        (mobile_actions, 1.0, set()),
    ],
)
def test_a_call_that_is_cut_at_its_values_has_the_tokens_of_its_whole_text(
    data: Path, cases: Callable[[Path], Iterator[Case]], least: float, reasons: set[str]
) -> None:
    tokenizer = STTokenizer.load(data / "qwen2_tokenizer" / "tokenizer.json")
    calls, other = count(tokenizer, cases(data))
    print(f"{cases.__name__}: {calls} calls, {calls - other.total()} with the tokens of the whole text; {dict(other)}")
    assert calls and 1 - other.total() / calls >= least
    assert set(other) <= reasons
