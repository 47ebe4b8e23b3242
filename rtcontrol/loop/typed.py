"""Lines that people type, or a page sends: words for the operator, questions, instructions."""

from __future__ import annotations

from collections.abc import Callable

from rtcontrol.loop.instructions import GoalList
from rtcontrol.loop.loop import ControlLoop

# What a typed line says to the loop; any other line is an instruction.
TYPED = {"/pause": "pause", "/resume": "resume", "/stop": "stop", "/yes": "confirm", "/no": "deny"}
HELP, GOALS = "/help", "/goals"
SENT = "sent"


def slash_answer(text: str, instruction: str, goals: GoalList | None) -> str | None:
    """Return the answer to `/help`, `/goals` or an unknown word; None for an instruction, and for a word of TYPED.

    `instruction`: the active one.
    """
    if not text.startswith("/") or text in TYPED:
        return None
    if text == GOALS:
        return goals_help(goals)
    if text == HELP:
        return f'Active: "{instruction}". {goals_help(goals)} Commands: {", ".join([*TYPED, HELP, GOALS])}.'
    return f"{text[:40]} is none of {', '.join([*TYPED, HELP, GOALS])}."


def slash_tell(loop: ControlLoop, text: str, by: str, instruct: Callable[[str], object]) -> str:
    """Do what a line from a page says, and return one sentence about it. UserError for an instruction too long."""
    if text in TYPED:
        return loop.operator.say(TYPED[text], by)
    if (told := slash_answer(text, loop.instruction, loop.instructions.goals)) is not None:
        return told
    instruct(text)
    return SENT


def goals_help(goals: GoalList | None) -> str:
    """Return what the agent can be told, for people."""
    if goals is None:
        return "The agent lists no goals: it takes any text as its instruction."
    return f"You can say: {'; '.join(goals.examples(len(goals.kinds)))}."
