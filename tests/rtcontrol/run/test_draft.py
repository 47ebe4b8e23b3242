"""A draft of each call: it changes how many passes a decision takes, never which call it is."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rtcontrol
from rtcontrol.models.call import Call
from rtcontrol.run.api import Drafter

FIELDS = {name: {"type": "integer"} for name in "abcd"}
GO = {
    "name": "go",
    "parameters": {
        "properties": {
            "to": {"type": "object", "properties": FIELDS, "required": [*FIELDS]},
            "fast": {"type": "boolean"},
        },
        "required": ["to", "fast"],
    },
}
SEEN, TOLD = "x 0.10 y 0.90 vx 0.00", "land on the pad"


def session(**draft: Any) -> Any:
    return rtcontrol.load("lander").session([GO], untrained=True, **draft)


@pytest.fixture(scope="module")
def plain() -> Any:
    found = session().decide(SEEN, TOLD)
    assert found.call.name == "go" and found.forward_passes > 2
    return found


def test_a_right_guess_takes_fewer_passes_and_a_wrong_one_changes_no_call(plain: Any) -> None:
    right = session(draft=lambda text, instruction, history: plain.call).decide(SEEN, TOLD)
    assert right.call == plain.call and right.forward_passes == 1 < plain.forward_passes
    wrong = Call("go", {"to": {**plain.call.arguments["to"], "b": 77}, "fast": True})
    assert session(draft=lambda *told: wrong).decide(SEEN, TOLD).call == plain.call


def test_a_second_model_drafts(plain: Any) -> None:
    drafted = session(draft=rtcontrol.load("lander"), draft_ms=10_000.0).decide(SEEN, TOLD)
    assert drafted.call == plain.call and drafted.forward_passes < plain.forward_passes


def test_a_draft_is_told_what_the_model_is(plain: Any) -> None:
    told: list[Any] = []
    session(draft=lambda *given: told.append(given)).decide(SEEN, TOLD, [Call("go")])
    assert told == [(SEEN, TOLD, ("go()",))]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_is_guessed_the_call_is_the_same(data: Any) -> None:
    values = st.integers(-20, 20) | st.floats(allow_nan=False) | st.none() | st.text(max_size=4)
    to = st.fixed_dictionaries({}, optional=dict.fromkeys("abcde", values))
    arguments = st.fixed_dictionaries({}, optional={"to": to | values, "fast": st.booleans() | values})
    guess = Call(data.draw(st.sampled_from(["go", "fly"])), data.draw(arguments))
    seen = data.draw(st.sampled_from([SEEN, "x 0.55 y 0.20 vx -0.40", "50 12 7"]))
    assert DRAFTED["with"](seen, guess) == DRAFTED["without"](seen, guess)


def _decided() -> dict[str, Any]:
    guesses: list[Call] = []
    made = {"with": session(draft=lambda *told: guesses[-1], draft_ms=10_000.0), "without": session()}

    def decide(name: str, seen: str, guess: Call) -> Call:
        guesses.append(guess)
        found: Call = made[name].decide(seen, TOLD).call
        return found

    return {name: lambda seen, guess, name=name: decide(name, seen, guess) for name in made}


class _Lazily(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        self.update(_decided())
        return self[key]


DRAFTED = _Lazily()


@pytest.mark.parametrize("wrong", [None, "go", {"name": "go"}, Call("go", "to"), RuntimeError("no")])  # type: ignore[arg-type]
def test_a_draft_that_fails_or_is_no_call_is_done_without_and_said_once(
    wrong: Any, plain: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def draft(*told: Any) -> Any:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    made = session(draft=draft)
    assert [made.decide(SEEN, TOLD).call for _ in range(3)] == [plain.call] * 3
    said = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == (wrong is not None) and all("A draft failed" in r.getMessage() for r in said)


def test_a_late_draft_is_not_waited_for_told_and_not_asked_again_until_it_is_back() -> None:
    go_on, asked, told = threading.Event(), list[str](), list[str]()

    def draft(text: str, *rest: Any) -> Call:
        asked.append(text)
        assert go_on.wait(20)
        return Call("late")

    drafter = Drafter(draft, 0.05, lambda: told.append("cancelled"))
    began = time.monotonic()
    for text in ("a", "b"):
        drafter.ask(text, "", ())
        assert drafter.call() is None
    assert time.monotonic() - began < 5 and asked == ["a"] and "cancelled" in told
    go_on.set()
    assert drafter._thread is not None
    drafter._thread.join()
    assert drafter.call() is None  # the answer to a question of before
    drafter.ask("c", "", ())
    assert drafter.call() == Call("late") and asked == ["a", "c"]


def test_sessions_that_decide_together_have_their_drafts(plain: Any) -> None:
    two = [session(draft=lambda *told: plain.call), session()]
    drafted, alone = rtcontrol.load("lander").decide([(one, SEEN, TOLD) for one in two])
    assert drafted.call == alone.call == plain.call  # type: ignore[union-attr]
    assert drafted.forward_passes < alone.forward_passes  # type: ignore[union-attr]
