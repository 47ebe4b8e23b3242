"""JSON that the tools' grammar forces costs the baseline no pass, however the tokenizer cuts it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from rtcontrol.evaluation.json_calls import forced, legal, matcher
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.models.small import qwen, tool


def test_certain_text_is_forced_up_to_the_next_choice(data: Path) -> None:
    tokenizer = qwen(data)
    tools = tool_schemas([tool("set_speed", speed=["slow", "very fast"], hard={"type": "boolean"}), tool("stop")])
    grammar, written = matcher(tokenizer, tools, tokenizer.size), list[int]()
    text = json.dumps({"name": "set_speed", "arguments": {"speed": "very fast", "hard": True}})
    choices = []
    while True:
        written += forced(grammar, tokenizer)
        if grammar.is_accepting():
            break
        (token, *_) = tokenizer.encode(text.removeprefix(tokenizer.decode(written)))
        pieces = sorted((tokenizer.decode([int(i)]) for i in np.flatnonzero(legal(grammar))), key=len)
        # What is left to choose is text: not whether a space and a quotation mark are one token or two.
        assert not all(map(pieces[-1].startswith, pieces))
        choices.append(tokenizer.decode([token]))
        grammar.consume_token(token)
        written.append(token)
    assert tokenizer.decode(written) == text
    assert choices == ["set", "very", " true"]
