"""Access to a guarded ROUTER over real sockets, with and without keys; and key files."""

from __future__ import annotations

import os
import select
import socket as sockets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.auth import load_certificate

from rtcontrol.hosts.sockets import router_socket
from rtcontrol.models.errors import UserError
from rtcontrol.serve.key_files import KeyFileError, KeyPair, client_keys, create_key_pair, load_pair, load_public
from rtcontrol.serve.zmq_auth import ZmqAuth, bind
from tests.helpers.processes import until


@dataclass
class Guarded:
    """A guarded ROUTER and the messages that reach it."""

    router: zmq.Socket[bytes]
    guard: ZmqAuth
    port: int
    dealers: list[zmq.Socket[bytes]] = field(default_factory=list)

    def messages(self, wait_ms: int) -> list[bytes]:
        """Return the last parts of messages, until none arrives for `wait_ms`."""
        parts = []
        while self.router.poll(wait_ms):
            parts.append(self.router.recv_multipart()[-1])
        return parts

    def first(self) -> list[bytes]:
        """Return the last parts of the first message, which must arrive, and of those right after it."""
        assert self.router.poll(20_000), "nothing came in"
        return self.messages(100)

    def knock(self, pair: KeyPair | None, server: str | None, text: bytes) -> None:
        """Connect a DEALER that sends one message and stays open until the context ends."""
        dealer = self.router.context.socket(zmq.DEALER)
        self.dealers.append(dealer)
        dealer.linger = 0
        if pair and server:
            dealer.curve_publickey, dealer.curve_secretkey = pair.public.encode(), pair.secret.encode()
            dealer.curve_serverkey = server.encode()
        dealer.connect(f"tcp://127.0.0.1:{self.port}")
        with suppress(zmq.Again):  # refused already, and it would wait for ever
            dealer.send(text, zmq.DONTWAIT)


def guarded(keys: Path | None) -> Iterator[Guarded]:
    context = zmq.Context()
    guard = ZmqAuth(context, ["tcp://127.0.0.1:0"], keys)
    router = guard.create_router_socket(1 << 20)
    yield Guarded(router, guard, router.bind_to_random_port("tcp://127.0.0.1"))
    guard.close()
    context.destroy(linger=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("server", "arm", "leg"):
        create_key_pair(tmp_path / "keys", name)
    return tmp_path / "keys"


@pytest.fixture
def locked(folder: Path) -> Iterator[Guarded]:
    yield from guarded(folder)


@pytest.fixture
def plain() -> Iterator[Guarded]:
    yield from guarded(None)


def send_raw(port: int, *each: bytes) -> None:
    """Send each text three times over separate connections, and read answers until 0.3 s pass without one."""
    with ExitStack() as stack:
        raws = [stack.enter_context(sockets.create_connection(("127.0.0.1", port))) for _ in 3 * each]
        for raw, data in zip(raws, 3 * each, strict=True):
            with suppress(OSError):
                raw.sendall(data)
        while raws and (ready := select.select(raws, [], [], 0.3)[0]):
            for raw in ready:
                with suppress(OSError):
                    if raw.recv(4096):
                        continue
                raws.remove(raw)


HTTP, TEXT = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"hello, is there a server?\n" * 20
TLS = bytes.fromhex("16030100c8010000c40303") + bytes(200)
SCANNERS = (HTTP, TLS, TEXT, b"\x01\x00\x05\x00abcd", os.urandom(2000))  # the last but one is of ZMTP 1


def test_only_listed_key_gets_access(locked: Guarded, folder: Path, tmp_path: Path) -> None:
    pair, server = load_pair(folder / "arm.key_secret"), load_public(folder / "server.key")
    unlisted = create_key_pair(tmp_path / "elsewhere", "unlisted")
    locked.knock(unlisted, server, b"unlisted key")
    locked.knock(None, None, b"no key")
    locked.knock(pair, unlisted.public, b"another server's key")
    assert locked.messages(500) == []
    locked.knock(pair, server, b"honest")
    assert locked.router.poll(20_000)
    key = locked.router.recv_multipart(copy=False)[-1].get("User-Id")
    assert key == pair.public and locked.guard.is_allowed(key) and locked.guard.client_name(key) == "arm"


def test_new_and_revoked_keys_take_effect_at_once(locked: Guarded, folder: Path) -> None:
    server = load_public(folder / "server.key")
    late = create_key_pair(folder, "late")
    until(lambda: locked.guard.is_allowed(late.public))
    locked.knock(late, server, b"hello")
    assert locked.first() == [b"hello"]
    (folder / "late.key").unlink()
    until(lambda: not locked.guard.is_allowed(late.public))
    locked.knock(late, server, b"again")
    assert locked.messages(500) == []


@pytest.mark.parametrize("fixture", ["locked", "plain"])
def test_bytes_of_port_scanners_are_dropped(request: pytest.FixtureRequest, folder: Path, fixture: str) -> None:
    router: Guarded = request.getfixturevalue(fixture)
    send_raw(router.port, *SCANNERS)
    keys = (load_pair(folder / "arm.key_secret"), load_public(folder / "server.key"))
    router.knock(*(keys if fixture == "locked" else (None, None)), b"honest")
    assert router.first() == [b"honest"]
    assert router.guard.is_allowed(None) == (fixture == "plain")


def test_folder_without_a_servers_key_is_refused(tmp_path: Path) -> None:
    with zmq.Context() as context, pytest.raises(UserError, match="rtcontrol keys new"):
        ZmqAuth(context, ["tcp://0.0.0.0:5555"], tmp_path)


@pytest.mark.parametrize("endpoint", ["tcp://*:5555", "tcp://10.9.9.9:5555", "tcp://[::]:0"])
def test_reachable_endpoint_without_keys_is_refused(endpoint: str) -> None:
    with zmq.Context() as context, pytest.raises(UserError, match=r"rtcontrol keys new NAME.*--keys.*ssh -L"):
        ZmqAuth(context, ["tcp://127.0.0.1:5556", endpoint], None)


def test_key_files_are_readable_by_owner_and_zmq(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        pair = create_key_pair(tmp_path / "keys", "arm")
    finally:
        os.umask(before)
    secret = tmp_path / "keys" / "arm.key_secret"
    assert load_certificate(secret) == (pair.public.encode(), pair.secret.encode())
    assert load_certificate(tmp_path / "keys" / "arm.key") == (pair.public.encode(), None)
    assert secret.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    with pytest.raises(KeyFileError, match="already"):
        create_key_pair(tmp_path / "keys", "arm")
    assert load_pair(secret) == pair, "it was not replaced"
    secret.chmod(0o640)
    with pytest.raises(KeyFileError, match=r"mode 640.*chmod 600"):
        load_pair(secret)


@pytest.mark.parametrize("name", ["", "../arm", ".hidden", "x" * 65, "a.key"])
def test_invalid_key_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyFileError, match="is not a valid key name"):
        create_key_pair(tmp_path, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"\x00\xff" * 50, b'curve\n    public-key = "short"\n'])
def test_damaged_key_file_admits_no_client(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "arm.key").write_bytes(content)
    with pytest.raises(KeyFileError, match="not a ZeroMQ certificate"):
        load_public(tmp_path / "arm.key")
    assert client_keys(tmp_path) == {}


def test_errors_and_reprs_have_no_secret(tmp_path: Path) -> None:
    pair = create_key_pair(tmp_path, "arm")
    secret = tmp_path / "arm.key_secret"
    secret.write_text(secret.read_text().replace('public-key = "', 'public-key = "x'))
    with pytest.raises(KeyFileError) as caught:
        load_pair(secret)
    assert pair.secret not in str(caught.value) + repr(caught.value) + repr(pair)


# ROUTER sockets against peers that end libzmq by one of its assertions.


UNREAD = """
import sys, time, zmq
from rtcontrol.serve.zmq_auth import ZmqAuth, bind

context = zmq.Context()
router = ZmqAuth(context, [], None).create_router_socket(1 << 20)
print(router.bind_to_random_port("tcp://127.0.0.1"), flush=True)
time.sleep(2.5)
while router.poll(500):
    router.recv_multipart()
"""
FLOOD = """
import os, sys, time, zmq

dealer = zmq.Context().socket(zmq.DEALER)
dealer.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
for _ in range(500):
    try:
        dealer.send(b"x" * 2000, zmq.NOBLOCK)
    except zmq.Again:
        time.sleep(0.005)
time.sleep(0.3)
os._exit(0)
"""


def test_new_routers_number_peers_from_random_starts() -> None:
    starts = []
    for _ in range(6):
        with zmq.Context() as context, router_socket(context) as router, context.socket(zmq.DEALER) as dealer:
            router.bind("inproc://here")
            dealer.connect("inproc://here")
            dealer.send(b"")
            starts.append(int.from_bytes(router.recv_multipart()[0][1:], "big"))
    assert len(set(starts)) == len(starts)
    # Neither the start of an unseeded rand() nor one of its next values.
    assert all(abs(a - b) > 1000 for i, a in enumerate([0x6B8B4567, *starts]) for b in starts[i:])


def test_unread_flood_that_closes_leaves_the_router_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", UNREAD], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        port = server.stdout.readline().decode().strip()
        subprocess.run([sys.executable, "-c", FLOOD, port], check=True, timeout=30)
        out, _ = server.communicate(timeout=30)
    assert (server.returncode, out) == (0, b"")


def test_log_names_connections_without_routing_ids(running: Any) -> None:
    running.enter()
    routing_ids = running.server.router.connections
    assert [connection.peer for connection in routing_ids.values()] == ["zmq-1"]
    assert not any(routing_id.hex() in line for routing_id in routing_ids for line in running.lines)


def test_path_of_a_live_server_is_not_taken(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/s")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as first, context.socket(zmq.ROUTER) as second:
        assert bind(first, endpoint) == endpoint  # takes the path that a dead process left
        with pytest.raises(UserError, match="another server listens there"):
            bind(second, endpoint)
