"""Several calls a tick: each one decided with those before it, by the tick's one deadline; none acts late, and the safe
call wins over all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cart import CartWorld, Flight, cart_agent
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.confidence import check_named
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.channels import schema
from rtcontrol.telemetry.record_reader import rows

CLOSE = Call("grip", {"closed": 1})
FURTHER = Draft202012Validator({**schema("/further"), "additionalProperties": False})
Decide = Callable[[DecisionRequest], Decision]


@settings(max_examples=8, deadline=None)
@example(7, 2, 0.0)
@example(7, 4, 0.0)
@given(st.integers(0, 1 << 30), st.integers(1, 7), st.floats(0, 0.3))
def test_the_calls_of_a_tick_are_so_many_decisions_each_with_those_before_in_its_history(
    seed: int, most: int, quiet: float
) -> None:
    history = 6

    def decide(request: DecisionRequest) -> Decision:
        chance = random.Random(f"{seed} {request.observation} {request.instruction} {request.history}")
        call = None if chance.random() < quiet else Call("push", {"force": chance.randint(-2, 2)})
        return Decision(call, {"function": 0.9}, 1, 20, 5)

    with TemporaryDirectory() as folder:
        flown = Flight(
            Path(folder),
            decide,
            world=CartWorld(5.0),
            agent=replace(cart_agent(history), allow_null=True),
            clock="lockstep",
            duration_s=None,
            episodes=2,
            hz=4.0,  # a deadline that a busy machine keeps, too: what it would cut acts here, and is counted
            calls_per_tick=most,
        ).run()
        lines = flown.lines
    asked = {line["k"]: line for line in lines if "observation" in line}
    expected: list[tuple[int, Call]] = []
    known: dict[int, list[str]] = {}
    for k, seen in asked.items():
        made: list[Call] = []
        while len(made) < most:
            before = (*seen["history"], *(call.text() for call in made))[-history:]
            call = decide(DecisionRequest(k, 0, seen["observation"], seen["instruction"], before)).call
            if call is None or call in made:
                break
            made.append(call)
        expected += [(k, call) for call in made]
        known[k] = [call.text() for call in made]
    called = [line for line in lines if "called" in line and line["why"] != "safe"]
    assert [(line["k"], Call(line["called"], line["arguments"])) for line in called] == expected
    assert [call for _, call, _ in flown.world.executed[: len(expected)]] == [call for _, call in expected]
    # They are in the next tick's history, but where a new episode began.
    epochs = {k: seen["epoch"] for k, seen in asked.items()}
    for k in asked:
        if epochs.get(k - 1) == epochs[k]:
            assert asked[k]["history"] == [*asked[k - 1]["history"], *known[k - 1]][-history:]
    account = flown.loop.account
    assert account.calls.summary()["total"] == len(expected)
    assert account.calls.most == max(map(len, known.values()), default=0)
    assert account.ticks == len(asked) and account.calls_cut == 0
    # Each is a row, with those before it in its history; so is the decision that nothing more is to be done.
    taught = [(row["history"], row["call"]) for row in rows(lines)]
    for k, seen in asked.items():
        shown = list(seen["history"])
        for text in known[k]:
            assert any(history == shown and Call.from_dict(call).text() == text for history, call in taught if call)
            shown = [*shown, text][-history:]
    for line in (line for line in lines if "further" in line):
        FURTHER.validate(line)


def test_calls_that_a_prompt_would_not_show_are_refused_before_the_run() -> None:
    config = RunConfig(env="cart", calls_per_tick=4)
    check_named(config, cart_agent(history=3))
    with pytest.raises(UserError, match="is shown its last 2 calls") as caught:
        check_named(config, cart_agent(history=2))
    assert "history=3" in caught.value.remedy
    for wrong in (0, 8):
        with pytest.raises(UserError, match="--calls-per-tick"):
            RunConfig(env="cart", calls_per_tick=wrong)
