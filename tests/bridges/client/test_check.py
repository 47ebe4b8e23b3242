"""The two conformance checks: our own client and server pass, and wrong ones are found out."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgpack
import pytest
import zmq

from rtcontrol.bridges.client import Client
from tests.bridges.client.worlds import OWN, Process, free_port
from tests.conformance.check import Finding, check_any_client, check_client, table
from tests.helpers.processes import python


def names(findings: list[Finding], status: str) -> list[str]:
    return [f.name for f in findings if f.status == status]


def stream(endpoint: str, errors: list[Any]) -> None:
    with Client.connect(endpoint, **OWN, hz=20, on_call=lambda standing: None) as client:
        while client.error is None:
            client.observe(text="left 40 right 10")
            time.sleep(0.02)
        errors.append(client.error)


def test_our_client_conforms() -> None:
    ends: list[Any] = []
    findings = check_any_client(
        "tcp://127.0.0.1:*",
        lambda endpoint: threading.Thread(target=stream, args=(endpoint, ends), daemon=True).start(),
        wait_s=20,
    )
    assert not names(findings, "failed"), table(findings)
    assert not names(findings, "skipped"), table(findings)


def test_our_server_conforms_and_the_command_says_so(server: Process) -> None:
    done = python("-m", "tests.conformance.check", "--connect", server.endpoint)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "17 passed, 0 failed, 0 skipped" in done.stdout


def wrong_client(endpoint: str) -> None:
    """Believes everything: executes whatever comes, counts nothing up, answers no ping, never says hello again."""
    dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    dealer.linger = 0
    dealer.connect(endpoint)
    hello = {"type": "hello", "protocol": [1, 0], "client": {"name": "wrong"}, "t_client_ns": 1, "agent": "x"}
    for _ in range(2):
        dealer.send(msgpack.packb({**hello, "capabilities": ["executed"]}))
        time.sleep(0.2)
    token = None
    end_s = time.monotonic() + 40
    while time.monotonic() < end_s:
        while dealer.poll(50):
            parts = dealer.recv_multipart()
            try:
                message = msgpack.unpackb(parts[0])
                kind = message["type"]
            except Exception:
                continue
            if kind == "welcome":
                token = token or message["session"]
            elif kind == "call" and token and isinstance(message.get("tick"), int):
                told = {"type": "executed", "session": token, "tick": message["tick"], "epoch": 0, "t_ns": 1}
                dealer.send(msgpack.packb({**told, "outcome": "executed"}))
            elif kind == "bye":
                dealer.close()
                return
        if token:
            dealer.send(
                msgpack.packb({"type": "observe", "session": token, "seq": 1, "epoch": 0, "t_ns": 1, "text": "x"})
            )


def test_wrong_client_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.conformance.check.stand.PATIENCE", 0.3)
    findings = check_any_client(
        "tcp://127.0.0.1:*",
        lambda endpoint: threading.Thread(target=wrong_client, args=(endpoint,), daemon=True).start(),
        wait_s=20,
    )
    failed = names(findings, "failed")
    for name in (
        "streams observations, seq and stamps growing",
        "answers ping",
        "never executes an expired call",
        "acknowledges neither held nor null",
        "resumes its session after silence",
    ):
        assert name in failed, table(findings)
    assert "executes and acknowledges a fresh call" not in failed, table(findings)


def test_client_that_never_comes_fails_the_greeting_and_skips_the_rest() -> None:
    findings = check_any_client(f"tcp://127.0.0.1:{free_port()}", wait_s=0.2)
    assert names(findings, "failed") == ["says hello first"]
    assert len(names(findings, "skipped")) == len(findings) - 1


def test_server_that_echoes_is_found_out() -> None:
    router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    router.linger = 0
    port = router.bind_to_random_port("tcp://127.0.0.1")
    ended = threading.Event()

    def echo() -> None:
        while not ended.is_set():
            if router.poll(50):
                router.send_multipart(router.recv_multipart())

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    findings = check_client(f"tcp://127.0.0.1:{port}", wait_s=0.05)
    ended.set()
    thread.join()
    router.close()
    assert len(names(findings, "failed")) == len(findings), table(findings)
