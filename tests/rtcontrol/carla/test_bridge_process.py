"""How a run keeps its bridge's process, whatever that does. The bridges here are a few lines of Python."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.run.carla_bridge import RESTARTS, BridgeProcess

Make = Callable[[str], BridgeProcess]
BEGIN = """
import json, os, signal, sys, time
def tell(**event): print(json.dumps(event), flush=True)
if "--clean" in sys.argv:
    os.unlink(sys.argv[-1])
    sys.exit(print("all undone", file=sys.stderr))
left = f"{__file__}.{os.getpid()}.left"
open(left, "w").close()
tell(event="begun", journal=left)
print("a library's own words", flush=True)
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A bridge whose program goes on like this."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def bridged(program: str) -> BridgeProcess:
        (tmp_path / "bridge_of_test.py").write_text(BEGIN + textwrap.dedent(program))
        return BridgeProcess([sys.executable, "-m", "bridge_of_test"], tmp_path / "out")

    return bridged


def test_its_mistake_is_ours_and_what_it_left_is_undone(make: Make, tmp_path: Path) -> None:
    told = 'tell(event="mistake", what="No server.", remedy="Start one."); sys.exit(2)'
    with make(told) as bridged, pytest.raises(UserError, match=r"No server\. Start one\."):
        bridged.await_ready()
    assert list(tmp_path.glob("*.left")) == []
    assert bridged.deaths == []


def test_it_is_started_again_when_it_dies_but_not_for_ever(make: Make, tmp_path: Path) -> None:
    ended = pytest.raises(UserError, match=f"died {RESTARTS + 1} times, at last SIGABRT, CARLA's client library")
    with make('tell(event="ready"); os.kill(os.getpid(), signal.SIGABRT)') as bridged, ended:
        while True:
            bridged.check()
            time.sleep(0.01)
    assert bridged.restarts == RESTARTS
    assert [death["how"] for death in bridged.deaths] == ["SIGABRT, CARLA's client library"] * (RESTARTS + 1)
    assert list(tmp_path.glob("*.left")) == []


def test_one_that_fails_by_itself_before_it_drives_is_not_started_again(make: Make, tmp_path: Path) -> None:
    failed = pytest.raises(UserError, match=r"failed before it drove \(exit status 1\)")
    with make('sys.exit("broken")') as bridged, failed:
        bridged.await_ready()
    assert bridged.restarts == 0
    assert list(tmp_path.glob("*.left")) == []


def test_the_end_of_its_input_is_its_own(make: Make, tmp_path: Path) -> None:
    with make('tell(event="ready"); sys.stdin.read(); os.unlink(left)') as bridged:
        bridged.await_ready()
    assert (bridged.gave_up, bridged.deaths, bridged.restarts) == (None, [], 0)
    assert list(tmp_path.glob("*.left")) == []


@pytest.mark.parametrize("status", [0, 129, 130, 143])
def test_one_that_ends_before_the_run_is_told(make: Make, status: int) -> None:
    with make(f"sys.exit({status})") as bridged, pytest.raises(UserError, match="ended before the run"):
        bridged.await_ready()


def test_one_that_does_not_end_is_killed_and_cleaned_up_after(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtcontrol.run.carla_bridge.END_S", 0.1)
    monkeypatch.setattr("rtcontrol.run.carla_bridge.TERM_S", 0.1)
    with make('signal.signal(signal.SIGTERM, signal.SIG_IGN); tell(event="ready"); time.sleep(60)') as bridged:
        bridged.await_ready()
        process = bridged._process
    assert process is not None and process.returncode == -9
    assert list(tmp_path.glob("*.left")) == []
