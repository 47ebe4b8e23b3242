"""An illegal value is decided again once, without its last choice: as greedy decoding would without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import assume, given

from rtcontrol.models.decode import core
from rtcontrol.models.decode.grammar import Grammars, parse_free
from rtcontrol.models.decode.protocol import DecodeError
from tests.models.small import MARGIN, TOLD, Oracle, build, law, prompt_of, tool

TEXT = {"type": "string", "maxLength": 12}
RULED = {
    "properties": {"a": {"enum": ["left", "right"]}, "b": TEXT, "c": TEXT},
    "required": ["a"],
    "dependentRequired": {"b": ["c"]},
}


class Greedy:
    """Decode a free value token by token, with one token excluded behind so many others."""

    def __init__(self, decider: Any, oracle: Oracle, told: tuple[str, str]) -> None:
        self.decider, self.oracle, self.margin = decider, oracle, np.inf
        self.head, self.prompt = decider.plan.heads[1], prompt_of(decider, *told)

    def text(self, excluded: tuple[int, int] | None = None) -> tuple[str, tuple[int, int]]:
        """Return the text, and its last choice."""
        slot, head = self.decider.plan.slots[0][0], self.head
        grammars = Grammars(self.decider.tokenizer, self.oracle.logits([0]).shape[1])
        value, last, token = grammars.start(grammars.compile(slot.domain, "")), (0, -1), -1
        while token != head.end_id:
            value.forced()
            legal = np.flatnonzero(value.legal(head.end_id, None))
            legal = legal[[(len(value.tokens), t) != excluded for t in legal]]
            row = self.oracle.logits([*self.prompt, head.head_id, *value.tokens])[-1].double().numpy()[legal]
            token = int(legal[row.argmax()])
            if len(legal) > 1:
                last = len(value.tokens), token
                self.margin = min(self.margin, float(np.diff(np.sort(row)[-2:])[0]))
            if token != head.end_id:
                value.push(token)
        return self.decider.tokenizer.decode(value.tokens), last


@law(15)
@given(told=TOLD)
def test_second_value_is_greedy_without_the_last_choice(folder: Path, oracle: Oracle, told: tuple[str, str]) -> None:
    decider = build(folder, [tool("go", v=TEXT)], budget_per_head=64)
    greedy = Greedy(decider, oracle, told)
    first, last = greedy.text()
    assume(last[0] > 0)
    second, _ = greedy.text(last)
    assume(greedy.margin > MARGIN)

    def judged(domain: Any, text: str) -> Any:
        if text == first:
            raise DecodeError("illegal")
        return parse_free(domain, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "parse_free", judged)
        found = decider.decide(*told).call
        (unguessed,) = decider.decide_many([told])
    assert found is not None and found.arguments == {"v": second}
    assert unguessed.call == found


def test_value_that_is_illegal_twice_is_no_call(folder: Path) -> None:
    never = {"type": "string", "maxLength": 3, "not": {"maxLength": 5}}
    decider = build(folder, [tool("go", v=never)])
    with pytest.raises(DecodeError, match="breaks its schema"):
        decider.decide("x=1", "go")


def test_call_that_breaks_rules_over_free_arguments_is_no_call(folder: Path) -> None:
    decider = build(folder, [{"name": "go", "parameters": RULED}])
    judge = jsonschema.Draft202012Validator(RULED)
    broken = 0
    for i in range(12):
        try:
            call = decider.decide(f"x={i} go left", f"turn {i}").call
        except DecodeError as error:
            assert "may not stand together by `dependentRequired`" in str(error)
            broken += 1
        else:
            assert call is not None and judge.is_valid(dict(call.arguments))
    assert broken < 12
