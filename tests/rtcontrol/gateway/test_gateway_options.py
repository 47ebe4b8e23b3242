"""What is refused before anything is bound, and what is told instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from gateway_served import Served

from rtcontrol.gateway import Gateway, GatewayOptions
from rtcontrol.gateway.options import origin
from rtcontrol.models.errors import UserError


def test_a_token_file_is_made_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = GatewayOptions.parse("0.0.0.0:8080", token_file=path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.token is not None and len(first.token) >= 32
    assert GatewayOptions.parse("0.0.0.0:8080", token_file=path).token == first.token


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("", 0o600, "is empty"),
        ("short", 0o600, "16 to"),
        ("with a space in it", 0o600, "16 to"),
        ("x" * 32, 0o644, "chmod"),
    ],
)
def test_a_token_that_is_useless_or_that_others_can_read_is_refused(
    tmp_path: Path, text: str, mode: int, says: str
) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(UserError, match=says):
        GatewayOptions.parse("127.0.0.1:8080", token_file=path)


def test_another_site_without_a_token_is_refused_at_the_start() -> None:
    with pytest.raises(UserError, match="--token-file"):
        GatewayOptions.parse("127.0.0.1:8080", origins=["https://robot.example"])


@pytest.mark.parametrize("http", ["8080", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", ":8080"])
def test_an_address_that_is_none_is_refused(http: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        GatewayOptions.parse(http)


@pytest.mark.parametrize(
    "text", ["*", "robot.example", "https://robot.example/page", "ftp://a.b", "https://a.b:x", "https://[::1"]
)
def test_an_origin_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no origin"):
        origin(text)


def test_origins_are_as_browsers_send_them() -> None:
    assert origin("HTTPS://Robot.Example:443/") == "https://robot.example"
    assert origin("http://[::1]:3000") == "http://[::1]:3000"


def test_a_port_that_is_taken_is_named(served: Served) -> None:
    taken = GatewayOptions(port=served.gateway.port)
    with pytest.raises(UserError, match="cannot be bound"):
        Gateway(served.admission, served.pool, taken).start()
