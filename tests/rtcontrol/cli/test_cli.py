"""The command line: real runs, exit statuses, one-paragraph errors."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from commands import EXPERT, call, refused, spawn, wait_for_ticks

from rtcontrol.run import assembly
from rtcontrol.telemetry.record_reader import read_record
from tests.helpers.processes import python


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


@pytest.mark.parametrize("model", ["noop", "random"])
def test_plain_deciders(tmp_path: Path, model: str) -> None:
    arguments = ("run", "--env", "lander", "--model", model, "--host", "inprocess", "--no-live", "--clock", "lockstep")
    assert call(*arguments, "--episodes", "1", "--out", str(tmp_path)) == 0
    made = json.loads((tmp_path / "report.json").read_text())
    assert made["null"] == (made["on_time"] if model == "noop" else 0)


# What is said of each; of the rest it is the whole of it, or its option.
MISTAKES = [
    ("--deadline-ms 100", "deadline <= pipeline x period"),
    ("--deadline-ms 100", "--pipeline 2"),
    ("--clock sun", "wall, lockstep"),
    ("--host moon", "ray, inprocess"),
    ("--on-miss pray", "hold, safe, stop"),
    ("--late never", "drop, use"),
    ("--record-observations some", "yes, no"),
    ("--record-max much", "500M"),
    ("--record-max 100k", "1M"),
    ("--record-max nan", "500M"),
    ("--agent nobody", "lander, paddle; or a .py file"),
    ("--agent nofile.py", "no such file"),
    ("--goal sing", "names no goal"),
    ("--calls-per-tick 2", "--agent FILE.py) with history=1 and a model"),
    ("--model /nowhere/at/all", "/nowhere/at/all"),
    ("--frobnicate", "No such option"),
    ("--hz fast", "'--hz'"),
]
WHOLE = "--hz 0;--hz -3;--hz nan;--deadline-ms 0;--max-age-ms -1;--pipeline 0;--hold-ms -1;--affinity a"
OPTIONS = "--max-miss-rate 2;--min-confidence 7;--seed -1;--hz 1e10;--hz 1e-320;--affinity=-1;--affinity 0,999999999999"
OPTIONS += ";--max-age-ms 1e308;--hold-ms inf;--pipeline 1000000;--engine foo;--instruct ;--instruct  "
MISTAKES += [(text, text) for text in [*WHOLE.split(";"), "--rt-priority 100"]]
MISTAKES += [(text, re.split("[ =]", text)[0]) for text in OPTIONS.split(";")]


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
    from rtcontrol.envs import registry

    monkeypatch.setattr(registry, "known", lambda: 1 / 0)
    assert call("envs") == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said and "Traceback" not in said


def test_too_many_misses_is_status_3(tmp_path: Path) -> None:
    # A deadline of a microsecond is always missed.
    arguments = (*EXPERT, "--duration", "0.5", "--deadline-ms", "0.001", "--max-miss-rate", "0.5")
    assert call(*arguments, "--out", str(tmp_path)) == 3
    made = json.loads((tmp_path / "report.json").read_text())
    assert made["misses"] == made["ticks"] == 8
    assert call(*arguments, "--on-miss", "stop", "--out", str(tmp_path / "stop")) == 3


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_flight_ends_with_safe_call_and_report(tmp_path: Path, number: int, status: int) -> None:
    process = spawn(*EXPERT, "--duration", "60", "--out", str(tmp_path))
    wait_for_ticks(tmp_path, 10)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == status, err
    assert "Traceback" not in err
    made = json.loads((tmp_path / "report.json").read_text())
    assert made["ended_by"] == signal.Signals(number).name
    assert made["ticks"] >= 10
    events = [*read_record(tmp_path / "record.mcap")]
    assert events[-1]["end"] == made["ended_by"]
    assert any(event.get("why") == "exit" for event in events[-3:])


def test_a_typed_line_is_the_new_instruction(tmp_path: Path) -> None:
    process = spawn(*EXPERT, "--stdin", "--duration", "2", "--out", str(tmp_path))
    wait_for_ticks(tmp_path, 3)
    assert process.stdin is not None
    process.stdin.write("hover at 0.7\n")
    process.stdin.flush()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    made = json.loads((tmp_path / "report.json").read_text())
    assert [c["instruction"] for c in made["instruction_changes"]] == ["hover at 0.7"]
    assert "instruction: hover at 0.7" in err


COMMANDS = [";run;envs;agents;report;doctor;serve;bridge;bridge ros2;bridge carla;keys new;keys list;keys revoke"]
COMMANDS += [
    "fit;score;models info;models adopt;models train;models sweep;bench decide;bench train;bench wire;bench load"
]
COMMANDS += [
    "replay;data from-recording;drill;bench record;bench watch;bench batch;bench heads;bench prefix;bench memory"
]
COMMANDS += ["data convert;data stats;data show;data synthesise"]
COMMANDS += ["bench dtype;bench engines;bench all;bench tables"]


@pytest.mark.parametrize("command", ";".join(COMMANDS).split(";"))
def test_every_command_explains_itself_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*command.split(), "--help") == 0
    said = capsys.readouterr()
    assert f"rtcontrol {command or 'run'}" in said.out.lower().partition("example")[2] and not said.err


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


def test_doctor_looks_at_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("doctor") == 0
    said = capsys.readouterr().out
    for what in ("Python", "torch", "ray", "real-time priority", "memory", "wake-up"):
        assert what in said


def test_report_from_a_record_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*EXPERT, "--clock", "lockstep", "--episodes", "1", "--out", str(tmp_path)) == 0
    first = json.loads((tmp_path / "report.json").read_text())
    (tmp_path / "report.json").unlink()
    assert call("report", str(tmp_path)) == 0
    again = json.loads((tmp_path / "report.json").read_text())
    assert first == again
    assert call("report", str(tmp_path / "nothing")) == 2
    assert "No record" in capsys.readouterr().err


@pytest.mark.parametrize("hook", ["rtcontrol.cli.app", "typer", "rtcontrol.models.checkpoint.checkpoint"])
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
