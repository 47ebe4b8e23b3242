"""The C# client and GET /connect."""

from __future__ import annotations

import msgpack

from tests.bridges.front import check_first_server, check_next_server, fronted
from tests.bridges.unity.mono import Driver, Start
from tests.conformance import load


def test_answer_names_server_or_none(core: Driver) -> None:
    tried = 0
    for vector in load("connect"):
        if vector["keys"]:
            continue  # this client has none
        tried += 1
        found = core.ask(f"connect {msgpack.packb(vector).hex()}")
        assert found["address"] == vector["address"], (vector["name"], found)
        assert found["retry_s"] == vector.get("retry_s", 0), vector["name"]
    assert tried > 30


def test_client_follows_the_answers_of_connect(driver: Start) -> None:
    with fronted() as (front, first, second):
        client = check_first_server(front, first, lambda url: driver("run", "--endpoint", url, "--ttl-ms", "500"))
        assert isinstance(client, Driver)
        check_next_server(front, first, second, client, client.stats)
