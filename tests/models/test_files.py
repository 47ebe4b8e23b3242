"""Tests of opening files, and of what only looks like a file: pipes, sockets, folders, devices."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from rtcontrol.models import errors
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.data.row import read_raw_lines
from rtcontrol.models.errors import UserError, open_input, read_text
from rtcontrol.models.files import create_file, lock_folder, open_output, replace_file, unlock_folder, write_output
from rtcontrol.telemetry.record_reader import read_record


def make(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "loop", "endless"])
def test_only_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(errors, "WRITER_S", 0.0)
    make(kind, path := tmp_path / "record.mcap")
    with pytest.raises(OSError, match=r"pipe|socket|folder|symbolic|not a file"):
        read_text(path)
    for read in (read_raw_lines, read_record):
        with pytest.raises(UserError, match="record.mcap"):
            list(read(path))


def test_pipe_with_a_writer_is_read() -> None:
    out, into = os.pipe()
    os.write(into, b"one\n")
    os.close(into)
    path = Path(f"/dev/fd/{out}")
    assert list(read_raw_lines(path)) == [(1, b"one\n")]
    with pytest.raises(OSError, match="not a file"):
        open_input(path, pipes=False)
    os.close(out)
    assert read_text(Path(os.devnull)) == ""


def test_pipe_without_reader_is_no_output(tmp_path: Path) -> None:
    for write in (create_file, lambda path: replace_file(path, "")):
        with pytest.raises(OSError, match="device"):
            write(Path(os.devnull))
    make("endless", link := tmp_path / "link to a device")
    os.close(create_file(link))
    make("pipe", pipe := tmp_path / "pipe")
    with pytest.raises(OSError, match="no program reads"):
        open_output(pipe)
    replace_file(pipe, "text")  # in a program's own folder
    assert pipe.read_text() == "text"
    (link := tmp_path / "link").symlink_to(pipe)
    write_output(link, "more")
    assert link.is_symlink() and pipe.read_text() == "more"


def test_checkpoint_with_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    make("pipe", tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="tokenizer.json is a pipe"):
        resolve(str(tmp_path))


def test_forked_helper_keeps_no_lock(tmp_path: Path) -> None:
    descriptor = lock_folder(tmp_path)
    ours, theirs = os.pipe()
    if (helper := os.fork()) == 0:
        os.write(theirs, b"+")
        signal.pause()
    assert os.read(ours, 1) == b"+"
    unlock_folder(descriptor)
    unlock_folder(lock_folder(tmp_path))
    os.kill(helper, signal.SIGKILL)
    os.waitpid(helper, 0)
    os.close(ours)
    os.close(theirs)
