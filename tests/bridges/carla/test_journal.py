"""What the bridge writes down before it changes a server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rtcontrol.bridges.carla import journal
from rtcontrol.bridges.carla.journal import Journal
from rtcontrol.bridges.carla.options import CarlaBridgeError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path))


def test_every_change_is_in_the_file_before_it_is_done() -> None:
    path = journal.place("127.0.0.1", 2000)
    mine = Journal(path, "127.0.0.1", 2000)
    mine.begin(7)
    assert journal.read(path).nothing
    mine.settings({"synchronous_mode": False})
    mine.spawning("hero", {3, 1})
    left = journal.read(path)
    assert (left.episode, left.settings, left.spawning) == (7, {"synchronous_mode": False}, {"hero": [1, 3]})
    mine.spawned("hero", [9])
    left = journal.read(path)
    assert (left.actors, left.spawning) == ([9], {})
    mine.close()
    assert list(path.parent.iterdir()) == []


def test_another_world_took_our_vehicles_with_it_but_not_the_settings() -> None:
    path = journal.place("host", 1)
    mine = Journal(path, "host", 1)
    mine.begin(1)
    mine.settings({"synchronous_mode": False})
    mine.spawned("hero", [4])
    mine.moved(2)
    left = journal.read(path)
    assert (left.episode, left.actors, left.settings) == (2, [], {"synchronous_mode": False})


def test_files_of_others_tell_whether_their_process_is_alive() -> None:
    write = (
        "import time; from rtcontrol.bridges.carla import journal; "
        "journal.Journal(journal.place('h', 5), 'h', 5).begin(1); print('there', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", write], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    Journal(journal.place("h", 5), "h", 5).begin(1)  # our own is no other's
    assert [(left.pid, alive) for _, left, alive in journal.others("h", 5)] == [(process.pid, True)]
    assert list(journal.others("h", 6)) == []
    process.kill()
    process.communicate()
    assert [(left.pid, alive) for _, left, alive in journal.others("h", 5)] == [(process.pid, False)]


def test_bridges_that_begin_at_one_server_at_the_same_time_do_so_one_after_the_other() -> None:
    inside, most = [0], [0]

    def begin() -> None:
        with journal.alone("h", 5):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.05)
            inside[0] -= 1

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    with journal.alone("h", 6):  # another server's
        pass
    for thread in threads:
        thread.join()
    assert most == [1]
    assert list(journal.folder().iterdir()) == []
    assert list(journal.others("h", 5)) == []


def test_number_of_a_process_that_is_another_by_now_is_not_taken_for_alive() -> None:
    path = journal.place("h", 5).with_name("h-5-1.json")
    mine = Journal(path, "h", 5)
    mine.left.pid, mine.left.born = os.getppid(), 1
    mine.begin(1)
    assert [alive for _, _, alive in journal.others("h", 5)] == [False]


def test_file_that_is_none_is_a_mistake(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("[]")
    for path in (broken, tmp_path / "none.json"):
        with pytest.raises(CarlaBridgeError, match="tells nothing of a drive"):
            journal.read(path)


def test_folder_that_cannot_be_written_to_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "carla").write_text("no folder")
    with pytest.raises(CarlaBridgeError, match="cannot be written down"):
        Journal(journal.place("h", 1), "h", 1).begin(1)
    with pytest.raises(CarlaBridgeError, match="cannot be written down"), journal.alone("h", 5):
        pass
