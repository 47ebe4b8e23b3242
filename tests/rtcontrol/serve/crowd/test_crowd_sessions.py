"""Crowds over real sockets: who is decided for, who is refused, who goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.rtcontrol.serve.crowd.crowd_peer import CrowdPeer


def test_each_member_of_a_crowd_gets_calls_of_its_own(bench: Callable[..., Any]) -> None:
    made = bench()
    crowd = CrowdPeer(made.peer())
    assert crowd.peer.welcome is not None and crowd.peer.welcome.crowd is not None
    crowd.join("anna", {"id": "bert", "ttl_ms": 900, "epoch": 3})
    found = crowd.until_fresh(["anna", "bert"])
    assert found["bert"].ttl_ms == 900 and found["bert"].epoch == 3 and found["anna"].epoch == 0
    assert found["anna"].call is not None and found["anna"].seq_obs is not None
