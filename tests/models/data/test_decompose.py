"""K parallel calls are K rows, and no row's history knows its own call."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.canonical import decompose
from rtcontrol.models.data.row import Check
from rtcontrol.models.data.sample import Sample

TOOL = {"function": {"name": "go", "parameters": {"properties": {"n": {"type": "integer"}}}}}
calls = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(lambda found: [Call("go", {"n": n}) for n in found])


def sample(made: list[Call], name: str = "s") -> Sample:
    checks = tuple(Check("parallel", (), n) for n in range(len(made)))
    return Sample(name, "set", "file:1", "go", "now", (TOOL,), tuple(made), ("before()",), checks)


@given(calls)
def test_for_evaluation_the_history_is_the_prefix_in_the_order_given(made: list[Call]) -> None:
    rows = decompose(sample(made), "eval")
    assert [row.call for row in rows] == made
    for n, row in enumerate(rows):
        assert row.history == ("before()", *(call.text() for call in made[:n]))
        assert row.check is not None and row.check.answer == n
    assert {row.sample for row in rows} == {"s"} and len({row.id for row in rows}) == len(made)


@given(calls, st.integers(0, 9))
def test_for_training_the_list_is_shuffled_and_then_its_prefixes_taken(made: list[Call], seed: int) -> None:
    rows = decompose(sample(made), "train", seed)
    order = [row.call for row in rows if row.call is not None]
    assert Counter(c.text() for c in order) == Counter(c.text() for c in made)
    for n, row in enumerate(rows):
        assert row.history[1:] == tuple(call.text() for call in order[:n])
        assert row.check is not None and made[row.check.answer] == row.call
    assert rows == decompose(sample(made), "train", seed)


def test_shuffled_histories_hold_later_calls_too() -> None:
    made = [Call("go", {"n": n}) for n in range(3)]
    drawn = [decompose(sample(made, str(i)), "train") for i in range(60)]
    orders = {tuple(row.call.arguments["n"] for row in rows if row.call) for rows in drawn}
    assert len(orders) == 6
