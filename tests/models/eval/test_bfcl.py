"""BFCL's own checker: what it takes, what it refuses, and what is left where it is not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Check
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.bfcl import check

PROPERTIES = {
    "speed": {"type": "float"},
    "count": {"type": "integer"},
    "on": {"type": "boolean"},
    "way": {"type": "string"},
    "path": {"type": "array", "items": {"type": "float"}},
}


@pytest.fixture(scope="module")
def official() -> None:
    if not os.environ.get("RTCONTROL_BFCL"):
        pytest.skip("RTCONTROL_BFCL names no interpreter that has bfcl-eval, nor the package's folder")


def case(name: str, allowed: list[Any], value: Any, category: str = "simple") -> tuple[Check, list[Call]]:
    parameters = {"type": "dict", "properties": {name: PROPERTIES[name]}, "required": [name]}
    function = {"name": "a.go", "description": "", "parameters": parameters}
    return Check(category, (function,), [{"a.go": {name: allowed}}]), [Call("a.go", {name: value})]


TAKEN = [("speed", [3.0], 3), ("way", ["New York"], "new-york, "), ("path", [[1.0, 2.0]], [1.0, 2.0])]
REFUSED = [
    ("count", [3], 3.0),
    ("count", [3], "3"),
    ("on", [True], "true"),
    ("way", ["94103"], 94103),
    ("way", ["go"], None),
    ("way", ["go"], '"go"x'),
    ("path", [[1.5, 2.5]], [1, 2]),
]


def test_the_checker_takes_and_refuses_as_it_does(official: None) -> None:
    found = check([case(*one) for one in (*TAKEN, *REFUSED)])
    assert [one.valid for one in found] == [True] * len(TAKEN) + [False] * len(REFUSED)
    assert all(one.error for one in found if not one.valid)


def test_a_wrong_function_none_and_one_too_many_are_refused(official: None) -> None:
    asked, calls = case("count", [3], 3)
    given = [[Call("b.go", {"count": 3})], [], calls * 2, calls]
    assert [one.valid for one in check([(asked, one) for one in given])] == [False, False, False, True]


def test_what_the_checker_chokes_on_counts_as_wrong(official: None) -> None:
    asked, calls = case("count", [3], 3)
    unknown = Check("simple", ({**asked.functions[0], "parameters": {"properties": {}}},), asked.answer)
    first, second = check([(unknown, calls), (asked, calls)])
    assert (first.valid, first.raised) == (False, True) and second.valid


def test_no_package_is_told_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder `data` of BFCL.*pip install --no-deps bfcl-eval"):
        check([case("count", [3], 3)], tmp_path)


def test_a_folder_that_only_looks_like_the_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "bfcl_eval" / "data").mkdir(parents=True)
    with pytest.raises(UserError, match=r"does not run \(ModuleNotFoundError"):
        check([case("count", [3], 3)], tmp_path)
