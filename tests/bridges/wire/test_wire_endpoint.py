"""One reading of endpoints: their parts, which are this machine's alone, and which want IPv6."""

from __future__ import annotations

import pytest

from rtcontrol.bridges.wire.endpoint import Endpoint, EndpointError, host_port, is_local, is_loopback


@pytest.mark.parametrize(
    ("text", "host", "port", "ipv6"),
    [
        ("tcp://127.0.0.1:5555", "127.0.0.1", "5555", False),
        ("tcp://*:*", "*", "*", False),
        ("tcp://[::1]:5555", "::1", "5555", True),
        ("tcp://[::]:0", "::", "0", True),
        ("tcp://[fe80::1%eth0]:5555", "fe80::1%eth0", "5555", True),
        ("tcp://[::ffff:127.0.0.1]:5555", "::ffff:127.0.0.1", "5555", True),
        ("tcp://robot.local:5555", "robot.local", "5555", None),
        ("tcp://10.0.0.7:0;10.0.0.9:5555", "10.0.0.9", "5555", False),
        ("ipc:///run/a:b", "", "", False),
    ],
)
def test_parts_of_an_endpoint(text: str, host: str, port: str, ipv6: bool | None) -> None:
    found = Endpoint.parse(text)
    assert (found.host, found.port, found.ipv6) == (host, port, ipv6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tcp://::1:5555", "has colons in its address. Write tcp://[::1]:5555."),
        ("tcp://[::1]", "names no port."),
        ("tcp://[::1]:", "names no port."),
        ("tcp://[]:5555", "names no port."),
        ("tcp://[::1]:99999", "'99999' is no port."),
        (
            "[::1]:5555",
            "is no endpoint. Write tcp://ADDRESS:PORT, tcp://[IPV6]:PORT or ipc://PATH. Did you mean tcp://[::1]",
        ),
        ("ws://[::1]:5555", "is no endpoint."),
        ("", "is no endpoint."),
    ],
)
def test_what_is_no_endpoint_is_told_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(EndpointError) as caught:
        Endpoint.parse(text)
    assert says in str(caught.value)
    assert not is_local(text)


NEAR = "[::1] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] localhost LOCALHOST 127.0.0.1 127.9.9.9"
FAR = "[::] [::ffff:10.0.0.7] [fe80::1%lo] [2001:db8::1] 0.0.0.0 * eth0 localhost.example.org"


def test_what_is_this_machine_alone() -> None:
    assert [host for host in f"{NEAR} {FAR}".split() if is_local(f"tcp://{host}:5555")] == NEAR.split()
    assert is_local("ipc:///tmp/x") and not is_loopback("[::1]")


def test_name_of_both_kinds_is_not_bound_as_ipv6_and_one_that_nobody_knows_is_libzmqs_to_refuse() -> None:
    assert Endpoint.parse("tcp://[::1]:1").ipv6_only
    assert not Endpoint.parse("tcp://localhost:1").ipv6_only
    assert not Endpoint.parse("tcp://no.such.name.invalid:1").ipv6_only


def test_host_and_port_of_http_are_read_the_same() -> None:
    assert [host_port(text) for text in ("[::1]:8080", "127.0.0.1:80", "[::1]", "name")] == [
        ("::1", "8080"),
        ("127.0.0.1", "80"),
        ("::1", ""),
        ("name", ""),
    ]
