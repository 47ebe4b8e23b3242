"""Tests of interpreters outside the ticks, with real endpoints over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cart import Flight, cart_agent, report_of

from rtcontrol.agents import Agent, Goals
from rtcontrol.loop.interpreter import InterpretedSentence, Interpreter, InterpreterThread
from rtcontrol.models.errors import UserError
from rtcontrol.run import interpreting
from rtcontrol.telemetry.events import schema, topic_of
from tests.helpers.processes import until
from tests.rtcontrol.hosts.chat_server import ChatServer, chat_server, completion

pytestmark = pytest.mark.realtime
GOALS = Goals({"go to {x}": ["move to {x}"], "wait": []}, {"x": [-2.0, -0.5, 0, 0.5, 2.0]})
GO = completion(("go_to_x", '{"x": 0.5}'))
Answer = Callable[[dict[str, Any]], tuple[int, bytes]]


def agent(goals: Goals = GOALS) -> Agent:
    return replace(cart_agent(), goals=goals)


@contextmanager
def chat(answer: Answer, told: Agent | None = None, **more: Any) -> Iterator[tuple[ChatServer, Interpreter]]:
    with chat_server(answer) as server:
        yield server, interpreting.of_goals(f"chat:{server.url}#small", interpreting.goals_of(told or agent()), **more)


def asked(interpreter: Interpreter, said: str) -> InterpretedSentence:
    found = interpreter.understand(said)
    assert found is not None
    return found


def run_with_operator(out: Path, interpreter: Interpreter, person: Callable[[Flight], Any], **more: Any) -> Flight:
    """Run the cart while a function acts as the operator. The run ends with this function."""
    flight = Flight(out, agent=agent(), interpreter=interpreter, **{"duration_s": None, **more})
    return flight.run_beside(lambda: person(flight))


def events(flight: Flight) -> list[dict[str, Any]]:
    return [line for line in flight.lines if "understood" in line]


# -- whoever is asked -------------------------------------------------------------------------------------------------


def test_chat_model_receives_one_request_for_a_goal() -> None:
    with chat(lambda body: GO) as (server, interpreter):
        found = asked(interpreter, "could you sort of end up at a half please")
    assert (found.text, found.by, found.why) == ("go to 0.5", "chat:small", None) and found.took_ms > 0
    (body,) = server.bodies
    assert body["tool_choice"] == "required" and body["temperature"] == 0
    assert [tool["function"]["name"] for tool in body["tools"]] == ["go_to_x", "wait", "not_understood"]
    assert body["messages"][-1] == {"role": "user", "content": "could you sort of end up at a half please"}


@pytest.mark.parametrize(
    ("said", "why", "detail"),
    [
        (completion(("not_understood", "{}")), "none", ""),
        # simonw/llm#1104: a tool that was never declared ended the whole chat.
        (completion(("fly_to_the_moon", "{}")), "illegal", "fly_to_the_moon"),
        (completion(("go_to_x", '{"x": 17}')), "illegal", "17"),
        (completion(content="I am sorry, Dave."), "malformed", "text instead of a call"),
        ((200, b"<html>"), "malformed", ""),
        ((500, b'{"error": {"message": "overloaded"}}'), "http", "overloaded"),
        ((0, b""), "connection", ""),
    ],
)
def test_sentence_without_goal_is_not_understood(said: tuple[int, bytes], why: str, detail: str) -> None:
    with chat(lambda body: said) as (_, interpreter):
        found = asked(interpreter, "hm")
    assert (found.text, found.why) == (None, why) and detail in found.detail, found


def test_interpreter_that_takes_too_long_is_abandoned() -> None:
    free = threading.Event()
    with chat(lambda body: (free.wait(60), GO)[1], limit_s=0.2) as (_, interpreter):
        found = asked(interpreter, "hm")
        free.set()
    assert (found.text, found.why) == (None, "timeout")


def test_canonical_words_need_no_interpreter() -> None:
    # home-assistant/core#139415: words that were known locally went to the language model. RasaHQ/rasa#1241: the same
    # sentence in capitals meant something else.
    with chat(lambda body: (500, b"")) as (server, interpreter):
        for said in ("go to 0.5", "GO TO 0.50!!", "  Go  to 0.5. "):
            found = asked(interpreter, said)
            assert (found.text, found.by) == ("go to 0.5", "itself")
    assert not server.bodies


def test_interpreter_without_goals_or_of_wrong_kind_is_refused() -> None:
    with pytest.raises(UserError, match="no goals"):
        interpreting.goals_of(cart_agent())
    for name, said in (
        ("noop", "cannot interpret instructions"),
        ("chat:nowhere", "The URL of chat is not valid"),
        ("missing", "missing"),
    ):
        with pytest.raises(UserError, match=said):
            interpreting.of_goals(name, interpreting.goals_of(agent()))
    lookalike = replace(cart_agent(), name="lander")  # of other tools than the bundled one's
    assert interpreting.goal_tools(lookalike) is None


# -- in flight --------------------------------------------------------------------------------------------------------


class Slow:
    """An interpreter that returns each sentence unchanged, and never returns for a `slow` one."""

    name = "slow"

    def understand(self, said: str, given_up: Callable[[], bool]) -> InterpretedSentence | None:
        if said == "slow":
            until(given_up)
            return None
        return InterpretedSentence(said, said, self.name)


def test_newer_instruction_replaces_a_waiting_one() -> None:
    taken, results, slow = list[str](), list[InterpretedSentence](), Slow()
    take: Any = (taken.append, lambda line: None, lambda text: None, lambda: 0.0, results.append)
    worker = InterpreterThread(slow, *take)  # type: ignore[arg-type]
    for said in ("slow", "slow", "quick"):
        assert worker.submit(said)
    until(lambda: len(results) == 3)
    assert taken == ["quick"] and sorted(one.sentence for one in results if one.why == "overtaken") == ["slow", "slow"]
    worker.close()


def test_no_tick_waits_for_the_interpreter(tmp_path: Path) -> None:
    free = threading.Event()

    def person(flight: Flight) -> None:
        flight.loop.instruct("a half please")
        until(lambda: len(server.bodies) == 1)
        k = flight.ticked
        until(lambda: flight.ticked >= k + 10)
        assert flight.loop.instruction == "go to 0"
        free.set()
        until(lambda: flight.loop.instruction == "go to 0.5")
        until(lambda: flight.ticked >= k + 20)

    with chat(lambda body: (free.wait(60), GO)[1], limit_s=60.0) as (server, interpreter):
        flight = run_with_operator(tmp_path, interpreter, person)
    assert flight.loop.account.counts["skipped_releases"] == 0
    by = [line["instruction"] for line in flight.lines if "observation" in line]
    assert by == sorted(by, key=lambda text: text == "go to 0.5") and {*by} == {"go to 0", "go to 0.5"}
    first, asked_for = events(flight)
    assert first["by"] == "itself"
    assert asked_for["said"] == "a half please" and asked_for["understood"] == "go to 0.5"
    assert asked_for["by"] == "chat:small" and asked_for["took_ms"] > 0
    assert any("is understood as: go to 0.5" in line for line in flight.said)
    for event in (first, asked_for):
        jsonschema.validate(event, schema(topic_of(event)))
    assert report_of(flight.path)["understood"] == [first, asked_for]


def test_failing_interpreter_notifies_and_loop_continues(tmp_path: Path) -> None:
    def person(flight: Flight) -> None:
        flight.loop.instruct("a half please")
        until(lambda: any("not understood" in line for line in flight.said))
        k = flight.ticked
        until(lambda: flight.ticked >= k + 5)

    with chat(lambda body: (500, b"{}")) as (_, interpreter):
        flight = run_with_operator(tmp_path, interpreter, person)
    assert flight.loop.instruction == "go to 0" and flight.loop.ended_by == "enough"
    (told,) = (line for line in flight.said if "not understood" in line)
    assert "The previous instruction stays active. You can say: go to -2.0; wait; " in told
    assert events(flight)[-1]["not_understood"] == "http" and events(flight)[-1]["understood"] is None
