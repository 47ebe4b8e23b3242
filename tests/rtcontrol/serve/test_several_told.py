"""Several calls a tick over the wire: told to those who asked for them alone, each with whether more follow."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from cart import Flight, cart_agent

from rtcontrol.bridges.wire import Message
from rtcontrol.bridges.wire.messages import CallMessage, Executed, Observe
from rtcontrol.envs.remote import RemoteEnvironment, RemoteTerms
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Call, Decision

TOKEN = "t" * 20
OWN = [{"name": "move", "parameters": {"type": "object", "properties": {"dx": {"enum": [-1, 0, 1]}}}}]


def of_one(peer: Any, seq: int) -> list[CallMessage]:
    """All that is told of one observation."""
    told = [peer.expect(CallMessage, seq_obs=seq)]
    while told[-1].more:
        told.append(peer.expect(CallMessage, seq_obs=seq))
    return told


def test_who_asked_for_several_is_told_how_many_and_which_is_a_ticks_last(bench: Any) -> None:
    made = bench(calls_per_tick=3)
    only = [{"name": "move", "parameters": {"properties": {"dx": {"const": 1}}, "required": ["dx"]}}]
    peer = made.enter(tools=only, instruction="go", model="random", pacing="client", calls_per_tick=5)
    assert peer.welcome.calls_per_tick == 3 and "calls_per_tick 5 is above" in " ".join(peer.welcome.warnings)
    for _ in range(20):
        told = of_one(peer, peer.observe())
        # Of these tools there is one call: a model that repeats itself has no further one.
        assert [(m.status, m.call is None, m.more) for m in told] == [("fresh", False, True), ("held", True, None)]
        assert told[0].tick + 1 == told[1].tick and told[0].t_obs_ns == told[1].t_obs_ns
    assert peer.receive(0.05) is None


def test_chance_makes_other_calls_within_a_tick_and_the_same_ones_again(bench: Any) -> None:
    wide = [{"name": "move", "parameters": {"properties": {"dx": {"minimum": 0, "maximum": 999, "type": "integer"}}}}]
    found = []
    for made in (bench(calls_per_tick=3, seed=7), bench(calls_per_tick=3, seed=7)):
        peer = made.enter(tools=wide, instruction="go", model="random", pacing="client", calls_per_tick=3)
        found.append([[m.call.arguments["dx"] for m in of_one(peer, peer.observe()) if m.call] for _ in range(5)])
    assert found[0] == found[1] and all(len(set(tick)) == 3 for tick in found[0])


def test_who_did_not_ask_is_told_one_call_a_tick_as_ever(bench: Any) -> None:
    made = bench(calls_per_tick=3)
    peer = made.enter(tools=OWN, instruction="go", model="random", pacing="client")
    assert peer.welcome.calls_per_tick is None
    calls = [peer.ask() for _ in range(20)]
    assert [c.tick for c in calls] == [*range(20)] and all(c.more is None for c in calls)
    assert peer.receive(0.05) is None


def test_an_agent_whose_model_is_not_shown_the_calls_gets_one(bench: Any) -> None:
    peer = bench(calls_per_tick=3).enter(agent="lander", pacing="client", calls_per_tick=2)
    assert peer.welcome.calls_per_tick is None and "the agent's history" in " ".join(peer.welcome.warnings)


def flown(out: Path, acknowledge: Any, seconds: float = 0.6) -> tuple[Flight, list[CallMessage], list[DecisionRequest]]:
    """A session in which each tick's calls push with 1, 2 and no further force; told of each message, the client says
    what became of its call."""
    asked: list[DecisionRequest] = []

    def decide(request: DecisionRequest) -> Decision:
        asked.append(request)
        n = sum(one.tick == request.tick for one in asked)
        return Decision(Call("push", {"force": n}) if n < 3 else None)

    calls: list[CallMessage] = []

    def heard(message: Message) -> None:
        if isinstance(message, CallMessage):
            calls.append(message)
            if message.call is not None and message.status == "fresh":
                acknowledge(env, message)

    env = RemoteEnvironment("remote", RemoteTerms(TOKEN, ("push",), False, 500.0, True, minor=1), heard)
    flight = Flight(out, decide, world=env, agent=cart_agent(6), hz=20, duration_s=seconds, calls_per_tick=4)  # type: ignore[arg-type]
    over = threading.Event()

    def observe() -> None:
        seq = 0
        while not over.wait(0.01):
            seq += 1
            env.observe(Observe(session=TOKEN, seq=seq, epoch=0, t_ns=time.monotonic_ns(), data={"x": 0.0, "v": 0.0}))

    thread = threading.Thread(target=observe)
    thread.start()
    try:
        flight.run()
    finally:
        over.set()
        thread.join()
    return flight, calls, [request for request in asked if request.tick >= 0]


def said(env: RemoteEnvironment, message: CallMessage, outcome: Any = "executed") -> None:
    env.executed(Executed(session=TOKEN, tick=message.tick, epoch=0, outcome=outcome, t_ns=1))


def test_each_call_is_a_message_and_its_acknowledgement_is_in_no_history_twice(tmp_path: Path) -> None:
    flight, calls, asked = flown(tmp_path, said)
    ticks = [t["k"] for t in flight.ticks if t["kind"] == "call" and "cause" not in t]
    assert len(ticks) >= 8
    by_deadline: dict[int, list[CallMessage]] = {}
    for message in calls[:-1]:  # the last is the way out's
        by_deadline.setdefault(message.deadline_ns, []).append(message)
    told = [[(m.call and m.call.arguments["force"], m.more) for m in of] for of in by_deadline.values()]
    assert told.count([(1, True), (2, True), (None, None)]) >= len(ticks) - 1  # the way out may cut the last one short
    assert all(of[0].release_ns and not any(m.release_ns for m in of[1:]) for of in by_deadline.values())
    # Both calls of the tick before, in order, and those of this one: whatever was acknowledged when.
    first, second = "push(force=1)", "push(force=2)"
    histories = [[request.history for request in asked if request.tick == k] for k in ticks[1:-1]]
    whole = [shown for shown in histories if len(shown) == 3]
    assert len(whole) >= len(histories) - 1  # what may be cut short, above
    for base, *further in whole:
        assert further == [(*base, first)[-6:], (*base, first, second)[-6:]]
    assert asked[-1].history == (first, second) * 3
    assert flight.loop.account.acknowledged == {"executed": len([m for m in calls if m.call and m.status == "fresh"])}


def test_a_further_call_that_the_client_did_not_carry_out_makes_its_tick_no_miss(tmp_path: Path) -> None:
    def acknowledge(env: RemoteEnvironment, message: CallMessage) -> None:
        assert message.call is not None
        # The further one's word comes first, and says that it failed.
        if message.call.arguments["force"] == 1:
            waiting.append(message)
        else:
            said(env, message, "failed")
            said(env, waiting.pop())

    waiting: list[CallMessage] = []
    flight, _, asked = flown(tmp_path, acknowledge)
    account = flight.loop.account
    assert account.acknowledged["failed"] >= 8 and account.misses_by_cause["execute"] == 0, flight.dump()
    assert asked[-1].history[:3] == ("push(force=1)",) * 3  # what was not carried out is in no later tick's history
