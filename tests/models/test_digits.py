"""Numbers as a grammar has them: within bounds to the last digit, and ended in the fewest characters."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.models.schema.numbers import LEAST, MOST, ended, range_of
from rtcontrol.models.schema.pattern import accepts, matcher
from rtcontrol.models.schema.schema_grammar import SchemaGrammar
from tests.models.small import law

WHOLE = [0, 1, 9, 10, 99, 100, -1, -10, 123, -456, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1]
REAL = [0, 0.5, 1e-9, -0.25, 0.1, 12.5, -3, 99.99, 1e-100, 1e300, -1e300, 5e-324, 3.07]
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
KINDS = st.sampled_from(("integer", "number"))


@law(300)
@given(
    kind=KINDS,
    bounds=st.dictionaries(st.sampled_from(BOUNDS), st.sampled_from(WHOLE + REAL), max_size=3),
    step=st.sampled_from((None, None, 2, 7, 0.5, 0.1, 1.5, 100003)),
    texts=st.lists(
        st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,4})?", fullmatch=True)
        | st.sampled_from(
            [f"{Decimal(str(n)):f}" for n in WHOLE + REAL] + ["-0", "-0.0", "0.0", "00", "1.", str(MOST + 1)]
        ),
        max_size=12,
    ),
    cut=st.integers(0, 9),
)
@example(kind="number", bounds={"minimum": 5e-324}, step=None, texts=[f"{Decimal('5e-324'):f}"], cut=0)
@example(kind="number", bounds={"exclusiveMinimum": 5e-324}, step=None, texts=[f"{Decimal('6e-324'):f}"], cut=0)
@example(kind="number", bounds={"maximum": -5e-324, "minimum": -1e300}, step=None, texts=["-0.1", "0.0"], cut=0)
def test_a_number_is_taken_where_it_lies_within_its_bounds_and_each_beginning_is_ended(
    kind: str, bounds: dict[str, Any], step: float | None, texts: list[str], cut: int
) -> None:
    numbers = range_of({"type": kind, **bounds, **({} if step is None else {"multipleOf": step})})
    if numbers.empty():
        assert ended("", numbers) is None
        return
    machine = matcher(f"start: T\nT: {numbers.terminal()}\n")
    for text in texts:
        form = r"-?(0|[1-9]\d*)" + r"(\.\d+)?" * (kind == "number")
        within = re.fullmatch(form, text) is not None and not re.fullmatch(r"-0(\.0*)?", text)
        if within:
            value = Decimal(text)
            within = numbers.low <= value <= numbers.high
            within &= not (numbers.above and value == numbers.low) and not (numbers.below and value == numbers.high)
        assert accepts(machine, text) == within, text
        if within and step is None:
            begun = text[:cut]
            end = ended(begun, numbers)
            assert end is not None and len(end) <= len(text) - len(begun) and accepts(machine, begun + end)
    if (end := ended("", numbers)) is not None:
        assert accepts(machine, end)
        assert numbers.step is None or Fraction(end) % numbers.step == 0


@pytest.mark.parametrize(
    ("schema", "begun", "end"),
    [
        ({"type": "number", "exclusiveMinimum": 0}, "0.0000", "1"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-9}, "0.", "000000001"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-9}, "", "0.000000001"),
        ({"type": "integer", "multipleOf": 100003, "minimum": 1}, "1", "00003"),
        ({"type": "number", "minimum": 1000}, "1", "000"),
        ({"type": "integer", "exclusiveMaximum": -5}, "-", "6"),
        ({"type": "integer", "minimum": 5, "maximum": 7}, "8", None),
        ({"type": "integer", "minimum": LEAST, "maximum": LEAST}, "", str(LEAST)),
    ],
)
def test_the_fewest_characters_end_a_number(schema: dict[str, Any], begun: str, end: str | None) -> None:
    assert ended(begun, range_of(schema)) == end


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("places", [5, 10, 19])
def test_a_large_power_of_ten_is_a_step_from_the_first_character_on(kind: str, places: int) -> None:
    schema = {"type": kind, "multipleOf": 10**places, **({"minimum": -(10**19)} if kind == "number" else {})}
    machine = matcher(SchemaGrammar(schema, "w").text)
    for text in ("0", f"1{'0' * places}", "10000000000000000000", f"-{10**places}" if places < 19 else "0"):
        assert accepts(machine, text), text
    for text in ("3", "1000", f"1{'0' * (places - 1)}", f"15{'0' * (places - 1)}", "-0", f"0{10**places}"):
        assert not accepts(machine, text), text
    assert accepts(machine, "0.0") == accepts(machine, f"1{'0' * places}.0") == (kind == "number")
    assert not accepts(machine, f"1{'0' * places}.5")
