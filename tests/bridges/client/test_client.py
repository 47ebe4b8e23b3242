"""The client over sockets: with real servers that are frozen or killed, with a scripted server, and conformance."""

from __future__ import annotations

import runpy
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import pytest
import zmq

from rtcontrol_client import Client, Standing
from rtcontrol_client.client.connect import NoServer, ServerAddress, hash_of_tools, read_response
from rtcontrol_client.client.link import Link
from rtcontrol_client.wire import Message
from rtcontrol_client.wire.messages import Bye, FunctionCall, Hello, Instruct, Reset
from tests.bridges.client.worlds import OWN, ROOT, STRAIGHT, Process, joined, until
from tests.bridges.program import Events
from tests.bridges.web_ends import check_first_server, check_next_server, fronted, names
from tests.conformance import load
from tests.conformance.check import check_any_client, table
from tests.conformance.check.stand import Stand
from tests.helpers.processes import python

EXAMPLE = ROOT / "examples" / "own_loop.py"
TTL_MS = 500.0


def test_client_paced_session_answers_each_observation(server: Process) -> None:
    with Client.connect(server.endpoint, **OWN, pacing="client", ttl_ms=0) as client:
        assert [client.decide({"left": i}).seq_obs for i in range(20)] == list(range(1, 21))
        assert client.reset(success=True, ret=3.5, seconds=1.0) == 1
        assert client.call().cause == "reset"
        assert client.decide("left 1").status == "fresh" and client.epoch == 1


class Loop:
    """A loop that observes and reads the active call 50 times a second, and keeps all calls."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.seen: list[Standing] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            self._client.observe(text="left 40 right 10")
            self.seen.append(self._client.call())

    def until(self, status: str) -> None:
        mark = len(self.seen)
        until(lambda: any(s.status == status for s in self.seen[mark:]), f"never {status} again")

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def test_frozen_server_is_resumed_and_killed_server_replaced(own_server: Process) -> None:
    acts: list[Standing] = []
    options: dict[str, Any] = {"hz": 20, "ttl_ms": TTL_MS, "on_call": acts.append}
    client = Client.connect(own_server.endpoint, **OWN, **options)
    assert client.call() == Standing(client.call().call, "safe", cause="no_call_yet")
    loop = Loop(client)
    loop.until("fresh")
    token = client.welcome.session
    own_server.signal(signal.SIGSTOP)
    loop.until("safe")
    until(lambda: acts[-1].status == "safe", "the handler was not told")
    until(lambda: not client.connected, "silence was not noticed")
    own_server.signal(signal.SIGCONT)
    loop.until("fresh")
    assert client.welcome.session == token and client.statistics["resumed"] == 1
    own_server.kill()
    loop.until("safe")
    client.instruct("Go home.")
    own_server.start()
    loop.until("fresh")
    assert client.welcome.session != token and client.welcome.instruction == "Go home."
    assert client.statistics["sessions"] == 2 and token not in own_server.logs()
    assert 0 < client.statistics["latency_ms"]["p50"] <= client.statistics["latency_ms"]["max"]
    own_server.signal(signal.SIGSTOP)
    loop.end()
    client.close()  # though nobody hears it
    assert client.call().status == "safe"
    assert all(s.status == "safe" or (s.age_ms or 0) <= TTL_MS for s in loop.seen)
    assert all(s.arguments == STRAIGHT["arguments"] for s in loop.seen if s.status == "safe")


# Against a scripted server.


def test_last_messages_are_sent_before_bye(stand: Stand) -> None:
    client = joined(stand)
    client.instruct("Go home.")
    client.reset(success=True, ret=3.5)
    client.close()
    assert stand.expect(Instruct, 5.0, "instruct").instruction == "Go home."
    ended = stand.expect(Reset, 5.0, "reset").ended
    assert ended is not None and ended.ret == 3.5
    assert stand.expect(Bye, 5.0, "bye").session == stand.token


def test_flood_of_calls_does_not_keep_expired_call_active(stand: Stand) -> None:
    with joined(stand) as client:
        client.observe(text="left 1")
        observed = stand.observation()
        stand.call(observed)
        for tick in range(20_000):
            stand.call(observed, status="held", tick=tick + 2, cause="decide")
            if client.call().cause == "expired":
                break
        assert client.call().cause == "expired"


def test_decide_waits_for_last_call_of_observation(stand: Stand) -> None:
    left, right = (FunctionCall(name="turn", arguments={"side": side}) for side in ("left", "right"))
    with ThreadPoolExecutor(1) as pool, joined(stand, pacing="client", calls_per_tick=3, ttl_ms=0) as client:
        for last in (right, None):  # the second time no further call follows
            asked = pool.submit(client.decide, "left 1", timeout=10.0)
            look = stand.observation()
            stand.call(look, call=left, more=True, ttl_ms=0.0)
            stand.pump(0.1)
            assert not asked.done()
            stand.call(look, call=last, status="held" if last is None else "fresh", ttl_ms=0.0)
            standing = asked.result()
            assert standing.calls == ((left,) if last is None else (left, right)) and standing.status == "fresh"
        answer = client.decide("left 1", timeout=0.2)
        assert (answer.status, answer.cause, answer.arguments) == ("safe", "no_answer", STRAIGHT["arguments"])


def test_failing_socket_ends_client_with_safe_call(stand: Stand) -> None:
    seen: list[str] = []
    client = joined(stand, ttl_ms=0.0, on_call=lambda standing: seen.append(standing.status))
    client.observe(text="left 1")
    stand.call(stand.observation(), ttl_ms=0.0)
    until(lambda: seen == ["fresh"], "no call")
    link = client._link

    def send(messages: list[Message]) -> None:
        link.wires._socket.close(linger=0)
        Link._send(link, messages)

    link._send = send  # type: ignore[method-assign]
    client.observe(text="left 2")
    until(lambda: seen == ["fresh", "safe"], "the call stays active")
    assert client.call().status == "safe" and "The client failed (ZMQError" in str(client.error)
    client.close()


# Examples, and the check of conformance.


def test_documented_example_runs_its_loop(server: Process, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40
    runpy.run_path(str(EXAMPLE))["main"](server.endpoint, seconds=0.5)
    assert int(capsys.readouterr().out.split("fresh calls")[0].split()[-1]) > 0


@pytest.mark.slow
def test_documented_example_reports_missing_server_in_one_line() -> None:
    done = python(str(EXAMPLE), "tcp://127.0.0.1:9", cwd="/")
    assert done.returncode == 2
    assert "rtcontrol serve" in done.stderr and len(done.stderr.splitlines()) == 1


def ours(endpoint: str) -> None:
    with Client.connect(endpoint, **OWN, hz=20, on_call=lambda standing: None) as client:
        while client.error is None:
            client.observe(text="left 40 right 10")
            time.sleep(0.02)


def wrong(endpoint: str) -> None:
    """Run a wrong client that executes all calls, numbers nothing, answers no ping, and sends one hello only."""
    dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    dealer.linger = 0
    dealer.connect(endpoint)
    hello = {"type": "hello", "protocol": [1, 1], "client": {"name": "wrong"}, "t_client_ns": 1, "agent": "x"}
    for _ in range(2):
        dealer.send(msgpack.packb({**hello, "capabilities": ["executed"]}))
        time.sleep(0.2)
    reported: dict[str, Any] = {"session": None, "epoch": 0, "t_ns": 1}
    while True:
        while dealer.poll(50):
            try:
                message = msgpack.unpackb(dealer.recv_multipart()[0])
                kind = message["type"]
            except Exception:
                continue
            if kind == "welcome":
                reported["session"] = reported["session"] or message["session"]
            elif kind == "call" and reported["session"] and isinstance(message.get("tick"), int):
                executed = {"type": "executed", "tick": message["tick"], "outcome": "executed"}
                dealer.send(msgpack.packb({**reported, **executed}))
            elif kind == "bye":
                dealer.close()
                return
        if reported["session"]:
            dealer.send(msgpack.packb({**reported, "type": "observe", "seq": 1, "text": "x"}))


@pytest.mark.parametrize("client", [ours, wrong])
def test_conformance_check_passes_our_client_and_fails_wrong_one(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if client is wrong:
        monkeypatch.setattr("tests.conformance.check.stand.PATIENCE", 0.3)

    def start(endpoint: str) -> None:
        threading.Thread(target=client, args=(endpoint,), daemon=True).start()

    findings = check_any_client("tcp://127.0.0.1:*", start, wait_s=20)
    failed = {f.name for f in findings if f.status != "passed"}
    expected = {
        "streams observations, seq and stamps growing",
        "answers ping",
        "never executes an expired call",
        "acknowledges neither held nor null",
        "resumes its session after silence",
    }
    assert failed >= expected if client is wrong else not failed, table(findings)
    assert "executes and acknowledges a fresh call" not in failed, table(findings)


# GET /connect: which answers name a server, and how a client requests it and changes servers.


@pytest.mark.parametrize("vector", load("connect"), ids=lambda vector: vector["name"])
def test_connect_answer_names_server_or_reason(vector: dict[str, Any]) -> None:
    answer = vector["status"], vector["body"].encode(), vector["retry_after"]
    found = read_response(vector["url"], *answer, keys=vector["keys"], server_key=vector["server_key_given"])
    if vector["address"] is None:
        assert isinstance(found, NoServer) and found.retry_s == vector["retry_s"]
    else:
        assert found == ServerAddress(vector["address"], vector["server_key"])


class Driven(Events):
    """The client, driven in this process, that reports its calls as a test program does."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.client = Client(url, {**OWN, "ttl_ms": 500, "on_call": self._act, "look": lambda: "left 1"})

    def _act(self, standing: Standing) -> None:
        self.tell({"event": "safe" if standing.status == "safe" else "call"})

    def errors(self) -> str:
        return str(self.client.trouble)

    def stats(self) -> Any:
        return {"address": self.client.address, "ended": self.client.error}


def test_client_follows_connect_answers() -> None:
    with fronted() as (front, first, second):
        driven = check_first_server(front, first, Driven)
        hint = hash_of_tools(OWN["tools"], None)
        assert {headers["x-tools"] for _, headers in front.requests} == {hint}
        check_next_server(front, first, second, driven, driven.stats)
        driven.client.close()


def test_missing_connect_answer_blocks_no_method() -> None:
    with fronted() as (front, first, _):
        front.answers = [names(first.endpoint)]
        front.holds = True  # until the client has given up
        client = Client(front.url, OWN)
        client.observe("left 1")
        assert client.call().status == "safe" and client.statistics["fresh"] == 0
        first.expect(Hello, 10.0, "hello")
        assert client.error is None and len(front.requests) > 1
        client.close()
