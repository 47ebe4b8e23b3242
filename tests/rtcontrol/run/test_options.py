"""One options object a command: flags, a TOML file, and what excludes each other."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from commands import call, refused
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rtcontrol.cli import bridge as bridge_cli
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import Flag, RunOptions, command
from rtcontrol.serve.options import ServerOptions


def told(kind: type[Any], table: str, *words: str) -> Any:
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


def test_flags_win_over_the_table_and_the_table_over_what_all_share(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        'hz = 20\nagent = "lander"\nmax-age-ms = 100\naffinity = [0]\nenv = "lander"\nlive = false\n[run]\nhz = 25\n'
        "pipeline = 2\n[serve]\nhz = 30\n[bridge]\nhz = 8\n",
    )
    made = told(RunOptions, "run", "--config", str(path))
    assert (made.env, made.hz, made.agent, made.pipeline, made.affinity) == ("lander", 25.0, "lander", 2, (0,))
    assert (made.live, made.max_age_ms, made.seed) == (False, 100.0, 0)
    made = told(RunOptions, "run", "--hz", "50", "--live", "--config", str(path), "--affinity", "")
    assert (made.hz, made.live, made.affinity, made.pipeline) == (50.0, True, (), 2)


def test_the_folder_that_one_stands_in_is_not_taken_for_none() -> None:
    for kind, words in ((RunOptions, ["--env", "lander"]), (ServerOptions, [])):
        assert told(kind, "run", *words, "--out", ".").out == Path.cwd()
        assert told(kind, "run", *words).out == Path()


def test_serve_and_bridge_read_the_same_file(tmp_path: Path) -> None:
    path = file(tmp_path, 'hz = 8\nseed = 3\n[serve]\nbind = ["tcp://127.0.0.1:1"]\nhttp = "h:1"\n[bridge]\nonce = 1\n')
    made = told(ServerOptions, "serve", "--config", str(path), "--seed", "4")
    assert (made.hz, made.seed, made.bind, made.http) == (8.0, 4, ("tcp://127.0.0.1:1",), "h:1")
    with pytest.raises(UserError, match=r"once is no option of `rtcontrol bridge`.*nearest"):
        bridge_cli._arguments([f"--config={path}"], "x")
    path = file(tmp_path, "hz = 8\nseed = 3\n[bridge]\nreload = true\nstandin = false\ncarla_port = 3000\n")
    made = bridge_cli._arguments(["--seed", "9", "--config", str(path)], "x")
    assert (made.hz, made.seed, made.reload, made.standin, made.carla_port) == (8.0, 9, True, False, 3000)


def test_paths_in_a_file_begin_where_the_command_runs_or_at_home(tmp_path: Path) -> None:
    path = file(tmp_path, 'env = "world.py"\nout = "~/runs/x"\nmodel = "~/m"\n[serve]\nbind = "ipc://x"\nout = "o"\n')
    made = told(RunOptions, "run", "--config", str(path))
    assert (made.env, made.out, made.model) == ("world.py", Path.home() / "runs/x", str(Path.home() / "m"))
    path.write_text(path.read_text().replace('env = "world.py"\n', ""))
    made = told(ServerOptions, "serve", "--config", str(path))
    assert (made.bind, made.out) == (("ipc://x",), Path("o"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hertz = 5", "hertz is no option of `rtcontrol run`. The nearest one is hz"),
        ("max_age = 5", "The nearest one is max_age_ms"),
        ("[run]\nhz_max = 5", "hz_max is no option of `rtcontrol run`"),
        ("[runs]\nhz = 5", "there is no table [runs]. There are [run], [serve], [bridge]"),
        ('hz = "fast"', "run.toml: hz = 'fast' cannot be used"),
        ("hz = true", "run.toml: hz = True cannot be used"),
        ("live = 3", "run.toml: live = 3 cannot be used"),
        ('model = ["lander"]', "It needs text in quotes"),
        ("affinity = [true]", "It needs a list of whole numbers"),
        ("hz = ", "run.toml cannot be read (Invalid value"),
        ("hz = 0", "--hz 0 is no rate"),
        ('bind = "tcp://127.0.0.1:1"', "are for --env remote"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str) -> None:
    out = str(tmp_path / "out")
    assert says in refused(capsys, "run", "--env", "lander", "--config", str(file(tmp_path, text)), "--out", out)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "text", "says"),
    [
        (["serve"], "bind = [1]", "bind = [1] cannot be used. It needs a list of texts"),
        (["serve"], "hz = 300", "--hz 300 is above --hz-max"),
        (["bridge", "carla"], 'hz = "fast"', "run.toml: hz = 'fast' cannot be used. It needs a number"),
        (["bridge", "carla"], "hz = true", "run.toml: hz = True cannot be used"),
        (["bridge", "carla"], "traffic = 3.5", "It needs a whole number"),
        (["bridge", "carla"], 'reload = "yes"', "It needs true or false"),
        (["bridge", "carla"], 'connect = ["a"]', "It needs text in quotes"),
        (["bridge", "carla"], 'clock = "sun"', "invalid choice: 'sun'"),
        (["bridge", "carla"], "", "rgument --config: expected one argument"),
        (["run"], "", "'--config' requires an argument. See `rtcontrol run --help`."),
    ],
)
def test_mistakes_in_a_file_of_the_other_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str, says: str
) -> None:
    given = [str(file(tmp_path, text))] if text else []
    assert says in refused(capsys, *words, "--config", *given)


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
    "connect": "b",
    "keys": Path("k"),
    "town": "T",
    "traffic": 3,
    "trace": True,
    "carla_standin": True,
    "carla_host": "there",
    "reconnect_s": 5.0,
    "episodes": 2,
}


@given(env=st.sampled_from(["lander", "remote", "carla-bridge"]), names=st.sets(st.sampled_from(sorted(SET))))
def test_what_excludes_each_other_is_refused_by_the_object_itself(env: str, names: set[str]) -> None:
    remote, carla = (
        {"bind", "connect", "keys"},
        {"town", "traffic", "trace", "carla_standin", "carla_host", "reconnect_s"},
    )
    fine = "instruction" not in names and not {"bind", "connect"} <= names
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
