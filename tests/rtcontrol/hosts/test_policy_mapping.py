"""The mapping between an agent and a policy of arrays, and what is wrong with a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rtcontrol.agents import Tools
from rtcontrol.hosts.policy_mapping import PolicyMapping, UnmappedObservation
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas

ENGINES: dict[str, Any] = {
    "name": "engines",
    "parameters": {
        "properties": {
            "main": {"enum": [0, 50, 60, 100]},
            "side": {"type": "number", "minimum": -1, "maximum": 1},
            "turns": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
        },
        "required": ["main", "side", "turns"],
    },
}
GRIP: dict[str, Any] = {
    "name": "grip",
    "parameters": {
        "properties": {"closed": {"type": "boolean"}, "way": {"enum": ["left", "stay", "right"]}},
        "required": ["closed", "way"],
    },
}
FINE: dict[str, Any] = {
    "name": "fine",
    "parameters": {
        "properties": {"at": {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.001}},
        "required": ["at"],
    },
}


def mapping(tmp_path: Path, text: str | None, *tools: dict[str, Any]) -> PolicyMapping:
    if text is None:
        return PolicyMapping.read(None, tool_schemas(list(tools)))
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    return PolicyMapping.read(str(file), tool_schemas(list(tools)))


def test_without_a_file_a_tools_numbers_in_order_are_an_action(tmp_path: Path) -> None:
    made = mapping(tmp_path, None, ENGINES)
    call = made.call([57.0, 0.25, 3.4])
    assert call == Call("engines", {"main": 60, "side": 0.25, "turns": 3})
    assert type(call.arguments["main"]) is int and type(call.arguments["turns"]) is int


def test_the_numbers_of_the_first_observation_in_order_are_the_state(tmp_path: Path) -> None:
    made = mapping(tmp_path, None, ENGINES).fixed({"x": 1.5, "name": "r2", "legs": True, "image": np.zeros(3)})
    told = made.question({"legs": False, "x": 2.0}, "land")
    assert told["observation/state"].tolist() == [2.0, 0.0] and told["observation/state"].dtype == np.float32
    assert told["prompt"] == "land"


def test_numbers_are_scaled_ignored_and_levels_named(tmp_path: Path) -> None:
    text = """
        prompt: null
        observation: {state: [x, y], cam: image}
        actions: [null, {parameter: way, levels: {-1: left, 0: stay, 1: right}},
                  {parameter: closed, scale: 2, offset: -1, levels: {-1: true, 1: false}}]
    """
    made = mapping(tmp_path, text, GRIP)
    assert made.call([9.9, 0.6, 0.2]) == Call("grip", {"way": "right", "closed": True})
    image = np.zeros((4, 4, 3), np.uint8)
    told = made.question({"x": 1, "y": 2, "image": image}, "go")
    assert set(told) == {"state", "cam"} and told["cam"] is image


@pytest.mark.parametrize("row", [[120.1, 0, 0], [-25.1, 0, 0], [50, 1.01, 0], [50, 0, 1_000_001], [50, 0, -1]])
def test_what_is_out_of_bounds_is_no_legal_call_unless_it_clips(tmp_path: Path, row: list[float]) -> None:
    from rtcontrol.agents import InvalidCall, Tools

    tools = Tools([ENGINES])
    with pytest.raises(InvalidCall):
        tools.validate(mapping(tmp_path, None, ENGINES).call(row))
    tools.validate(mapping(tmp_path, "clip: true", ENGINES).call(row))


def test_half_a_step_beyond_the_last_value_still_means_it(tmp_path: Path) -> None:
    made = mapping(tmp_path, None, ENGINES)
    assert made.call([120.0, 0, 0]).arguments["main"] == 100 and made.call([-25.0, 0, 0]).arguments["main"] == 0


def test_a_fine_grid_takes_the_nearest_of_its_numbers(tmp_path: Path) -> None:
    made = mapping(tmp_path, None, FINE)
    assert made.call([1.23449]).arguments["at"] == 1.234 and made.call([10.2]).arguments["at"] == 10.2


def test_a_number_that_overflows_when_it_is_scaled_is_no_call(tmp_path: Path) -> None:
    with pytest.raises(OverflowError):
        mapping(tmp_path, "actions: [{parameter: at, scale: 1.0e+300}]", FINE).call([1e300])


OBSERVATIONS = {
    "a field that is not there": {"x": 1.0},
    "no number": {"x": 1.0, "y": "north"},
    "not finite": {"x": 1.0, "y": float("nan")},
}


@pytest.mark.parametrize("data", OBSERVATIONS.values(), ids=OBSERVATIONS.keys())
def test_an_observation_without_what_is_named_is_told_by_its_field(tmp_path: Path, data: dict[str, Any]) -> None:
    with pytest.raises(UnmappedObservation, match="'y'"):
        mapping(tmp_path, "observation: {state: [x, y]}", ENGINES).question(data, "")


WRONG = {
    "no YAML": ("a: [", "cannot be read"),
    "no map": ("3", "is not of type 'object'"),
    "an unknown key": ("action: []", "'action'"),
    "an unknown tool": ("tool: fly", "no tool 'fly'"),
    "an unknown parameter": ("actions: [{parameter: thrust}]", "no parameter 'thrust'"),
    "a parameter twice": ("actions: [{parameter: main}, {parameter: main}]", "twice"),
    "one that is missing": ("actions: [{parameter: main}]", "its side"),
    "a scale of nothing": ("actions: [{parameter: main, scale: 0}]", r"actions\[0\].scale"),
    "a scale without end": ("actions: [{parameter: main, scale: .inf}]", "must be finite"),
    "a level that is not allowed": ("actions: [{parameter: main, levels: {1: 55}}]", "may not be '55'"),
    "levels of no numbers": ("actions: [{parameter: main, levels: {on: 50}}]", "levels"),
    "an entry with another key": ("actions: [{parameter: main, gain: 2}]", "'gain'"),
    "a field that is a truth value": ("observation: {state: [x, on]}", r"state\[1\]: True"),
    "no time": ("step_ms: 0", "step_ms"),
}


@pytest.mark.parametrize(("text", "what"), WRONG.values(), ids=WRONG.keys())
def test_a_mistake_in_the_file_is_told_with_its_name_and_what_to_do(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        mapping(tmp_path, text, ENGINES)
    assert "policy.yaml" in caught.value.what and caught.value.remedy


def test_what_no_number_stands_for_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="closed of the tool grip is no number") as caught:
        mapping(tmp_path, None, GRIP)
    assert "levels" in caught.value.remedy
    with pytest.raises(UserError, match="2 tools"):
        mapping(tmp_path, None, ENGINES, GRIP)
    assert mapping(tmp_path, "tool: engines", ENGINES, GRIP).tool == "engines"
    with pytest.raises(UserError, match="cannot be read"):
        PolicyMapping.read(str(tmp_path / "none.yaml"), tool_schemas([ENGINES]))


@pytest.mark.parametrize(
    "value", [10**310, -(10**310), math.inf, math.nan, 1e300, "two", None, np.zeros(2), [1]], ids=str
)
def test_an_observed_value_that_no_number_of_32_bits_is_is_told_by_its_name(tmp_path: Path, value: Any) -> None:
    made = mapping(tmp_path, "observation: {state: [x, speed]}", ENGINES)
    with pytest.raises(UnmappedObservation, match="'speed' of the observation is"):
        made.question({"x": 1.0, "speed": value}, "go")


@pytest.mark.parametrize("value", [[[1], [1, 2]], [1, None], {"a": 1}, np.zeros(2, complex)])
def test_what_a_world_gives_for_a_picture_that_is_no_array_is_told_by_its_name(tmp_path: Path, value: Any) -> None:
    made = mapping(tmp_path, "observation: {state: camera}", ENGINES)
    with pytest.raises(UnmappedObservation, match="'camera' of the observation is no array"):
        made.question({"camera": value}, "go")


CLIPPED: list[dict[str, Any]] = [
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "exclusiveMinimum": 0.1},
    {"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.1},
    {"type": "number", "multipleOf": 0.25},
    {"type": "number", "minimum": 0.3, "multipleOf": 0.1},
    {"type": "number", "exclusiveMaximum": 3, "multipleOf": 0.1},
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    {"type": "integer", "minimum": 0.5},
    {"type": "integer", "minimum": 1, "multipleOf": 7},
    {"type": "integer"},
    {"type": "number"},
]


@pytest.mark.parametrize("schema", CLIPPED, ids=str)
def test_what_is_clipped_is_always_allowed(tmp_path: Path, schema: dict[str, Any]) -> None:
    tool = {"name": "move", "parameters": {"properties": {"x": schema}, "required": ["x"]}}
    made, tools = mapping(tmp_path, "clip: true", tool), Tools([tool])
    for number in (-1e12, -5.0, -0.06, 0.0, 0.1, 0.33, 0.95, 1.0, 3.4, 10.0, 101.0, 1e12):
        tools.validate(made.call([number]))


def test_a_step_without_bounds_rounds(tmp_path: Path) -> None:
    tool = {"name": "move", "parameters": {"properties": {"x": {"type": "number", "multipleOf": 0.1}}}}
    tool["parameters"]["required"] = ["x"]  # type: ignore[index]
    assert mapping(tmp_path, None, tool).call([0.3000001]) == Call("move", {"x": 0.3})
