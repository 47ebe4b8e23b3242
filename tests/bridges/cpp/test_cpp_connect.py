"""The C++ client and GET /connect."""

from __future__ import annotations

import msgpack
import pytest

from tests.bridges.cpp.build import Driver, Start
from tests.bridges.front import check_first_server, check_next_server, fronted
from tests.conformance import load


def test_answer_names_server_or_none(core: Driver) -> None:
    for vector in load("connect"):
        found = core.ask(f"connect {msgpack.packb(vector).hex()}")
        assert found["address"] == (vector["address"] or ""), (vector["name"], found)
        assert found["server_key"] == (vector.get("server_key") or ""), (vector["name"], found)
        assert found["retry_s"] == vector.get("retry_s", 0), vector["name"]


def test_client_follows_the_answers_of_connect(strict: Start) -> None:
    with fronted() as (front, first, second):
        client = check_first_server(front, first, lambda url: strict("run", "--endpoint", url, "--ttl-ms", "500"))
        assert isinstance(client, Driver)
        check_next_server(front, first, second, client, client.stats)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("tcp://[::1]:5555", ""),
        ("ipc:///tmp/a,b", ""),
        ("http://127.0.0.1:1/connect", ""),
        ("https://127.0.0.1:1/connect", "needs TLS"),
        ("tcp://127.0.0.1:9,tcp://127.0.0.1:8", "is no endpoint"),
        ("tcp://127.0.0.1:65536", "is no endpoint"),
        ("ws://127.0.0.1:80", "is no endpoint"),
    ],
)
def test_endpoint_is_taken_or_refused_with_the_reason(core: Driver, text: str, refused: str) -> None:
    answer = core.ask(f"endpoint {text}")
    assert (refused in answer["what"] and answer["remedy"]) if refused else answer == text
