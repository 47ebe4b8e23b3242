"""Several calls of one observation at the client: each acts once, in order, and is acknowledged by itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rtcontrol.bridges.client import Client, Standing
from rtcontrol.bridges.client.core import Core
from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.wire.messages import Executed, FunctionCall, Hello
from tests.bridges.client.test_client_handler import Fleet
from tests.bridges.client.test_core import MS, S, call_message, look, welcome
from tests.bridges.client.worlds import OWN, until
from tests.conformance.check.stand import Stand

LEFT, RIGHT, AHEAD = (FunctionCall(name="turn", arguments={"side": side}) for side in ("left", "right", "ahead"))


def test_each_of_several_calls_is_given_to_the_handler_once_in_order_and_acknowledged(stand: Stand) -> None:
    seen: list[Standing] = []
    go = threading.Event()

    def on_call(standing: Standing) -> str:
        seen.append(standing)
        go.wait(10)
        return f"did {standing.arguments.get('side')}"

    fleet = Fleet(stand, Client, on_call=on_call, calls_per_tick=3)
    fleet.client.observe(text="left 1")
    look = stand.observation()
    ticks = [stand.call(look, call=c, more=more, ttl_ms=60_000.0).tick for c, more in ((LEFT, True), (RIGHT, True))]
    ticks.append(stand.call(look, call=AHEAD, ttl_ms=60_000.0).tick)
    until(lambda: fleet.client.call().call == AHEAD, "the last was not heard")
    assert fleet.client.call().calls == (LEFT, RIGHT, AHEAD)
    go.set()
    assert [(fleet.told(tick).outcome, fleet.told(tick).result) for tick in ticks] == [
        ("executed", f"did {side}") for side in ("left", "right", "ahead")
    ]
    assert [standing.calls for standing in seen] == [(LEFT,), (RIGHT,), (AHEAD,)]
    fleet.end()


def test_calls_that_a_newer_observation_or_safe_overtook_do_not_act(stand: Stand) -> None:
    seen: list[Any] = []
    go = threading.Event()

    def on_call(standing: Standing) -> None:
        seen.append(standing.arguments.get("side", standing.status))
        go.wait(10)

    fleet = Fleet(stand, Client, on_call=on_call, calls_per_tick=3)
    fleet.client.observe(text="left 1")
    look = stand.observation()
    first = stand.call(look, call=LEFT, more=True, ttl_ms=60_000.0).tick
    until(lambda: seen == ["left"], "the first is not under way")
    waiting = [stand.call(look, call=c, more=c is RIGHT, ttl_ms=60_000.0).tick for c in (RIGHT, AHEAD)]
    fleet.client.observe(text="left 2")
    newer = stand.call(stand.observation(), call=LEFT, ttl_ms=60_000.0).tick
    assert {fleet.told(tick).outcome for tick in waiting} == {"expired"}
    go.set()
    assert [fleet.told(tick).outcome for tick in (first, newer)] == ["executed"] * 2
    assert seen == ["left", "left"]
    fleet.end()


def test_decide_waits_for_the_last_call_and_gives_them_all(stand: Stand) -> None:
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(Client.connect, stand.endpoint, **OWN, pacing="client", calls_per_tick=3)
        assert stand.expect(Hello, 10.0, "hello").calls_per_tick == 3
        stand.welcome(pacing="client")
        with joining.result() as client:
            for last in (RIGHT, None):  # the second time no further call follows
                asked = pool.submit(client.decide, "left 1", timeout=10.0)
                look = stand.observation()
                stand.call(look, call=LEFT, more=True, ttl_ms=0.0)
                stand.pump(0.1)
                assert not asked.done()
                stand.call(look, call=last, status="held" if last is None else "fresh", ttl_ms=0.0)
                standing = asked.result()
                assert standing.calls == ((LEFT,) if last is None else (LEFT, RIGHT)) and standing.status == "fresh"


def test_one_of_several_calls_that_fails_makes_it_safe() -> None:
    core = Core(Options(**OWN, acknowledge=True, calls_per_tick=2), now := 10 * S)
    core.connected(now)
    core.due(now)
    core.hear(welcome(), now)
    seen = core.observe(look(now))
    told = {"seq_obs": seen.seq, "t_obs_ns": now}
    core.hear(call_message(0, call=LEFT, more=True, **told), now + MS)
    core.hear(call_message(1, call=RIGHT, **told), now + 2 * MS)
    assert core.force.at(now + 3 * MS).calls == (LEFT, RIGHT)
    core.acknowledge(0, "failed", now + 3 * MS)  # the first, which acts beside the second
    assert core.force.at(now + 3 * MS).status == "safe"
    assert [m.outcome for m in core.waiting if isinstance(m, Executed)] == ["failed"]
    # The next tick's call stands for itself.
    core.hear(call_message(2, call=LEFT, **told), now + 4 * MS)
    assert core.force.at(now + 4 * MS).calls == (LEFT,)
