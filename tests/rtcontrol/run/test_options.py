"""Tests of options and settings, of options that exclude each other, and of one instance per world."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import call
from typer.main import get_command

from rtcontrol.cli.app import app as whole
from rtcontrol.cli.command import command as register
from rtcontrol.cli.command import has_setting, split_global_options
from rtcontrol.cli.settings import PAGE, page
from rtcontrol.envs.evaluate import cases, evaluate
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.recipe import FinetuneRecipe
from rtcontrol.run.live import has_unread_lines
from rtcontrol.run.options import RunOptions
from rtcontrol.run.run import INTERNAL, MISSED, UNSAFE
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.serve.options import ServeOptions
from rtcontrol.settings import read_settings_file, settings_of
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.run_folder import RunFolder
from rtcontrol.training.world_rows import WorldRows
from tests.helpers.processes import ROOT
from tests.rtcontrol.run.yard import plant, told


def run(*words: str) -> RunOptions:
    """Return the run options for the words of a command line."""
    made: list[RunOptions] = []
    app = typer.Typer(pretty_exceptions_enable=False)
    register(app, ("hz", "live", "instruction"), options=RunOptions, name="run")(lambda options: made.append(options))
    line, rest = split_global_options(words)
    app(rest, obj=line, standalone_mode=False)
    return made[0]


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


GROUPED = """
[loop]
env = "lander"
hz = 25
confirm = "a"
pipeline = 2
[record]
max = "2G"
[view]
live = false
[serve]
http = "127.0.0.1:1"
"""


def test_flag_wins_over_set_and_set_over_file(tmp_path: Path) -> None:
    path = str(file(tmp_path, GROUPED))
    options = run("--config", path)
    assert (options.env, options.hz, options.pipeline, options.confirm) == ("lander", 25.0, 2, ("a",))
    assert (options.live, options.record_max, options.seed) == (False, "2G", 0)
    options = run("--config", path, "--set", "loop.hz=30", "--set", "loop.confirm=b", "--set", "loop.confirm=c")
    assert (options.hz, options.confirm) == (30.0, ("b", "c"))
    assert run("--hz", "50", "--set", "loop.hz=30", "--live", "--config", path).hz == 50.0


def test_settings_command_prints_a_valid_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("settings") == 0
    path = file(tmp_path, capsys.readouterr().out)
    for command in (RunOptions, ServeOptions, FinetuneRecipe):
        values = read_settings_file(path, command, "run", has_setting)
        assert all(values[name] == entry.default for name, entry in settings_of(command).items() if name in values)
        assert len(values) > 15


def test_settings_page_lists_every_setting() -> None:
    assert (ROOT / PAGE).read_text("utf-8") == "\n".join(page()) + "\n", "run `python -m rtcontrol.cli.settings`"


def test_commands_have_few_flags() -> None:
    flags = [option for command in every_command(get_command(whole)) for p in command.params for option in p.opts]
    assert sum(option.startswith("--") for option in flags) <= 56


def every_command(command: Any) -> Iterator[Any]:
    yield command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from every_command(command.get_command(None, name))


def test_run_help_fits_a_screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert call("run", "--help") == 0
    assert len(capsys.readouterr().out.splitlines()) <= 50


def test_paths_in_files_are_relative_or_at_home(tmp_path: Path) -> None:
    path = file(tmp_path, 'loop.env = "world.py"\nrecord.out = "~/runs/x"\nhost.model = "~/m"\n')
    options = run("--config", str(path))
    assert (options.env, options.out, options.model) == ("world.py", Path.home() / "runs/x", str(Path.home() / "m"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hz = 5", "run.toml: hz is not a setting of `rtcontrol run`. The most similar is loop.hz"),
        (
            "[loop]\nmax_age = 5",
            "run.toml: loop.max_age is not a setting of `rtcontrol run`. The most similar is loop.max",
        ),
        ("[runs]\nhz = 5", "runs.hz is not a setting of `rtcontrol run`"),
        ('[loop]\nhz = "fast"', "run.toml: loop.hz = 'fast' cannot be used"),
        ("[loop]\nhz = true", "run.toml: loop.hz = True cannot be used"),
        ("[view]\nlive = 3", "run.toml: view.live = 3 cannot be used"),
        ('[host]\nmodel = ["lander"]', "Input should be a valid string"),
        ("hz = ", "run.toml cannot be read (Invalid value"),
        ("[loop]\nhz = 0", "run.toml: loop.hz = 0 cannot be used: Input should be greater than or equal to 0.001"),
        ("[loop]\nhz = 2026-01-01", "cannot be used"),
        ('[serve]\nbind = "tcp://127.0.0.1:1"', "serve.bind can only be used with --env remote"),
    ],
)
def test_config_file_error_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path, out = str(file(tmp_path, text)), str(tmp_path / "out")
    capsys.readouterr()
    assert call("run", "--env", "lander", "--config", path, "--out", out) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("lander", {"instruction": " "}),
        ("lander", {"bind": "a"}),
        ("lander", {"town": "T"}),
        ("remote", {"carla_standin": True}),
        ("carla-bridge", {"episodes": 2}),
        ("carla-bridge", {"keys": Path("k")}),
    ],
)
def test_options_that_exclude_each_other_are_refused(env: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        RunOptions(env=env, **options)


CLOCKS = pytest.mark.parametrize("clock", ["wall", "lockstep"])


@pytest.fixture(autouse=True)
def _short_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rtcontrol.loop.loop.EXIT_WAIT_S", 0.3)
    monkeypatch.syspath_prepend(str(tmp_path))


def exit_of(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the attempts of the safe call during the shutdown, and the last line of the record."""
    lines = list(read_record(folder / "out" / "record.mcap"))
    return [line for line in lines if "safe" in line and line["why"] == "exit"], lines[-1]


@pytest.mark.integration
@CLOCKS
@pytest.mark.parametrize(
    ("fails", "options", "status"),
    [
        ("", ("--duration", "0.6"), 0),
        ("", ("--duration", "20", "--set", "loop.on_miss=stop"), MISSED),
        ("make", ("--duration", "5"), 2),
        ("reset", ("--duration", "5"), 2),
        ("step", ("--duration", "5"), UNSAFE),
        ("close", ("--duration", "0.3"), INTERNAL),
        ("", ("--duration", "5", "--set", "loop.confirm=nothing"), 2),
        ("", ("--duration", "5", "--model", "runs/none"), 2),
    ],
)
def test_world_is_created_and_closed_exactly_once(
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
        attempts, last = exit_of(tmp_path)
        assert [a["in_force"] for a in attempts] == [True] and last["safe_in_force"] is True
    if status == UNSAFE:
        attempts, last = exit_of(tmp_path)
        assert len(attempts) > 1 and not any(a["in_force"] for a in attempts) and last["safe_in_force"] is False
        assert all("no answer to step" in a["error"] for a in attempts) and steps[-1] == "step-forward"
        assert "THE SAFE CALL IS NOT ACTIVE" in said and "no answer to step" in said
    if fails in ("make", "reset", "close"):
        assert f"no answer to {fails}" in said
    assert ("its resources may leak" in said) is (fails == "close")


def test_close_method_is_not_called_if_a_tool(tmp_path: Path) -> None:
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


def test_scored_and_training_worlds_are_closed(tmp_path: Path) -> None:
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


def test_paths_of_run_survive_chdir_of_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "runs/mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    options = run("--set", "loop.env=lander", "--set", "host.model=runs/mine")
    with RunFolder(Path("r"), Path("base")) as folder:
        monkeypatch.chdir("assets")
        assert folder.path == tmp_path / "r"
    monkeypatch.chdir(tmp_path)
    assert options.in_folder(folder.path).model == str(tmp_path / "runs/mine")
    assert run("--set", "loop.env=lander", "--set", "host.model=lander").in_folder(folder.path).model == "lander"


def test_piped_lines_are_noticed_before_they_are_ignored(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    assert not has_unread_lines(reader)
    os.write(writer, b"hover at 0.5\n")
    assert has_unread_lines(reader)
    os.close(writer)
    os.close(reader)
    assert not has_unread_lines(reader)
    (tmp_path / "lines").write_text("hover at 0.5\n")
    with (tmp_path / "lines").open() as file:
        assert has_unread_lines(file.fileno())
    with Path(os.devnull).open() as file:
        assert not has_unread_lines(file.fileno())
