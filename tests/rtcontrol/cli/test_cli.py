"""The command line: real runs, exit statuses, errors before a run or at the cost of a tick, and what it prints."""

from __future__ import annotations

import dataclasses
import enum
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from cart import CartWorld, Flight, cart_agent
from commands import EXPERT, call, refused, spawn, wait_for_ticks
from typer.main import get_command

from rtcontrol.agents import OneOf, Tools, tool
from rtcontrol.cli.app import app as whole
from rtcontrol.envs.base import Observation
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.run.check import fit
from rtcontrol.run.run import ERRED, UNSAFE
from rtcontrol.serve import zmq_auth
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol_client.console import printable
from tests.helpers.processes import python, until
from tests.models.chat.families import checkpoint


def test_expert_lands_in_lockstep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*EXPERT, "--clock", "lockstep", "--episodes", "3", "--seed", "1000", "--out", str(tmp_path)) == 0
    made = json.loads((tmp_path / "report.json").read_text())
    assert [e["seed"] for e in made["outcome"]["episodes"]] == [1000, 1001, 1002]
    assert made["outcome"]["successes"] >= 2
    assert (made["env"], made["agent"], made["model"], made["engine"]) == ("lander", "lander", "expert", "script")
    assert "3 episodes" in capsys.readouterr().out


def test_goal_tells_and_judges_and_instruct_tells_only(tmp_path: Path) -> None:
    common = (*EXPERT, "--clock", "lockstep", "--episodes", "2", "--seed", "1000")
    assert call(*common, "--goal", "left", "--out", str(tmp_path / "left")) == 0
    made = json.loads((tmp_path / "left" / "report.json").read_text())
    assert made["instruction"] == "land on the left side of the pad"
    assert made["outcome"]["successes"] >= 1
    assert (
        call(*common, "--goal", "left", "--instruct", "land on the right side of the pad", "--out", str(tmp_path)) == 0
    )
    assert json.loads((tmp_path / "report.json").read_text())["outcome"]["successes"] == 0


MISTAKES = [
    ("--deadline-ms 100", "--pipeline 2"),
    ("--host moon", "ray, inprocess"),
    ("--record-max 100k", "1M"),
    ("--agent nobody", "lander, paddle; or a .py file"),
    ("--agent nofile.py", "no such file"),
    ("--goal sing", "names no goal"),
    ("--calls-per-tick 2", "--agent FILE.py) with history=1 and a model"),
    ("--model /nowhere/at/all", "/nowhere/at/all"),
    ("--frobnicate", "No such option"),
    ("--hz fast", "'--hz'"),
    ("--hz nan", "--hz nan"),
    ("--hz 1e-320", "--hz"),
    ("--pipeline 0", "--pipeline 0"),
    ("--hold-ms inf", "--hold-ms"),
    ("--max-age-ms 1e308", "--max-age-ms"),
    ("--min-confidence 7", "--min-confidence"),
    ("--seed -1", "--seed"),
    ("--engine foo", "--engine"),
    ("--instruct  ", "--instruct"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES)
def test_mistakes_are_one_paragraph_and_status_2(
    arguments: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, *EXPERT, "--out", str(tmp_path / "out"), *arguments.split(" ", 1))
    assert not (tmp_path / "out").exists()


def test_unknown_environment_and_debug(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--env", "mars") == 2
    said = capsys.readouterr().err
    assert "lander" in said and "Traceback" not in said
    # Whether the environment or its agent is looked up first.
    assert call("run", "--env", "mars", "--agent", "lander", "--host", "inprocess", "--model", "noop") == 2
    assert capsys.readouterr().err == said
    assert call("run", "--env", "mars", "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_command_that_is_written_wrongly_is_told_the_one_that_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no command repot. Did you mean `rtcontrol report`? See" in refused(capsys, "repot")
    assert refused(capsys, "xyzzy").strip() == "There is no command xyzzy. See `rtcontrol --help`."


def test_an_internal_error_is_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(assembly, "agents", lambda: 1 / 0)
    assert call("agents") == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said and "Traceback" not in said


@pytest.mark.integration
def test_too_many_misses_is_status_3(tmp_path: Path) -> None:
    # A deadline of a microsecond is always missed.
    arguments = (*EXPERT, "--duration", "0.5", "--deadline-ms", "0.001", "--out", str(tmp_path))
    assert call(*arguments) == 0
    made = json.loads((tmp_path / "report.json").read_text())
    assert made["misses"] == made["ticks"] == 8
    assert call("report", str(tmp_path), "--gate", "miss_rate<=0.5") == 3
    assert call(*arguments, "--max-miss-rate", "0.5", "--overwrite") == 3
    assert call(*arguments, "--on-miss", "stop", "--overwrite") == 3


def test_a_typed_line_is_the_new_instruction_and_a_signal_ends_with_safe_call_and_report(tmp_path: Path) -> None:
    process = spawn(*EXPERT, "--stdin", "--duration", "60", "--out", str(tmp_path))
    wait_for_ticks(tmp_path, 3)
    assert process.stdin is not None
    process.stdin.write("hover at 0.7\n")
    process.stdin.flush()
    until(lambda: "hover at 0.7" in [e.get("instruction") for e in read_record(tmp_path / "record.mcap")], every=0.1)
    wait_for_ticks(tmp_path, 10)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 143, err
    assert "Traceback" not in err and "instruction: hover at 0.7" in err
    made = json.loads((tmp_path / "report.json").read_text())
    assert [change["instruction"] for change in made["instruction_changes"]] == ["hover at 0.7"]
    assert made["ended_by"] == "SIGTERM"
    assert made["ticks"] >= 10
    events = [*read_record(tmp_path / "record.mcap")]
    assert events[-1]["end"] == made["ended_by"]
    assert any(event.get("why") == "exit" for event in events[-3:])


# Those that explain themselves with an example.
COMMANDS = [";run;envs;agents;report;doctor;serve;bridge;bridge ros2;bridge carla;keys new;keys list;keys revoke"]
COMMANDS += ["fit;score;models info;models adopt;models train;replay;data from-recording;drill"]
COMMANDS += ["bench decide;bench serving;bench load;bench train;bench wire"]
COMMANDS += ["data convert;data show;data synthesise"]


@pytest.mark.parametrize("group", ["", "models", "bench", "keys", "bridge"])
def test_a_group_alone_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*group.split()) == 2
    said = capsys.readouterr()
    assert "Usage: rtcontrol" in said.out and not said.err


def test_versions_are_shown_and_nothing_is_imported_for_them() -> None:
    code = "import sys\nfrom rtcontrol.cli import main\nsys.argv[1:] = ['--version']\ntry: main()\n"
    done = python("-c", f"{code}finally: assert not {{'torch', 'ray'}} & {{*sys.modules}}")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"rtcontrol 0\.1\.0 \(python 3\.\d+\.\d+, torch 2\.\S+, ray 2\.[\d.]+\)\n", done.stdout)


def test_lists_and_errors_name_worlds_in_processes_of_their_own_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("agents") == 0
    assert "engines(main, side)" in capsys.readouterr().out
    assert call("envs") == 0
    listed = capsys.readouterr().out
    assert "lander" in listed
    assert call("run", "--env", "mars") == 2
    told = capsys.readouterr().err
    assert "remote" in assembly.JOINED
    for name, description in assembly.JOINED.items():
        assert f"{name}\n    {description}" in listed and name in told.partition("Known ones:")[2]


@pytest.mark.integration
def test_doctor_looks_at_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("doctor") == 0
    said = capsys.readouterr().out
    for what in ("Python", "torch", "ray", "bundled model", "/dev/shm", "wake-up"):
        assert what in said


@pytest.mark.parametrize("hook", ["rtcontrol.cli.app", "rtcontrol.models.checkpoint.checkpoint"])
def test_ctrl_c_in_the_midst_of_imports_leaves_without_a_word(hook: str) -> None:
    # Sent by the import itself: where the command hears it does not depend on the machine's load.
    code = (
        "import os, signal, sys\n"
        "class Hook:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {hook!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Hook())\n"
        "sys.argv[1:] = ['tools', 'check', 'rtcontrol/bench/schemas/long.json']\n"
        "from rtcontrol.cli import main\nmain()\n"
    )
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_new_list_revoke_in_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "rtcontrol" / "keys"

    def keys(*words: str, status: int = 0) -> str:
        assert call("keys", *words) == status
        return "".join(capsys.readouterr())

    made = keys("new", "arm")
    server, client = zmq_auth.load_pair(folder / "server.key_secret"), zmq_auth.load_pair(folder / "arm.key_secret")
    listed = keys("list")
    assert zmq_auth.fingerprint(client.public) in listed and zmq_auth.fingerprint(server.public) in listed
    revoked = keys("revoke", "arm")
    assert sorted(p.name for p in folder.iterdir()) == ["server.key", "server.key_secret"]
    again = keys("revoke", "arm", status=2)
    assert "no key 'arm'" in again
    for said in (made, listed, revoked, again):
        assert server.secret not in said and client.secret not in said


def test_server_and_paths_are_no_names_of_clients(tmp_path: Path) -> None:
    folder = str(tmp_path / "keys")
    assert call("keys", "new", "server", "--keys", folder) == 2
    assert call("keys", "new", "../arm", "--keys", folder) == 2
    assert call("keys", "new", "arm", "--keys", folder) == 0
    assert call("keys", "revoke", "server", "--keys", folder) == 2
    assert (tmp_path / "keys" / "server.key").exists()


BAD = "\x1b[2J\x1b]0;title\x07\r\nFORGED\x9b31m\x85\u2028\u202e"
TOOL = {
    "name": f"turn{BAD}",
    "description": f"turns{BAD}",
    "parameters": {"properties": {f"to{BAD}": {"enum": [f"left{BAD}", "right"]}}, "required": [f"to{BAD}"]},
}


def bad_tools(folder: Path) -> list[str]:
    (folder / "tools.json").write_text(json.dumps([{"name": f"a{BAD}", "schema": {}}, {"name": BAD}]))
    return ["tools", "check", "tools.json"]


def file_name(folder: Path) -> list[str]:
    (folder / "world\x1b[2J\nFORGED.py").write_text("raise ValueError('\\x1b[2J\\nFORGED\\x9b')")
    return ["run", "--env", "./world\x1b[2J\nFORGED.py", "--agent", "lander"]


def configuration(folder: Path) -> list[str]:
    (folder / "run.toml").write_text('"k\\u001b[2J\\nFORGED" = 3\n')
    return ["run", "--config", "run.toml"]


@pytest.mark.parametrize("made", [bad_tools, file_name, configuration])
def test_they_stand_escaped_whatever_shows_them(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    call(*made(tmp_path))
    said = "".join(capfd.readouterr())
    assert "\\x1b" in said
    lines = said.split("\n")
    assert lines == [printable(line) for line in lines] and not [s for s in lines if s.startswith("FORGED")]


# `C` as a container has it, where Python makes no UTF-8 of it.
ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "C": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}


def every_command(command: Any, path: list[str]) -> Iterator[list[str]]:
    yield path
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from every_command(command.get_command(None, name), [*path, name])


def test_every_command_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for path in every_command(get_command(whole), []):
        assert call(*path, "--help") == 0
        said = capsys.readouterr()
        assert not said.err
        if " ".join(path) in ";".join(COMMANDS).split(";"):
            assert f"rtcontrol {' '.join(path) or 'run'}" in said.out.lower().partition("example")[2], path


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_texts_that_are_no_ascii_are_shown_whatever_the_encoding(tmp_path: Path, encoding: str) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHONIO"))}
    words = [sys.executable, "-m", "rtcontrol", *written(tmp_path)]
    done = subprocess.run(words, env={**env, **ENCODINGS[encoding]}, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.isascii() or encoding == "C"


def written(folder: Path) -> list[str]:
    """Tools and rows that are no ASCII; the command that shows these."""
    tool = {"name": "fahr", "description": "Zur Tür – 右へ", "parameters": {"properties": {"d": {"enum": ["左", "ü"]}}}}
    row = {"instruction": "zur Tür 右", "observation": "x", "tools": [tool], "history": [], "call": None, "id": "1"}
    (folder / "tools.json").write_text(json.dumps([tool], ensure_ascii=False), "utf-8")
    (folder / "rows.jsonl").write_text(json.dumps(row, ensure_ascii=False), "utf-8")
    return ["data", "show", "rows.jsonl"]


RUN = "run --env lander --model expert --host inprocess --clock lockstep --no-live --episodes 1 --out"


# Each command in a process of its own, which has the imports of the first: its status stands behind what it says.
PRINT = """
import os, sys
import rtcontrol.cli.app

for line in sys.argv[1:]:
    if not (child := os.fork()):
        sys.argv = ["rtcontrol", *line.split()]
        rtcontrol.cli.app.main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr, flush=True)
"""


def test_a_command_whose_output_cannot_be_written_says_so_and_fails_and_a_run_names_the_folder_that_has_its_report(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", PRINT, "envs", "--help", "tools --help", f"{RUN} {out}"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    *told, flown = re.findall(r"(.*?\n\d+)\n", done.stderr, re.DOTALL)
    assert len(told) == 3 and "Traceback" not in done.stderr, done.stderr
    for said in told:
        assert said.startswith("What was printed could not all be written: [Errno 28] No space left on device"), said
        assert said.endswith("\n1"), said
    # The run is incomplete.
    assert flown.endswith("\n6") and f"No space left on device. The report is in {out}, too." in flown
    assert (out / "report.json").is_file()


GYM_WORLD = """
import gymnasium, numpy
from gymnasium import spaces

class {name}(gymnasium.Env):
    metadata = {{"render_fps": 20, "render_modes": []}}
    observation_space, action_space = spaces.Box(-9, 9, (2,)), spaces.Discrete(2)
    def __init__(self):
        print("made", flush=True)
    def seen(self):
        return numpy.array([1, 2], numpy.float32)
    def reset(self, *, seed=None, options=None):
        return self.seen(), {{}}
    def step(self, action):
        return self.seen(), 1.0, False, False, {{}}
    def close(self):
        print("closed", flush=True)
    {broken}

gymnasium.register("{name}-v0", entry_point={name})
"""
BROKEN = {
    "Sound": ("pass", []),
    "Nan": (
        "def seen(self): return numpy.array([1, numpy.nan], numpy.float32)",
        ["o2 is NaN, which is no number. Let its observation have a number there.\n"],
    ),
    "Stuck": ("def step(self, action): raise OSError('motor bus')", ["step() raised OSError: motor bus"]),
    "Drawn": (
        "def seen(self): return numpy.random.random(2).astype(numpy.float32)",
        ["two resets to the seed 0 are not the same"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_all_that_is_wrong_with_a_gymnasium_world_is_told_of_one_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    broken, said = BROKEN[name]
    module = f"checked_{name.lower()}"
    (tmp_path / f"{module}.py").write_text(GYM_WORLD.format(name=name, broken=broken))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert call("check", f"gym:{module}:{name}-v0", "--steps", "5") == (2 if said else 0)
    out = capsys.readouterr().out
    assert out.count("made") == out.count("closed") == 1 and "Traceback" not in out
    assert all(one in out for one in said), out
    assert out.splitlines()[-1].endswith(f": {len(said) or 'nothing'} found wrong")


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
