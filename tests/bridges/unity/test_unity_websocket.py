"""The C# client over a WebSocket: at work against the real server, and against peers that break RFC 6455."""

from __future__ import annotations

import json
import re
import signal
import socket as sockets
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from rtcontrol_client.wire.messages import Hello, Observe
from tests.bridges.client.worlds import Proxy, free_port, until
from tests.bridges.unity.mono import Driver, Start
from tests.bridges.unity.test_unity import play, stub  # noqa: F401
from tests.bridges.unity.ws_peer import BINARY, CLOSE, PING, PONG, TEXT, accepted, close, frame, ws_peer
from tests.bridges.web_ends import Relay, Served
from tests.conformance import load
from tests.conformance.check import check_any_client
from tests.conformance.check.stand import Stand

TTL_MS = 500
VALID = {v["name"]: v["json"] for v in load("valid")}
WELCOME: dict[str, Any] = VALID["welcome, required fields only"]
REFUSAL = {"type": "error", "code": "model", "message": "There is no such model.", "fatal": True}


def text(message: Any) -> bytes:
    return json.dumps(message).encode()


def fly(driver: Start, endpoint: str, *more: str) -> Driver:
    return driver("run", "--endpoint", endpoint, "--ttl-ms", str(TTL_MS), *more)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all tests of this file; each leaves it running."""
    one = Served(tmp_path_factory.mktemp("served"))
    one.start()
    yield one
    one.stop()


def test_conforms_as_the_checker_of_clients_sees_it(driver: Start, stand: Stand) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    relay = Relay(endpoint)
    flying = fly(driver, relay.url, "--hz", "20")
    findings = check_any_client(endpoint)
    relay.close()
    assert [f.name for f in findings if f.status != "passed"] == [], findings
    assert relay.refused == []
    assert flying.process.poll() is None


@pytest.mark.parametrize("more", [(), ("--threadless", "1")], ids=["thread", "no thread"])
def test_flies_and_never_executes_what_is_too_old(driver: Start, served: Served, more: tuple[str, ...]) -> None:
    flying = fly(driver, served.url.replace("127.0.0.1", "localhost"), "--seconds", "4", *more)
    stats = flying.event("stats")["stats"]
    closed = flying.event("closed")
    print(f"WebSocket: {stats}; dispose {closed['dispose_ms']:.1f} ms")
    assert stats["executed"] > 20
    assert (stats["too_old"], stats["errors"], stats["failed"], stats["refused"]) == (0, 0, 0, 0)
    assert (closed["in_force"], stats["clock_known"]) == ("safe", True)
    assert [e["name"] for e in flying.events if e["event"] in ("call", "safe")][-1] == "stop"


def test_cut_connection_is_mended_and_the_session_goes_on(driver: Start, served: Served) -> None:
    proxy = Proxy(int(served.url.split(":")[2].split("/")[0]))
    flying = fly(driver, f"ws://127.0.0.1:{proxy.port}/ws")
    flying.event("call")
    proxy.cut()
    flying.say("reset")
    flying.event("connected")
    flying.event("call")
    stats = flying.stats()
    proxy.close()
    assert (stats["sessions"], stats["resumed"], stats["epoch"]) == (1, 1, 1)


@pytest.mark.parametrize("more", [(), ("--threadless", "1")], ids=["thread", "no thread"])
def test_killed_server_means_safe_within_its_time_to_live_and_a_new_session(
    driver: Start, served: Served, more: tuple[str, ...]
) -> None:
    flying = fly(driver, served.url, *more)
    flying.event("call")
    served.kill()
    safe = flying.event("safe")
    assert (safe["cause"], safe["name"]) == ("expired", "stop")
    served.start()
    flying.event("connected")
    flying.event("call")
    stats = flying.stats()
    assert (stats["sessions"], stats["too_old"], stats["ended"]) == (2, 0, None)


@pytest.mark.parametrize("more", [(), ("--threadless", "1")], ids=["thread", "no thread"])
def test_frozen_server_means_safe_by_the_time_to_live_and_the_session_goes_on(
    driver: Start, served: Served, more: tuple[str, ...]
) -> None:
    flying = fly(driver, served.url, *more)
    flying.event("call")
    served.signal(signal.SIGSTOP)
    try:
        assert flying.event("safe")["cause"] == "expired"
        flying.event("lost")
    finally:
        served.signal(signal.SIGCONT)
    flying.event("connected")
    flying.event("call")
    assert flying.stats()["too_old"] == 0


def test_component_drives_the_samples_scene(play: Start, served: Served) -> None:  # noqa: F811
    told = play("play", served.url, "3").answer()
    assert told["executed"] > 10
    assert (told["failed"], told["refused"], told["closed"], told["anew"]) == (0, 0, True, True)
    assert not [s for s in told["said"] if s.startswith(("error", "exception"))]
    # It has learnt when to look.
    assert any(line.startswith("Observations wait: ") for line in told["drawn"]), told["drawn"]


def test_next_of_several_servers_may_be_of_the_other_transport(driver: Start, served: Served) -> None:
    nobody = f"tcp://127.0.0.1:{free_port()}"
    flying = fly(driver, f"{nobody},{served.url}")
    flying.event("call")
    assert flying.stats()["address"] == served.url


def test_bytes_of_an_observation_go_as_base64(driver: Start, stand: Stand) -> None:
    relay = Relay(stand.endpoint)
    flying = fly(driver, relay.url)
    flying.say("rate 0")
    flying.say("array")
    flying.stats()
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    observed = stand.observation()
    relay.close()
    assert [a.data for a in observed.arrays] == [b"\x01\x02\x03\x04"]


@pytest.mark.parametrize("mixed", [False, True], ids=["ws", "tcp and ws"])
def test_observation_too_large_as_json_is_told_to_the_caller_and_the_client_goes_on(
    driver: Start, stand: Stand, mixed: bool
) -> None:
    # websocket-client/websocket-client#603: one large message stops the whole connection.
    relay = Relay(stand.endpoint)
    flying = fly(driver, f"{stand.endpoint},{relay.url}" if mixed else relay.url)
    flying.say("rate 0")
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    # Less than 1 MiB, and more as base64; then without room for the numbers and the token that are set in last.
    for size in (800_000, (1 << 20) // 4 * 3 - 180, 700_000):
        flying.say(f"big {size}")
    observed = stand.expect(Observe, 10.0, "the one that fits", lambda m: bool(m.arrays))
    stats = flying.stats()
    relay.close()
    assert [len(a.data) for a in observed.arrays] == [700_000]
    unsent = [event["why"] for event in flying.events if event["event"] == "unsent"]
    assert len(unsent) == 2 and all("1048576 at most" in why for why in unsent)
    assert (stats["ended"], stats["dropped"]) == (None, 0)


def test_message_that_no_encoding_of_the_connection_holds_is_left_out_and_counted(driver: Start, stand: Stand) -> None:
    relay = Relay(stand.endpoint)
    nobody, port = free_port(), relay.url.split(":")[2].split("/")[0]
    flying = fly(driver, f"tcp://127.0.0.1:{nobody},tcp://localhost:{port}", "--disguised", "1")
    flying.say("rate 0")
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    flying.event("connected")
    flying.say("big 800000")
    # Said alone: of two that wait the newer one goes.
    stand.pump(1.0, lambda m: False)
    flying.say("array")
    observed = stand.expect(Observe, 10.0, "the one that fits", lambda m: bool(m.arrays))
    stats = flying.stats()
    relay.close()
    assert [len(a.data) for a in observed.arrays] == [4]
    assert (stats["ended"], stats["dropped"]) == (None, 1)


def test_instruction_with_which_the_hello_would_be_too_large_as_json_is_told_at_once(driver: Start) -> None:
    # A control character is one byte in msgpack, and six in JSON.
    assert "1048576 at most" in fly(driver, "ws://127.0.0.1:9/ws", "--heavy", "3").failure()
    flying = fly(driver, "ws://127.0.0.1:9/ws", "--heavy", "2")
    flying.say("control 60000")
    assert "1048576 at most" in flying.event("unsent")["why"]
    flying = fly(driver, "tcp://127.0.0.1:9", "--heavy", "3")
    flying.say("control 60000")
    assert flying.stats()["dropped"] == 0
    assert not [event for event in flying.events if event["event"] == "unsent"]


def test_token_in_an_address_is_shown_nowhere(driver: Start) -> None:
    # mujx/nheko#99: a failed request was logged with its whole address, the token in it.
    address = f"ws://127.0.0.1:{free_port()}/ws"
    flying = fly(driver, address + "?token=secret-1", "--until", "nobody answers at", "--seconds", "30")
    stats = flying.event("stats")["stats"]
    assert (stats["address"], f"nobody answers at {address}" in stats["trouble"]) == (address, True)
    assert "secret-1" not in json.dumps(flying.events)
    for endpoint in (
        address + "?token=secret-1",
        f"{address}?token=secret-1,",
        f"{address}?token=secret-1 ,{address}?token=secret-1",
    ):
        why = driver("run", "--endpoint", endpoint + ",x").failure()
        assert "endpoint" in why and "secret-1" not in why


def test_component_logs_and_draws_no_token_of_an_address(play: Start) -> None:  # noqa: F811
    address = f"ws://127.0.0.1:{free_port()}/ws"
    told = play("play", address + "?token=secret-1", "3").answer()
    assert any(f"nobody answers at {address}" in line for line in told["said"]), told["said"]
    assert f"Connection: connecting to {address}" in told["drawn"], told["drawn"]
    assert "secret-1" not in json.dumps([told["said"], told["drawn"], told["drawn_after"]])


def test_access_token_opens_a_server_that_wants_one(driver: Start, tmp_path: Path) -> None:
    addresses = [a.address for many in psutil.net_if_addrs().values() for a in many if a.family == sockets.AF_INET]
    outer = next((a for a in addresses if not a.startswith("127.")), None)
    if outer is None:
        pytest.skip("this machine has no address beyond loopback")
    token = "k3" * 16
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    guarded = Served(tmp_path, "--token-file", str(tmp_path / "token"), host=outer)
    guarded.start()
    try:
        fly(driver, guarded.url, "--token", token).event("call")
        stranger = fly(driver, guarded.url, "--until", "it wants an access token", "--seconds", "30")
        other = fly(driver, guarded.url, "--token", token + "x", "--until", "does not take this", "--seconds", "30")
        for one, told in ((stranger, "it wants an access token"), (other, "it does not take this access token")):
            stats = one.event("stats")["stats"]
            assert (stats["sessions"], told in stats["trouble"]) == (0, True), stats
    finally:
        guarded.stop()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--endpoint", "wss://127.0.0.1:8080/ws"), "wss:// is spoken in a browser"),
        (("--endpoint", "ws://127.0.0.1:8080/ws,wss://127.0.0.1:8081/ws"), "wss:// is spoken in a browser"),
        (("--endpoint", "ws://127.0.0.1:x/ws"), "ws://192.168.1.5:8080/ws"),
        (("--endpoint", "ws://::1:8080/ws"), "ws://192.168.1.5:8080/ws"),
        (("--endpoint", "ws://a b:8080/ws"), "ws://192.168.1.5:8080/ws"),
        (("--endpoint", "ws://a:8080/ws\r\nX-A: b"), "ws://192.168.1.5:8080/ws"),
        (("--endpoint", "ws://a:8080/ws,ws://a:8080/ws"), "comes twice"),
        (("--endpoint", "ws://127.0.0.1:8080/ws", "--token", "a b"), "copy it whole"),
        (("--endpoint", "ws://127.0.0.1:8080/ws", "--token", "a\r\nX-A: b"), "copy it whole"),
    ],
)
def test_address_or_token_that_cannot_be_is_a_mistake_told_at_once(
    driver: Start, options: tuple[str, ...], told: str
) -> None:
    # sta/websocket-sharp#358 and its like end as a close code without a word.
    assert told in driver("run", *options, "--plain", "1").failure()


SILENCE = "nobody answers|the peer says nothing"
BROKEN = "no WebSocket frames of RFC 6455"
BIG = (1 << 20) + 1
PROTOCOL: dict[str, tuple[list[bytes | float], str]] = {
    # daltoniam/Starscream#356: a masked frame of a server left its mask in the buffer, read as the next frame.
    "a masked frame": ([frame(TEXT, text(WELCOME), mask=b"abcd")], "masks its frames"),
    "a masked pong without a body": ([frame(PONG, mask=b"\0\0\0\0")], "masks its frames"),
    "a frame of 2^62 bytes": ([frame(TEXT, b"x", size=b"\x7f\x40" + bytes(7))], "a message of more than 1048576"),
    "a frame of 2^63 bytes": ([frame(TEXT, b"x", size=b"\x7f\xff" + bytes(7))], "a message of more than 1048576"),
    "a frame above the limit": ([frame(TEXT, b"x" * BIG)], "a message of more than 1048576"),
    "fragments above the limit": (
        [frame(TEXT, b"x" * 1000, last=False), *[frame(0, b"x" * 60_000, last=False)] * 20],
        "a message of more than 1048576",
    ),
    "fragments without end": (
        [frame(TEXT, b"{", last=False), *[frame(0, b"", last=False) * 1000] * 200],
        "says nothing",
    ),
    "a close within a fragment": ([frame(TEXT, b'{"type"', last=False), close(1001, "away")], "1001, away"),
    "an end within a fragment": ([frame(TEXT, text(WELCOME)[:50], last=False)[:20]], "says nothing"),
    "garbage in fragments": ([frame(TEXT, b"\xff\xfe", last=False), frame(0, b"{}}")] * 500, "says nothing"),
    "a message within a message": ([frame(TEXT, b"{", last=False), frame(TEXT, b"}")], "within another one"),
    "a continuation of nothing": ([frame(0, b"}")], "did not begin"),
    "a control frame in parts": ([frame(PING, b"a", last=False)], "control frame in parts"),
    "a control frame of 126 bytes": ([frame(PING, b"a" * 126)], "control frame in parts, or too long"),
    "an unknown kind": ([frame(3, b"a")], BROKEN),
    "an unknown control kind": ([frame(11, b"a")], BROKEN),
    "a reserved bit": ([bytes([0xC1, 2]) + b"{}"], BROKEN),
    "a length longer than it is": ([frame(TEXT, b"{}", size=b"\x7e\x00\x02")], "longer than it is"),
    "a close of one byte": ([frame(CLOSE, b"\x03")], "closes without a code"),
    "a close with a reason that is no text": ([frame(CLOSE, b"\x03\xf5\xff\xfe")], "closed the WebSocket .1013"),
    "binary messages": ([frame(BINARY, text(WELCOME)) * 100], "says nothing"),
    "texts that are no message": ([frame(TEXT, b"hello") * 5000], "says nothing"),
    "pings": ([frame(PING, b"x" * 125) * 20_000], "says nothing"),
    "random bytes": ([bytes(range(1, 256)) * 40], "."),
}
ANSWERS: dict[str, tuple[Any, str]] = {
    "a wrong accept key": (lambda key: accepted(b"another key"), "to another handshake"),
    "no accept key": (partial(accepted, Sec_WebSocket_Accept=None), "to another handshake"),
    "no upgrade": (partial(accepted, Upgrade=None), "opens no WebSocket"),
    "another connection": (partial(accepted, Connection="keep-alive"), "opens no WebSocket"),
    "an extension": (partial(accepted, Sec_WebSocket_Extensions="permessage-deflate"), "was not offered"),
    "another protocol": (partial(accepted, Sec_WebSocket_Protocol="chat"), "is not rtcontrol.v1"),
    "not found": (lambda key: b"HTTP/1.1 404 Not Found\r\n\r\n", "write ws://HOST:PORT/ws"),
    "a redirect": (lambda key: b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", "HTTP 302 Found"),
    "too many": (lambda key: b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "HTTP 503"),
    "a greeting of ZeroMQ": (lambda key: b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48), "speaks no WebSocket"),
    "an answer without end": (lambda key: b"HTTP/1.1 101 Yes\r\nX-A: " + b"x" * 100_000, "has no end"),
    "a header that is none": (lambda key: accepted(key).replace(b"Upgrade: ", b"Upgrade "), "is no HTTP"),
    "half an answer": (lambda key: accepted(key)[:60], SILENCE),
    "silence": (lambda key: b"", SILENCE),
}  # fmt: skip


@pytest.fixture(scope="module")
def met(exe: Path) -> Iterator[dict[str, tuple[Driver, Any]]]:
    """A client for each kind of peer, all at the same time."""
    with ExitStack() as stack:
        flying: dict[str, tuple[Driver, Any]] = {}
        for kind in (*PROTOCOL, *ANSWERS):
            parts, told = PROTOCOL.get(kind, ([], ""))
            answer, told = ANSWERS.get(kind, (accepted, told))
            peer = stack.enter_context(ws_peer(*parts, answer=answer))
            one = Driver(exe, "run", "--endpoint", peer.url, "--ttl-ms", str(TTL_MS), "--seconds", "2.5")
            stack.callback(one.end)
            flying[kind] = one, peer
        yield flying


@pytest.mark.parametrize("kind", [*PROTOCOL, *ANSWERS])
def test_peer_that_breaks_the_protocol_is_survived(met: dict[str, tuple[Driver, Any]], kind: str) -> None:
    flying, peer = met[kind]
    told = {**PROTOCOL, **ANSWERS}[kind][1]
    stats = flying.event("stats")["stats"]
    closed = flying.event("closed")
    print(f"{kind}: {stats['trouble']}; {stats['memory_kb']} kB; dispose {closed['dispose_ms']:.1f} ms")
    assert flying.process.wait(20) == 0
    # Up again meanwhile, it waits for an answer.
    assert peer.requests and re.search(f"{told}|{SILENCE}|the server says nothing", stats["trouble"])
    assert (stats["executed"], stats["sessions"], stats["ended"]) == (0, 0, None)
    # No frame of the game waits for the peer.
    assert stats["uses"] > 0 and stats["waits"] == 0
    assert stats["memory_kb"] < 20_000
    assert all(one.masked for one in peer.heard)


@pytest.mark.parametrize(
    "kind", [k for k, (_, told) in {**PROTOCOL, **ANSWERS}.items() if told not in (SILENCE, ".", "says nothing")]
)
def test_what_a_peer_broke_is_told_in_words(driver: Start, kind: str) -> None:
    parts, told = PROTOCOL.get(kind, ([], ""))
    answer, told = ANSWERS.get(kind, (accepted, told))
    with ws_peer(*parts, answer=answer) as peer:
        # The words, not a pattern: of a reason with a dot the part before it.
        words = told.replace(".1013", "(1013")
        flying = fly(driver, peer.url, "--until", words, "--seconds", "30")
        assert words in flying.event("stats")["stats"]["trouble"]


def test_pings_are_answered_with_what_they_brought_and_every_frame_is_masked_anew(driver: Start) -> None:
    # sta/websocket-sharp#12: an empty frame went without a mask. vapor/websocket-kit#26: so did pong and close.
    bodies = [b"", b"x", b"\x00\xff" * 62]
    with ws_peer(*[frame(PING, body) for body in bodies]) as peer:
        flying = fly(driver, peer.url)
        until(lambda: len(peer.of(PONG)) >= 3 and len(peer.of(TEXT)) >= 3, "no pongs and hellos")
        flying.close()
        until(lambda: bool(peer.of(CLOSE)), "no close")
    assert [one.body for one in peer.of(PONG)[:3]] == bodies
    assert peer.of(CLOSE)[0].body == (1000).to_bytes(2, "big")
    assert all(one.masked for one in peer.heard)
    assert len({one.mask for one in peer.heard}) == len(peer.heard)


def test_request_names_host_protocol_and_token_and_no_key_twice(driver: Start) -> None:
    with ws_peer(close(1013, "too many connections")) as peer:
        fly(driver, peer.url.replace("127.0.0.1", "localhost"), "--token", "secret-1")
        until(lambda: len(peer.requests) > 1, "it does not come again")
    keys = [re.findall(rb"Sec-WebSocket-Key: (\S+)\r\n", one)[0] for one in peer.requests]
    assert len(set(keys)) == len(keys)
    assert b"GET /ws HTTP/1.1\r\n" in peer.requests[0]
    assert b"\r\nHost: localhost:" in peer.requests[0]
    assert b"Sec-WebSocket-Protocol: rtcontrol.v1, rtcontrol.token.secret-1\r\n" in peer.requests[0]
    assert b"Origin" not in peer.requests[0]


def test_message_in_fragments_around_a_ping_is_one_message(driver: Start) -> None:
    welcome = text({**WELCOME, "instruction": "Go on. €"})
    cut = [welcome[:1], welcome[1:40], welcome[40:-4], welcome[-4:]]
    parts = [frame(TEXT, cut[0], last=False), frame(0, cut[1], last=False), frame(PING, b"between")]
    parts += [frame(0, cut[2], last=False), frame(0, cut[3])]
    # Also where the network brings it byte by byte.
    with ws_peer(0.3, *[bytes([b]) for b in b"".join(parts)]) as peer:
        flying = fly(driver, peer.url)
        flying.event("connected")
        assert flying.stats()["instruction"] == "Go on. €"
        until(lambda: bool(peer.of(PONG)), "no pong")
    assert peer.of(PONG)[0].body == b"between"


@pytest.mark.parametrize("end", [close(1000), b""], ids=["close", "cut"])
def test_message_right_before_the_end_is_heard(driver: Start, end: bytes) -> None:
    # psygames/UnityWebSocket#40: what a server said right before it closed was lost.
    with ws_peer(0.3, frame(TEXT, text(REFUSAL)) + end, reads=bool(end)) as peer:
        flying = fly(driver, peer.url, "--seconds", "20")
        until(lambda: flying.stats()["ended"] is not None, "the refusal is not heard")
    assert "There is no such model." in flying.stats()["ended"]


def test_peer_that_does_not_read_is_not_waited_for(driver: Start) -> None:
    # endel/NativeWebSocket#48: the game froze in a send while the network was gone.
    with ws_peer(reads=False) as peer:
        told = driver("flood", "--endpoint", peer.url).answer()
    print(told)
    # 50 MB were offered; the socket's buffers and 2 MiB of ours take some.
    assert 0 < told["taken"] < 100
