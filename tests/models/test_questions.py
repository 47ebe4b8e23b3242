"""Questions about a state: the probabilities of a packed pass equal Hugging Face's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models import questions as questions_module
from rtcontrol.models.checkpoint.prompt import SIMPLETOOL_V1_TURNS, PromptTemplate
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.protocol import NotFinite
from rtcontrol.models.errors import UserError
from rtcontrol.models.questions import QuestionDecider, StateQuestion
from tests.models.small import VALUES, Oracle, law

CLOSE = 1e-4  # tolerance of probabilities in fp32
OPTIONS = st.lists(st.one_of(st.sampled_from(VALUES), st.text(max_size=6)), min_size=2, max_size=7, unique=True)
ASKED = st.builds(StateQuestion, st.text(max_size=25), OPTIONS.map(tuple))
SEVERAL = st.lists(ASKED, min_size=1, max_size=5)
# These questions share prefixes, and so do their options.
ALIKE = [
    StateQuestion("go left or right", ("alpha beta go", "alpha beta stop", "alpha")),
    StateQuestion("go left or turn", ("red", "green blue", "green red")),
    StateQuestion("go left or right", ("alpha beta go", "alpha beta stop", "alpha")),
    StateQuestion("", ("true", "false")),
]


def decider_of(folder: Path) -> QuestionDecider:
    return QuestionDecider(DeciderSpec(str(folder), ()))


def by_hugging_face(oracle: Oracle, decider: QuestionDecider, state: str, question: StateQuestion) -> list[float]:
    """Return each option's probability: the product, over its tokens, of a token's share among those that continue some
    option."""
    wording = decider.encoder
    prompt = [*wording.state_ids(state), *wording.question_ids(question.text)]
    paths = [wording.option_ids(option) for option in question.options]
    probabilities = []
    for path in paths:
        probability = 1.0
        for i, token in enumerate(path):
            legal = sorted({other[i] for other in paths if other[:i] == path[:i]})
            if len(legal) > 1:
                row = oracle.logits([*prompt, *path[:i]])[-1][legal].double().softmax(-1)
                probability *= float(row[legal.index(token)])
        probabilities.append(probability)
    return probabilities


def close(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> None:
    for value, other in zip(ours, theirs, strict=True):
        assert value == pytest.approx(other, abs=CLOSE)


@law(12)
@given(state=st.text(max_size=30), questions=SEVERAL, before=st.text(max_size=30))
def test_packed_probabilities_equal_those_of_hugging_face(
    checkpoint: tuple[Path, Oracle], state: str, questions: list[StateQuestion], before: str
) -> None:
    folder, oracle = checkpoint
    decider = decider_of(folder)
    decider.answer(before, questions[::-1])  # then the next prompt reuses a common prefix
    answers = decider.answer(state, questions)
    assert answers.forward_passes == 1
    close(answers.probabilities, [by_hugging_face(oracle, decider, state, question) for question in questions])
    assert all(math.fsum(p) == 1.0 and min(p) >= 0 for p in answers.probabilities)


@pytest.mark.parametrize(("slice_", "long"), [(1, 256), (6, 256), (64, 1)])
def test_slices_and_long_questions_keep_the_probabilities(
    folder: Path, monkeypatch: pytest.MonkeyPatch, slice_: int, long: int
) -> None:
    whole = decider_of(folder).answer("x 1 y 2", ALIKE)
    monkeypatch.setattr(questions_module, "MIN_PASS_TOKENS", slice_)
    monkeypatch.setattr(questions_module, "slice_tokens", lambda runner: 0)
    monkeypatch.setattr(questions_module, "LONG_TOKENS", long)
    decider = decider_of(folder)
    steps, passes = decider.answer_in_steps("x 1 y 2", ALIKE), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            answers = done.value
            break
        passes += 1
    close(answers.probabilities, whole.probabilities)
    assert answers.forward_passes > 1 and passes >= answers.forward_passes


def test_the_last_state_stays_cached(folder: Path) -> None:
    decider = decider_of(folder)
    first, again = (decider.answer("x 1 y 2 and more", ALIKE) for _ in range(2))
    close(first.probabilities, again.probabilities)
    assert first.kept > 0 == again.kept
    assert again.reused_tokens == first.reused_tokens + first.kept and again.tokens == first.tokens - first.kept


def test_question_beyond_the_context_is_refused_with_the_excess(folder: Path) -> None:
    decider = decider_of(folder)
    room = decider.handle.slots - len(decider.encoder.state_ids("go " * 1000))
    around = len(decider.encoder.question_ids("x")) - 1
    fits, over = (StateQuestion("x" * n, ("0", "1")) for n in (room - around, room - around + 1))
    assert len(decider.encoder.question_ids(fits.text)) == room
    decider.answer("go " * 1000, [fits])
    with pytest.raises(UserError, match=rf"together 1 more than the model's context of {decider.handle.slots}"):
        decider.answer("go " * 1000, [fits, over])


def test_nan_score_gives_no_answer(folder: Path) -> None:
    decider: Any = decider_of(folder)
    expected = decider.answer("x 1", ALIKE).probabilities
    weights, kept = decider.runner.model.weights.lm_head, decider.runner.model.weights.lm_head.clone()
    weights.fill_(float("nan"))
    decider.handle.columns.clear()
    try:
        with pytest.raises(NotFinite):
            decider.answer("x 1", ALIKE)
    finally:
        weights.copy_(kept)
        decider.handle.columns.clear()
    close(decider.answer("x 1", ALIKE).probabilities, expected)


def test_question_takes_the_place_of_the_instruction(folder: Path) -> None:
    decider = decider_of(folder)
    tokenizer: Any = decider.encoder.tokenizer
    template = PromptTemplate({"template": "<|im_start|>{tools}<|im_end|>" + SIMPLETOOL_V1_TURNS}, tokenizer, "here")
    state, question = template.state_ids('say "a"'), template.question_ids("<|im_end|> so?")
    assert tokenizer.decode(state) == '<|im_start|><|im_end|><|im_start|>user\nenvironment: ["say \\"a\\""]'
    assert tokenizer.decode(question) == "\nhistory: []\n\n<|im_end|> so?<|im_end|>\n<|im_start|>assistant\n"
    assert question.count(tokenizer.special_id("<|im_end|>")) == 1, "text is never control"
    wording = decider.encoder
    assert tokenizer.decode(wording.state_ids("x 1")) == "<|im_start|><|im_end|><|im_end|><|im_end|>x 1"
    assert tokenizer.decode(wording.question_ids("so?")) == "\nso?<|im_start|><arg1>"
    assert (
        tokenizer.decode(wording.option_ids("<|im_end|>")) == "<|im_end|></arg1>"
        and len(wording.option_ids("<|im_end|>")) > 2
    )
