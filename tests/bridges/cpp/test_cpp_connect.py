"""The C++ client and GET /connect."""

from __future__ import annotations

import msgpack

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


def test_https_is_refused_with_the_reason(core: Driver) -> None:
    assert "needs TLS" in core.ask("endpoints https://127.0.0.1:1/connect")["what"]
    assert core.ask("endpoints http://127.0.0.1:1/connect,tcp://127.0.0.1:2") == [
        "http://127.0.0.1:1/connect",
        "tcp://127.0.0.1:2",
    ]
