"""One options object a command and what excludes each other, one instance of each world, users without a home."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import call, refused
from typer.testing import CliRunner

from rtcontrol.envs.evaluate import cases, evaluate
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import RunOptions, command
from rtcontrol.run.run import INTERNAL, MISSED, UNSAFE
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.serve.options import ServerOptions
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.training.world_rows import WorldRows
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
        ('model = ["lander"]', "Input should be a valid string"),
        ("hz = ", "run.toml cannot be read (Invalid value"),
        ("hz = 0", "--hz 0 is no rate"),
        ('bind = "tcp://127.0.0.1:1"', "--bind is for --env remote"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str) -> None:
    out = str(tmp_path / "out")
    assert says in refused(capsys, "run", "--env", "lander", "--config", str(file(tmp_path, text)), "--out", out)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("lander", {"instruction": " "}),
        ("lander", {"bind": "a"}),
        ("lander", {"town": "T"}),
        ("remote", {"goal": "left"}),
        ("remote", {"carla_standin": True}),
        ("carla-bridge", {"episodes": 2}),
        ("carla-bridge", {"keys": Path("k")}),
        ("carla-bridge", {"carla_standin": True, "carla_host": "there"}),
    ],
)
def test_options_that_exclude_each_other_are_refused(env: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        RunOptions(env=env, **options)


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
    clock: str,
    fails: str,
    options: tuple[str, ...],
    status: int,
) -> None:
    agent = "\ndef observe(data):\n    return str(list(data.values())[0] / (list(data.values())[0] < 6))\n"
    run = plant(tmp_path, fails, agent=agent if status == MISSED else "")
    assert call("run", *run, "--clock", clock, "--out", str(tmp_path / "out"), *options) == status
    did, said = told(tmp_path), capsys.readouterr().err
    assert "Traceback" not in said and "Internal error" not in said
    assert did[-1:] == ["closed"] or ("runs/none" in options and not did)
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
        assert "THE SAFE CALL IS NOT ACTIVE" in said and "no answer to step" in said
    if fails in ("make", "reset", "close"):
        assert f"no answer to {fails}" in said
    assert ("may hold on to what it uses" in said) is (fails == "close")


def test_a_close_that_is_a_tool_is_not_called_at_the_end(tmp_path: Path) -> None:
    run = plant(tmp_path)
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


def test_each_world_that_is_scored_or_learnt_from_is_closed(tmp_path: Path) -> None:
    run = plant(tmp_path, last=12)
    skill = skill_of(run[1], run[3])
    assert isinstance(skill, UserSkill)

    def left_open() -> int:
        did = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
        return did.count("made") - did.count("closed")

    def stopped(situations: Any) -> Any:
        raise KeyboardInterrupt

    for policy in (skill.expert_policy, stopped):
        with suppress(KeyboardInterrupt):
            evaluate(skill, policy, cases(skill.goals[0], range(6)), parallel=3)
        assert left_open() == 0
    rows = WorldRows(skill, 20.0).rows(random.Random(0))
    next(rows)
    assert left_open() == 64
    skill.close()
    rows.close()  # type: ignore[attr-defined]
    assert left_open() == 0
