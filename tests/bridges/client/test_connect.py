"""GET /connect: which answers name a server, and what a client sends and waits for."""

from __future__ import annotations

from typing import Any

import pytest

from rtcontrol_client.client.connect import ConnectAnswer, Keys, NamedServer, NoServer, read_answer, tools_hint
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
