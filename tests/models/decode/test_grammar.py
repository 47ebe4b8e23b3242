"""Free values: calls are always valid, equal greedy decoding under the same grammar, and take the counted passes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode import core
from rtcontrol.models.decode.grammar import MAX_TOKENS, GrammarCompiler, parse_free
from rtcontrol.models.decode.protocol import Budget, DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners import packed
from rtcontrol.models.runners.hf_runner import checked_runner as hf_runner
from rtcontrol.models.schema.domain import FreeDomain
from rtcontrol.models.schema.json_schema import normalise
from rtcontrol.models.schema.mask import FAR_BOUND
from rtcontrol.models.schema.parameters import RootRules
from rtcontrol.models.schema.tool_schema import ABSENT
from rtcontrol.models.train.vocabulary import build_tokenizer, number_words
from tests.models.decode.test_value_law import can_be_written
from tests.models.small import MARGIN, TOLD, WORDS, Oracle, build, law, over, prompt_of, tool

LAW = law(25)
POINT = {"type": "object", "properties": {"x": {"type": "number"}, "n": {"type": "integer"}}, "required": ["x"]}
FREE: dict[str, dict[str, Any]] = {
    "text": {"type": "string", "maxLength": 12},
    "word": {"type": "string", "pattern": "^[a-zA-Z]+$", "maxLength": 6},
    "whole": {"type": "integer"},
    "large": {"type": "integer", "minimum": 0, "maximum": 100_000},
    "real": {"type": "number"},
    "bounded": {"type": "number", "minimum": -1, "maximum": 1},
    "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    "point": POINT,
    "nested": {"type": "object", "properties": {"at": POINT, "on": {"type": "boolean"}}, "required": ["at", "on"]},
}
CLOSED = {"enum": ["left", "right", "green blue", "green red"]}


@pytest.fixture(scope="module")
def grammars() -> GrammarCompiler:
    tokenizer = STTokenizer(build_tokenizer([WORDS], number_words(20, 0.2)))
    return GrammarCompiler(tokenizer, tokenizer.size + 5)


def accepts(grammars: GrammarCompiler, schema: dict[str, Any], text: str) -> bool:
    """Return whether the grammar of a schema accepts a text."""
    value = grammars.start(grammars.compile(FreeDomain(schema), "Tool t"))
    return can_be_written(grammars, value, grammars.tokenizer.encode(text))


HUGE = 2**32  # more than llguidance counts
NAMES = f"^[a-z]{{1,{HUGE}}}$"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "maxLength": HUGE}, "go"),
        ({"type": "string", "pattern": NAMES, "maxLength": 10**30}, "go"),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 10**30}, "[1]"),
        ({"anyOf": [{"type": "string", "maxLength": HUGE}, {"type": "integer"}]}, '"go"'),
        ({"type": "object", "properties": {"go": {"type": "string", "maxLength": HUGE}}}, '{"go":"go"}'),
        ({"type": "object", "patternProperties": {NAMES: {"type": "integer"}}}, '{"go":1}'),
        ({"type": "integer", "maximum": 10**18, "multipleOf": 7919}, "7919"),
        ({"type": "array", "prefixItems": [{"type": "integer", "multipleOf": n} for n in range(9001, 9101)]}, "[9001]"),
    ],
)
def test_limits_of_the_library_exclude_no_value(grammars: GrammarCompiler, schema: dict[str, Any], text: str) -> None:
    assert accepts(grammars, schema, text)
    parse_free(FreeDomain(schema), text)


@pytest.mark.parametrize("part", [{"type": "string", "minLength": HUGE}, {"type": "array", "minItems": 10**30}])
def test_part_longer_than_any_value_is_never_written(grammars: GrammarCompiler, part: dict[str, Any]) -> None:
    start = "[" if part["type"] == "array" else '"'
    assert not grammars.start(grammars.compile(FreeDomain({"anyOf": [part, {"type": "integer"}]}), "t")).legal_tokens(
        [], None
    )[grammars.tokenizer.encode(start)[0]]
    assert accepts(grammars, {"type": "object", "properties": {"a": part, "b": {"type": "integer"}}}, '{"b":1}')
    with pytest.raises(UserError, match="no value"):
        grammars.check(grammars.compile(FreeDomain(part), "t"), 64, "t")


class Greedy:
    """A free value that the oracle decodes token by token, with one token excluded at one place."""

    def __init__(
        self,
        decider: Any,
        oracle: Oracle,
        situation: tuple[str, str],
        tool: int,
        null: int | None = None,
        excluded: tuple[int, int] | None = None,
    ) -> None:
        head, prompt = decider.plan.heads[1], prompt_of(decider, *situation)
        grammars = GrammarCompiler(decider.tokenizer, oracle.logits([0]).shape[1])
        value, token = grammars.start(grammars.compile(decider.plan.slots[tool][0].domain, "")), -1
        self.margin, self.choices, self.confidence, self.forced_start = math.inf, 0, 1.0, False
        self.last = (0, -1)
        while token not in (head.end_id, null):
            if value.tokens or null is None:
                value.push_forced()
            legal = np.flatnonzero(value.legal_tokens(head.end_id, null))
            legal = legal[[(len(value.tokens), t) != excluded for t in legal]]
            self.forced_start |= not self.choices and (len(legal) == 1 or bool(value.tokens))
            token = int(legal[0])
            if len(legal) > 1:
                row = oracle.logits([*prompt, head.head_id, *value.tokens])[-1].double().numpy()[legal]
                token, self.choices = int(legal[row.argmax()]), self.choices + 1
                self.last = len(value.tokens), token
                self.margin = min(self.margin, float(np.diff(np.sort(row)[-2:])[0]))
                self.confidence /= float(np.exp(row - row.max()).sum())
            if token not in (head.end_id, null):
                value.push(token)
        self.null, self.text = token == null, decider.tokenizer.decode(value.tokens)


@LAW
@given(
    kind=st.sampled_from(sorted(FREE)),
    situation=TOLD,
    required=st.booleans(),
    budget=st.sampled_from((1, 64)),
    hugging=st.booleans(),
    picked=st.booleans(),
)
def test_free_value_equals_constrained_greedy_decoding(
    folder: Path,
    oracle: Oracle,
    kind: str,
    situation: tuple[str, str],
    required: bool,
    budget: int,
    hugging: bool,
    picked: bool,
) -> None:
    """With `picked`, only the head's rows for the few legal ids are multiplied, as with a large vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "MAX_LEGAL", 16 if picked else packed.MAX_LEGAL)
        decider = build(
            folder, [tool("stop", v=CLOSED), tool("go", 99 * required, v=FREE[kind])], budget_per_head=budget
        )
        if hugging:
            over(decider, hf_runner(oracle.model)).decoding.core.set_budget(Budget(budget))
        assume(oracle._head(decider.plan, 0, prompt_of(decider, *situation), 1, 0) == 1)
        try:
            greedy = Greedy(decider, oracle, situation, 1, None if required else decider.plan.heads[1].null_id)
            expected = ABSENT if greedy.null else parse_free(FreeDomain(FREE[kind]), greedy.text)
        except DecodeError:
            with pytest.raises(DecodeError):
                decider.decide(*situation)
            return
        assume(greedy.margin > MARGIN)
        got = decider.decide(*situation)
        assert got.call == Call("go", {} if expected is ABSENT else {"v": expected})
        assert got.confidence["arg1"] == pytest.approx(greedy.confidence, rel=1e-2)
        (unguessed,) = decider.decide_many([situation])
        assert unguessed.call == got.call
        if budget > 1:
            # The first pass has all tries and the head token; then each remaining choice takes a pass, unless guesses
            # save it.
            assert unguessed.forward_passes == greedy.choices + greedy.forced_start
        assert got.forward_passes <= unguessed.forward_passes
        again = decider.decide(*situation)
        # The last value is the guess for this one, and the first pass checks it completely.
        assert again.call == got.call
        assert again.confidence["arg1"] == pytest.approx(greedy.confidence, rel=1e-2)
        assert again.forward_passes <= got.forward_passes
        if budget > 1 and expected is not ABSENT:
            assert again.forward_passes == 1


def test_free_value_excludes_control_tokens_and_null_is_whole(grammars: GrammarCompiler) -> None:
    tokenizer = grammars.tokenizer
    end, null = map(tokenizer.special_id, ("</arg1>", "<|null|>"))
    (first,) = tokenizer.encode("left")

    def legal(token: int, begun: bool, null_id: int | None = None) -> bool:
        value = grammars.start(grammars.compile(FreeDomain({"type": "string"}), "Tool t"))
        if begun:
            value.push(first)
        return bool(value.legal_tokens(end, null_id)[token])

    for special in map(tokenizer.special_id, tokenizer.specials):
        for begun in (False, True):  # the value may end at once, or here
            assert legal(special, begun) == (special == end)
    assert legal(null, False, null)
    assert not legal(null, True, null)


RAW = ["", "Zürich", 'say "HI"\n', "東京", "😀", " leading", "<|null|>", "</arg1>"]
WRITTEN = {"type": "object", "properties": {"p": {"$ref": "#/$defs/P"}}, "required": ["p"], "$defs": {"P": POINT}}
REFERENCE = normalise(WRITTEN, "Tool t")
NUMBERS = {"type": "object", "additionalProperties": {"type": "integer"}}
NAMED = {**NUMBERS, "propertyNames": {"enum": ["a", "b"]}, "required": ["a", "b"]}
SPOKEN_OF = {
    "type": "object",
    "patternProperties": {"^a": {"type": "integer"}},
    "additionalProperties": {"type": "string"},
    "required": ["a1"],
}


@pytest.mark.parametrize(
    ("schema", "takes", "refuses"),
    [
        ({"type": "string", "maxLength": 30}, RAW, []),
        ({"type": "string", "maxLength": 2}, ["😀東"], ["abc"]),
        ({"type": "string", "minLength": 2}, ["ab"], ["a"]),
        # A pattern applies to the whole value, within its length.
        ({"type": "string", "pattern": "^[a-z]+/[0-9]*$", "maxLength": 5}, ["ab/12"], ["ab/123", "ab"]),
        ({"type": "string", "pattern": "[a-c]*"}, [""], []),
        ({"type": "string", "pattern": r"a\/b"}, ["a/b"], []),
        # Numbers have no exponent, and are within 62 bits if they have no bound.
        ({"type": "number"}, ["-17", str(FAR_BOUND), "0.25"], ["1e999", "01", "-0", "-0.0", str(10 * FAR_BOUND)]),
        (
            {"type": "integer"},
            ["-17", str(FAR_BOUND), str(-FAR_BOUND)],
            ["1e999", "01", "0.25", str(FAR_BOUND + 1), str(-FAR_BOUND - 1)],
        ),
        # The same applies to numbers with a bound on one side.
        ({"type": "integer", "minimum": 3}, ["3", str(FAR_BOUND)], ["2", str(10 * FAR_BOUND)]),
        ({"type": "integer", "exclusiveMaximum": 0}, ["-1", str(-FAR_BOUND)], ["0", str(-10 * FAR_BOUND)]),
        ({"type": "integer", "multipleOf": 5}, ["15", "-20"], ["16", str(10 * FAR_BOUND)]),
        ({"type": "number", "minimum": 0}, ["0.25", str(FAR_BOUND)], ["-1", str(10 * FAR_BOUND)]),
        ({"type": "number", "multipleOf": 0.1}, ["0.3", "-1.0"], ["0.35"]),
        (FREE["large"], ["100000"], ["100001", "-1"]),
        # Objects are compact and have only declared properties.
        (POINT, ['{"x":1.5,"n":2}'], ['{"x": 1.5}', '{"x":1,"z":2}', '{"n":2}']),
        # All patterns apply at once, whether they are in parts or in alternatives.
        ({"type": "string", "pattern": "^[a-z]{3}$", "allOf": [{"pattern": "b"}]}, ["abc"], ["acc", "ab"]),
        ({"type": "string", "anyOf": [{"pattern": "^[a-c]{3}$"}, {"pattern": "^[0-9]{2}$"}]}, ["abc", "12"], ["a12"]),
        # If patterns cover some keys, other keys are not allowed.
        (SPOKEN_OF, ['{"a1":2}', '{"a1":2,"b":"x"}'], ['{"a1":"x"}', '{"b":"x"}']),
        (REFERENCE, ['{"p":{"x":1}}'], ['{"p":{"x":1,"z":2}}']),
    ],
)
def test_grammar_accepts_exactly_the_values_of_its_schema(
    grammars: GrammarCompiler, schema: dict[str, Any], takes: list[str], refuses: list[str]
) -> None:
    assert [text for text in takes if not accepts(grammars, schema, text)] == []
    assert [text for text in refuses if accepts(grammars, schema, text)] == []


def test_value_has_its_declared_type_whatever_its_text() -> None:
    assert [parse_free(FreeDomain({"type": "string"}), text) for text in RAW] == RAW
    assert type(parse_free(FreeDomain(REFERENCE), '{"p":{"x":1}}')["p"]["x"]) is float
    assert parse_free(FreeDomain({"type": "string"}), "12") == "12"
    assert parse_free(FreeDomain({"type": "string"}), "TRUE") == "TRUE"
    number = parse_free(FreeDomain({"type": "number"}), "12")
    assert (number, type(number)) == (12.0, float)
    assert [type(v) for v in parse_free(FreeDomain({"type": "array", "items": {"type": "number"}}), "[1,2.5]")] == [
        float
    ] * 2
    with pytest.raises(DecodeError, match="not JSON"):
        parse_free(FreeDomain({"type": "integer"}), "twelve")
    with pytest.raises(DecodeError, match="a number that is too large"):
        parse_free(FreeDomain({}), '{"a":[1e999]}')
    with pytest.raises(DecodeError, match="an integer of more than 64"):
        parse_free(FreeDomain({"type": "array"}), f"[{2**64}]")


def test_value_at_the_token_limit_ends_legally_or_fails(grammars: GrammarCompiler) -> None:
    end = grammars.tokenizer.special_id("</arg1>")
    go = grammars.tokenizer.encode("go")[0]
    value = grammars.start(grammars.compile(FreeDomain({"type": "string"}), ""))
    for _ in range(MAX_TOKENS):
        assert value.legal_tokens(end, None)[go]
        value.push(go)
    assert np.flatnonzero(value.legal_tokens(end, None)).tolist() == [end]  # it may end here, so it does
    value = grammars.start(grammars.compile(FreeDomain({"type": "string", "minLength": 200}), ""))
    for _ in range(MAX_TOKENS):
        value.push(go)
    with pytest.raises(DecodeError, match=f"did not end within {MAX_TOKENS} tokens"):
        value.legal_tokens(end, None)


# An illegal value is decided again once, without its last choice: as greedy decoding would without it.


TEXT = {"type": "string", "maxLength": 12}


@law(15)
@given(situation=TOLD)
def test_retried_value_is_greedy_without_the_last_choice(
    folder: Path, oracle: Oracle, situation: tuple[str, str]
) -> None:
    decider = build(folder, [tool("go", v=TEXT)], budget_per_head=64)
    first = Greedy(decider, oracle, situation, 0)
    assume(first.last[0] > 0)
    second = Greedy(decider, oracle, situation, 0, excluded=first.last)
    assume(min(first.margin, second.margin) > MARGIN)

    def judged(domain: Any, text: str) -> Any:
        if text == first.text:
            raise DecodeError("illegal")
        return parse_free(domain, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "parse_free", judged)
        call = decider.decide(*situation).call
        (unguessed,) = decider.decide_many([situation])
    assert call is not None and call.arguments == {"v": second.text}
    assert unguessed.call == call


def test_value_illegal_twice_gives_no_call(folder: Path) -> None:
    empty = {"type": "string", "maxLength": 3, "not": {"pattern": "."}}
    decider = build(folder, [tool("go", v=empty)])
    with pytest.raises(DecodeError, match="violates its schema"):
        decider.decide("x=1", "go")


FLAG, NUMBER = {"type": "boolean"}, {"type": "number"}


@pytest.mark.parametrize(
    "rules",
    [
        {"properties": {"a": FLAG, "b": FLAG}, "minProperties": 1},
        {"properties": {"a": TEXT, "b": TEXT}, "minProperties": 1},
        {"properties": {"a": {"enum": ["l", "r"]}, "b": TEXT, "c": TEXT}, "dependentRequired": {"b": ["c"]}},
        {"properties": {"a": TEXT, "b": TEXT, "c": FLAG}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"properties": {f"p{i}": FLAG for i in range(8)}, "minProperties": 4, "maxProperties": 5},
        {
            "properties": {"kind": {"enum": ["box", "ball"]}, "edge": NUMBER, "radius": NUMBER},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "box"}}},
            "then": {"required": ["edge"], "not": {"required": ["radius"]}},
            "else": {"required": ["radius"], "not": {"required": ["edge"]}},
        },
        {
            "properties": {n: {"type": "integer", "minimum": 0, "maximum": 50} for n in ("a", "b")},
            "anyOf": [{"properties": {"a": {"minimum": 45}}}, {"properties": {"b": {"maximum": 3}}, "required": ["b"]}],
        },
    ],
)
@pytest.mark.parametrize("budget", [1, 64])
def test_calls_combine_arguments_as_the_rules_allow(folder: Path, rules: Any, budget: int) -> None:
    judge = jsonschema.Draft202012Validator(rules)
    decider = build(folder, [{"name": n, "parameters": rules} for n in ("go", "turn")], budget_per_head=budget)
    situations = [(f"x={i} go left", f"turn {i}") for i in range(10)]
    calls = [decider.decide(*situation).call for situation in situations]
    assert [decided.call for decided in decider.decide_many(situations)] == calls
    assert all(call is not None and judge.is_valid(dict(call.arguments)) for call in calls)


def test_argument_forced_by_rules_keeps_its_probability(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"properties": {"a": FLAG, "b": TEXT}, "maxProperties": 0}
    decider = build(folder, [{"name": "go", "parameters": rules}])
    ruled = [decider.decide(f"x={i}", "go") for i in range(12)]
    assert all(decision.call is not None and not decision.call.arguments for decision in ruled)
    monkeypatch.setattr(RootRules, "violation", lambda *_: None)
    for i, after in enumerate(ruled):
        before = decider.decide(f"x={i}", "go")
        assert before.call is not None and before.call.arguments
        for name in before.call.arguments:
            head = {"a": "arg1", "b": "arg2"}[name]
            assert after.confidence[head] <= 1 - before.confidence[head] + 1e-6
