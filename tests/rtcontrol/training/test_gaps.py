"""Numbers that situations leave out are named and trained, and models without nonsense get a gate, too."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.data.row import Row
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.train.observations import ObservationCounts
from rtcontrol.training.examples import label_situation, tools_of
from rtcontrol.training.fit_run import Share
from rtcontrol.training.gaps import GapFiller, gap_notices, known_table, unfamiliar_shares
from rtcontrol.training.gate import FAMILIAR, MIN_GATE, fit_familiar_gate, spare_words

TOOLS = tools_of({"SELL": "Sell.", "WAIT": "Wait."})


def situations(rng: random.Random) -> Iterator[tuple[str, str]]:
    while True:
        yield "run", f"shelf {rng.choice((1, 4, 7))} stock {rng.choice((0, 1, 2, 5, 9))} queue {rng.randint(0, 20)}"


def label(instruction: str, observation: str) -> str:
    _, shelf, _, stock, _, _ = observation.split()
    return ("WAIT" if stock == "0" else "SELL") if shelf in ("1", "4", "7") else "shelf?"


def test_gaps_with_labels_are_trained() -> None:
    filler = GapFiller.from_sample(situations, partial(label_situation, label, TOOLS), random.Random(0))
    assert filler.numbers == {"stock#1": ["3", "4", "6", "7", "8"]} and filler.names() == ["stock"]
    rows = [observation.split() for _, observation in itertools.islice(filler(random.Random(1)), 2_000)]
    assert {row[3] for row in rows} == set("0123456789") and {row[1] for row in rows} == {"1", "4", "7"}
    share = sum(row[3] in "34678" for row in rows) / len(rows)
    assert 0.2 < share < 0.3


def test_function_that_raises_in_a_gap_keeps_the_situations() -> None:
    def strict(instruction: str, observation: str) -> str:
        return {"0": "WAIT", "1": "SELL", "2": "SELL", "5": "SELL", "9": "SELL"}[observation.split()[3]]

    filler = GapFiller.from_sample(situations, partial(label_situation, strict, TOOLS), random.Random(0))
    assert set(filler.numbers) == {"shelf#1"}, "every shelf has a call, no other stock"
    assert {row[1].split()[3] for row in itertools.islice(filler(random.Random(1)), 500)} == set("01259")


def test_changed_observations_are_unfamiliar() -> None:
    texts = [observation for _, observation in itertools.islice(situations(random.Random(0)), 2_100)]
    counts = ObservationCounts()
    for text in texts[:2_000]:
        counts.add(text)
    shares = unfamiliar_shares(counts.known(), texts[2_000:], random.Random(1))
    assert shares.pop("unchanged") == Share(0, 100) and shares.pop("an empty text") == Share(1, 1)
    assert set(shares) == {"a number between", "a number beyond", "a new word", "without a word or number"}
    assert all(share == Share(100, 100) for share in shares.values())
    assert known_table(counts.known())[1] == ("stock", "0 to 2, 5, 9")


def test_notices_name_fields_with_gaps() -> None:
    texts = [observation for _, observation in itertools.islice(situations(random.Random(0)), 500)]
    (notice,) = gap_notices(texts)
    assert "the model knows shelf 1, 4, 7; stock 0 to 2, 5, 9." in notice
    assert gap_notices([f"queue {n}" for n in range(20)] * 20) == []
    assert gap_notices([], ["stock"]) == ["stock: the numbers between those of `situations` are trained, too."]


@pytest.mark.parametrize(
    ("confidences", "gate"),
    [
        ([1.0] * 50, FAMILIAR),
        ([0.3, *[0.9] * 49], FAMILIAR),
        ([0.2] * 50, 0.2),
        ([0.0] * 9, MIN_GATE),
    ],
)
def test_gate_without_nonsense_spares_held_out_rows(confidences: list[float], gate: float) -> None:
    decisions = [Decision(Call("go"), {"function": value}) for value in confidences]
    decide: Any = SimpleNamespace(decisions=lambda rows: [*decisions, DecodeError("no call")])
    assert fit_familiar_gate(decide, []) == gate
    assert sum(value < gate for value in confidences) <= 0.02 * len(confidences) or gate == MIN_GATE


def test_free_instructions_may_have_unknown_words() -> None:
    closed = [Row(f"pick the {colour} parts", "", None) for colour in ("red", "green") for _ in range(100)]
    assert spare_words(closed) == 0
    rng = random.Random(0)
    free = [
        Row(" ".join(f"w{'x' * int(40 * rng.random() ** 4)}{rng.choice('abcdefgh')}" for _ in range(6)), "", None)
        for _ in range(300)
    ]
    assert 0 < spare_words(free) < 4
