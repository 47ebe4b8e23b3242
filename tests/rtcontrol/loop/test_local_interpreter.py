"""From an agent's goals to rows, a model that is fitted to them, and a run that it interprets for: all of it real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cart import Flight, cart_agent

import rtcontrol
from rtcontrol.agents import Agent, Goals
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.run import interpreting
from rtcontrol.training.interpreter_rows import InterpretedAgent, rows
from tests.helpers.processes import until

GOALS = Goals(
    {
        "go to {x}": ["{lead} move over to {x}", "{lead} drive to {x}", "position {x} {tail}", "be at {x} {tail}"],
        "wait": ["{lead} do nothing", "{lead} stay where you are {tail}", "hold on {tail}", "rest {tail}"],
    },
    {"x": [-1, 0, 1]},
    {"lead": ["", "now", "please", "quickly"], "tail": ["", "now", "please", "then"]},
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model that was fitted to what the goals can be told by, and to nonsense."""
    out = tmp_path_factory.mktemp("interpreter") / "model"
    taught = [
        {"instruction": row.instruction, "observation": "", "call": row.call and row.call.to_dict()}
        for row in rows([InterpretedAgent("cart", GOALS)], 4_000, nonsense=0.0)
    ]
    tools = GOALS.goal_tools("cart").definitions
    rtcontrol.fit(taught, list(tools), out=out, minutes=10)  # it ends when all is right
    return str(out)


def agent() -> Agent:
    return replace(cart_agent(), goals=GOALS)


def test_a_model_of_ones_own_understands_in_a_process_of_its_own(checkpoint: str, tmp_path: Path) -> None:
    interpreter = interpreting.interpreter(checkpoint, agent(), limit_s=60.0)
    flight = Flight(tmp_path, agent=agent(), interpreter=interpreter, instruction="please be at 1 now", duration_s=None)

    def person() -> None:
        flight.loop.instruct("quickly move over to -1")
        until(lambda: flight.loop.instruction == "go to -1")
        flight.loop.stop("enough")

    flight.after(5, person)
    flight.run()
    told = [event for event in flight.lines if "understood" in event]
    assert [event["understood"] for event in told] == ["go to 1", "go to -1"]
    assert all(event["by"] == "model" and event["sure"] > 0.5 for event in told)
    assert {line["instruction"] for line in flight.lines if "observation" in line} == {"go to 1", "go to -1"}


def test_a_gate_of_its_own_holds_what_it_is_unsure_of(checkpoint: str) -> None:
    learnt = TrainingMetadata.of(Path(checkpoint))
    assert learnt is not None and learnt.gate is None
    interpreter = interpreting.interpreter(checkpoint, agent(), gate=1.0, limit_s=60.0)
    try:
        found = interpreter.understand("please be at one of those places")
        assert found is not None and found.text is None and found.why in ("unsure", "none")
    finally:
        interpreter.end()
