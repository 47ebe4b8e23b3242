"""What is unfamiliar in an observation: numbers, words, their order and number, by hand-made descriptions."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

import pytest

from rtcontrol.models.checkpoint.observations import KnownNumbers, KnownObservations, swap_number
from rtcontrol.models.train.observations import MAX_FALSE_ALARMS, ObservationCounts

STOCK = KnownNumbers(("0",), "0 to 2, 5, 9", "1", 0)
VENDING = KnownObservations(
    {"stock#1": STOCK},
    {"slot": "1", "stock": "1", "stock#1": "1", "<length>": "4 to 6"},
    {"<start>": "slot", "slot": "A B", "A": "stock", "B": "stock", "stock": "stock#1", "lid": "open"},
)


@pytest.mark.parametrize("number", ["0", "1", "2", "5", "9"])
def test_numbers_of_training_are_familiar(number: str) -> None:
    assert VENDING.unfamiliar(f"slot A stock {number}") == ()


@pytest.mark.parametrize(
    "number", ["3", "4", "6", "8", "10", "-1", "100", "2.0", "1.5", "05", "+5", "5e0", "9" * 24, "1e999"]
)
def test_other_numbers_and_forms_are_unfamiliar(number: str) -> None:
    (reason,) = VENDING.unfamiliar(f"slot B stock {number}")
    assert reason == f"stock {number} (in training 0 to 2, 5, 9)"


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("slot C stock 2", ('the word "C"',)),
        ("slot A\nstock 2", ('a line break or tab after "A"',)),
        ("slot A  stock 2", ('several spaces after "A"',)),
        (" slot A stock 2\n", ()),
        ("slot a stock 2", ('the word "a"',)),
        ("slot stock 2", ('"stock" after "slot"',)),
        ("slot A stock", ('no number after "stock"',)),
        ("slot A stock five", ('no number after "stock"', 'the word "five"')),
        ("slot A stock \u22122", ('the word "\u2212"',)),
        ("slot A", ('no "stock"',)),
        ("slot A stock 2 stock 2", ('"stock" 2 times', 'the number after "stock" 2 times')),
        ("stock 2 slot A", ('"stock" at the start',)),
        ("slot A stock 2 lid open now", ("7 words and numbers (in training 4 to 6)",)),
        ("hello", ('no "slot"', 'no "stock"', 'the word "hello"')),
        ("", ('no "slot"', 'no "stock"')),
    ],
)
def test_unfamiliar_observation_names_the_difference(text: str, reasons: tuple[str, ...]) -> None:
    assert VENDING.unfamiliar(text) == reasons


def test_grid_and_decimals_of_training_count() -> None:
    tens = KnownNumbers(("0",), "-20 to 40", "10", 0)
    assert all(map(tens.is_known, ("-20", "0", "40"))) and not any(map(tens.is_known, ("5", "-30", "50", "10.0")))
    parts = KnownNumbers(("2",), "-1.00 to 0.25, 0.75", "0.01", 2)
    assert all(map(parts.is_known, ("-1.00", "0.25", "0.75"))) and not any(map(parts.is_known, ("0.26", "0.5", "1.00")))
    assert tens.message() == "-20 to 40 in steps of 10" and parts.message() == "-1.00 to 0.25, 0.75"
    assert len(KnownNumbers(("0",), "0, 1000000000000", "1", 0).gaps(200)) == 200
    assert STOCK.gaps(9) == ["3", "4", "6", "7", "8"] and STOCK.gaps(2) == ["3", "6"]
    assert swap_number('{"a": 1, "stock": [2, 3]}', "stock#2", "7") == '{"a": 1, "stock": [2, 7]}'


def test_long_observation_is_checked_in_linear_time() -> None:
    text = "slot A stock 2 " * 20_000
    started = time.process_time()
    assert VENDING.unfamiliar(text) and time.process_time() - started < 2.0


# -- from rows --------------------------------------------------------------------------------------------------------

Situation = Callable[[random.Random], str]
SITUATIONS: dict[str, Situation] = {
    "words": lambda rng: (
        f"slot {rng.choice('ABC')} stock {rng.choice((0, 1, 2, 5, 9))} lid {rng.choice(('open', 'shut'))}"
    ),
    "decimals": lambda rng: f"x {rng.uniform(-1, 1):.3f} v {rng.gauss(0, 1):.3f} queue {rng.randint(0, 99)}",
    "json": lambda rng: json.dumps({"pos": [rng.gauss(0, 3), rng.random()], "mode": rng.choice("ab")}),
    "list": lambda rng: " ".join(f"{rng.uniform(0.1, 12):.2f}" for _ in range(40)),
    "things": lambda rng: " . ".join(
        f"crate {rng.choice('ab')} {rng.randint(-9, 9)}" for _ in range(rng.randint(1, 6))
    ),
    "names": lambda rng: f"player {''.join(rng.choices('abcdef', k=6))} far {rng.randint(0, 50)}",
    "speech": lambda rng: "says " + " ".join(f"w{int(99 * rng.random() ** 3)}" for _ in range(rng.randint(3, 12))),
}


def known_from(situation: Situation, rows: int, seed: int = 0) -> KnownObservations:
    counts, rng = ObservationCounts(), random.Random(seed)
    for _ in range(rows):
        counts.add(situation(rng))
    return KnownObservations.from_dict(json.loads(json.dumps(counts.known().to_dict())))


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("rows", [400, 3_000])
def test_new_rows_of_the_same_source_are_familiar(name: str, rows: int) -> None:
    known, rng = known_from(SITUATIONS[name], rows), random.Random(1)
    unfamiliar = sum(bool(known.unfamiliar(SITUATIONS[name](rng))) for _ in range(1_000))
    assert unfamiliar <= 2 * MAX_FALSE_ALARMS * 1_000


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("words", ["slot A stock 4 lid open", "slot D stock 2 lid open", "slot A stock 2", "hello", ""]),
        (
            "decimals",
            ["x 0.5 v 0.100 queue 3", "x 2.000 v 0.100 queue 3", "x 0.100 v 0.100 queue 100", "x 0.100 queue 3"],
        ),
        ("json", ['{"pos": [0.5], "mode": "a"}', '{"pos": [1.25, 0.5], "mode": "c"}', '{"mode": "a"}', "[]"]),
        ("list", ["1.00 2.00", " ".join(["55.00"] * 40), " ".join(["1.0"] * 40), ""]),
        ("names", ["player abcdef far 99", "player abcdef", "far 3"]),
    ],
)
def test_other_observations_than_the_rows_are_unfamiliar(name: str, texts: list[str]) -> None:
    known = known_from(SITUATIONS[name], 3_000)
    assert all(known.unfamiliar(text) for text in texts)


def test_values_held_out_of_the_rows_are_unfamiliar() -> None:
    for left_out in ("stock 5 ", "slot B ", "lid shut"):
        counts, rng, other = ObservationCounts(), random.Random(2), list[str]()
        for _ in range(2_000):
            text = SITUATIONS["words"](rng)
            (other.append if left_out in text else counts.add)(text)
        known = counts.known()
        assert other and all(known.unfamiliar(text) for text in other)


def test_rare_last_values_extend_the_known_numbers() -> None:
    counts = ObservationCounts()
    for red in range(-18, 17):
        for _ in range(2 if red in (-18, 16) else 3):  # a rover that stays at the end of its world for two rows
            counts.add(f"red {red} stock {abs(red) % 3}")
    known = counts.known()
    assert known.unfamiliar("red 17 stock 1") == () and known.unfamiliar("red 30 stock 1")
    assert known.unfamiliar("red 3 stock 3")


def test_only_sparse_fields_have_gaps() -> None:
    counts, rng = ObservationCounts(), random.Random(3)
    for _ in range(1_000):
        stock, leg = rng.choice((0, 1, 2, 5, 9)), rng.choice((0, 1))
        counts.add(f"stock {stock} queue {rng.randint(0, 40)} x {rng.random():.3f} legs {leg}")
    assert {name: known.spans for name, known in counts.sparse_numbers().items()} == {"stock#1": "0 to 2, 5, 9"}
