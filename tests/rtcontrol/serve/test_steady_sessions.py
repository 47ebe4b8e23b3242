"""`rtcontrol serve --hysteresis`: each session keeps its own values; who cannot have it is told so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rtcontrol.telemetry.record_reader import read_record
from rtcontrol_client.wire.messages import Reset
from tests.helpers.processes import until
from tests.rtcontrol.serve.conftest import Bench
from tests.rtcontrol.serve.crowd.crowd_peer import CrowdPeer

LEFT = "x -0.60 y 0.70 vx -0.50 vy -0.20 angle -0.30 spin -0.20 legs 0 0"
RIGHT = "x 0.60 y 0.70 vx 0.50 vy -0.20 angle 0.30 spin 0.20 legs 0 0"
GO = [{"name": "go", "parameters": {"type": "object", "properties": {"to": {"enum": ["a", "b"]}}, "required": ["to"]}}]


@pytest.fixture
def steady(bench: Callable[..., Bench]) -> Bench:
    return bench(hysteresis="margin=1", model=None)


def test_two_sessions_keep_each_their_own_values_and_a_new_epoch_none(steady: Bench) -> None:
    peers: list[Any] = [steady.enter(pacing="client") for _ in range(2)]
    first = [peer.ask(text).call for peer, text in zip(peers, (LEFT, RIGHT), strict=True)]
    assert first[0] != first[1]
    for _ in range(3):
        assert [peer.ask(text).call for peer, text in zip(peers, (RIGHT, LEFT), strict=True)] == first
    peers[0].epoch += 1
    peers[0].send(Reset(session=peers[0].token, epoch=peers[0].epoch))
    assert peers[0].ask(RIGHT).call == first[1], "nothing of another epoch is in force"
    assert peers[1].ask(LEFT).call == first[1], "which is no other session's"
    assert not any("hysteresis" in warning for peer in peers for warning in peer.welcome.warnings)

    def kept() -> int:
        records = steady.out.rglob("record.mcap")
        return sum("kept" in event for record in records for event in read_record(record))

    until(lambda: kept() >= 7)


def test_a_session_without_heads_has_none_and_is_told_so(steady: Bench) -> None:
    peer = steady.enter(tools=GO, instruction="go", model="random", pacing="client")
    assert peer.welcome is not None
    (said,) = (warning for warning in peer.welcome.warnings if "hysteresis" in warning)
    assert said.startswith("This session has no hysteresis.") and "random" in said
    assert peer.ask().call is not None


def test_a_crowd_has_none_and_is_told_so(steady: Bench) -> None:
    crowd = CrowdPeer(steady.peer())
    (said,) = (warning for warning in crowd.peer.welcome.warnings if "hysteresis" in warning)  # type: ignore[union-attr]
    assert said == "A crowd has no hysteresis: each value follows its decision."
    crowd.join("anna")
    crowd.until_fresh(["anna"])
