"""A decider in a process of its own: it answers, is given up, is lost and comes back, and ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rtcontrol.hosts.deciders import STSource
from rtcontrol.hosts.process import ProcessHost
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from tests.helpers.processes import environment, until
from tests.models.small import build_checkpoint, tool
from tests.rtcontrol.hosts.talker import Talker

TALKER = Talker()
GO = tool("go", to=["left", "right"])


@contextmanager
def host(source: Talker | STSource = TALKER) -> Iterator[ProcessHost]:
    made = ProcessHost(source)
    try:
        yield made
    finally:
        made.close()


def answer(made: ProcessHost, number: int, said: str = "") -> DecisionReply:
    made.submit(DecisionRequest(number, 0, "", said))
    while (reply := made.wait(10**9)) is None or reply.tick != number:
        assert made.alive(), "it was lost"
    return reply


def test_it_decides_in_another_process_behind_everybody_else() -> None:
    with host() as made:
        assert made.start() == {"engine": "talker"} and made.start() == {}
        call = answer(made, 1).decision.call  # type: ignore[union-attr]
        assert call is not None and call.arguments["pid"] != os.getpid() and call.arguments["nice"] > os.nice(0)
        assert answer(made, 2, "raise").error == "ValueError: no"
    assert not made.alive()


def test_what_is_given_up_is_left_and_the_next_is_answered() -> None:
    with host() as made:
        made.start()
        made.submit(DecisionRequest(1, 0, "", "for ever"))
        made.submit(DecisionRequest(2, 0, "", "for ever"))
        made.cancel(2)
        made.cancel(1)
        assert answer(made, 3).decision is not None


def test_a_process_that_dies_is_noticed_and_started_again() -> None:
    with host() as made:
        made.start()
        made.submit(DecisionRequest(1, 0, "", "die"))
        until(lambda: not made.alive())
        assert made.wait(10**9) is None and [event.event for event in made.events] == ["lost"]
        made.start()
        assert answer(made, 2).decision is not None and made.incarnation == 2


def test_what_cannot_be_built_is_told() -> None:
    with host(Talker(broken=True)) as made, pytest.raises(UserError, match="It is broken"):
        made.start()


def test_a_model_decides_there(tmp_path: Path) -> None:
    checkpoint = str(build_checkpoint(tmp_path / "small"))
    with host(STSource(DeciderSpec(checkpoint, (GO,), allow_null=True, history=0), patient=True)) as made:
        assert made.start()["model"] == checkpoint
        decision = answer(made, 1, "go left").decision
        assert decision is not None and decision.confidence


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import time\nfrom rtcontrol.hosts.deciders import NoopSource\n"
        "from rtcontrol.hosts.process import ProcessHost\n"
        "host = ProcessHost(NoopSource())\nhost.start()\nprint(host._process.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment(), text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2])
