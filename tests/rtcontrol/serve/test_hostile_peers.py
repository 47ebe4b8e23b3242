"""`rtcontrol serve` with hostile peers: keys, malformed frames, hostile tools, idle peers, capacity."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.serve import key_files
from rtcontrol.serve.sessions import KEY_REVOKED, DecoderNeed, overload_error
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol_client import Client, ClientError
from rtcontrol_client.wire.messages import Bye, Welcome
from tests import conformance
from tests.bridges.client.worlds import OWN, STRAIGHT, Process
from tests.helpers.processes import free_port, until
from tests.rtcontrol.serve.wire_peer import WirePeer


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "keys"
    for name in ("server", "arm", "leg"):
        key_files.create_key_pair(folder, name)
    return folder


def test_flooding_client_is_disconnected_and_others_stay(running: Any) -> None:
    honest, hostile = running.enter(pacing="client"), running.peer()
    monitor = hostile.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    give_up = time.monotonic() + 30
    while not monitor.poll(0) and time.monotonic() < give_up:
        with contextlib.suppress(zmq.Again):
            hostile.socket.send(bytes(1_000_000), zmq.NOBLOCK)
    assert monitor.poll(0)
    hostile.socket.disable_monitor()
    assert honest.ask().status == "fresh"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Process]:
    process = Process(tmp_path_factory.mktemp("locked"), free_port(), "--keys", str(keys))
    process.start()
    yield process
    process.stop()


def test_client_without_listed_key_is_refused(locked: Process, keys: Path, tmp_path: Path) -> None:
    key_files.create_key_pair(tmp_path, "stranger")
    given: dict[str, Any] = {**OWN, "connect_timeout_s": 0.7}
    with pytest.raises(ClientError, match="does not accept this client's key"):
        Client.connect(locked.endpoint, **given, keys=tmp_path / "stranger.key_secret", server_key=keys / "server.key")
    with pytest.raises(ClientError, match="the server requires a key"):
        Client.connect(locked.endpoint, **given)


def test_revoked_key_ends_only_its_own_session(locked: Process, keys: Path) -> None:
    given: dict[str, Any] = {**OWN, "hz": 20, "ttl_ms": 500}
    with (
        Client.connect(locked.endpoint, **given, keys=keys / "leg.key_secret") as revoked,
        Client.connect(locked.endpoint, **given, keys=keys / "arm.key_secret") as kept,
    ):
        ended = threading.Event()

        def look() -> None:
            while not ended.is_set():
                for client in (revoked, kept):
                    client.observe(text="left 1")
                time.sleep(0.02)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        until(lambda: revoked.call().status == kept.call().status == "fresh", "no calls")
        (keys / "leg.key").unlink()  # as `rtcontrol keys revoke` does
        until(lambda: not revoked.connected, "the revoked client is still connected")
        until(lambda: revoked.call().status == "safe", "it is not safe")
        assert revoked.call().arguments == STRAIGHT["arguments"]
        mark, ended_at = kept.statistics["fresh"], revoked.statistics
        until(lambda: kept.statistics["fresh"] > mark + 20, "the other client was harmed")
        # Neither on the connection that is still up, nor on a new one.
        assert [revoked.statistics[k] for k in ("resumed", "sessions")] == [ended_at["resumed"], 1]
        assert kept.statistics["sessions"] == 1
        ended.set()
        looking.join()


def test_logs_and_records_have_no_secret(locked: Process, keys: Path) -> None:
    secret = key_files.load_pair(keys / "arm.key_secret")
    with Client.connect(locked.endpoint, **OWN, pacing="client", ttl_ms=0, keys=keys / "arm.key_secret") as client:
        token = client.welcome.session
        assert client.decide("left 1").status == "fresh"
    until(lambda: bool(list(locked.out.rglob("report.json"))), "the session left no report")
    assert "arm" in locked.logs()
    written = [p for p in locked.out.rglob("*") if p.is_file()]
    assert {p.suffix for p in written} == {".txt", ".json", ".mcap"}
    server = key_files.load_pair(keys / "server.key_secret")
    for path in written:
        text = str([*read_record(path)]) if path.suffix == ".mcap" else path.read_text(errors="replace")
        for what in (token, secret.secret, server.secret, secret.public):
            assert what not in text, path


def test_housekeeping_survives_a_fault_and_drops_silent_clients(bench: Any) -> None:
    running = bench(heartbeat_s=0.1, silent_heartbeats=3)
    peer = running.enter(pacing="client")
    keep, failed = running.sessions.check, threading.Event()

    def broken() -> None:
        failed.set()
        raise LookupError("a fault")

    running.sessions.check = broken
    assert failed.wait(5)
    running.sessions.check = keep
    # Nothing is read, so no ping is answered: only the housekeeping finds out.
    until(lambda: running.sessions.health()["sessions"]["parked"] == 1)
    peer.observe()
    assert peer.refused().code == "state"


# What makes a peer of a connection: ZMTP 3.0, NULL, a DEALER.
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def test_idle_peers_leave_room_for_others(process: Any) -> None:
    port = free_port()
    served = process("--http", f"127.0.0.1:{port}", limit="-Sn 256")  # the server takes what the system lets it have
    host, wire = served.endpoint.removeprefix("tcp://").split(":")
    with ExitStack() as stack:
        for number in range(300):
            idle = stack.enter_context(socket.create_connection((host, int(wire)), timeout=10))
            idle.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
            if number < 200:  # the gateway serves 256
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        until(lambda: open_files(served.process.pid) > 300)
        peer = stack.enter_context(WirePeer(served.endpoint))
        peer.enter(pacing="client", model="random")
        assert [peer.ask().status for _ in range(10)] == ["fresh"] * 10
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            assert answer.status == 200
    assert served.end() == 143
    assert "descriptor" not in served.logs() and "Traceback" not in served.logs()


def frames(seed: int, count: int) -> Iterator[list[bytes]]:
    """Yield valid and invalid messages of the test vectors, most of them truncated or with changed bytes."""
    chance = random.Random(seed)
    vectors = [vector for name in ("valid", "invalid") for vector in conformance.load(name) if "msgpack" in vector]
    known = [[bytes.fromhex(conformance.expand(part)) for part in vector["msgpack"]] for vector in vectors]
    known = [parts for parts in known if parts and len(parts[0]) < 2000]
    for _ in range(count):
        header, *arrays = chance.choice(known)
        changed = bytearray(header[: chance.choice([None, chance.randrange(len(header) + 1)])])
        for _ in range(chance.choice([0, 1, 4]) if changed else 0):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        yield [bytes(changed), *arrays]


def test_hostile_frames_lose_no_observation_of_others(running: Any) -> None:
    honest, hostile, result = running.enter(pacing="client"), running.enter(pacing="client"), Counter[str]()
    for number, parts in enumerate(frames(1, 3000)):
        hostile.socket.send_multipart(parts)
        if number % 100 == 0:
            assert honest.ask().status == "fresh"
            while (message := hostile.receive(0.001)) is not None:
                result[getattr(message, "code", "")] += 1
    assert result and not result["internal"], result


NEEDS = st.builds(DecoderNeed, st.floats(0.1, 1000), st.floats(1e-5, 1))
MOST = 0.8


@given(need=NEEDS, others=st.lists(NEEDS, max_size=20))
def test_admission_keeps_the_decoders_time_bounded(need: DecoderNeed, others: list[DecoderNeed]) -> None:
    taken = sum(other.decoder_load for other in others if other.decoder_load <= MOST)
    refusal = overload_error(need, others, MOST)
    if refusal is not None:
        assert taken and taken + need.decoder_load > MOST
        assert refusal.code == "busy" and f"{need.hz:g} Hz" in refusal.message
    else:
        assert not taken or taken + need.decoder_load <= MOST * (1 + 1e-9)


# Tools of other people are read within limits, and never in the way of others.


def wide(number: int) -> dict[str, Any]:
    """Return a tool of 80 kB with too many alternatives, different for each number."""
    values = [{"type": "string", "maxLength": number + i} for i in range(2000)]
    return {"name": f"f{number}", "parameters": {"properties": {"a": {"anyOf": values}}, "required": ["a"]}}


def large(number: int) -> dict[str, Any]:
    """Return a valid tool of 60 kB, different for each number."""
    values = [{"const": f"value {number} {i}"} for i in range(2500)]
    return {"name": f"f{number}", "parameters": {"properties": {"a": {"oneOf": values}}, "required": ["a"]}}


def test_hostile_hellos_block_no_opening_or_resuming_client(running: Any) -> None:
    kept = running.enter(pacing="client")
    token = kept.token
    hostile = [running.peer() for _ in range(3)]
    for number, peer in enumerate(hostile):
        peer.hello(tools=[wide(number)], instruction="go", safe_call=None)
    reading = [running.peer() for _ in range(3)]
    for number, peer in enumerate(reading):
        peer.hello(tools=[large(number)], instruction="go", safe_call=None)
    running.sessions.disconnected(next(iter(running.sessions.core.peers)), KEY_REVOKED)
    until(lambda: running.sessions.health()["sessions"]["parked"] == 1)
    honest, again = running.peer(), running.peer()
    honest.enter(pacing="client")
    again.hello(resume=token)
    assert again.expect(Welcome).resumed
    for peer in hostile:
        refusal = peer.refused(30)
        assert refusal.code == "tools" and "1000 alternatives" in refusal.message and refusal.fatal
    honest.send(Bye(session=honest.token))
