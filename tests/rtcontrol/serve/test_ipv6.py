"""IPv6: servers, clients, and who reaches them."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from rtcontrol.bridges.client import Client, ClientError
from rtcontrol.hosts.ray_start import _reach
from rtcontrol.models.errors import UserError
from rtcontrol.serve import zmq_auth
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.server import Server
from tests.bridges.client.worlds import OWN
from tests.helpers.processes import Program, free_port


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no ::1")


def server(tmp_path: Path, *endpoints: str, keys: Path | None = None) -> Server:
    options = ServeOptions(out=tmp_path / "out", model="random", host="inprocess")
    return Server(options, endpoints, keys=keys)


def test_client_flies_over_the_ipv6_loopback_as_over_the_other(tmp_path: Path) -> None:
    with server(tmp_path, "tcp://[::1]:*", "tcp://127.0.0.1:*") as made:
        assert made.endpoints[0].startswith("tcp://[::1]:")
        for endpoint in made.endpoints:
            with Client.connect(endpoint, hz=20, connect_timeout_s=10, **OWN) as client:
                client.observe(text="left")
                assert client.wait(10).call is not None


def test_name_finds_a_server_on_ipv4(tmp_path: Path) -> None:
    with server(tmp_path, "tcp://127.0.0.1:*") as made:
        endpoint = made.endpoints[0].replace("127.0.0.1", "localhost")
        Client.connect(endpoint, connect_timeout_s=10, **OWN).close()


@pytest.mark.skipif(
    "::1" not in {found[4][0] for found in socket.getaddrinfo("localhost", None)}, reason="localhost is no ::1 here"
)
def test_name_finds_a_server_on_ipv6_alone(tmp_path: Path) -> None:
    with server(tmp_path, "tcp://[::1]:*") as made:
        endpoint = made.endpoints[0].replace("[::1]", "localhost")
        Client.connect(endpoint, connect_timeout_s=10, **OWN).close()


def test_all_addresses_of_both_kinds_want_keys_and_are_served_with_them(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"--bind tcp://\[::\]:5555 can be reached from other machines"),
        server(tmp_path, "tcp://[::]:5555"),
    ):
        pass
    keys = tmp_path / "keys"
    for name in (zmq_auth.SERVER, "arm"):
        zmq_auth.create(keys, name)
    with server(tmp_path, "tcp://[::]:*", keys=keys) as made, ExitStack() as stack:
        port = made.endpoints[0].rpartition(":")[2]
        for host in ("[::1]", "127.0.0.1"):
            given = {"keys": keys / "arm.key_secret", "connect_timeout_s": 10}
            stack.enter_context(Client.connect(f"tcp://{host}:{port}", **given, **OWN))
        with pytest.raises(ClientError, match="wants a key"):
            Client.connect(f"tcp://[::1]:{port}", connect_timeout_s=1, **OWN)


def test_run_dials_a_client_that_listens_on_ipv6(tmp_path: Path) -> None:
    endpoint = f"tcp://[::1]:{free_port()}"
    given = ["--model", "random", "--host", "inprocess", "--no-live", "--out", str(tmp_path / "o")]
    run = Program(["-m", "rtcontrol", "run", "--env", "remote", "--connect", endpoint, *given], tmp_path / "log")
    try:
        with Client.listen(endpoint, connect_timeout_s=60, **OWN) as client:
            client.observe(text="left")
            assert client.wait(10).call is not None
        assert run.popen.wait(30) == 0, run.log()
    finally:
        run.kill()


def test_client_is_told_what_is_no_endpoint() -> None:
    for endpoint, says in (("tcp://::1:5555", "Write tcp://[::1]:5555."), ("tcp://[::1]", "names no port")):
        with pytest.raises(ClientError) as caught:
            Client.connect(endpoint, **OWN)
        assert says in str(caught.value)


def test_ray_cluster_at_an_ipv6_address_is_reached() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listening:
        _reach(f"[::1]:{listening.getsockname()[1]}")
    with pytest.raises(ConnectionError, match=r"nothing answers at RAY_ADDRESS=\[::1\]:9"):
        _reach("[::1]:9")
