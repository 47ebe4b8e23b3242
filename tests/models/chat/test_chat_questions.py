"""A chat model answers questions with the probabilities of Hugging Face's forwards, in its own template's words."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rtcontrol.models.checkpoint.chat_template import ChatTemplate
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from rtcontrol.models.questions import ANSWER, QuestionDecider, StateQuestion
from tests.models.chat.families import checkpoint, engine_of
from tests.models.small import Oracle, law
from tests.models.test_questions import SEVERAL, by_hugging_face, close

CLOSE_BY = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }} !<|im_end|>\n{% endfor %}"
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
ASKED = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
QUESTION = StateQuestion("Which engine?\nmain: Up.\nside", ("main", "side"))


def answering(folder: Path) -> QuestionDecider:
    return QuestionDecider(DeciderSpec(str(folder), (), engine=engine_of(folder)))


def with_template(folder: Path, written: str, eos: str | None = "<|im_end|>") -> Path:
    """A small checkpoint of this template."""
    checkpoint(folder, "llama3")
    (folder / "chat_template.jinja").write_text(written)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": eos}))
    return folder


def ending(folder: Path) -> str:
    tokenizer = STTokenizer.load(folder / "tokenizer.json")
    return tokenizer.decode([ChatTemplate(folder, tokenizer).ending()])


@law(8)
@given(state=st.text(max_size=30), asked=SEVERAL)
def test_chat_probabilities_equal_those_of_hugging_face_and_sum_to_one(
    model: Any, state: str, asked: list[StateQuestion]
) -> None:
    _, folder, judge = model
    decider = answering(folder)
    found = decider.answer(state, asked)
    assert found.forward_passes == 1
    close(found.probabilities, [by_hugging_face(Oracle(judge), decider, state, one) for one in asked])
    assert all(math.fsum(p) == 1.0 and min(p) >= 0 for p in found.probabilities)


@pytest.mark.parametrize("turns", [PLAIN, CLOSE_BY])
def test_a_chat_model_is_asked_in_its_own_templates_words(tmp_path: Path, turns: str) -> None:
    folder = with_template(tmp_path / "m", turns + ASKED)
    wording, library = answering(folder).wording, AutoTokenizer.from_pretrained(str(folder))

    def written(*messages: dict[str, str], **told: Any) -> list[int]:
        text = library.apply_chat_template(list(messages), tokenize=False, **told)
        return list(library(text, add_special_tokens=False).input_ids)

    said = {"role": "user", "content": f"x 0.1 y -2\n\n{QUESTION.text}\n\n{ANSWER}"}
    asked = [*wording.state("x 0.1 y -2"), *wording.question(QUESTION.text)]
    assert asked == written(said, add_generation_prompt=True)


def test_what_is_asked_of_a_chat_model_is_never_control(tmp_path: Path) -> None:
    wording = answering(with_template(tmp_path / "m", PLAIN + ASKED)).wording
    marks = [wording.tokenizer.special_id(mark) for mark in wording.tokenizer.specials]
    for said in wording.tokenizer.specials:
        for ids, alone in (
            (wording.state(said), wording.state("")),
            (wording.question(said), wording.question("")),
            (wording.option(said), wording.option("")),
        ):
            assert [i for i in ids if i in marks] == [i for i in alone if i in marks]


@pytest.mark.parametrize(
    ("written", "ends"),
    [
        ("{% for m in messages %}<|im_end|>{{ m.role }}\n{{ m.content }}<|im_start|>\n{% endfor %}", "<|im_start|>"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "<|im_end|>"),
        ("{{ messages[0].content }}{% if messages[1] %}{{ raise_exception('One turn!') }}{% endif %}", "<|im_end|>"),
    ],
)
def test_an_answer_ends_as_the_models_turn_does_or_with_its_end_of_text(
    tmp_path: Path, written: str, ends: str
) -> None:
    folder = with_template(tmp_path / "m", written)
    assert ending(folder) == ends
    (found,) = answering(folder).answer("x 1", [QUESTION]).probabilities  # no call's syntax is needed for it
    assert math.fsum(found) == 1.0


def test_a_chat_model_that_cannot_be_asked_says_why(tmp_path: Path) -> None:
    for name, written, eos, what, remedy in (
        ("none", "{% for m in messages %}{{ m.content }}{% endfor %}", None, "how an answer ends", "`eos_token`"),
        (
            "refusal",
            "{{ raise_exception('No!') }}",
            "<|im_end|>",
            "takes no user's turn alone (No!)",
            "trained to chat",
        ),
    ):
        with pytest.raises(UserError) as error:
            answering(with_template(tmp_path / name, written, eos))
        assert what in error.value.what and remedy in error.value.remedy and name in error.value.what
        shutil.rmtree(tmp_path / name)
