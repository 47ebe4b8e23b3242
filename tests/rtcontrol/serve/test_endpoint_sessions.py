"""Sessions and requests of a server whose model is an endpoint elsewhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rtcontrol.gateway.source import public_name, source
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.hosts.remote_api import EndpointSource
from rtcontrol.models.call import Call
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.pools import Pools

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from standin_endpoint import standin

TURN = {"name": "turn", "parameters": {"properties": {"to": {"enum": ["left", "right"]}}, "required": ["to"]}}


def test_no_session_waits_for_the_endpoint_of_another() -> None:
    with standin(lambda n: (0.5, None)) as made:
        model = f"systemone:{made.url}"
        options = ServeOptions(model=model)
        options.check()
        pools = Pools(options)
        pools.start()
        hosts = [pools.open(f"s{i}", EndpointSource.parse(model, (TURN,))) for i in range(4)]
        began = time.monotonic()
        for host in hosts:
            host.submit(DecisionRequest(1, 1, "x", "go"))
        for host in hosts:
            reply = host.wait(3_000_000_000)
            assert reply is not None and reply.decision is not None
            assert reply.decision.call == Call("turn", {"to": "left"})
        assert time.monotonic() - began < 1.9, "one after the other they take two seconds"
        for host in hosts:
            host.close()
        pools.close()


def test_a_request_of_v1_is_decided_by_the_endpoint() -> None:
    with standin() as made:
        model = f"decisions:{made.url}#secret-name"
        decider = source(model, "torch", (TURN,)).build()
        assert decider.decide(DecisionRequest(1, 1, "x", "go")).call == Call("turn", {"to": "left"})
        assert public_name(model) == "default", "strangers are not told where it is"
