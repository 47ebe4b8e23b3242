"""A chat model's illegal value is decided again once, and a call that breaks its tool's rules is no call."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from rtcontrol.models.decode import chat_core
from rtcontrol.models.decode.grammar import parse_free
from rtcontrol.models.decode.protocol import DecodeError
from tests.models.chat.families import build

TEXT = {"type": "string", "maxLength": 6}
TOOL = {"name": "go", "parameters": {"properties": {"v": TEXT}, "required": ["v"]}}
RULED = {
    "properties": {"a": {"enum": ["left", "right"]}, "b": {"type": "boolean"}, "c": {"type": "integer", "maximum": 9}},
    "required": ["a", "c"],
    "not": {"properties": {"a": {"const": "left"}}, "required": ["b"]},
}


def test_illegal_value_is_decided_again_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder, _ = model
    decider = build(folder, [TOOL])
    illegal: list[str] = []

    def judged(domain: Any, text: str) -> Any:
        if text in illegal:
            raise DecodeError("illegal")
        return parse_free(domain, text)

    monkeypatch.setattr(chat_core, "parse_free", judged)
    first = decider.decide("x 1", "go left").call
    assert first is not None
    illegal.append(first.arguments["v"])
    second = decider.decide("x 1", "go left").call
    assert second is not None and second.arguments["v"] not in illegal and len(second.arguments["v"]) <= 6
    illegal.append(second.arguments["v"])
    with pytest.raises(DecodeError, match="illegal"):
        decider.decide("x 1", "go left")


def test_call_that_breaks_rules_of_its_tool_is_no_call(model: Any) -> None:
    _, folder, _ = model
    decider = build(folder, [{"name": "go", "parameters": RULED}])
    for text in ("x 1", "go left", "turn", ""):
        try:
            call = decider.decide(text, "go").call
        except DecodeError as error:
            assert "may not stand together by `not`" in str(error)
        else:
            assert call is not None
            jsonschema.Draft202012Validator(RULED).validate(dict(call.arguments))
