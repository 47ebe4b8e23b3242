"""Text is never control, no text is lost, and each result is told of its own call."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.conversation import ConversationTurn, Unpaired, results_of
from rtcontrol.models.decode.draft_tree import COPIED, Guesses
from rtcontrol.models.decode.grammar import Grammars
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import Free
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from rtcontrol.models.train.adopt import SIMPLETOOL_V1_TURNS
from rtcontrol.models.train.vocabulary import CONTROL_TOKENS, build_tokenizer, number_words
from tests.models.small import WORDS, law, qwen

LAW = law(60)
V1 = {"template": "<|im_start|>system\n<function> {tools}<|im_end|>\n" + SIMPLETOOL_V1_TURNS, "overflow": "cut"}


@pytest.fixture(scope="module", params=["own", "qwen"])
def tokenizer(request: pytest.FixtureRequest) -> STTokenizer:
    if request.param == "own":
        return STTokenizer(build_tokenizer([WORDS], number_words(20, 0.2)))
    return qwen(request.getfixturevalue("data"))


# Added to Qwen2.5's tokenizer, and not marked special there.
PLAIN = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|file_sep|>")
# Hostile text: markers, and pieces of markers, between arbitrary characters.
PIECES = st.sampled_from(
    [*ST_TOKENS, *CONTROL_TOKENS, *PLAIN, "<", "|>", "<|", "arg", "/", " ", "\n", "{tools}", "{history}"]
)
ASSIGNED = st.characters(exclude_categories=("Cs", "Cn"))
TEXT = st.lists(PIECES | st.text(ASSIGNED, max_size=6), max_size=8).map("".join)


def rendered(
    profile: dict[str, str], tools: Sequence[ToolSchema], instruction: str, observation: str, history: Sequence[str]
) -> str:
    """The whole prompt as one string; in one sweep, so that a value which contains "{tools}" stays as it is."""
    values = {
        "tools": "\n".join(t.canonical_json() for t in tools),
        "instruction": instruction,
        "observation": observation,
        "environment": json.dumps([observation] if observation else [], ensure_ascii=False),
        "history": profile.get("history_separator", ", ").join(history[-6:]),
    }
    return re.sub(r"\{(\w+)\}", lambda m: values[m.group(1)], profile["template"])


def kept(tokenizer: STTokenizer, text: str) -> str:
    """What encoding and decoding gives: our own tokenizer keeps every text, Qwen's its NFC form."""
    return text if tokenizer.size < 10_000 else unicodedata.normalize("NFC", text)


@LAW
@example(text="a\ud800b")
@given(text=TEXT)
def test_any_text_is_encoded_without_control_ids_and_without_loss(tokenizer: STTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.encode(text) == ids
    assert not {tokenizer.special_id(t) for t in tokenizer.specials} & set(ids)
    assert tokenizer.decode(ids) == kept(tokenizer, text.replace("\ud800", "?"))


@LAW
@given(instruction=TEXT, observation=TEXT, history=st.lists(TEXT, max_size=8), name=TEXT, word=TEXT, value=TEXT)
@pytest.mark.parametrize("profile", [COMPACT, V1], ids=["compact", "v1"])
def test_prompt_holds_the_templates_control_ids_and_no_others(
    tokenizer: STTokenizer,
    profile: dict[str, str],
    instruction: str,
    observation: str,
    history: list[str],
    name: str,
    word: str,
    value: str,
) -> None:
    template = PromptTemplate(profile, tokenizer, "here")
    parameter = {"enum": [value], "description": word}
    tools = tool_schemas([{"name": name or "t", "description": word, "parameters": {"properties": {word: parameter}}}])
    ids = template.prefix_ids(tools) + template.suffix_ids(instruction, observation, history)
    special = {tokenizer.special_id(t) for t in tokenizer.specials}
    plain = template.prefix_ids(tool_schemas([{"name": "t"}])) + template.suffix_ids("", "")
    assert [i for i in ids if i in special] == [i for i in plain if i in special]
    assert tokenizer.decode(ids) == kept(tokenizer, rendered(profile, tools, instruction, observation, history))


def test_every_added_token_is_text_wherever_it_stands(tokenizer: STTokenizer) -> None:
    """In listed values, free values and what these are guessed from."""
    control = {tokenizer.special_id(t) for t in tokenizer.specials}
    free = {"type": "object", "properties": {"s": {"type": "string", "maxLength": 40}}, "required": ["s"]}
    grammars = Grammars(tokenizer, tokenizer.size)
    grammar = grammars.compile(Free(free), "")
    for token in tokenizer.specials:
        parameters = {"properties": {token: {"enum": [token, "x"], "description": token}, "free": free}}
        tools = tool_schemas([{"name": token, "description": token, "parameters": parameters}, {"name": "t"}])
        for head in compile_plan(tools, tokenizer, allow_null=True).heads:
            ends = {head.head_id, head.end_id, head.null_id}
            inner = {t for leaf in head.trie.leaves for t in leaf[:-1]}
            last = {leaf[-1] for leaf in head.trie.leaves}
            assert not inner & control and last & control <= ends
        # A free value spells it, and no id of control is ever legal within.
        head_id, value = tokenizer.special_id("</arg1>"), grammars.start(grammar)
        for wanted in tokenizer.encode(json.dumps({"s": token}, separators=(",", ":"), ensure_ascii=False)):
            legal = value.legal(head_id, None)
            assert legal[wanted] and not legal[sorted(control - {head_id})].any()
            value.push(wanted)
        guesses = Guesses(tokenizer, prompt=f"ab {token} {token}", room=9)
        (guessed,) = guesses.after(tokenizer.encode("ab"))
        assert tokenizer.decode(guessed).startswith(f" {token}"[:COPIED]) and not control & set(guessed)


def test_missing_or_torn_template_is_refused_with_the_remedy(tmp_path: Path) -> None:
    tokenizer = STTokenizer(build_tokenizer([WORDS]))
    with pytest.raises(UserError, match="rtcontrol models adopt"):
        PromptTemplate.load(tmp_path, tokenizer)
    (tmp_path / "st_template.json").write_text('{"template": "')
    with pytest.raises(UserError, match=r"st_template\.json cannot be read"):
        PromptTemplate.load(tmp_path, tokenizer)


# Which result is whose, in conversations as servers and clients number their calls.


USER = ConversationTurn(user=True)


def calls(*texts: str) -> ConversationTurn:
    """`probe#x1` is a call of probe with the id x1; without #, it has none."""
    split = [text.partition("#") for text in texts]
    return ConversationTurn([(id_ or None, name) for name, _, id_ in split])


def result(id_: str | None = None, name: str | None = None) -> ConversationTurn:
    return ConversationTurn(result=(id_, name))


@pytest.mark.parametrize(
    ("messages", "paired"),
    [
        # One id for every call (llama.cpp).
        ([USER, calls("p#x"), result("x"), calls("p#x"), result("x")], {(1, 0): 2, (3, 0): 4}),
        # Twice in one message; with a name, by it.
        ([calls("p#x", "q#x"), result("x"), result("x")], {(0, 0): 1, (0, 1): 2}),
        ([calls("p#x", "q#x"), result("x", "q"), result("x", "p")], {(0, 1): 1, (0, 0): 2}),
        # Several at once, out of order, and interleaved.
        ([calls("p#1", "q#2", "r#3"), result("3"), result("1"), result("2")], {(0, 2): 1, (0, 0): 2, (0, 1): 3}),
        # No ids: by order, and by name where there is one.
        ([calls("p", "q"), result(), result()], {(0, 0): 1, (0, 1): 2}),
        ([calls("p"), calls("q"), result(None, "q"), result(None, "p")], {(1, 0): 2, (0, 0): 3}),
        # One of two lost both.
        ([calls("p#1", "q"), result(), result("1")], {(0, 1): 1, (0, 0): 2}),
        # A call that nobody answered before the user spoke again.
        ([USER, calls("p#x"), USER, calls("p#x"), result("x")], {(3, 0): 4}),
        # One whose result is late.
        ([USER, calls("p#x"), USER, result("x")], {(1, 0): 3}),
    ],
)
def test_a_result_goes_to_the_oldest_call_that_waits_for_it(
    messages: list[ConversationTurn], paired: dict[tuple[int, int], int]
) -> None:
    assert results_of(messages) == paired


@pytest.mark.parametrize(
    ("messages", "at"),
    [
        ([USER, result("x"), calls("p#x")], 1),
        ([calls("p#x"), result("x"), result("x")], 2),
        ([calls("p"), result("x")], 1),
        ([calls("p"), result(None, "q")], 1),
    ],
)
def test_a_result_that_answers_no_call_before_it_is_named(messages: list[ConversationTurn], at: int) -> None:
    with pytest.raises(Unpaired, match=rf"messages\[{at}\]") as caught:
        results_of(messages)
    assert caught.value.index == at
