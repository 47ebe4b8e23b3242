"""`rtcontrol serve --replicas 2`: real proxies and replicas, a client that changes servers, and an end in order."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("fastapi", reason="the ray-serve extra is not installed")
from websockets.sync.client import connect

from rtcontrol_client import Client
from rtcontrol_client.wire import decode_json, encode_json
from rtcontrol_client.wire.messages import Hello, Welcome
from rtcontrol_client.wire.messages import Program as Speaker
from tests.bridges.client.worlds import OWN, until_fresh_at
from tests.helpers.processes import Program, free_port, until

pytestmark = pytest.mark.serial


class Served:
    """The running program, with its address."""

    def __init__(self, folder: Path) -> None:
        self.address, self.out = f"127.0.0.1:{free_port()}", folder / "out"
        fields = ["--replicas", "2", "--model", "random", "--http", self.address, "--out", str(self.out)]
        self.program = Program(["-m", "rtcontrol", "serve", *fields], folder / "log")
        self.program.says(f"listening on http://{self.address}/", 240.0)
        self.url = f"http://{self.address}/connect"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def pid(self, address: str) -> int:
        port = int(address.rpartition(":")[2])
        matches = [c.pid for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port]
        return matches[0] or 0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    created = Served(tmp_path_factory.mktemp("replicas"))
    yield created
    created.program.kill()


def test_both_replicas_answer_by_http_and_websocket(served: Served) -> None:
    named = {served.get("/connect")["address"] for _ in range(12)}
    assert len(named) == 2 and served.get("/health")["status"] == "ok"
    with connect(f"ws://{served.address}/ws", compression=None) as line:
        hello = Hello(protocol=[1, 1], client=Speaker(name="test"), t_client_ns=0, agent="lander")
        line.send(encode_json(hello))
        assert isinstance(decode_json(line.recv(timeout=60)), Welcome)


# ray-project/ray#44185, #47237: routers still sent requests to a replica that had died.
def test_killed_replica_gets_no_more_clients(served: Served) -> None:
    with Client.connect(served.url, **OWN, hz=20, ttl_ms=400) as client:
        before = client.address
        until_fresh_at(client, before)
        os.kill(served.pid(before), signal.SIGKILL)
        until(lambda: client.address != before and client.connected, "it stays at a dead server", 30.0)
        until_fresh_at(client, client.address)
        assert before not in {served.get("/connect")["address"] for _ in range(20)}
    until(lambda: len({served.get("/connect")["address"] for _ in range(12)}) == 2, "no new replica", 120.0, 0.5)


# ray-project/ray#63995: a replica that was stopped took work until it was killed.
def test_shutdown_sends_bye_and_writes_reports(served: Served) -> None:
    with (
        connect(f"ws://{served.address}/view/ws", compression=None),  # stays open: Serve waits for it
        Client.connect(served.url, **OWN, hz=20, ttl_ms=400) as client,
    ):
        until_fresh_at(client, client.address)
        served.program.popen.send_signal(signal.SIGTERM)
        until(lambda: not client.connected, "no bye", 30.0)
        time.sleep(0.5)
        assert client.error is None, "it was not told to connect again"
        assert client.call().status == "safe"
    assert served.program.popen.wait(60) == 128 + signal.SIGTERM
    reports = list(served.out.glob("*/session-*/report.json"))
    assert reports and all(json.loads(path.read_text())["ticks"] for path in reports[-1:])
