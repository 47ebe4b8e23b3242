"""Values and how they are written: numbers by Decimal, typed leaves, two alike refused."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import MAX_CLOSED, ClosedDomain, Free, domain_of, same, value_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def listed(**schema: Any) -> ClosedDomain:
    domain = domain_of(schema, "Tool t, parameter p")
    assert isinstance(domain, ClosedDomain)
    return domain


def test_tenths_are_written_with_one_digit_no_exponent_and_no_minus_zero() -> None:
    domain = listed(type="number", minimum=-0.3, maximum=0.3, multipleOf=0.1)
    assert domain.texts == ("-0.3", "-0.2", "-0.1", "0.0", "0.1", "0.2", "0.3")
    assert domain.values == (-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3)
    assert all(type(v) is float for v in domain.values)


def test_small_and_large_steps_have_no_exponent() -> None:
    assert listed(type="number", minimum=0, maximum=2e-7, multipleOf=1e-7).texts == (
        "0.0000000",
        "0.0000001",
        "0.0000002",
    )
    assert listed(type="number", minimum=0, maximum=2e22, multipleOf=1e22).texts[1] == "10000000000000000000000.0"
    assert value_text(1e-5) == "0.00001"
    assert value_text({"x": 1e-5, "y": [-0.0, 1e22]}) == '{"x":0.00001,"y":[0.0,10000000000000000000000.0]}'


@given(st.integers(-500, 500), st.integers(0, 60), st.sampled_from(["0.1", "0.25", "0.5", "0.01", "3", "1"]))
def test_grid_holds_exactly_the_multiples_within_its_bounds(first: int, count: int, step: str) -> None:
    low, high = Decimal(first) * Decimal(step), Decimal(first + count) * Decimal(step)
    domain = listed(type="number", minimum=float(low), maximum=float(high), multipleOf=float(step))
    assert list(domain.values) == [float((first + i) * Decimal(step)) for i in range(count + 1)]
    assert len({len(t.partition(".")[2]) for t in domain.texts}) == 1
    assert [float(t) for t in domain.texts] == list(domain.values)
    assert not any("e" in t.lower() or t.strip("0.") == "-" for t in domain.texts)


@settings(max_examples=50)
@given(JSON)
def test_written_values_read_back_equal(value: Any) -> None:
    text = value_text(value)
    if not isinstance(value, str):
        assert json.loads(text) == value
        if isinstance(value, float):
            assert "e" not in text


@pytest.mark.parametrize(("a", "b"), [(1, True), (1, 1.0), (0, False), ([1], [True]), ({"x": 1}, {"x": 1.0})])
def test_equal_values_of_two_types_are_not_the_same(a: Any, b: Any) -> None:
    assert a == b
    assert not same(a, b)


@given(st.lists(JSON, min_size=1, max_size=5))
def test_enum_keeps_declared_order_or_is_refused(values: list[Any]) -> None:
    texts = [value_text(v) for v in values]
    if any(isinstance(v, int) and not -(2**63) <= v < 2**63 for v in values):
        with pytest.raises(UserError, match="does not fit 64 bits"):
            domain_of({"enum": values}, "here")
    elif len(set(texts)) < len(texts):
        with pytest.raises(UserError, match="both written"):
            domain_of({"enum": values}, "here")
    else:
        assert domain_of({"enum": values}, "here") == ClosedDomain(tuple(values), tuple(texts))


def test_domain_with_too_many_values_is_free() -> None:
    assert isinstance(domain_of({"type": "integer", "minimum": 0, "maximum": MAX_CLOSED}, ""), Free)
    assert isinstance(domain_of({"type": "integer", "minimum": 0, "maximum": MAX_CLOSED - 1}, ""), ClosedDomain)
    assert isinstance(domain_of({"type": "integer", "minimum": 10**30, "maximum": 10**30 + 5}, ""), Free)


def test_type_without_schema_is_refused() -> None:
    schema = {"type": "thing"}
    with pytest.raises(UserError, match=r"Tool t, parameter p: .*the.* type.* no schema .* Use string, integer"):
        domain_of(schema, "Tool t, parameter p")


@given(st.integers(), st.floats(allow_nan=False))
def test_a_listed_whole_number_means_its_float_but_not_the_other_way_round(i: int, f: float) -> None:
    assume(abs(i) < 2**53)
    assert ClosedDomain((float(i),), ("",)).holds(i)
    assert not ClosedDomain((i,), ("",)).holds(float(i))
    assert not ClosedDomain((1.0,), ("",)).holds(True)


def test_a_listed_integer_is_as_large_as_messages_take() -> None:
    least, most = -(2**63), 2**64 - 1
    assert domain_of({"enum": [least, 2**63, most]}, "w").values == (least, 2**63, most)  # type: ignore[union-attr]
    for beyond in (least - 1, most + 1):
        with pytest.raises(UserError, match="does not fit 64 bits"):
            domain_of({"enum": [beyond]}, "w")
