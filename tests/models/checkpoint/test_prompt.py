"""User text never becomes control tokens, no text is lost, and each result belongs to its call."""

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
from rtcontrol.models.conversation import ConversationTurn, UnpairedResult, match_results
from rtcontrol.models.decode.draft_tree import MAX_COPIED, GuessSources
from rtcontrol.models.decode.grammar import GrammarCompiler
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import FreeDomain
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


# Tokens that Qwen2.5 adds to its tokenizer without marking them special.
PLAIN = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|file_sep|>")
# Hostile text with markers and parts of markers between arbitrary characters.
PIECES = st.sampled_from(
    [*ST_TOKENS, *CONTROL_TOKENS, *PLAIN, "<", "|>", "<|", "arg", "/", " ", "\n", "{tools}", "{history}"]
)
ASSIGNED = st.characters(exclude_categories=("Cs", "Cn"))
TEXT = st.lists(PIECES | st.text(ASSIGNED, max_size=6), max_size=8).map("".join)


def rendered(
    profile: dict[str, str], tools: Sequence[ToolSchema], instruction: str, observation: str, history: Sequence[str]
) -> str:
    """Return the whole prompt as one string, filled in one step so that "{tools}" in a value is kept."""
    values = {
        "tools": "\n".join(t.canonical_json() for t in tools),
        "instruction": instruction,
        "observation": observation,
        "environment": json.dumps([observation] if observation else [], ensure_ascii=False),
        "history": profile.get("history_separator", ", ").join(history[-6:]),
    }
    return re.sub(r"\{(\w+)\}", lambda m: values[m.group(1)], profile["template"])


def kept(tokenizer: STTokenizer, text: str) -> str:
    """Return the text that is left after encoding and decoding: the text itself, or its NFC form with Qwen's
    tokenizer."""
    return text if tokenizer.size < 10_000 else unicodedata.normalize("NFC", text)


@LAW
@example(text="a\ud800b")
@given(text=TEXT)
def test_any_text_is_encoded_losslessly_without_control_ids(tokenizer: STTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.encode(text) == ids
    assert not {tokenizer.special_id(t) for t in tokenizer.specials} & set(ids)
    assert tokenizer.decode(ids) == kept(tokenizer, text.replace("\ud800", "?"))


@LAW
@given(instruction=TEXT, observation=TEXT, history=st.lists(TEXT, max_size=8), name=TEXT, word=TEXT, value=TEXT)
@pytest.mark.parametrize("profile", [COMPACT, V1], ids=["compact", "v1"])
def test_prompt_has_only_the_templates_control_ids(
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


def test_added_token_is_text_in_every_place(tokenizer: STTokenizer) -> None:
    """This covers listed values, free values, and the texts from which values are guessed."""
    control = {tokenizer.special_id(t) for t in tokenizer.specials}
    free = {"type": "object", "properties": {"s": {"type": "string", "maxLength": 40}}, "required": ["s"]}
    grammars = GrammarCompiler(tokenizer, tokenizer.size)
    grammar = grammars.compile(FreeDomain(free), "")
    for token in tokenizer.specials:
        parameters = {"properties": {token: {"enum": [token, "x"], "description": token}, "free": free}}
        tools = tool_schemas([{"name": token, "description": token, "parameters": parameters}, {"name": "t"}])
        for head in compile_plan(tools, tokenizer, allow_null=True).heads:
            ends = {head.head_id, head.end_id, head.null_id}
            inner = {t for leaf in head.trie.leaves for t in leaf[:-1]}
            last = {leaf[-1] for leaf in head.trie.leaves}
            assert not inner & control and last & control <= ends
        # A free value may spell the token, but control ids are never legal inside.
        head_id, value = tokenizer.special_id("</arg1>"), grammars.start(grammar)
        for wanted in tokenizer.encode(json.dumps({"s": token}, separators=(",", ":"), ensure_ascii=False)):
            legal = value.legal_tokens(head_id, None)
            assert legal[wanted] and not legal[sorted(control - {head_id})].any()
            value.push(wanted)
        guesses = GuessSources(tokenizer, prompt=f"ab {token} {token}", max_pass_nodes=9)
        (guessed,) = guesses.continuations(tokenizer.encode("ab"))
        assert tokenizer.decode(guessed).startswith(f" {token}"[:MAX_COPIED]) and not control & set(guessed)


def test_missing_or_damaged_template_is_refused_with_a_hint(tmp_path: Path) -> None:
    tokenizer = STTokenizer(build_tokenizer([WORDS]))
    with pytest.raises(UserError, match="rtcontrol models adopt"):
        PromptTemplate.load(tmp_path, tokenizer)
    (tmp_path / "st_template.json").write_text('{"template": "')
    with pytest.raises(UserError, match=r"st_template\.json cannot be read"):
        PromptTemplate.load(tmp_path, tokenizer)


# Matching results to calls in conversations, as servers and clients number their calls.


USER = ConversationTurn(user=True)


def calls(*texts: str) -> ConversationTurn:
    """Return a turn with calls: `probe#x1` is a call of probe with the id x1, `probe` one without an id."""
    split = [text.partition("#") for text in texts]
    return ConversationTurn([(id_ or None, name) for name, _, id_ in split])


def result(id_: str | None = None, name: str | None = None) -> ConversationTurn:
    return ConversationTurn(result=(id_, name))


@pytest.mark.parametrize(
    ("messages", "paired"),
    [
        # The same id for every call (llama.cpp).
        ([USER, calls("p#x"), result("x"), calls("p#x"), result("x")], {(1, 0): 2, (3, 0): 4}),
        # The same id twice in one message.
        ([calls("p#x", "q#x"), result("x"), result("x")], {(0, 0): 1, (0, 1): 2}),
        ([calls("p#x", "q#x"), result("x", "q"), result("x", "p")], {(0, 1): 1, (0, 0): 2}),
        # Several at once, out of order, and interleaved.
        ([calls("p#1", "q#2", "r#3"), result("3"), result("1"), result("2")], {(0, 2): 1, (0, 0): 2, (0, 1): 3}),
        # Without ids, results are matched by order, and by name if there is one.
        ([calls("p", "q"), result(), result()], {(0, 0): 1, (0, 1): 2}),
        ([calls("p"), calls("q"), result(None, "q"), result(None, "p")], {(1, 0): 2, (0, 0): 3}),
        # One of two calls has no id.
        ([calls("p#1", "q"), result(), result("1")], {(0, 1): 1, (0, 0): 2}),
        # A call without a result before the next message of the user.
        ([USER, calls("p#x"), USER, calls("p#x"), result("x")], {(3, 0): 4}),
        # A call whose result is late.
        ([USER, calls("p#x"), USER, result("x")], {(1, 0): 3}),
    ],
)
def test_result_belongs_to_the_oldest_matching_call(
    messages: list[ConversationTurn], paired: dict[tuple[int, int], int]
) -> None:
    assert match_results(messages) == paired


@pytest.mark.parametrize(
    ("messages", "at"),
    [
        ([USER, result("x"), calls("p#x")], 1),
        ([calls("p#x"), result("x"), result("x")], 2),
        ([calls("p"), result("x")], 1),
        ([calls("p"), result(None, "q")], 1),
    ],
)
def test_result_without_an_earlier_call_is_reported(messages: list[ConversationTurn], at: int) -> None:
    with pytest.raises(UnpairedResult, match=rf"messages\[{at}\]") as caught:
        match_results(messages)
    assert caught.value.index == at
