"""Tools whose free values rarely satisfy the rules that are only checked after decoding are named, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from rtcontrol.agents import Tools
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode import probe
from rtcontrol.models.decode.probe import check_probes
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.run.toolsets import check_decodable
from tests.models.small import tool

TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
NUMBER = {"type": "number"}
CHOICE = {"a": {"enum": ["x", "y"]}, "b": {"type": "string"}}
NEVER = {
    "contains": TEXTS | {"contains": {"type": "integer"}},
    "not": {"type": "string", "not": {"minLength": 0}},
    "oneOf": {"oneOf": [{"type": "string"}, {"type": "string", "title": "again"}]},
}


@pytest.fixture(scope="module")
def tokenizer() -> STTokenizer:
    return Checkpoint.open("lander").tokenizer


@pytest.mark.parametrize("rule", NEVER)
def test_refuses_a_tool_of_which_no_random_value_is_legal(rule: str, tokenizer: STTokenizer) -> None:
    with pytest.raises(
        UserError, match=f"^Tool put, parameter v: all 32 random values violate `{rule}`, such as "
    ) as no:
        check_decodable(tool_schemas([tool("put", v=NEVER[rule])]), tokenizer)
    assert "Relax these rules" in no.value.remedy


@pytest.mark.parametrize(
    "schema",
    [
        TEXTS | {"contains": {"const": "home"}},
        TEXTS | {"contains": {"pattern": "^ab[0-9]{5}$"}},
        {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 100_000, "maximum": 100_010}},
        {"oneOf": [NUMBER, {"type": "integer"}]},
        {"type": "object", "additionalProperties": NUMBER, "minProperties": 4},
        {"type": "object", "additionalProperties": NUMBER, "propertyNames": {"pattern": "^[A-Z]{3}$"}},
        {
            "type": "object",
            "properties": CHOICE,
            "required": ["a", "b"],
            "if": {"properties": {"a": {"const": "x"}}},
            "then": {"properties": {"b": {"pattern": "^q[0-9]+$"}}},
        },
    ],
)
def test_names_a_tool_whose_random_values_are_often_illegal(schema: dict[str, Any]) -> None:
    tools = Tools([tool("put", v=schema)])
    check_probes(tools.schemas)
    assert " of 32 random values violate " in tools.warnings()[-1] and "is a miss" in tools.warnings()[-1]
    assert tools.warnings() == Tools([tool("put", v=schema)]).warnings()


def test_passes_values_that_are_hardly_ever_illegal() -> None:
    tools = Tools([tool("put", v=TEXTS | {"uniqueItems": True, "minItems": 3}, text={"type": "string"})])
    assert not any("random" in line for line in tools.warnings())


def test_refuses_no_tool_that_can_be_called_otherwise() -> None:
    optional = tool("put", v=NEVER["contains"])
    optional["parameters"]["required"] = []
    legal = NEVER["contains"] | {"contains": {"pattern": "^(x{40}y){3}$", "maxLength": 3}, "examples": [["a"]]}
    by_example = tool("put", v=legal | {"contains": {"not": {"maxLength": 500}}, "examples": [["x" * 501]]})
    for definition in (optional, by_example):
        check_probes(tool_schemas([definition]))
        assert "random values violate" in Tools([definition]).warnings()[-1]


def test_limits_the_choices_of_a_tool_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    probe._probe_parameter.cache_clear()
    taken: list[int] = []
    results = probe._probe_parameter.__wrapped__

    def counted(written: str) -> probe.ProbeResult:
        result = results(written)
        taken.append(result.choices)
        return result

    monkeypatch.setattr(probe, "_probe_parameter", counted)
    many = [tool(f"t{i}", **{f"v{k}": NEVER["contains"] for k in range(6)}) for i in range(60)]
    often = list(probe.unreliable_parameters(tool_schemas(many)))
    assert max(taken) < probe.MAX_OF_TOOL and sum(taken) < probe.MAX_CHOICES + probe.MAX_OF_TOOL
    assert often[0][2].count == 32
