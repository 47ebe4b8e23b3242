"""Another user of the machine, who wants to decide for the robots: by the decoder's sockets, and by Ray's."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from rtcontrol.hosts.processes import marked
from rtcontrol.hosts.ray_actor import DecoderActor
from rtcontrol.hosts.ray_host import DecoderLink, WakeFile
from rtcontrol.hosts.ray_pool import RayPool
from tests.helpers.processes import environment

NOBODY = 65534
# As the decoder's run starts it, and loaded before it is somebody else: of what it imports nothing need be readable.
INTRUDER = f"""
import json, os, socket, struct, sys, traceback
import zmq
from ray._raylet import GcsClient

told = json.loads(sys.argv[1])
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})

def tried(what, *arguments):
    try:
        return repr(what(*arguments))
    except Exception as error:
        return type(error).__name__

def bound(path):
    os.rename(path, path + ".theirs")
    zmq.Context.instance().socket(zmq.ROUTER).bind("ipc://" + path)
    return "bound"

def connected(path):
    with socket.socket(socket.AF_UNIX) as unix:
        unix.connect(path)
    return "connected"

def read(path):
    return open(path, "rb").read()

def frame(kind, flags, stream, body):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body

def grpc(port, method):
    "What a gRPC server says to an empty message of this method: its status, or None."
    named = dict([(":method", "POST"), (":scheme", "http"), (":path", "/ray.rpc." + method), (":authority", "x")])
    named |= {{"te": "trailers", "content-type": "application/grpc"}}
    told = b"".join(b"\\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in named.items())
    begin = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, told)
    heard = b""
    with socket.create_connection(("127.0.0.1", port), 5) as tcp:
        tcp.settimeout(2)
        tcp.sendall(begin + frame(0, 1, 1, bytes(5)))
        try:
            while b"grpc-status" not in heard and (more := tcp.recv(4096)):
                heard += more
        except OSError:
            pass
    place = heard.find(b"grpc-status")
    return int(heard[place + 12 : place + 12 + heard[place + 11]]) if place >= 0 else None

print(json.dumps({{
    "list": [tried(os.listdir, told["folder"])],
    "rename": [tried(os.rename, told["folder"], told["folder"] + "x")],
    "bind": [tried(bound, path) for path in told["sockets"]],
    "connect": [tried(connected, path) for path in told["sockets"]],
    "environ": [tried(read, f"/proc/{{pid}}/environ") for pid in told["pids"]],
    "gcs": [tried(lambda: GcsClient(address=told["gcs"]).internal_kv_keys(b"", b"session", timeout=5))],
    "grpc": {{method: [grpc(port, method) for port in told["ports"]] for method in told["methods"]}},
}}))
"""
# One of each service that Ray's processes have.
METHODS = (
    "ObjectManagerService/Push",
    "NodeManagerService/RequestWorkerLease",
    "CoreWorkerService/PushTask",
    "InternalKVGcsService/InternalKVKeys",
)
UNIMPLEMENTED, UNAUTHENTICATED = 12, 16


@pytest.mark.serial
def test_another_user_gets_neither_at_the_decoder_nor_at_ray(ray_pool: RayPool) -> None:
    if os.geteuid():
        pytest.skip("only root can be another user")
    import ray

    folder, answer = ray_pool._ray.folder, ray_pool._answer
    assert answer is not None and stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    pids = {pid for pid, fd, _ in marked(folder) if not os.close(fd)} | {os.getpid()}
    listening = [c.laddr for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.pid in pids]
    # Also of the dashboard's: there is none.
    assert len(listening) >= 5 and {str(at.ip).removeprefix("::ffff:") for at in listening} == {"127.0.0.1"}
    sockets = [end.removeprefix("ipc://") for end in (*answer["lanes"], answer["heartbeat"])]
    sockets += [str(path) for path in Path(folder).rglob("*") if path.is_socket() and "/sockets/" in str(path)]
    assert len(sockets) >= 4 and all(len(path) <= 107 for path in sockets)
    told: dict[str, Any] = {"folder": folder, "sockets": sockets, "pids": [*pids], "methods": METHODS}
    told |= {"ports": [at.port for at in listening], "gcs": ray.get_runtime_context().gcs_address}
    env = {name: value for name, value in environment().items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", INTRUDER, json.dumps(told)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for what in ("list", "rename", "bind", "connect", "environ"):
        assert {*found[what]} == {"PermissionError"}, what
    assert found["gcs"] == ["AuthenticationError"]
    for method, answers in found["grpc"].items():
        assert {*answers} <= {None, UNIMPLEMENTED, UNAUTHENTICATED} and UNAUTHENTICATED in answers, method
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64, "it stands in no file"
    ready = DecoderLink(answer, b"x", WakeFile())
    assert ready.ready(5000), "who has the key is answered"
    ready.close()


@pytest.fixture
def decoder(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A decoder's process, in this one: its threads end with the tests."""
    folder = tmp_path / "d"
    folder.mkdir()
    yield DecoderActor(1, False, os.path.relpath(folder), socket.gethostname()).start()


@pytest.mark.parametrize("curve", [False, True])
def test_a_socket_in_the_decoders_place_decides_nothing_and_is_told_nothing(
    decoder: dict[str, Any], curve: bool
) -> None:
    path = Path(decoder["lanes"][0].removeprefix("ipc://"))
    link = DecoderLink(decoder, b"x", WakeFile())
    assert link.ready(5000)
    link.close()
    path.rename(path.with_suffix(".theirs"))
    context = zmq.Context()
    false = context.socket(zmq.ROUTER)
    false.linger = 0
    if curve:  # it knows the decoder's public key, say, and not its secret
        false.curve_server, false.curve_secretkey = True, zmq.curve_keypair()[1]
    false.bind(f"ipc://{path}")
    heard: list[bytes] = []

    def decides() -> None:
        while false.poll(1500):
            heard.extend(false.recv_multipart())
            false.send_multipart([heard[-2], heard[-1]])

    thread = threading.Thread(target=decides)
    thread.start()
    link = DecoderLink(decoder, b"x", WakeFile())
    assert not link.ready(1000)
    link.close()
    thread.join()
    context.destroy()
    assert heard == []


def test_who_has_not_the_decoders_key_is_not_answered(decoder: dict[str, Any]) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.linger = 0
    stranger.connect(decoder["lanes"][0])
    stranger.send(b"")
    assert not stranger.poll(300)
    context.destroy()
