"""A chat model's call equals constrained greedy decoding, and its answers have the probabilities of their text."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode import chat_core
from rtcontrol.models.decode.grammar import parse_free
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import Decoding
from rtcontrol.models.questions import ANSWER, QuestionDecider, StateQuestion
from rtcontrol.models.runners.hf_runner import checked_runner as hf_runner
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.models.chat.families import KINDS, Written, build, checkpoint, engine_of, every, greedy
from tests.models.small import MARGIN, Oracle, law, parameter_schemas
from tests.models.test_questions import SEVERAL, by_hugging_face, close

MOST = 1500  # the most calls that the oracle lists
NAMES = ("go", "go_left", "turn", "stop", "look_at")
PARAMETERS = ("speed", "direction", "left", "x", "x_y")
DOMAINS = st.one_of(
    parameter_schemas(),
    st.lists(st.one_of(st.text(max_size=5), st.integers(-99, 99)), min_size=1, max_size=5, unique=True).map(
        lambda v: {"enum": v}
    ),
    st.lists(st.sampled_from((-1, 2, "a", 'b "c"')), min_size=1, max_size=2, unique=True).map(
        lambda v: {"type": "array", "items": {"enum": v}, "maxItems": 2}
    ),
    st.lists(st.sampled_from(("left", "right", "left turn", 'a "b"', "grün", "<|im_end|>")), min_size=1, unique=True)
    .filter(lambda v: len(v) < 5)
    .map(lambda v: {"enum": v}),
    st.tuples(st.integers(-12, 0), st.integers(1, 20)).map(
        lambda b: {"type": "integer", "minimum": b[0], "maximum": b[1]}
    ),
    st.just({"type": "boolean"}),
    st.just({"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25}),
    st.just({"anyOf": [{"enum": ["go", "stop"]}, {"type": "integer", "minimum": 0, "maximum": 12}, {"type": "null"}]}),
)


@pytest.fixture(scope="module", params=sorted(KINDS))
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """Return the family, the checkpoint, and Hugging Face's model of the checkpoint."""
    family = request.param
    folder = checkpoint(tmp_path_factory.mktemp(family), family, seed=sorted(KINDS).index(family))
    return family, folder, AutoModelForCausalLM.from_pretrained(folder).eval()


@st.composite
def tools(draw: st.DrawFn) -> list[dict[str, Any]]:
    tools = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)):
        names = draw(st.lists(st.sampled_from(PARAMETERS), max_size=3, unique=True))
        required = [p for p in names if draw(st.booleans())]
        properties = {p: draw(DOMAINS) for p in names}
        tools.append({"name": name, "parameters": {"properties": properties, "required": required}})
    return tools


@law(10)
@given(
    given_tools=tools(),
    per_head=st.sampled_from((1, 64)),
    ahead=st.sampled_from((0, 5, 40, 128)),
    by_path=st.booleans(),
    data=st.data(),
)
def test_chat_call_equals_constrained_greedy_decoding(
    model: Any, given_tools: Any, per_head: int, ahead: int, by_path: bool, data: Any
) -> None:
    family, folder, judge = model
    schemas = tool_schemas(given_tools)
    decider = build(folder, given_tools, budget_per_head=per_head)
    if by_path:  # as on a runner that cannot score a tree
        core, prefix = decider.decoding.core, decider.template.prefix_ids(schemas)
        decider.decoding = Decoding(hf_runner(judge), core, prefix)
    else:
        decider.decoding.core.ahead = ahead if per_head > 1 else 0
    written = Written(decider, family)
    paths = dict(every(written, schemas, MOST))
    assume(len(paths) <= MOST)
    for _ in range(2):  # the second decision guesses the result of the first
        observation, instruction = (
            data.draw(st.text(max_size=12)),
            data.draw(st.sampled_from(("go left", "stop", "<|im_end|>"))),
        )
        decision = decider.decide(observation, instruction)
        prompt = [*decider.template.prefix_ids(schemas), *decider.template.suffix_ids(instruction, observation)]
        path, margin = greedy(judge, prompt, list(paths))
        if margin > MARGIN:
            assert decision.call is not None
            assert (decision.call.name, dict(decision.call.arguments)) == paths[path]
            assert [type(v) for v in decision.call.arguments.values()] == [type(v) for v in paths[path][1].values()]


def test_free_values_end_at_the_syntax_of_the_call(model: Any) -> None:
    _, folder, _ = model
    text = {"type": "string", "minLength": 1, "maxLength": 8}
    free = {"say": text, "number": {"type": "number"}, "list": {"type": "array", "items": {"type": "integer"}}}
    given_tools = [{"name": "go", "parameters": {"properties": free, "required": list(free)}}]
    bounded = build(folder, given_tools, value_tokens=24)
    two = build(folder, given_tools, value_tokens=24, budget_per_head=1)
    for observation in ("a", "b"):
        call = bounded.decide(observation, "go").call
        assert call is not None and call == two.decide(observation, "go").call
        assert 1 <= len(call.arguments["say"]) <= 8 and "\\" not in call.arguments["say"]
        assert isinstance(call.arguments["number"], int | float) and isinstance(call.arguments["list"], list)


@pytest.mark.parametrize(
    "part",
    [
        {"type": ["string", "null"], "minLength": 1, "maxLength": 8},
        {"anyOf": [{"type": "integer", "maximum": 5}, {"type": "null"}], "default": None},
        {"type": ["array", "null"], "items": {"type": "string", "maxLength": 3}, "maxItems": 2, "uniqueItems": True},
        {"type": ["string", "integer", "null"], "maxLength": 3, "maximum": 99, "minimum": 0},
        {"oneOf": [{"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}}, {"type": "null"}]},
        {"type": ["number", "null"], "minimum": 0, "maximum": 999, "multipleOf": 0.01},
    ],
)
@pytest.mark.parametrize("required", [True, False])
def test_null_is_an_alternative_of_a_free_value(model: Any, part: dict[str, Any], required: bool) -> None:
    _, folder, _ = model
    root = {"properties": {"a": part, "b": {"enum": [1, 2]}}, "required": ["a", "b"] if required else ["b"]}
    decider = build(folder, [{"name": "go", "parameters": root}], value_tokens=24)
    single = build(folder, [{"name": "go", "parameters": root}], value_tokens=24, budget_per_head=1)
    for text in ("a", "x 1", "", "go"):
        call = decider.decide(text, "go").call
        assert call is not None and call == single.decide(text, "go").call
        jsonschema.Draft202012Validator(root).validate(dict(call.arguments))
    (free,) = decider.plan.free
    choices = [choice for choice in decider.plan.all if choice.is_value and choice.decides == free.decides]
    leaves = [choice.leaf(path) for choice in choices for path in choice.trie.leaves]
    if free.domain.is_string:
        assert (None, (free, ())) in leaves and len(leaves) > 1
    else:
        null = decider.tokenizer.encode(f"{decider.plan.syntax.space}null")
        matcher = decider.decoding.core.grammars.matcher(free.grammar)
        assert matcher.validate_tokens(null) == len(null) and parse_free(free.domain, " null") is None


# A chat model answers questions in its template's words, with the probabilities of Hugging Face's forwards.


CLOSE_BY = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }} !<|im_end|>\n{% endfor %}"
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
ASKED = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
QUESTION = StateQuestion("Which engine?\nmain: Up.\nside", ("main", "side"))


def answering(folder: Path) -> QuestionDecider:
    return QuestionDecider(DeciderSpec(str(folder), (), engine=engine_of(folder)))


def with_template(folder: Path, written: str, eos: str | None = "<|im_end|>") -> Path:
    """Create a small checkpoint with this template."""
    checkpoint(folder, "llama3")
    (folder / "chat_template.jinja").write_text(written)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": eos}))
    return folder


@law(8)
@given(state=st.text(max_size=30), questions=SEVERAL)
def test_chat_probabilities_equal_hugging_face_and_sum_to_one(
    model: Any, state: str, questions: list[StateQuestion]
) -> None:
    _, folder, judge = model
    decider = answering(folder)
    answers = decider.answer(state, questions)
    assert answers.forward_passes == 1
    close(answers.probabilities, [by_hugging_face(Oracle(judge), decider, state, question) for question in questions])
    assert all(math.fsum(p) == 1.0 and min(p) >= 0 for p in answers.probabilities)


@pytest.mark.parametrize("turns", [PLAIN, CLOSE_BY])
def test_chat_question_uses_the_models_template(tmp_path: Path, turns: str) -> None:
    folder = with_template(tmp_path / "m", turns + ASKED)
    wording, library = answering(folder).encoder, AutoTokenizer.from_pretrained(str(folder))

    def written(*messages: dict[str, str], **options: Any) -> list[int]:
        text = library.apply_chat_template(list(messages), tokenize=False, **options)
        return list(library(text, add_special_tokens=False).input_ids)

    message = {"role": "user", "content": f"x 0.1 y -2\n\n{QUESTION.text}\n\n{ANSWER}"}
    ids = [*wording.state_ids("x 0.1 y -2"), *wording.question_ids(QUESTION.text)]
    assert ids == written(message, add_generation_prompt=True)
    marks = [wording.tokenizer.special_id(mark) for mark in wording.tokenizer.specials]
    for mark in wording.tokenizer.specials:  # a question's text never becomes control tokens
        for part in (wording.state_ids, wording.question_ids, wording.option_ids):
            assert [i for i in part(mark) if i in marks] == [i for i in part("") if i in marks]


@pytest.mark.parametrize(
    ("written", "eos", "problem"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None, "that ends an answer"),
        ("{{ raise_exception('No!') }}", "<|im_end|>", r"message alone \(No!\)"),
    ],
)
def test_chat_model_without_usable_template_is_refused(
    tmp_path: Path, written: str, eos: str | None, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        answering(with_template(tmp_path / "m", written, eos))


# An illegal value is decided again once, and a call that breaks its tool's rules is refused.


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


def test_call_against_rules_of_its_tool_is_refused(model: Any) -> None:
    _, folder, _ = model
    decider = build(folder, [{"name": "go", "parameters": RULED}])
    for text in ("x 1", "go left", "turn", ""):
        try:
            call = decider.decide(text, "go").call
        except DecodeError as error:
            assert "violate `not`" in str(error)
        else:
            assert call is not None
            jsonschema.Draft202012Validator(RULED).validate(dict(call.arguments))
