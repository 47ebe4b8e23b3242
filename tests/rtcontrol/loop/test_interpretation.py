"""Tests of new instructions and of interpreters, which are outside the ticks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
from cart import Flight, cart_agent, report_of

from rtcontrol.agents import Goals
from rtcontrol.loop.active import TRIALS, Instructions
from rtcontrol.loop.interpreter import InterpretedSentence, Interpreter, InterpreterThread
from rtcontrol.loop.ledger import Ledger
from rtcontrol.loop.operator_control import run_typed_command
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.records import Instruct, LoopReport, Notify
from rtcontrol.run import interpreting
from rtcontrol.telemetry.events import topic_of, topic_schema
from tests.helpers.processes import until
from tests.rtcontrol.hosts.chat_server import ChatServer, chat_server, completion

GOALS = Goals({"go to {x}": ["move to {x}"], "wait": []}, {"x": [-2.0, -0.5, 0, 0.5, 2.0]})
AGENT = replace(cart_agent(), goals=GOALS)
GO = completion(("go_to_x", '{"x": 0.5}'))
Answer = Callable[[dict[str, Any]], tuple[int, bytes]]


@contextmanager
def chat(answer: Answer, **more: Any) -> Iterator[tuple[ChatServer, Interpreter]]:
    with chat_server(answer) as server:
        yield (
            server,
            interpreting.interpreter_of_goals(
                f"chat:{server.url}#small", interpreting.required_goal_tools(AGENT), **more
            ),
        )


def asked(interpreter: Interpreter, said: str) -> InterpretedSentence:
    found = interpreter.understand(said)
    assert found is not None
    return found


@pytest.mark.realtime
def test_chat_model_receives_one_request_for_a_goal() -> None:
    with chat(lambda body: GO) as (server, interpreter):
        found = asked(interpreter, "could you sort of end up at a half please")
    assert (found.text, found.by, found.why) == ("go to 0.5", "chat:small", None) and found.took_ms > 0
    (body,) = server.bodies
    assert body["tool_choice"] == "required" and body["temperature"] == 0
    assert [tool["function"]["name"] for tool in body["tools"]] == ["go_to_x", "wait", "not_understood"]
    assert body["messages"][-1] == {"role": "user", "content": "could you sort of end up at a half please"}


@pytest.mark.realtime
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


@pytest.mark.realtime
def test_interpreter_that_takes_too_long_is_abandoned() -> None:
    free = threading.Event()
    with chat(lambda body: (free.wait(60), GO)[1], limit_s=0.2) as (_, interpreter):
        found = asked(interpreter, "hm")
        free.set()
    assert (found.text, found.why) == (None, "timeout")


@pytest.mark.realtime
def test_canonical_words_need_no_interpreter() -> None:
    # home-assistant/core#139415: words that were known locally went to the language model. RasaHQ/rasa#1241: the same
    # sentence in capitals meant something else.
    with chat(lambda body: (500, b"")) as (server, interpreter):
        for said in ("go to 0.5", "GO TO 0.50!!", "  Go  to 0.5. "):
            found = asked(interpreter, said)
            assert (found.text, found.by) == ("go to 0.5", "itself")
    assert not server.bodies


@pytest.mark.realtime
def test_interpreter_of_agent_without_goals_is_refused() -> None:
    with pytest.raises(UserError, match="no goals"):
        interpreting.required_goal_tools(cart_agent())
    lookalike = replace(cart_agent(), name="lander")  # of other tools than the bundled one's
    assert interpreting.goal_tools(lookalike) is None


class Slow:
    """An interpreter that returns each sentence unchanged, and never returns for a `slow` one."""

    name = "slow"

    def understand(self, said: str, given_up: Callable[[], bool]) -> InterpretedSentence | None:
        if said == "slow":
            until(given_up)
            return None
        return InterpretedSentence(said, said, self.name)


@pytest.mark.realtime
def test_newer_instruction_replaces_a_waiting_one() -> None:
    taken, results, slow = list[str](), list[InterpretedSentence](), Slow()
    take: Any = (taken.append, lambda line: None, lambda text: None, lambda: 0.0, results.append)
    worker = InterpreterThread(slow, *take)  # type: ignore[arg-type]
    for said in ("slow", "slow", "quick"):
        assert worker.submit(said)
    until(lambda: len(results) == 3)
    assert taken == ["quick"] and sorted(one.sentence for one in results if one.why == "overtaken") == ["slow", "slow"]
    worker.close()


@pytest.mark.realtime
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
        flight = Flight(tmp_path, agent=AGENT, interpreter=interpreter, duration_s=None)
        flight.run_beside(lambda: person(flight))
    assert flight.loop.account.counts["skipped_releases"] == 0
    by = [line["instruction"] for line in flight.lines if "observation" in line]
    assert by == sorted(by, key=lambda text: text == "go to 0.5") and {*by} == {"go to 0", "go to 0.5"}
    first, asked_for = (line for line in flight.lines if "understood" in line)
    assert first["by"] == "itself"
    assert asked_for["said"] == "a half please" and asked_for["understood"] == "go to 0.5"
    assert asked_for["by"] == "chat:small" and asked_for["took_ms"] > 0
    assert any("is understood as: go to 0.5" in line for line in flight.said)
    for event in (first, asked_for):
        jsonschema.validate(event, topic_schema(topic_of(event)))
    assert report_of(flight.path)["understood"] == [first, asked_for]


KNOWN = Goals({"go to {x}": ["move to {x}"], "wait": ["stay"]}, {"x": [1, 2, 3]}).goal_tools("cart")
SURE = Decision(Call("push", {"force": 1}), {"function": 1.0}, 1, 1, 0)
UNSURE = Decision(Call("push", {"force": 1}), {"function": 0.2}, 1, 1, 0)
STRANGE = Decision(Call("push", {"force": 1}), {"function": 0.2}, 1, 1, 0, unknown=("dance",))


class Trial:
    """A trial of instructions that start with `go to 1`, with the results."""

    def __init__(self, goals: Any = KNOWN) -> None:
        self.out: list[Any] = []
        self.it = Instructions("go to 1", self.out, Ledger(self.out, lambda error: ("", None)), goals)

    def say(self, text: str) -> None:
        self.it.waiting.append(text)
        self.it.activate_next(0)

    def decide(self, decision: Decision | None, unsure: bool = False) -> None:
        tick: Any = SimpleNamespace(request=SimpleNamespace(instruction=self.it.now))
        reply: Any = SimpleNamespace(decision=decision, user_error=None, error=None if decision else "ValueError")
        self.it.evaluate(tick, reply, unsure, 0)

    @property
    def world(self) -> list[str]:
        return [action.text for action in self.out if isinstance(action, Instruct)]

    @property
    def people(self) -> list[str]:
        return [action.text for action in self.out if isinstance(action, Notify)]

    def reports(self, what: str) -> list[str]:
        return [action.text for action in self.out if isinstance(action, LoopReport) and action.kind == what]


@pytest.mark.parametrize("decision", [SURE, None])
def test_unsure_decisions_restore_the_previous_instruction(decision: Decision | None) -> None:
    trial = Trial()
    trial.say("help")
    for _ in range(TRIALS):
        assert trial.it.now == "help"
        trial.decide(decision, unsure=True)
    assert (trial.it.now, trial.world[-1], trial.reports("refused")) == ("go to 1", "go to 1", ["help"])
    assert '"help" is not understood, so "go to 1" stays active. You can say: go to 1; wait' in trial.people[-1]
    assert not trial.reports("accepted")


@pytest.mark.parametrize(("text", "goals"), [("dance", KNOWN), ("dance", None), ("move to 2", KNOWN)])
def test_unknown_words_restore_previous_instruction_at_once(text: str, goals: Any) -> None:
    trial = Trial(goals)
    trial.say(text)
    trial.decide(STRANGE, unsure=True)
    assert trial.it.now == "go to 1"
    shown = f'"{text}" is not understood (the model does not know "dance"), so "go to 1" stays active.'
    assert trial.people[-1].startswith(shown) and ("You can say: go to 1" in trial.people[-1]) == (goals is not None)


@pytest.mark.parametrize(
    ("said", "goals", "decision"),
    [
        ("over to two, please", KNOWN, SURE),  # one sure decision accepts other words
        ("move to 2", KNOWN, UNSURE),  # listed words stay
        ("help", None, UNSURE),  # an agent without goals accepts any text of known words
    ],
)
def test_proven_instruction_stays_despite_unsure_calls(said: str, goals: Any, decision: Decision) -> None:
    trial = Trial(goals)
    trial.say(said)
    trial.decide(decision, unsure=True)
    if decision is SURE:
        trial.decide(SURE)
    for _ in range(2 * TRIALS):
        trial.decide(decision, unsure=True)
    assert trial.it.now == said and not trial.reports("refused")
    assert trial.reports("accepted") == [said] or decision is UNSURE


def test_slash_commands_are_answered_and_never_instructions() -> None:
    def typed(text: str, instructions: Instructions) -> str | None:
        return run_typed_command(text, "keyboard", cast("Any", None), instructions)

    known, free = Trial().it, Trial(None).it
    assert typed("/goals", known) == "You can say: go to 1; wait."
    assert typed("/help", known) == (
        'Active: "go to 1". You can say: go to 1; wait. Commands: /pause, /resume, /stop, /yes, /no, /help, /goals.'
    )
    assert "accepts any text" in str(typed("/goals", free))
    for text in ("/dance", "/pause 3", "/yes 3 4", "/yes three"):
        assert f"{text} is not a command: use /pause" in str(typed(text, known))
    assert typed("wait", known) is None
