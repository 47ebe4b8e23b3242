"""What users get wrong is said before the run, or costs a tick; it never costs the run or an earlier record."""

from __future__ import annotations

import dataclasses
import enum
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from cart import CartWorld, Flight, cart_agent, good
from commands import EXPERT, call, refused

from rtcontrol.agents import OneOf, Tools, tool
from rtcontrol.envs.base import Observation
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.run.check import fit
from rtcontrol.run.run import ERRED, UNSAFE
from tests.models.chat.families import checkpoint

SAMPLE = Observation(0, 0, 0, {"x": 0.5, "v": 0.0})
AGENT = """
from rtcontrol.agents import Agent, Fallback, OneOf, Tools, tool
from rtcontrol.models.call import Call
from typing import Annotated

@tool
def NAME(way: Annotated[int, OneOf(-1, 0, 1)]) -> None:
    "Go somewhere."

agent = Agent("mover", "Moves.", Tools([NAME]), lambda data: OBSERVE, "go", Fallback(Call("NAME", {"way": 0})), "none")
"""
WORLD = """
import helper
from pathlib import Path

with open(Path(__file__).with_name("log"), "a") as log:
    log.write("loaded\\n")

class World:
    step_s = 0.02
    def __init__(self):
        with open(Path(__file__).with_name("log"), "a") as log:
            log.write("made\\n")
        self.bindings = {"go": self.go}
    def go(self, way): self.way = way
    def reset(self, seed): self.x = helper.START
    def step(self): self.x += 1
    def observe(self): return {"x": self.x}
    def outcome(self): return None
    def instruct(self, text): pass
"""


def own_world(folder: Path, name: str, *changes: tuple[str, str]) -> str:
    """A file of a world that begins at 5 with these changes; nothing of it is shared with another test's."""
    text = WORLD.replace("import helper\n", "").replace("helper.START", "5")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return str(folder / name)


def agent_file(folder: Path, name: str, observe: str = "'here'") -> str:
    path = folder / f"{name}_agent.py"
    path.write_text(AGENT.replace("NAME", name).replace("OBSERVE", observe))
    return str(path)


def test_fit_looks_at_bodies_signatures_and_the_observation() -> None:
    world = CartWorld()
    fit(cart_agent(), world, SAMPLE)

    @tool
    def push(force: Annotated[int, OneOf(0, 1)], gently: bool = False) -> None:
        """Push."""

    @tool
    def shout(loud: bool) -> None:
        """Shout."""

    agent = cart_agent()
    with pytest.raises(UserError, match="gently"):
        fit(dataclasses.replace(agent, tools=Tools([push])), world, SAMPLE)
    with pytest.raises(UserError, match="own function does nothing"):
        fit(dataclasses.replace(agent, tools=Tools([*agent.tools, shout])), world, SAMPLE)
    with pytest.raises(UserError, match="cannot read the observation of the environment cart .KeyError: 'v'"):
        fit(agent, world, Observation(0, 0, 0, {"x": 0.5}))


class Side(enum.Enum):
    LEFT = "left"
    RIGHT = "right"


@dataclasses.dataclass
class Place:
    x: int


def test_executors_get_the_annotated_types_and_own_functions_run(tmp_path: Path) -> None:
    heard: list[Any] = []

    @tool
    def push(force: Annotated[int, OneOf(0)], side: Side = Side.LEFT) -> None:
        """Push."""

    @tool
    def mark(place: Place) -> None:
        """Mark a place."""
        heard.append(place)

    world = CartWorld()
    world.bindings = {"push": lambda force, side=Side.LEFT: heard.append(side)}
    agent = dataclasses.replace(cart_agent(), tools=Tools([push, mark]))

    def decide(request: DecisionRequest) -> Decision:
        if request.tick % 2:
            return Decision(Call("push", {"force": 0, "side": "right"}))
        return Decision(Call("mark", {"place": {"x": 3}}))

    flight = Flight(tmp_path, decide, world=world, agent=agent, clock="lockstep", duration_s=0.1).run()
    assert flight.loop.account.on_time == 5, flight.dump()
    assert heard == [Place(3), Side.RIGHT, Place(3), Side.RIGHT, Place(3), Side.LEFT]
    assert flight.ticks[1]["call"] == 'push(force=0, side="right")'


def test_an_instruction_that_does_not_fit_gives_way_to_the_last_good_one(tmp_path: Path) -> None:
    def decide(request: DecisionRequest) -> Decision:
        if len(request.instruction) > 100:
            raise UserError("The prompt is too long.", "Shorten it.")
        return good(request)

    flight = Flight(tmp_path, decide, clock="lockstep", duration_s=1.0)
    flight.loop.instruct("go to 1")
    flight.loop.instruct("x" * 1000)
    flight.run()
    assert flight.loop.instruction == "go to 1"
    # Of several that wait for the world it is told the newest: a busy machine may leave out what was refused.
    assert (flight.world.instructions[0], flight.world.instructions[-1]) == ("go to 0", "go to 1")
    assert flight.causes == {"decide": 1}
    line = next(line for line in flight.lines if "refused" in line)
    assert line["instruction"] == "go to 1" and len(line["refused"]) == 120
    assert any(s.startswith("instruction refused: xxx") and len(s) < 250 for s in flight.said)


def test_an_earlier_record_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = (*EXPERT, "--clock", "lockstep", "--duration", "1", "--out", str(tmp_path / "out"))
    assert call(*run) == 0
    before = (tmp_path / "out" / "record.mcap").read_bytes()
    capsys.readouterr()  # a slow machine says what it is at
    assert "--overwrite" in refused(capsys, *run)
    # A run that fails while it starts leaves the earlier one, and no folder of its own.
    long = ("run", "--env", "lander", "--host", "inprocess", "--no-live", "--instruct", "q7 " * 100_000)
    assert call(*long, "--out", str(tmp_path / "out"), "--overwrite") == 2
    assert call(*long, "--out", str(tmp_path / "new" / "deep")) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["record.mcap", "report.json"]
    assert (tmp_path / "out" / "record.mcap").read_bytes() == before
    assert call(*run, "--overwrite") == 0
    assert (tmp_path / "out" / "record.mcap").read_bytes() != before


def test_a_users_file_is_run_once_and_its_world_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "helper.py").write_text("START = 5\n")
    world = tmp_path / "json.py"
    world.write_text(WORLD)
    arguments = ("run", "--env", str(world), "--agent", agent_file(tmp_path, "go"), "--model", "random")
    assert call(*arguments, "--host", "inprocess", "--no-live", "--duration", "0.3", "--out", str(tmp_path / "o")) == 0
    assert (tmp_path / "log").read_text().split() == ["loaded", "made"]
    assert sys.modules["json"] is json
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as started:
        assert started.submit(json.dumps, {"a": 1}).result() == '{"a": 1}'
    capsys.readouterr()
    for text, says in (
        ("def", "SyntaxError"),
        ("import nothing_of_this_name", "nothing_of_this_name"),
        (WORLD.replace("step_s = 0.02", "step_s = 0"), "step_s = 0"),
        (WORLD.replace("def instruct", "def tell"), "has no instruct"),
        (WORLD.replace("self.x = helper.START", "1 / 0"), "ZeroDivisionError"),
    ):
        file = tmp_path / f"broken{abs(hash(text))}.py"
        file.write_text(text)
        assert says in refused(capsys, *arguments[:1], "--env", str(file), *arguments[3:], "--out", str(tmp_path / "n"))


@pytest.mark.integration
@pytest.mark.parametrize("clock", ["wall", "lockstep"])
def test_a_world_that_exits_ends_the_run_as_any_of_its_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    monkeypatch.setattr("rtcontrol.loop.loop.LEAVE_S", 0.5)
    file = own_world(tmp_path, f"exits_{clock}.py", ("self.x += 1", "self.x += 1; self.x < 10 or exit()"))
    arguments = ("--env", file, "--agent", agent_file(tmp_path, "go"), "--model", "noop", "--clock", clock)
    common = ("--host", "inprocess", "--no-live", "--duration", "20", "--out", str(tmp_path / "out"))
    assert call("run", *arguments, *common) == UNSAFE  # no step was made with the safe call
    assert f"broke down: SystemExit: None (exits_{clock}.py:15)" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "report.json").read_text())["ended_by"] == "error"


def test_an_observe_that_exits_costs_its_tick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, agent = own_world(tmp_path, "w.py"), agent_file(tmp_path, "go", "str(data) if data['x'] < 10 else exit()")
    arguments = ("--env", world, "--agent", agent, "--model", "noop", "--clock", "lockstep")
    common = ("--host", "inprocess", "--no-live", "--duration", "1", "--out", str(tmp_path / "out"))
    assert call("run", *arguments, *common) == ERRED
    assert "observe: SystemExit: None (go_agent.py:10)" in capsys.readouterr().err
    made = json.loads((tmp_path / "out" / "report.json").read_text())
    assert made["ended_by"] == "duration" and made["misses_by_cause"]["no_observation"] > 5


def test_a_model_that_was_trained_on_other_tools_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run", "--env", "road", "--model", "lander", "--host", "inprocess", "--no-live")
    assert "lander was trained on other tools" in said and '"driver"' in said


def test_a_chat_model_flies_and_it_is_said_that_it_was_not_trained_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(checkpoint(tmp_path / "chat", "hermes"))
    common = ("--host", "inprocess", "--clock", "lockstep", "--no-live", "--duration", "0.5", "--model", folder)
    assert call("run", "--env", "lander", *common, "--out", str(tmp_path / "out")) == 0
    assert "chat is a chat model, not trained on these tools" in capsys.readouterr().err
    made = json.loads((tmp_path / "out" / "report.json").read_text())
    assert made["ticks"] > 0 and not made["misses"]
    (tmp_path / "chat" / "chat_template.jinja").unlink()  # a base model
    assert call("run", "--env", "lander", *common, "--out", str(tmp_path / "none")) == 2
    told = capsys.readouterr().err
    assert "no ST model, and no chat model" in told and "is a chat model" not in told
