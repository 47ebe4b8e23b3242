"""Tests of the reader of numbers: notations, words, units, ambiguous numbers, and the numbers that training had."""

from __future__ import annotations

import time

import pytest

from rtcontrol.models.numbers import TrainedNumbers, known_numbers, read_quantities, with_plain_numbers

READ = {
    "drive at 30 mph": ["30 mph"],
    "30km/h, or 30 km / h": ["30 km/h", "30 km/h"],
    "x \u22120.2; y=.7": ["-0.2", "0.7"],
    "hover at 0,7.": ["0.7"],
    "+3 and -.5": ["3", "-0.5"],
    "\uff13\uff10 or \u0663\u0660": ["30", "30"],
    "30% 30\u00b0 30 degrees": ["30 %", "30 \u00b0", "30 \u00b0"],
    "two and a half metres": ["2.5 m"],
    "minus fifty-five, nought point seven five": ["-55", "0.75"],
    "one hundred and twenty; three quarters; point seventy five": ["120", "0.75", "0.75"],
    "the left one": [],
    "one metre an hour, fifty kilometers per hour": ["1 m/h", "50 km/h"],
    "twenty or thirty and forty": ["20", "30", "40"],
    "at -0.3,0.75 or -0.3,-0.7": ["-0.3", "0.75", "-0.3", "-0.7"],
}
UNCLEAR = (
    "1,000", "1.000", "1e3", "3-5", "1/2", "\u00bd", "$30", "~30", "- 5", "minus 3", "3,4,5", "5:30", "at nan",
    "second left", "0x1f", "x0.3", "fifty fifty",
)  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_numbers_are_read_with_sign_and_unit(text: str) -> None:
    assert [f"{q.value:f} {q.unit}".strip() for q in read_quantities(text)] == READ[text]


@pytest.mark.parametrize("text", UNCLEAR)
def test_ambiguous_number_has_no_value(text: str) -> None:
    assert [q.value for q in read_quantities(text)][-1:] == [None]


def test_sentence_gets_plain_numbers_or_none() -> None:
    assert with_plain_numbers("x \u22120,20 y .7 m") == "x -0.2  y 0.7  m"
    assert with_plain_numbers("go to 7 m", units=["km"]) is None and with_plain_numbers("go to 1e3") is None
    assert with_plain_numbers("go five", spoken=True) == "go 5 " and with_plain_numbers("go five") == "go five"


@pytest.mark.parametrize("text", ["1 ", "one ", "and ", "point ", "9", "a b ", "minus "])
def test_long_sentence_is_read_in_linear_time(text: str) -> None:
    started = time.process_time()
    assert len(TrainedNumbers(known_numbers([])).unknown(text * 10_000)) <= 8
    assert time.process_time() - started < 2


TRAINED = TrainedNumbers(
    known_numbers(
        [*(f"drive at {v} km/h" for v in (20, 30)), "drive at fifty", "use the second row", "p1 stays 1,000 m away"]
        + [f"hover at {v / 100:.2f}" for v in range(-20, 120)]
    )
)


@pytest.mark.parametrize(
    "text",
    [
        "drive at 30",
        "at 30km/h",
        "hover at -0.15",
        "0.73 km/h",
        "drive at fifty",
        "the second row",
        "p1 1,000 m",
        "go",
    ],
)
def test_number_of_training_is_known(text: str) -> None:
    assert TRAINED.unknown(text) == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("drive at 30 mph", "30 mph"),
        ("drive at -20", "-20"),
        ("drive at 25", "25"),
        ("drive at 030", "030"),
        ("hover at 0,73", "0,73"),
        ("hover at .73", ".73"),
        ("hover at 0.735", "0.735"),
        ("hover at 1.50", "1.50"),
        ("x \u22120.15", "\u22120.15"),
        ("drive at fifty five", "fifty five"),
        ("the second left", "second left"),
        ("drive at minus 30", "minus 30"),
        ("drive at \uff13\uff10", "\uff13\uff10"),
        ("30 furlongs", "30"),
    ],
)
def test_number_or_unit_that_training_lacked_is_unknown(text: str, named: str) -> None:
    assert TRAINED.unknown(text, words=["furlongs"]) == (named,)
