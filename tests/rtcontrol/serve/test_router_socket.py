"""ROUTER sockets against peers that end libzmq by one of its assertions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import zmq

from rtcontrol.hosts.router_socket import router_socket
from rtcontrol.serve.zmq_server import _profile
from rtcontrol_client.wire import Limits

UNREAD = """
import sys, time, zmq
from rtcontrol.hosts.router_socket import router_socket
from rtcontrol.serve.zmq_server import _profile
from rtcontrol_client.wire import Limits

router = router_socket(zmq.Context())
_profile(router, Limits())
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


def first_id() -> int:
    """The number that a new ROUTER gives its first peer."""
    with zmq.Context() as context, router_socket(context) as router, context.socket(zmq.DEALER) as dealer:
        router.bind("inproc://here")
        dealer.connect("inproc://here")
        dealer.send(b"")
        return int.from_bytes(router.recv_multipart()[0][1:], "big")


def test_new_routers_number_peers_from_random_starts() -> None:
    starts = [first_id() for _ in range(6)]
    assert len(set(starts)) == len(starts)
    # Neither the start of an unseeded rand() nor one of its next values.
    assert all(abs(a - b) > 1000 for i, a in enumerate([0x6B8B4567, *starts]) for b in starts[i:])


def test_server_socket_has_no_transport_heartbeats() -> None:
    with zmq.Context() as context, router_socket(context) as router:
        _profile(router, Limits())
        assert router.heartbeat_ivl == 0


def test_unread_flood_that_closes_leaves_the_router_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", UNREAD], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        port = server.stdout.readline().decode().strip()
        subprocess.run([sys.executable, "-c", FLOOD, port], check=True, timeout=30)
        out, _ = server.communicate(timeout=30)
    assert (server.returncode, out) == (0, b"")


def test_log_names_connections_without_routing_ids(made: Any) -> None:
    made.enter()
    routing_ids = made.server.router._connections
    assert [connection.peer for connection in routing_ids.values()] == ["zmq-1"]
    assert not any(routing_id.hex() in line for routing_id in routing_ids for line in made.said)
