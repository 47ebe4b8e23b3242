"""Which result is whose, in conversations as servers and clients number their calls."""

from __future__ import annotations

import pytest

from rtcontrol.models.conversation import Turn, Unpaired, results_of

USER = Turn(user=True)


def calls(*made: str) -> Turn:
    """`probe#x1` is a call of probe with the id x1; without #, it has none."""
    split = [one.partition("#") for one in made]
    return Turn([(own or None, name) for name, _, own in split])


def result(own: str | None = None, name: str | None = None) -> Turn:
    return Turn(result=(own, name))


@pytest.mark.parametrize(
    ("messages", "paired"),
    [
        # One id for every call (llama.cpp), and one that each turn counts anew (Kimi).
        ([USER, calls("p#x"), result("x"), calls("p#x"), result("x")], {(1, 0): 2, (3, 0): 4}),
        ([USER, calls("p#p:0"), result("p:0"), USER, calls("p#p:0"), result("p:0")], {(1, 0): 2, (4, 0): 5}),
        # Twice in one message; with a name, by it.
        ([calls("p#x", "q#x"), result("x"), result("x")], {(0, 0): 1, (0, 1): 2}),
        ([calls("p#x", "q#x"), result("x", "q"), result("x", "p")], {(0, 1): 1, (0, 0): 2}),
        # Several at once, out of order, and interleaved.
        ([calls("p#1", "q#2", "r#3"), result("3"), result("1"), result("2")], {(0, 2): 1, (0, 0): 2, (0, 1): 3}),
        ([calls("p#1", "q#2"), result("2"), calls("r#3"), result("1"), result("3")], {(0, 1): 1, (0, 0): 3, (2, 0): 4}),
        # One call a message, their results behind both.
        ([calls("p#x"), calls("p#x"), result("x"), result("x")], {(0, 0): 2, (1, 0): 3}),
        # No ids: by order, and by name where there is one.
        ([calls("p", "q"), result(), result()], {(0, 0): 1, (0, 1): 2}),
        ([calls("p"), result(None, "p"), calls("p"), result(None, "p")], {(0, 0): 1, (2, 0): 3}),
        ([calls("p"), calls("q"), result(None, "q"), result(None, "p")], {(1, 0): 2, (0, 0): 3}),
        # The call has an id and its result lost it; or one of two lost both.
        ([calls("p#1", "q#2"), result(), result("1")], {(0, 0): 2, (0, 1): 1}),
        ([calls("p#1", "q"), result(), result("1")], {(0, 1): 1, (0, 0): 2}),
        # A call that nobody answered before the user spoke again.
        ([USER, calls("p#x"), USER, calls("p#x"), result("x")], {(3, 0): 4}),
        ([USER, calls("p"), USER, calls("p"), result()], {(3, 0): 4}),
        ([USER, calls("p#x"), USER, calls("p#x"), result("x"), result("x")], {(1, 0): 4, (3, 0): 5}),
        # One whose result is late.
        ([USER, calls("p#x"), USER, result("x")], {(1, 0): 3}),
    ],
)
def test_a_result_goes_to_the_oldest_call_that_waits_for_it(
    messages: list[Turn], paired: dict[tuple[int, int], int]
) -> None:
    assert results_of(messages) == paired


@pytest.mark.parametrize(
    ("messages", "at"),
    [
        ([USER, result("x"), calls("p#x")], 1),
        ([calls("p#x"), result("y")], 1),
        ([calls("p#x"), result("x"), result("x")], 2),
        ([calls("p"), result("x")], 1),
        ([calls("p"), result(), result()], 2),
        ([calls("p"), result(None, "q")], 1),
        ([result()], 0),
    ],
)
def test_a_result_that_answers_no_call_before_it_is_named(messages: list[Turn], at: int) -> None:
    with pytest.raises(Unpaired, match=rf"messages\[{at}\]") as caught:
        results_of(messages)
    assert caught.value.index == at
