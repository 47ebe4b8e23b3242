"""Rows balanced by the number of their calls' arguments, and rows of pass-through functions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.canonical import canonical, check_call
from rtcontrol.models.data.canonical import rows as passed
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.stats import OVER, PAPER, Tally, balanced, shares_of
from rtcontrol.models.data.types import tool
from rtcontrol.models.errors import UserError


def row(n: int, arguments: int | None) -> DataRow:
    names = [f"p{k}" for k in range(arguments or 0)]
    shown = tool("f", "", {"type": "object", "properties": {name: {"type": "string"} for name in names}})
    call = None if arguments is None else Call("f", dict.fromkeys(names, "v"))
    return DataRow(f"r{n}", f"r{n}", "set", f"Query {n}.", "", (shown,), (), call)


def counts(rows: list[DataRow]) -> Counter[int]:
    return Counter(len(r.call.arguments) for r in rows if r.call is not None)


def test_the_papers_shares_are_met_by_as_many_rows_as_there_can_be() -> None:
    made = [row(n, n % 6 + 1) for n in range(6 * 200)]
    tally = Tally()
    tally.rows["set"] = len(made)
    found = balanced(made, shares_of(PAPER), "drop", 0, tally)
    assert counts(found) == {1: 180, 2: 200, 3: 180, 4: 170, 5: 150, 6: 120}
    assert tally.dropped["set", OVER] == 200 == len(made) - len(found) and tally.rows["set"] == len(found)
    assert (
        found
        == balanced(made, shares_of(PAPER), "drop", 0, Tally())
        != balanced(made, shares_of(PAPER), "drop", 1, Tally())
    )


@given(st.lists(st.none() | st.integers(0, 8), max_size=40), st.integers(0, 3))
def test_shares_hold_in_whatever_is_left(others: list[int | None], seed: int) -> None:
    made = [row(n, count) for n, count in enumerate([1, 2, 3, 4, 5, 6, *others])]
    shares = shares_of(PAPER)
    found = balanced(made, shares, "drop", seed, Tally())
    kept = {r.id for r in found}
    assert all(r.id in kept for r in made if r.call is None or not r.call.arguments)  # no share was asked for
    most = min(sum(min(len(r.call.arguments), 6) == c for r in made if r.call) / s for c, s in shares.items())
    held = Counter(min(len(r.call.arguments), 6) for r in found if r.call)
    assert all(held[c] == int(most * s + 1e-9) for c, s in shares.items())
    weighed = balanced(made, shares, "weight", seed, Tally())
    total = sum(r.weight for r in weighed if r.call and r.call.arguments)
    assert total == pytest.approx(sum(1 for r in made if r.call and r.call.arguments))
    for count, share in shares.items():
        own = sum(r.weight for r in weighed if r.call and min(len(r.call.arguments), 6) == count)
        assert own == pytest.approx(share * total)


def test_a_count_without_rows_cannot_have_a_share() -> None:
    with pytest.raises(UserError, match="No row has a call of 3 arguments"):
        balanced([row(0, 1), row(1, 2)], shares_of("1,1,1,0,0,0"), "drop", 0, Tally())
    assert shares_of("1,1,0,0,0,0,0") == {0: 0.5, 1: 0.5, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0}
    for bad in ("", "1,2", "a,b,c,d,e,f", "0,0,0,0,0,0", "-1,1,1,1,1,1", "nan,1,1,1,1,1"):
        with pytest.raises(UserError, match="no shares"):
            shares_of(bad)


def test_pass_through_rows_hand_on_what_is_asked_word_for_word() -> None:
    others = [row(n, n % 3) for n in range(20)]
    made = list(passed(50, others, 3))
    assert made == list(passed(50, others, 3)) and len({r.instruction for r in made}) == 50
    for one in made:
        assert one.call is not None
        (value,) = one.call.arguments.values()
        assert value in one.instruction
        called = next(t for t in one.tools if t["function"]["name"] == one.call.name)
        check_call(one.call, canonical(called, "merge"))
    assert len({t["function"]["name"] for one in made for t in one.tools}) == 7  # six, and the others' f
    with pytest.raises(UserError, match="more than 20 queries give"):
        list(passed(10_000, others, 0))
