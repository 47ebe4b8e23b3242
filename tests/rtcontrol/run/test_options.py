"""One options object a command and what excludes each other, one instance of each world, users without a home."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from commands import call, refused, spawn, wait_for_ticks
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rtcontrol.envs.evaluate import cases, evaluate
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import Flag, RunOptions, command
from rtcontrol.run.run import INTERNAL, MISSED, UNSAFE
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.serve.options import ServerOptions
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.training.world_rows import WorldRows
from tests.helpers.processes import PATH
from tests.rtcontrol.run.yard import plant, told


def read(kind: type[Any], table: str, *words: str) -> Any:
    """What a command line makes of them."""
    made: list[Any] = []
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command(kind, table, lambda options: made.append(options) or 0))
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return made[0]


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = file(tmp_path, 'hz = 25\nmax-age-ms = 100\nconfirm = "a"\nenv = "lander"\nlive = false\npipeline = 2\n')
    made = read(RunOptions, "run", "--config", str(path))
    assert (made.env, made.hz, made.pipeline, made.confirm) == ("lander", 25.0, 2, ("a",))
    assert (made.live, made.max_age_ms, made.seed) == (False, 100.0, 0)
    made = read(RunOptions, "run", "--hz", "50", "--live", "--config", str(path), "--confirm", "b")
    assert (made.hz, made.live, made.confirm, made.pipeline) == (50.0, True, ("b",), 2)
    path = file(tmp_path, 'hz = 8\nbind = ["tcp://127.0.0.1:1"]\nhttp = "h:1"\n')
    made = read(ServerOptions, "serve", "--config", str(path), "--seed", "4")
    assert (made.hz, made.seed, made.bind, made.http) == (8.0, 4, ("tcp://127.0.0.1:1",), "h:1")


def test_paths_in_a_file_begin_where_the_command_runs_or_at_home(tmp_path: Path) -> None:
    path = file(tmp_path, 'env = "world.py"\nout = "~/runs/x"\nmodel = "~/m"\n')
    made = read(RunOptions, "run", "--config", str(path))
    assert (made.env, made.out, made.model) == ("world.py", Path.home() / "runs/x", str(Path.home() / "m"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hertz = 5", "hertz is no option of `rtcontrol run`. The nearest one is hz"),
        ("max_age = 5", "The nearest one is max_age_ms"),
        ("hz_max = 5", "hz_max is no option of `rtcontrol run`"),
        ("[runs]\nhz = 5", "runs is no option of `rtcontrol run`"),
        ('hz = "fast"', "run.toml: hz = 'fast' cannot be used"),
        ("hz = true", "run.toml: hz = True cannot be used"),
        ("live = 3", "run.toml: live = 3 cannot be used"),
        ('model = ["lander"]', "It needs text in quotes"),
        ("hz = ", "run.toml cannot be read (Invalid value"),
        ("hz = 0", "--hz 0 is no rate"),
        ('bind = "tcp://127.0.0.1:1"', "--bind is for --env remote"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str) -> None:
    out = str(tmp_path / "out")
    assert says in refused(capsys, "run", "--env", "lander", "--config", str(file(tmp_path, text)), "--out", out)
    assert not (tmp_path / "out").exists()


def test_a_file_flies_and_shows_itself_in_the_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, 'env = "lander"\nmodel = "expert"\nhost = "inprocess"\nclock = "lockstep"\nepisodes = 1\n')
    assert call("run", "--config", str(path), "--no-live", "--out", str(tmp_path / "out")) == 0
    assert len(json.loads((tmp_path / "out" / "report.json").read_text())["outcome"]["episodes"]) == 1
    capsys.readouterr()
    assert call("run", "--config", str(path), "--help") == 0
    shown = capsys.readouterr().out
    assert "--config" in shown and "[default: lockstep]" in " ".join(shown.split())
    assert call("run", "--config", str(tmp_path / "none.toml")) == 2
    assert "none.toml cannot be read (No such file" in capsys.readouterr().err


SET = {
    "instruction": " ",
    "goal": "left",
    "bind": "a",
    "keys": Path("k"),
    "town": "T",
    "carla_standin": True,
    "carla_host": "there",
    "episodes": 2,
}


@given(env=st.sampled_from(["lander", "remote", "carla-bridge"]), names=st.sets(st.sampled_from(sorted(SET))))
def test_what_excludes_each_other_is_refused_by_the_object_itself(env: str, names: set[str]) -> None:
    remote, carla = (
        {"bind", "keys"},
        {"town", "carla_standin", "carla_host"},
    )
    fine = "instruction" not in names
    fine &= not names & remote or env == "remote"
    fine &= not names & carla or env == "carla-bridge"
    fine &= "goal" not in names or env == "lander"
    fine &= not (env == "carla-bridge" and "episodes" in names) and not {"carla_standin", "carla_host"} <= names
    try:
        RunOptions(env=env, **{name: SET[name] for name in names})
    except UserError:
        assert not fine
    else:
        assert fine


def test_every_option_stands_in_the_help_under_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, name in ((RunOptions, "run"), (ServerOptions, "serve")):
        assert call(name, "--help") == 0
        text = capsys.readouterr().out
        shown = set(re.findall(r"--[a-z][a-z-]*", text))
        marks = {
            f.name: getattr(get_type_hints(kind, include_extras=True)[f.name], "__metadata__", ()) for f in fields(kind)
        }
        flags = {m.name or field for field, found in marks.items() for m in found if isinstance(m, Flag)}
        assert len(flags) > 15
        assert {"--" + flag.replace("_", "-") for flag in {*flags, "config"}} <= shown
        if name == "run":
            said = " ".join(text.replace("│", " ").split())
            for part in (
                "(default: the period)",
                "(default: 4 periods",
                "What runs the model: torch",
                "[default: ray]",
            ):
                assert part in said


KINDS = pytest.mark.parametrize("kind", ["gym", "own"])
CLOCKS = pytest.mark.parametrize("clock", ["wall", "lockstep"])


@pytest.fixture(autouse=True)
def _short_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rtcontrol.loop.loop.LEAVE_S", 0.3)
    monkeypatch.syspath_prepend(str(tmp_path))


def flown(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The attempts of the safe call on the way out, and the record's last line."""
    lines = list(read_record(folder / "out" / "record.mcap"))
    return [line for line in lines if "safe" in line and line["why"] == "exit"], lines[-1]


@pytest.mark.integration
@KINDS
@CLOCKS
@pytest.mark.parametrize(
    ("fails", "options", "status"),
    [
        ("", ("--duration", "0.6"), 0),
        ("", ("--duration", "20", "--on-miss", "stop"), MISSED),
        ("make", ("--duration", "5"), 2),
        ("reset", ("--duration", "5"), 2),
        ("step", ("--duration", "5"), UNSAFE),
        ("close", ("--duration", "0.3"), INTERNAL),
        ("", ("--duration", "5", "--confirm", "nothing"), 2),
        ("", ("--duration", "5", "--model", "runs/none"), 2),
    ],
)
def test_a_world_is_made_once_on_one_thread_and_closed_on_every_way_out(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    clock: str,
    fails: str,
    options: tuple[str, ...],
    status: int,
) -> None:
    agent = "\ndef observe(data):\n    return str(list(data.values())[0] / (list(data.values())[0] < 6))\n"
    run = plant(tmp_path, kind, fails, agent=agent if status == MISSED else "")
    assert call("run", *run, "--clock", clock, "--out", str(tmp_path / "out"), *options) == status
    did, said = told(tmp_path), capsys.readouterr().err
    assert "Traceback" not in said and "Internal error" not in said
    assert did[-1:] == ["closed"] or (kind == "own" and "runs/none" in options and not did)
    steps = [what for what in did if what.startswith("step-")]
    if status in (0, MISSED, INTERNAL):
        # It was driven forward, and the last that it was stepped with is the safe call.
        assert "step-forward" in steps and steps[-1] == "step-stop"
        attempts, last = flown(tmp_path)
        assert [a["in_force"] for a in attempts] == [True] and last["safe_in_force"] is True
    if status == UNSAFE:
        attempts, last = flown(tmp_path)
        assert len(attempts) > 1 and not any(a["in_force"] for a in attempts) and last["safe_in_force"] is False
        assert all("no answer to step" in a["error"] for a in attempts) and steps[-1] == "step-forward"
        assert "THE SAFE CALL IS NOT IN FORCE" in said and "no answer to step" in said
    if fails in ("make", "reset", "close"):
        assert f"no answer to {fails}" in said
    assert ("may hold on to what it uses" in said) is (fails == "close")


@pytest.mark.parametrize(
    ("kind", "clock", "number"),
    [("gym", "wall", signal.SIGINT), ("own", "lockstep", signal.SIGTERM)],
)
def test_a_signal_ends_a_world_with_a_step_of_the_safe_call_and_its_close(
    tmp_path: Path, kind: str, clock: str, number: signal.Signals
) -> None:
    run = plant(tmp_path, kind)
    out = ("--clock", clock, "--out", str(tmp_path / "out"))
    slow = ("--hz", "20") if clock == "wall" else ()
    process = spawn("run", *run, *out, *slow, "--duration", "6000", PYTHONPATH=f"{tmp_path}:{PATH}")
    wait_for_ticks(tmp_path / "out", 8)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    did = told(tmp_path)
    steps = [what for what in did if what.startswith("step-")]
    assert "step-forward" in steps and steps[-1] == "step-stop" and did[-1] == "closed"
    attempts, last = flown(tmp_path)
    assert [a["in_force"] for a in attempts] == [True] and last["safe_in_force"] is True


@pytest.mark.integration
@KINDS
@CLOCKS
def test_a_world_whose_last_episode_ended_takes_no_safe_call_and_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, clock: str
) -> None:
    run = plant(tmp_path, kind, last=6)
    assert call("run", *run, "--clock", clock, "--episodes", "2", "--out", str(tmp_path / "out")) == 0
    did = told(tmp_path)
    assert [what for what in did if what.startswith("step-")][-1] == "step-forward"
    attempts, last = flown(tmp_path)
    assert [(a["in_force"], a["world"]) for a in attempts] == [(False, "over")] and last["safe_in_force"] is False
    assert "The safe call did not act: the world's last episode had ended" in capsys.readouterr().err
    # The preview's, and one of each episode: none on the way out, which would move a robot.
    assert did.count("reset") == 3


MODULE = """
import os
from typing import Literal
from rtcontrol import Call
from rtcontrol.agents import Fallback, tool

LOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log")
SPEED = [0]

class World:
    step_s = 0.05
    def reset(self, seed): self.n = 0
    def step(self):
        self.n += 1
        with open(LOG, "a") as file:
            file.write(f"{SPEED[0]}\\n")
    def observe(self): return {"n": self.n}
    def outcome(self): return None
    def instruct(self, text): pass

@tool
def drive(speed: Literal[1, 2]):
    "Drive."
    SPEED[0] = speed

@tool
def stop():
    "Stop."
    SPEED[0] = 0

tools, instruction, fallback = [drive, stop], "go", Fallback(Call("stop"))
"""


@pytest.mark.integration
@CLOCKS
def test_a_safe_call_of_a_function_that_sets_what_the_world_steps_by_is_stepped(tmp_path: Path, clock: str) -> None:
    file = tmp_path / "by_functions.py"
    file.write_text(MODULE)
    out = ("--env", str(file), "--agent", str(file), "--model", "random", "--out", str(tmp_path / "out"))
    assert call("run", *out, "--host", "inprocess", "--no-live", "--clock", clock, "--duration", "1") == 0
    speeds = (tmp_path / "log").read_text().split()
    assert {"1", "2"} & set(speeds) and speeds[-1] == "0"
    attempts, last = flown(tmp_path)
    assert [a["in_force"] for a in attempts] == [True] and last["safe_in_force"] is True


def test_a_close_that_is_a_tool_is_not_called_at_the_end(tmp_path: Path) -> None:
    run = plant(tmp_path, "own")
    for name in ("drive.py", Path(run[1]).name):
        file = tmp_path / name
        file.write_text(
            file.read_text().replace('"act"', '"close"').replace("def act(self, action)", "def unused(self)")
        )
    world = Path(run[1])
    text = world.read_text().replace("    def close(self):", "    def close(self, action):")
    world.write_text(text.replace('        say("closed")', '        say(f"grip-{action}"); self.action = action'))
    assert call("run", *run, "--clock", "lockstep", "--duration", "0.5", "--out", str(tmp_path / "out")) == 0
    did = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert did[-2:] == ["grip-stop", "step-stop"] and "grip-forward" in did


@KINDS
def test_each_world_that_is_scored_or_learnt_from_is_closed(tmp_path: Path, kind: str) -> None:
    run = plant(tmp_path, kind, last=12)
    skill = skill_of(run[1], run[3])
    assert isinstance(skill, UserSkill)

    def open_and_made() -> tuple[int, int]:
        did = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
        return did.count("made") - did.count("closed"), did.count("made")

    # For a Gymnasium world's names, and to look it over.
    assert open_and_made() == (0, 1 if kind == "own" else 2)
    evaluate(skill, skill.expert_policy, cases(skill.goals[0], range(6)), parallel=3)
    assert open_and_made()[0] == 0

    def stopped(situations: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(skill, stopped, cases(skill.goals[0], range(6)), parallel=3)
    assert open_and_made()[0] == 0
    import random

    rows = WorldRows(skill, 20.0).rows(random.Random(0))
    next(rows)
    assert open_and_made()[0] == 64
    skill.close()
    assert open_and_made()[0] == 0
    rows.close()  # type: ignore[attr-defined]
    assert open_and_made()[0] == 0


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows a home of this process's user; in processes of their own the slow tests below look at that."""
    for name in ("HOME", "RTCONTROL_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_000)


@pytest.mark.integration
@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_runs_and_is_told_what_is_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("run", "--env", "lander", "--duration", "0.5", "--no-live", "--out", str(tmp_path / "run"))
    assert call(*run, "--host", "inprocess") == 0 and list((tmp_path / "run").rglob("*.mcap"))
    assert "no HOME/.cache/rtcontrol/prefix" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["run", "serve"])
def test_the_models_numbers_and_threads_are_checked_before_anything_is_loaded(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (kind, "--env", "lander", "--no-live") if kind == "run" else (kind, "--agent", "lander")
    assert "Unknown dtype 'fp8'" in refused(capsys, *given, "--dtype", "fp8")
    assert "Unknown dtype 'int8'" in refused(capsys, *given, "--engine", "transformers", "--dtype", "int8")
