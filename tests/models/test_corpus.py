"""Tool lists of public MCP servers, their shapes rebuilt: each tool is taken or refused by name, and where it is taken,
training, validation and jsonschema agree about its calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rtcontrol.agents import InvalidCall, Tools
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.data.canonical import check_call, declared, ordered
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.train.vocabulary import build_tokenizer
from rtcontrol.run.toolsets import undecodable
from tests.models.small import WORDS

FILES = sorted((Path(__file__).parent / "corpus").glob("*.json"))
CASES = [(file.stem, case) for file in FILES for case in json.loads(file.read_text("utf-8"))]
KNOWN = "none_of_these"  # an argument without a name: jsonschema may take it, a call of named arguments does not


def test_the_corpus_has_the_shapes_of_three_servers() -> None:
    assert {name for name, _ in CASES} == {"github", "playwright", "ros"} and len(CASES) >= 40


@pytest.mark.parametrize(("server", "case"), CASES, ids=[f"{s}-{c['tool']['name']}" for s, c in CASES])
def test_what_validates_is_learnt_and_what_does_not_is_refused(server: str, case: dict[str, Any]) -> None:
    tool, right, wrong = case["tool"], case["valid"], case["invalid"]
    judge = jsonschema.Draft202012Validator(tool["inputSchema"])
    assert judge.is_valid(right) and (not judge.is_valid(wrong) or KNOWN in wrong)
    tools = Tools([tool])
    (schema,) = tools.schemas
    good, bad = Call(tool["name"], right), Call(tool["name"], wrong)
    tools.validate(good)
    with pytest.raises(InvalidCall):
        tools.validate(bad)
    check_call(good, schema)
    with pytest.raises(Unusable):
        check_call(bad, schema)
    tokenizer = STTokenizer(build_tokenizer([WORDS]))
    assert not undecodable(tools.schemas, tokenizer)
    plan = compile_plan(tools.schemas, tokenizer)
    (_, name), *heads = plan.head_values(ordered(declared(good, schema), schema))
    assert name == tool["name"] and len(heads) == len(schema.slots())


def test_all_tools_of_a_server_are_taken_together() -> None:
    for file in FILES:
        listed = [case["tool"] for case in json.loads(file.read_text("utf-8"))]
        assert len(Tools(listed).schemas) == len(listed)
