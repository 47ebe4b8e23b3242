"""What the rig measures by: its tap, and its faults."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from rtcontrol_client.wire import encode_msgpack
from rtcontrol_client.wire.messages import CallMessage, FunctionCall, Ping, Pong
from tests.bridges.client.worlds import until
from tests.bridges.rig.__main__ import rig
from tests.bridges.rig.base import show
from tests.bridges.rig.faults import run
from tests.bridges.rig.tap import Tap, Zmtp, too_old


def call(t_obs_ns: int, ttl_ms: float, **changes: Any) -> CallMessage:
    fields = {"session": "x" * 16, "tick": 1, "epoch": 0, "seq_obs": 1, "t_obs_ns": t_obs_ns, "status": "fresh"}
    fields |= {"call": FunctionCall(name="go"), "ttl_ms": ttl_ms, "deadline_ns": 0, "t_server_ns": 0}
    return CallMessage(**{**fields, **changes})


def test_what_passes_is_understood_and_a_stall_holds_it_up() -> None:
    server, client = (zmq.Context.instance().socket(kind) for kind in (zmq.ROUTER, zmq.DEALER))
    server.linger = client.linger = 0
    tap = Tap(server.bind_to_random_port("tcp://127.0.0.1"))
    client.connect(tap.endpoint)
    client.send_multipart(encode_msgpack(Ping(id=1, t_ns=2)))
    assert server.poll(20_000)
    peer, *_ = server.recv_multipart()
    server.send_multipart([peer, *encode_msgpack(Pong(id=1, t_ping_ns=2, t_received_ns=3, t_sent_ns=4))])
    assert client.poll(20_000)
    until(lambda: len(tap.said) == 2, "not understood")
    assert [(s.up, s.message.type) for s in tap.said] == [(True, "ping"), (False, "pong")]
    began = time.monotonic()
    tap.stall(0.3)
    client.send_multipart(encode_msgpack(Ping(id=2, t_ns=5)))
    assert server.poll(20_000)
    assert time.monotonic() - began >= 0.3
    for one in (server, client, tap):
        one.close()


LONG = call(1, 500.0, call=FunctionCall(name="say", arguments={"text": "a" * 300}))
SHORT = Ping(id=1, t_ns=2)


def zmtp() -> bytes:
    (long,), (short,) = encode_msgpack(LONG), encode_msgpack(SHORT)
    head = bytes(64) + b"\x04\x06\x05READY" + bytes([2]) + len(long).to_bytes(8, "big")
    return head + long + bytes([0, len(short)]) + short


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_bytes_may_come_in_any_pieces(size: int) -> None:
    one, data = Zmtp(), zmtp()
    assert [m for i in range(0, len(data), size) for m in one.feed(data[i : i + size])] == [LONG, SHORT]


def test_command_beyond_every_time_to_live_is_counted() -> None:
    calls = [(10, call(0, 1.0)), (20, call(500_000, 1.0)), (30, call(900_000, 1.0, status="held", call=None))]
    # Before any came; in the first; in the second, which renews; after both, where a held one renews nothing.
    assert [too_old([at], calls) for at in (5, 15, 1_000_001, 1_500_000, 1_500_001)] == [1, 0, 0, 0, 1]


# The fault lists, whole: what was done, and that no call was executed too old.


# Faults through which it is driven on, or that end with its process: all others end in the safe call.
GOES_ON = {
    "unity": ("2,000", "strangers", "game killed"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bridge", GOES_ON)
def test_no_fault_makes_it_execute_a_call_that_is_too_old(tmp_path: Path, bridge: str) -> None:
    kind = rig(bridge)
    if kind.missing:
        pytest.skip(kind.missing)
    rows = run(kind(tmp_path))
    print(show(rows))
    assert len(rows) == len(kind.faults)
    assert [row.fault for row in rows if row.too_old] == []
    assert [row.fault for row in rows if row.safe_ms is None and not any(w in row.fault for w in GOES_ON[bridge])] == []
