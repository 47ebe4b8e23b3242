"""Users without a home, as of a container's `--user 12345`: no HOME and no entry in passwd, or a home that is not there
or takes no file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rtcontrol.models.errors import UserError, home, user_path
from tests.helpers.processes import environment

UNKNOWN = ["unshare", "-U", "--map-user=12345", "--map-group=12345"]  # a number that passwd does not know
TOLD = "x 0.10 y 0.90 vx 0.00 vy -0.20 angle 0.00 spin 0.00 legs 0 0"
API = f"import rtcontrol; print(rtcontrol.load('lander').session().decide({TOLD!r}, 'land on the pad').call.text())"
TOOL = {"name": "go", "description": "Go.", "parameters": {"properties": {"way": {"enum": ["left", "right"]}}}}
ROWS = [
    {"instruction": "go", "observation": f"x {i % 2}", "call": {"name": "go", "arguments": {"way": "left"}}}
    for i in range(80)
]
HOMES = {"unset": "", "missing": "{folder}/none", "a file": "{folder}/file/home"}
RUN = "-m rtcontrol run --env lander --duration 0.5 --no-live --out run --host"


def done(folder: Path, home_is: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What comes of Python with these arguments by such a user, who owns `folder`."""
    if subprocess.run([*UNKNOWN, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    (folder / "file").write_text("")
    ours = ("HOME", "USER", "LOGNAME", "RTCONTROL_CACHE")
    kept = {name: value for name, value in environment().items() if name not in ours and not name.startswith("XDG_")}
    their = kept | ({"HOME": home_is.format(folder=folder)} if home_is else {})
    command = [*UNKNOWN, sys.executable, *words]
    found = subprocess.run(command, cwd=folder, env=their, capture_output=True, text=True, timeout=100)
    assert "Traceback" not in found.stderr and "Internal error" not in found.stderr, found.stderr
    return found


def runs(folder: Path, home_is: str, host: str) -> str:
    found = done(folder, home_is, *RUN.split(), host)
    assert found.returncode == 0 and list((folder / "run").rglob("*.mcap")), found.stderr
    return found.stderr


def test_a_user_without_a_home_runs_and_is_told_what_is_not_kept(tmp_path: Path) -> None:
    assert "no HOME/.cache/rtcontrol/prefix" in runs(tmp_path, "", "inprocess")
    assert done(tmp_path, "", "-c", API).returncode == 0


def test_a_home_that_takes_no_file_is_no_obstacle(tmp_path: Path) -> None:
    runs(tmp_path, HOMES["a file"], "inprocess")


@pytest.mark.slow
@pytest.mark.parametrize("host", ["inprocess", "ray"])
@pytest.mark.parametrize("home_is", HOMES)
def test_each_host_runs_whatever_the_home_is(tmp_path: Path, home_is: str, host: str) -> None:
    runs(tmp_path, HOMES[home_is], host)


@pytest.mark.slow
@pytest.mark.parametrize("home_is", HOMES)
def test_every_other_command_works_whatever_the_home_is(tmp_path: Path, home_is: str) -> None:
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for line in (
        "--version",
        "doctor",
        "tools check tools.json",
        "fit --tools tools.json --rows rows.jsonl --minutes 0.1 --out fitted",
        "keys new --keys keys arm",
    ):
        found = done(tmp_path, HOMES[home_is], "-m", "rtcontrol", *line.split())
        assert found.returncode == 0, (line, found.stderr)
    found = done(tmp_path, HOMES[home_is], "-c", API)
    assert found.returncode == 0, found.stderr
    found = done(tmp_path, HOMES[home_is], "-m", "rtcontrol", *["serve", "--bind", "tcp://10.1.2.3:5555"])
    assert found.returncode == 2 and "rtcontrol keys new NAME" in found.stderr, found.stderr


def test_where_no_home_is_known_the_keys_folder_is_asked_for(tmp_path: Path) -> None:
    for line in ("keys list", "keys new arm"):
        found = done(tmp_path, "", "-m", "rtcontrol", *line.split())
        assert found.returncode == 2 and "Give --keys FOLDER" in found.stderr, found.stderr


def test_a_path_by_a_home_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_000)
    assert home() is None
    with pytest.raises(UserError, match="nobody knows where ~ is"):
        user_path("~/runs/mine")
