"""Several who use a folder at once, folders that go while they are written, and links where files are to be written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused

import rtcontrol
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import owned
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.finetune.run import Job, finetune
from rtcontrol.telemetry import report
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol.telemetry.run_folder import Folder
from rtcontrol.training.controllers import rebuild
from tests.helpers.disks import files_of
from tests.helpers.processes import cli

TOOL: dict[str, Any] = {
    "name": "go",
    "description": "Go.",
    "parameters": {"properties": {"way": {"enum": ["left", "right"]}}, "required": ["way"]},
}
ROWS = [("go", f"x {i} {i % 7}", {"name": "go", "arguments": {"way": "left"}}) for i in range(80)]
SHORT = ("run", "--env", "lander", "--host", "inprocess", "--no-live", "--duration", "0.3", "--clock", "lockstep")


def together(count: int, do: Callable[[], None]) -> None:
    threads = [threading.Thread(target=do) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_runs_that_start_in_the_same_second_have_a_folder_each(tmp_path: Path) -> None:
    base, found, started = tmp_path / "runs" / "lander-20260801T120000", [], threading.Barrier(8)

    def start() -> None:
        started.wait()
        with Folder(Path(), base) as folder:
            (folder.path / "record.mcap").write_text("mine")
            found.append(folder.path.name)

    together(8, start)
    assert sorted(found) == [base.name, *(f"{base.name}-{n}" for n in range(2, 9))]


def test_of_runs_that_are_given_one_folder_one_has_it_and_the_others_are_told(tmp_path: Path) -> None:
    told, began, wanted, done = [], [], tmp_path / "mine", threading.Barrier(8)

    def start() -> None:
        try:
            with Folder(wanted, tmp_path):
                began.append(1)
                done.wait()
                (wanted / "record.mcap").write_text("one")
        except UserError as error:
            told.append(error.what)
            done.wait()

    together(8, start)
    assert len(began) == 1 and set(told) == {f"{wanted} is in use by another run."}


def test_a_folder_that_another_took_away_empty_is_made_again(tmp_path: Path) -> None:
    wanted, ways, mistakes = tmp_path / "runs" / "mine", threading.Barrier(2), []

    def start() -> None:
        for _ in range(200):
            try:
                with Folder(wanted, tmp_path):
                    assert wanted.is_dir(), "it holds a folder that is there"
            except UserError as error:
                if "in use" not in error.what:
                    mistakes.append(error.what)
        ways.wait()

    together(2, start)
    assert not mistakes


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["a file", "a link to nothing"])
def test_where_runs_is_no_folder_that_is_told(tmp_path: Path, what: str) -> None:
    (tmp_path / "runs").write_text("") if what == "a file" else (tmp_path / "runs").symlink_to("nowhere")
    found = cli(*SHORT, cwd=tmp_path, timeout=50)
    assert found.returncode == 2 and "runs is no folder" in found.stderr, found.stderr


def test_runs_may_be_a_link_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    with Folder(Path(), tmp_path / "runs" / "lander") as folder:
        (folder.path / "record.mcap").write_text("")
    assert (tmp_path / "disk" / "lander" / "record.mcap").is_file()


def recorded(path: Path, meanwhile: Callable[[], object]) -> list[str]:
    """What is told of a record that holds the lines 0 to 99, `meanwhile` in their middle."""
    told: list[str] = []
    recorder = Recorder(path, {"hz": 16}, provisional=True, tell=told.append)
    recorder.keep()
    for number in range(100):
        if number == 50:
            meanwhile()
        recorder.write({"instruction": str(number), "by": "x" * 5000, "k": number})
    recorder.close()
    return told


def lines(path: Path) -> list[int]:
    return [line["k"] for line in read_record(path) if "instruction" in line]


def removed(folder: Path) -> None:
    (folder / "record.mcap").unlink()
    folder.rmdir()


def test_a_folder_that_is_removed_while_it_is_written_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "run" / "record.mcap"
    (told,) = recorded(path, lambda: removed(path.parent))
    assert "was removed while it was written" in told
    assert lines(path) == list(range(100))


def test_a_record_in_its_place_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "run" / "record.mcap"

    def replaced() -> None:
        removed(path.parent)
        path.parent.mkdir()
        path.write_text("another's")

    (told,) = recorded(path, replaced)
    assert "File exists" in told and path.read_text() == "another's"


def test_where_a_folder_was_moved_to_is_told_and_its_record_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run" / "record.mcap"
    (told,) = recorded(path, lambda: path.parent.rename(tmp_path / "moved"))
    assert f"was moved: it is {tmp_path / 'moved' / 'record.mcap'}" in told
    assert lines(tmp_path / "moved" / "record.mcap") == list(range(100))


def test_links_in_a_runs_folder_lead_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run := tmp_path / "run").mkdir()
    (precious := tmp_path / "precious").write_text("precious")
    for name in ("record.mcap.part", "report.json", "report.json.part", "report.html", "report.html.part"):
        (run / name).symlink_to(precious)
    assert call(*SHORT, "--out", str(run)) == 0
    assert call("report", str(run), "--format", "html") == 0
    assert precious.read_text() == "precious"
    assert not [path for path in run.iterdir() if path.is_symlink()]
    for name in ("report.json", "report.html"):
        assert (run / name).stat().st_size > 1000
    capsys.readouterr()


def test_a_page_that_has_no_room_leaves_the_old_one_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*SHORT, "--out", str(tmp_path / "run")) == 0
    capsys.readouterr()
    (page := tmp_path / "run" / "report.html").write_text("old")
    with files_of(2000):
        assert "cannot be written (File too large)" in refused(
            capsys, "report", str(tmp_path / "run"), "--format", "html"
        )
    assert page.read_text() == "old" and not list(page.parent.glob("*.part"))


def test_a_report_that_is_made_while_the_run_writes_takes_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "run" / "record.mcap"
    assert recorded(path, lambda: report.write({"releases": 1}, path.with_name("report.json"))) == []
    assert lines(path) == list(range(100))


def test_two_that_train_into_one_folder_are_kept_apart(tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    job = Job("base", (), out, FinetuneRecipe())
    with owned(out):
        for start in (
            lambda: rtcontrol.fit(ROWS, [TOOL], out=out, minutes=0.01),
            lambda: rebuild("lander", out, 64, 0, None),
            lambda: finetune(job),
        ):
            with pytest.raises(UserError, match=r"out is in use by another run\. Give another --out"):
                start()
    assert rtcontrol.fit(ROWS, [TOOL], out=tmp_path / "alone", minutes=0.01).folder.is_dir()
