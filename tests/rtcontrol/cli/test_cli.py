"""Tests of the command line: real runs, exit statuses, error messages and output."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from cart import Cart, cart_agent
from commands import EXPERT, call, refused, report_in
from typer.main import get_command

from rtcontrol.agents import OneOf, Tools, tool
from rtcontrol.cli.app import app as whole
from rtcontrol.envs.base import Observation
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.run.user_files import check_fit
from rtcontrol.serve import key_files
from rtcontrol_client.console import printable
from tests.helpers.processes import python


def test_run_is_judged_by_its_instruction(tmp_path: Path) -> None:
    common = (*EXPERT, "--clock", "lockstep", "--episodes", "2", "--set", "loop.seed=1000")
    assert call(*common, "--instruct", "land on the left side of the pad", "--out", str(tmp_path)) == 0
    made = report_in(tmp_path)
    assert made["instruction"] == "land on the left side of the pad"
    assert made["outcome"]["successes"] >= 1


MISTAKES = [
    ("--set loop.deadline_ms=100", "loop.pipeline=2"),
    ("--host moon", "--host moon cannot be used: Input should be 'ray' or 'inprocess'"),
    ("--set record.max=100k", "--set record.max=100k cannot be used: give 1M or more"),
    ("--agent nobody", "lander, paddle; or a .py file"),
    ("--set loop.calls_per_tick=2", "--agent FILE.py) with history=1 and a model"),
    ("--model /nowhere/at/all", "/nowhere/at/all"),
    ("--frobnicate", "No such option: --frobnicate"),
    ("--hold-ms 3", "use --set loop.hold_ms=VALUE"),
    ("--modle lander", "--model"),
    ("--set loop.holdms=3", "The most similar is loop.hold_ms"),
    ("--set serve.http=h:1", "--set serve.http is not a setting of `rtcontrol run`"),
    ("--set loop.hold_ms", "has no value"),
    ("--hz fast", "--hz fast cannot be used: Input should be a valid number"),
    ("--hz nan", "--hz nan cannot be used"),
    ("--set loop.hold_ms=inf", "--set loop.hold_ms=inf cannot be used: Input should be less than or equal to"),
    (
        "--set loop.min_confidence=7",
        "--set loop.min_confidence=7 cannot be used: give probabilities between 0 and 1",
    ),
    ("--set host.engine=foo", "Unknown engine"),
    ("--instruct  ", "--instruct"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES)
def test_usage_errors_are_one_paragraph_with_status_2(
    arguments: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, *EXPERT, "--out", str(tmp_path / "out"), *arguments.split(" ", 1))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        ("run lander", "Did you mean `rtcontrol run --env lander`?"),
        ("train", "Did you mean `rtcontrol fit`?"),
        ("reports", "Did you mean `rtcontrol report`?"),
        ("run --environment lander", "Did you mean --env?"),
        ("run --env CartPole-v1", "Did you mean gym:CartPole-v1?"),
        ("run --env landr", "Did you mean lander?"),
        ("bench decid", "'decid' is not one of"),
    ],
)
def test_usage_errors_suggest_the_nearest_name(
    arguments: str, suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, *arguments.split())
    assert suggestion in message and "Value error" not in message


def test_unknown_world_error_names_the_known_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("agents") == 0
    assert "engines(main, side)" in capsys.readouterr().out
    assert call("envs") == 0
    listed = capsys.readouterr().out
    assert call("run", "--env", "mars") == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    for name in ("lander", *assembly.OTHER_ENVIRONMENTS):
        assert name in listed and name in said.partition("Known environments:")[2]
    assert call("run", "--env", "mars", "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


def test_internal_error_has_exit_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(assembly, "bundled_agents", lambda: 1 / 0)
    assert call("agents") == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("can't start new thread"), "processes and threads. Raise docker --pids-limit"),
        (BlockingIOError(errno.EAGAIN, "fork"), "processes and threads. Raise"),
        (OSError(errno.EMFILE, "open"), "no more open files. Raise"),
    ],
)
def test_limit_of_the_system_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, text: str
) -> None:
    def fail(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(assembly, "bundled_agents", fail)
    assert call("agents") == 2
    assert text in capsys.readouterr().err


@pytest.mark.integration
def test_too_many_misses_give_exit_status_3(tmp_path: Path) -> None:
    # A deadline of a microsecond is always missed.
    arguments = (*EXPERT, "--duration", "0.5", "--set", "loop.deadline_ms=0.001", "--out", str(tmp_path))
    assert call(*arguments) == 0
    made = report_in(tmp_path)
    assert made["misses"] == made["ticks"] > 0
    assert call("report", str(tmp_path), "--gate", "miss_rate<=0.5") == 3
    again = (*arguments, "--set", "record.overwrite=true")
    assert call(*again, "--set", "loop.max_miss_rate=0.5") == 3
    assert call(*again, "--set", "loop.on_miss=stop") == 3


def test_version_option_imports_no_heavy_packages() -> None:
    code = "import sys\nfrom rtcontrol.cli import main\nsys.argv[1:] = ['--version']\ntry: main()\n"
    done = python("-c", f"{code}finally: assert not {{'torch', 'ray'}} & {{*sys.modules}}")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"rtcontrol 0\.1\.0 \(python 3\.\d+\.\d+, torch 2\.\S+, ray 2\.[\d.]+\)\n", done.stdout)


@pytest.mark.integration
def test_doctor_checks_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("doctor") == 0
    said = capsys.readouterr().out
    for what in ("Python", "torch", "ray", "bundled model", "wake-up"):
        assert what in said


def test_keys_commands_use_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "rtcontrol" / "keys"

    def keys(*words: str, status: int = 0) -> str:
        assert call("keys", *words) == status
        return "".join(capsys.readouterr())

    made = keys("new", "arm")
    server, client = key_files.load_pair(folder / "server.key_secret"), key_files.load_pair(folder / "arm.key_secret")
    listed = keys("list")
    assert key_files.fingerprint(client.public) in listed and key_files.fingerprint(server.public) in listed
    revoked = keys("revoke", "arm")
    assert sorted(p.name for p in folder.iterdir()) == ["server.key", "server.key_secret"]
    again = keys("revoke", "arm", status=2)
    assert "no key 'arm'" in again
    for words in (("new", "server"), ("new", "../arm"), ("revoke", "server")):
        keys(*words, status=2)
    assert (folder / "server.key").exists()
    for said in (made, listed, revoked, again):
        assert server.secret not in said and client.secret not in said


BAD = "\x1b[2J\x1b]0;title\x07\r\nFORGED\x9b31m\x85\u2028\u202e"


def test_control_characters_in_user_files_are_escaped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tools.json").write_text(json.dumps([{"name": f"a{BAD}", "schema": {}}, {"name": BAD}]))
    call("tools", "check", str(tmp_path / "tools.json"))
    said = "".join(capfd.readouterr())
    assert "\\x1b" in said
    lines = said.split("\n")
    assert lines == [printable(line) for line in lines] and not [s for s in lines if s.startswith("FORGED")]


def every_command(command: Any, path: list[str]) -> Iterator[list[str]]:
    yield path
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from every_command(command.get_command(None, name), [*path, name])


def test_every_command_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    for path in every_command(get_command(whole), []):
        assert call(*path, "--help") == 0, path
        shown = capsys.readouterr()
        assert not shown.err, path
        examples = [line.strip() for line in shown.out.splitlines() if line.strip().startswith("rtcontrol ")]
        assert all(line.partition("#")[0].count("rtcontrol ") == 1 for line in examples), examples


def test_unwritable_output_is_an_error_with_report_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Path("/dev/full").open("w") as full:
        listed, flown = (
            subprocess.run([sys.executable, "-m", "rtcontrol", *words], stdout=full, stderr=subprocess.PIPE, text=True)
            for words in (["envs"], [*EXPERT, "--clock", "lockstep", "--episodes", "1", "--out", str(out)])
        )
    assert listed.returncode == 1 and "Traceback" not in listed.stderr
    assert listed.stderr.startswith("The output could not be written completely: [Errno 28] No space left on device")
    # The run is incomplete.
    assert flown.returncode == 6 and f"No space left on device. {out} also has the report." in flown.stderr
    assert (out / "report.json").is_file()


SAMPLE = Observation(0, 0, 0, {"x": 0.5, "v": 0.0})


def test_fit_check_covers_bodies_signatures_and_observation() -> None:
    bindings = Cart().bindings
    check_fit(cart_agent(), "cart", bindings, SAMPLE)

    @tool
    def push(force: Annotated[int, OneOf(0, 1)], gently: bool = False) -> None:
        """Push."""

    agent = cart_agent()
    with pytest.raises(UserError, match="gently"):
        check_fit(dataclasses.replace(agent, tools=Tools([push])), "cart", bindings, SAMPLE)
    with pytest.raises(UserError, match="cannot read the observation of the environment cart .KeyError: 'v'"):
        check_fit(agent, "cart", bindings, Observation(0, 0, 0, {"x": 0.5}))


AGAIN = ("--set", "record.overwrite=true")


def test_earlier_record_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = (*EXPERT, "--clock", "lockstep", "--duration", "1", "--out", str(tmp_path / "out"))
    assert call(*run) == 0
    before = (tmp_path / "out" / "record.mcap").read_bytes()
    capsys.readouterr()  # a slow machine says what it is at
    assert "record.overwrite=true" in refused(capsys, *run)
    # A run that fails while it starts leaves the earlier one, and no folder of its own.
    long = ("run", "--env", "lander", "--host", "inprocess", "--no-live", "--instruct", "q7 " * 100_000)
    assert call(*long, "--out", str(tmp_path / "out"), *AGAIN) == 2
    assert call(*long, "--out", str(tmp_path / "new" / "deep")) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["record.mcap", "report.json"]
    assert (tmp_path / "out" / "record.mcap").read_bytes() == before
    assert call(*run, *AGAIN) == 0
    assert (tmp_path / "out" / "record.mcap").read_bytes() != before


def test_model_trained_on_other_tools_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run", "--env", "road", "--model", "lander", "--host", "inprocess", "--no-live")
    assert "lander was trained on other tools" in said and '"driver"' in said
