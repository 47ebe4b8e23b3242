"""Words that no sentence of training had are found out, forms and slips of known ones are not, and none costs much."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import LONGEST, MOST_UNKNOWN, KnownWords, TrainingMetadata, words

KNOWN = KnownWords(words("go to the red box drive stop wait one done now exit pick up; 去红色的箱子"))


@pytest.mark.parametrize(
    ("said", "unknown"),
    [
        ("Go to the RED box!", ()),
        ("both of the red boxes", ("both", "of")),  # what was read as another goal, with 0.999
        ("don't go to the exit", ("don't",)),
        ("don\u2019t go", ("don't",)),
        ("dont go", ("dont",)),
        ("none", ("none",)),  # no slip of `one`
        ("driving, stopped, waits, picked, boxed", ()),
        ("drvie to the exti", ()),
        ("drivee tot teh box", ("tot",)),
        ("stpo", ()),
        ("rad", ("rad",)),  # three letters are no slip
        ("never ever", ("never", "ever")),
        ("go 12 -3.5 2nd", ("nd",)),
        ("去蓝色的箱子", ("蓝",)),
        ("наверх", ("наверх",)),
        ("", ()),
    ],
)
def test_what_was_never_said_is_named_and_forms_of_what_was_are_known(said: str, unknown: tuple[str, ...]) -> None:
    assert KNOWN.unknown(said) == unknown


@given(st.text(max_size=300))
def test_any_text_has_few_unknown_words_and_those_that_are_taught_are_known(text: str) -> None:
    found = KNOWN.unknown(text)
    assert len(found) <= MOST_UNKNOWN and set(found) <= set(words(text))
    assert KnownWords(words(text)).unknown(text) == ()


def test_a_hostile_sentence_is_looked_at_no_longer_than_another() -> None:
    began = time.process_time()
    KNOWN.unknown(" ".join(f"drive{'abcdefghij'[i % 10]}{'klmnopqrst'[i // 10 % 10]}" for i in range(20_000)))
    assert KNOWN.unknown("x" * 100_000) == ("x" * 100_000,)
    KNOWN.unknown(f"{'o' * LONGEST} " * 5_000)
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("name", ["lander", "paddle", "driver"])
def test_no_sentence_of_a_stranger_that_means_something_is_held_for_its_words_alone(name: str) -> None:
    learnt = TrainingMetadata.of(ZOO / name)
    assert learnt is not None and learnt.words is not None and learnt.gate is not None
    held = Counter[bool]()
    for path in sorted(Path("tests/strangers").glob("list-*.jsonl.gz")):
        for line in map(json.loads, gzip.decompress(path.read_bytes()).splitlines()):
            if line["env"] == name and line["means"] is not None:
                held[0.99 * learnt.doubt ** len(learnt.unknown(line["say"])) < learnt.gate] += 1
    assert held[False] > 250 and held[True] == 0
