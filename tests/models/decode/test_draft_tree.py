"""Guesses of free values: the passes that they save with the real Qwen tokenizer, and that they change no decision."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.core import DecoderCore, Drafts
from rtcontrol.models.decode.draft_tree import GuessSources
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.decode.protocol import Budget
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.models.small import TOLD, build, law, outcome, qwen, tool

LAW = law(25)
VOCABULARY = 151_936
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": -999, "maximum": 9999},
        "heat": {"type": "number"},
    },
    "required": ["city", "days", "heat"],
}
WORDS = ["Beijing", "San Jose", "left", "Ulaanbaatar", "the green one", "C-3PO", "", 'a "b"', "东京", "zürich"]


@pytest.fixture(scope="module")
def tokenizer(data: Path) -> STTokenizer:
    return qwen(data)


@pytest.fixture(scope="module")
def core(tokenizer: STTokenizer) -> DecoderCore:
    return core_of(tokenizer, PLACE)


def core_of(
    tokenizer: STTokenizer, schema: dict[str, Any], budget: Budget | None = None, **options: Any
) -> DecoderCore:
    tools = tool_schemas([tool("weather", v=schema), tool("stop", v={"type": "boolean"})])
    return DecoderCore(compile_plan(tools, tokenizer), tokenizer, VOCABULARY, budget, **options)


def decided(
    core: DecoderCore, call: Call, drafts: Drafts | None = None, prompt: Sequence[int] = (), other: Sequence[int] = ()
) -> Decision:
    """Return the decision of a model that always prefers this call, or else `other` as the tokens of every argument."""
    heads = [(h, text) for h, text in core.plan.head_values(call)]
    paths = {h.head_id: [*core.tokenizer.encode(t or ""), h.end_id] for h, t in heads}
    deciding, paths_seen = core.start(drafts, prompt), list[list[int]]()
    while (work := deciding.work) is not None:
        base = len(paths_seen)
        for token, parent in zip(work.tokens, work.parents, strict=True):
            paths_seen.append([*(paths_seen[parent] if parent >= 0 else ()), token])
        answers: list[Any] = []
        for query in work.queries:
            wanted = []
            for node in query.nodes:
                (_head, *begun), path = paths_seen[base + node], paths[paths_seen[base + node][0]]
                path = [*other] if other and _head != core.plan.function.head_id else path
                wanted.append(path[len(begun)] if begun == path[: len(begun)] and len(begun) < len(path) else -1)
            if query.masks is None:
                answers.append([[9.0 * (i == w) for i in query.ids] for w in wanted])
            else:
                legal = [w if m[w] and w >= 0 else int(m.argmax()) for w, m in zip(wanted, query.masks, strict=True)]
                answers.append([(w, 0.9) for w in legal])
        deciding.feed(answers)
    assert deciding.decision is not None
    return deciding.decision


def test_each_kind_of_guess_saves_passes(tokenizer: STTokenizer, core: DecoderCore) -> None:
    call = Call("weather", {"v": {"city": "Ulaanbaatar", "days": 1234, "heat": -12.5}})
    text = '{"city":"Ulaanbaatar","days":1234,"heat":-12.5}'
    prompt = tokenizer.encode("what is the weather in Ulaanbaatar?")
    decisions = {
        "token by token": decided(core_of(tokenizer, PLACE, Budget(per_head=1, forced=True)), call),
        "nothing": decided(core, call),
        "ahead": decided(core, call, Drafts()),
        "prompt": decided(core, call, Drafts(), prompt),
        "last": decided(core, call, Drafts(0, {(1, 0): tokenizer.encode(text)})),
        "wrong": decided(core, call, Drafts(0, {(1, 0): tokenizer.encode('{"city":"Rome","days":1,"heat":0.5}')})),
    }
    assert all(f.call == call for f in decisions.values())
    passes = {name: f.forward_passes for name, f in decisions.items()}
    assert passes == {"token by token": 20, "nothing": 19, "ahead": 9, "prompt": 6, "last": 1, "wrong": 9}


FREE = [
    {"type": "string", "maxLength": 12},
    {"type": "number"},
    PLACE,
    {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
]


@law(16)
@given(
    schemas=st.tuples(st.sampled_from(FREE), st.sampled_from(FREE), st.sampled_from(FREE)),
    situations=st.lists(TOLD, min_size=2, max_size=3),
    null=st.booleans(),
    ahead=st.sampled_from((0, 5, 24, 64)),
    other=st.text(max_size=9),
)
def test_guesses_do_not_change_free_values(
    folder: Path,
    schemas: tuple[dict[str, Any], ...],
    situations: list[tuple[str, str]],
    null: bool,
    ahead: int,
    other: str,
) -> None:
    deep = ["alpha beta go", "alpha beta stop", "red"]
    tools = [tool("go", v=schemas[0], w=deep, x=schemas[1]), tool("stop", 0, v=schemas[2]), tool("open")]
    guessing, plain = build(folder, tools, allow_null=null), build(folder, tools, allow_null=null, budget_per_head=1)
    decoding: Any = guessing.decoding
    decoding.core.ahead = ahead
    for situation in situations:
        decoding._drafts.tokens[1, 0] = decoding._drafts.tokens[3, 0] = guessing.tokenizer.encode(other)
        alone, guessed = outcome(plain, situation), outcome(guessing, situation)
        if isinstance(alone, str) or isinstance(guessed, str):
            assert alone == guessed
        elif min(alone.confidence.values()) > 0.51:
            assert alone.call == guessed.call
            assert alone.confidence == pytest.approx(guessed.confidence, rel=1e-2)


def test_guess_of_an_uncalled_tool_does_not_end_the_decision(tokenizer: STTokenizer) -> None:
    tools = tool_schemas([tool("weather", v={"type": "string", "pattern": "(ab)*c"}), tool("stop")])
    core = DecoderCore(compile_plan(tools, tokenizer), tokenizer, VOCABULARY, limit=6)
    endless = tokenizer.encode("ab" * 20)
    drafts, stop = Drafts(tool=0, tokens={(1, 0): endless}), Call("stop", {})
    assert decided(core, stop, drafts, other=endless).call == stop
    # For the called tool, the value is ended as its pattern requires.
    called = decided(core, Call("weather", {"v": "ab" * 20}), Drafts(tool=0, tokens={(1, 0): endless})).call
    assert called is not None and called.arguments["v"] == f"{tokenizer.decode(endless[:6])}c"


@LAW
@given(room=st.integers(1, 30), ahead=st.integers(0, 40), most=st.integers(0, 60), text=st.sampled_from(WORDS))
def test_guesses_stay_within_their_token_limit(core: DecoderCore, room: int, ahead: int, most: int, text: str) -> None:
    head = core.new_free_value(1, 0)
    values = [core.tokenizer.encode(json.dumps({"city": text, "days": 1, "heat": 2.5}, separators=(",", ":")))]
    guesses = GuessSources(core.tokenizer, values, f"in {text}", core.tokenizer.encode('"')[0], room, ahead, most)
    guessed = type(head)(head.value, head.ends, None, guesses)
    assert len(guessed.tree) <= min(room, most)
    assert all(len(path) == 1 or path[:-1] in guessed.tree[:i] for i, path in enumerate(guessed.tree))
