"""Calls and values as the sets write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.data.values import arguments_of, call_of, coerced

values = st.recursive(
    st.booleans() | st.none() | st.integers(-(2**53), 2**53) | st.floats(-1e300, 1e300) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c_d"]), values))
def test_a_call_as_python_writes_it_is_read_again(arguments: dict[str, Any]) -> None:
    written = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    assert call_of(f"shop.find({written})") == Call("shop.find", arguments)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("f(p=1/6)", {"p": 1 / 6}),
        ("f(p=-(2 + 3)*4)", {"p": -20}),
        ("f(on=true, off=False, gone=null)", {"on": True, "off": False, "gone": None}),
        ("f(loc=Berkeley)", {"loc": "Berkeley"}),
        ("f(at=(1, 2))", {"at": [1, 2]}),
    ],
)
def test_what_is_no_literal_is_worked_out(text: str, arguments: dict[str, Any]) -> None:
    assert call_of(text).arguments == arguments


@pytest.mark.parametrize(
    "text",
    ["f(1)", "f(**k)", "f(", "f", "f(a=g(1))", "f(a=1/0)", "f(a=9**9**9)", "f(a='x'*9)", "f(a=b[0])", "f(a={1: 2})"],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Unusable):
        call_of(text)


@pytest.mark.parametrize(
    ("value", "schema", "read"),
    [
        ("3", {"type": "integer"}, 3),
        ("3.5", {"type": "integer"}, "3.5"),
        ("1,500", {"type": "number"}, 1500.0),
        ("1e400", {"type": "number"}, "1e400"),
        ("nan", {"type": "number"}, "nan"),
        ("per month", {"type": "number"}, "per month"),
        ("True", {"type": "boolean"}, True),
        ("3", {"type": "string"}, "3"),
        ("Wi-Fi", {"type": "array", "items": {"type": "string"}}, ["Wi-Fi"]),
        ("['1', '2']", {"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ("{'a': 1}", {"type": "object"}, {"a": 1}),
    ],
)
def test_strings_are_read_by_the_parameters_type(value: Any, schema: dict[str, Any], read: Any) -> None:
    assert coerced(value, schema) == read


def test_arguments_are_an_object_or_its_json() -> None:
    assert arguments_of('{"a": 1}') == arguments_of({"a": 1}) == {"a": 1}
    for bad in ("{", "[1]", 3):
        with pytest.raises(Unusable):
            arguments_of(bad)
