"""Tests of new instructions: one that is not understood leaves the previous one active. Without a clock or a loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rtcontrol.agents import Goals
from rtcontrol.loop.active import TRIALS, Instructions
from rtcontrol.loop.ledger import Ledger
from rtcontrol.loop.operator_control import run_typed_command
from rtcontrol.models.call import Call, Decision
from rtcontrol.records import Instruct, LoopReport, Notify

GOALS = Goals({"go to {x}": ["move to {x}"], "wait": ["stay"]}, {"x": [1, 2, 3]}).goal_tools("cart")
SURE = Decision(Call("push", {"force": 1}), {"function": 1.0}, 1, 1, 0)
STRANGE = Decision(Call("push", {"force": 1}), {"function": 0.2}, 1, 1, 0, unknown=("dance",))


class Trial:
    """A trial of instructions that start with `go to 1`, with the results."""

    def __init__(self, goals: Any = GOALS) -> None:
        self.out: list[Any] = []
        self.it = Instructions("go to 1", self.out, Ledger(self.out, lambda error: ("", None)), goals)

    def say(self, text: str) -> None:
        self.it.waiting.append(text)
        self.it.change(0)

    def decide(self, decision: Decision | None, unsure: bool = False) -> None:
        tick: Any = SimpleNamespace(request=SimpleNamespace(instruction=self.it.now))
        reply: Any = SimpleNamespace(decision=decision, mistake=None, error=None if decision else "ValueError")
        self.it.judge(tick, reply, unsure, 0)

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


def test_unknown_words_restore_previous_instruction_at_once() -> None:
    trial = Trial()
    trial.say("dance")
    trial.decide(STRANGE, unsure=True)
    assert trial.it.now == "go to 1"


@pytest.mark.parametrize(
    ("said", "goals", "decision"),
    [
        ("over to two, please", GOALS, SURE),  # one sure decision accepts other words
        ("move to 2", GOALS, STRANGE),  # listed words stay
        ("help", None, STRANGE),  # an agent without goals takes any text
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
    assert trial.reports("accepted") == [said] or decision is STRANGE


def test_slash_commands_are_answered_and_never_instructions() -> None:
    def typed(text: str, instructions: Instructions) -> str | None:
        return run_typed_command(text, "keyboard", cast("Any", None), instructions)

    known, free = Trial().it, Trial(None).it
    assert typed("/goals", known) == "You can say: go to 1; wait."
    assert typed("/help", known) == (
        'Active: "go to 1". You can say: go to 1; wait. Commands: /pause, /resume, /stop, /yes, /no, /help, /goals.'
    )
    assert "accepts any text" in str(typed("/goals", free))
    assert "/dance is not a command: use /pause" in str(typed("/dance", known))
    assert typed("wait", known) is None
