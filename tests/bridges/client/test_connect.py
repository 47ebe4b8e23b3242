"""GET /connect: which answers name a server, and how a client asks it and changes servers."""

from __future__ import annotations

from typing import Any

import pytest

from rtcontrol_client import Client, Standing
from rtcontrol_client.client.connect import ConnectAnswer, Keys, NamedServer, NoServer, read_answer, tools_hint
from rtcontrol_client.wire.messages import Hello
from tests.bridges.client.worlds import OWN
from tests.bridges.front import check_first_server, check_next_server, fronted, names
from tests.bridges.program import Events
from tests.conformance import load

TOOL = {"name": "turn", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("vector", load("connect"), ids=lambda vector: vector["name"])
def test_answer_names_server_or_none(vector: dict[str, Any]) -> None:
    answer = ConnectAnswer(vector["status"], vector["body"].encode(), vector["retry_after"])
    keys = Keys(vector["keys"], vector["server_key_given"])
    found = read_answer(vector["url"], answer, keys)
    if vector["address"] is None:
        assert isinstance(found, NoServer) and found.retry_s == vector["retry_s"]
    else:
        assert found == NamedServer(vector["address"], vector["server_key"])


def test_hint_is_the_same_for_the_same_tools() -> None:
    turned = dict(reversed(TOOL.items()))
    assert tools_hint([TOOL], None) == tools_hint([turned], None) != tools_hint(None, "lander")
    assert tools_hint(None, None) is None
    assert len(tools_hint([TOOL], None) or "") == 64


class Driven(Events):
    """The client, which tells of its calls as a program does."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.client = Client(url, {**OWN, "ttl_ms": 500, "on_call": self._act, "look": lambda: "left 1"})

    def _act(self, standing: Standing) -> None:
        self.tell({"event": "safe" if standing.status == "safe" else "call"})

    def errors(self) -> str:
        return str(self.client.trouble)

    def stats(self) -> Any:
        return {"address": self.client.address, "ended": self.client.error}


def test_client_follows_the_answers_of_connect() -> None:
    with fronted() as (front, first, second):
        driven = check_first_server(front, first, Driven, names_refused=False)
        hint = tools_hint(OWN["tools"], None)
        assert {headers["x-tools"] for _, headers in front.requests} == {hint}
        check_next_server(front, first, second, driven, driven.stats)
        driven.client.close()


@pytest.mark.parametrize("large", [True, False])
def test_answer_that_is_too_large_or_does_not_come_ends_no_client_and_holds_up_no_method(large: bool) -> None:
    with fronted() as (front, first, _):
        status, headers, body = names(first.endpoint)
        front.answers = [(200, {}, body + b" " * 5000), (status, headers, body)]
        front.holds = not large  # until the client has given up
        client = Client(front.url, OWN)
        client.observe("left 1")
        assert client.call().status == "safe" and client.statistics["fresh"] == 0
        first.expect(Hello, 10.0, "hello")
        assert client.error is None and len(front.requests) > 1
        client.close()
