"""The list of a shared fleet's decoders: whoever changes it, however many at once, and whoever dies meanwhile."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol.hosts.fleet_roster import RESTORED, TIDY, FleetRoster
from rtcontrol.models.errors import UserError

SERVERS = ("one", "two", "three")


def states(roster: FleetRoster) -> dict[str, str]:
    return {name: one.state for name, one in roster.decoders.items()}


def test_two_servers_that_see_the_same_need_start_one_decoder() -> None:
    # knative/serving#2111, rancher/system-upgrade-controller#336: several that scale, and each of them does.
    roster = FleetRoster(1, 2)
    token = roster.begin("one", "starts another one")
    with pytest.raises(UserError, match="another server starts another one"):
        roster.begin("two", "starts another one")
    roster.started(token, roster.enter(token), more=True)
    roster.end(token)
    token = roster.begin("two", "starts another one")
    with pytest.raises(UserError, match="as many as it may have"):
        roster.enter(token)
    assert states(roster) == {"decoder-1": "up", "decoder-2": "up"} and roster.wanted == 2


def test_the_number_stays_where_a_decoder_is_there_for_another_one() -> None:
    roster = FleetRoster(2, 2)
    token = roster.begin("one", "drains decoder-1")
    with pytest.raises(UserError, match="may not have fewer"):
        roster.drain(token, "decoder-1", fewer=True)
    made = roster.enter(token, spare=True)
    with pytest.raises(UserError, match="as many as it may have"):
        roster.enter(token, spare=True)
    roster.started(token, made)
    roster.drain(token, "decoder-1")
    roster.remove(token, "decoder-1")
    roster.end(token)
    assert states(roster) == {"decoder-2": "up", made: "up"} and roster.tidy


def test_what_takes_sessions_is_not_removed_and_the_last_of_them_not_drained() -> None:
    # sgl-project/sglang#38524: the last worker of a model was gone before the next one was there.
    roster = FleetRoster(1, 2)
    token = roster.begin("one", "drains decoder-1")
    with pytest.raises(UserError, match="Drain it first"):
        roster.remove(token, "decoder-1")
    roster.enter(token)  # it is being started
    with pytest.raises(UserError, match="the only decoder that takes sessions"):
        roster.drain(token, "decoder-1")
    with pytest.raises(UserError, match="There is no decoder 'decoder-7'"):
        roster.drain(token, "decoder-7")


def changed(roster: FleetRoster, steps: int) -> str:
    """Begin to change the model, so many decoders far; the last of them drains."""
    token = roster.begin("one", "changes the model")
    number = roster.serve(token, {"old": "new"})
    for step in range(steps):
        old, made = roster.takes[0] if step == 0 else f"decoder-{step + 1}", roster.enter(token, number, spare=True)
        roster.started(token, made)
        roster.drain(token, old, made)
        if step < steps - 1:
            roster.remove(token, old)
    return token


def test_a_change_of_the_model_whose_server_dies_goes_back() -> None:
    # triton-inference-server/server#2162: a model that could not be loaded anew, and the one before was gone.
    roster = FleetRoster(2, 2)
    token = changed(roster, 2)
    assert roster.model == 1 and states(roster)["decoder-2"] == "draining"
    assert not roster.lapse("two") and roster.lapse("one")
    assert roster.model == 0 and roster.takes == ["decoder-2"]
    assert {name for name, state in states(roster).items() if state == "draining"} == {"decoder-3", "decoder-4"}
    with pytest.raises(UserError, match="was silent for too long"):
        roster.remove(token, "decoder-2")  # it comes to itself
    with pytest.raises(UserError, match="put in order"):
        roster.begin("two", "drains decoder-2")
    token = roster.begin("two", TIDY)
    roster.remove(token, "decoder-3")
    roster.started(token, roster.enter(token))
    roster.remove(token, "decoder-4")
    roster.end(token)
    assert roster.tidy and len(roster.takes) == 2


def test_a_change_of_the_model_whose_server_dies_at_its_very_end_stays() -> None:
    roster = FleetRoster(2, 2)
    token = changed(roster, 2)
    roster.remove(token, "decoder-2")
    roster.lapse("one")
    assert roster.model == 1 and roster.tidy, "there is no decoder to go back to"


def test_models_that_no_decoder_serves_any_more_are_forgotten_and_the_others_keep_their_numbers() -> None:
    roster = FleetRoster(1, 1)
    for number in range(1, 30):
        token = roster.begin("one", "changes the model")
        assert roster.serve(token, {"old": f"new-{number}"}) == number
        old, made = roster.takes[0], roster.enter(token, number, spare=True)
        roster.started(token, made)
        roster.drain(token, old, made)
        assert len(roster.served) == 2, "both have sessions"
        roster.remove(token, old)
        roster.end(token)
        assert roster.served == {number: {"old": f"new-{number}"}}
        roster = FleetRoster.read(roster.plain())
    token = roster.begin("one", "changes the model")
    roster.serve(token, {"old": "never"})
    roster.give_up(token)
    assert list(roster.served) == [29] == [roster.model]


def test_a_book_that_was_lost_learns_the_list_and_gives_up_what_was_under_way() -> None:
    roster = FleetRoster(2, 2)
    changed(roster, 1)
    anew = FleetRoster.read(roster.plain()).restored()
    assert anew.change is None and anew.model == 0 and states(anew)["decoder-1"] == "up"
    assert anew.version > roster.version + RESTORED, "a server may have a list of that version, and another one"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), least=st.integers(1, 3), more=st.integers(0, 2))
def test_whatever_servers_do_at_once_there_are_never_more_or_fewer_than_there_may_be(
    seed: int, least: int, more: int
) -> None:
    """Each does what it likes, with its own or an old token, and any of them dies."""
    draw, roster = random.Random(seed), FleetRoster(least, least + more)
    tokens = ["none"]
    for _ in range(60):
        server, names = draw.choice(SERVERS), [*roster.decoders, "decoder-99"]
        token, name, to = draw.choice(tokens[-2:]), draw.choice(names), draw.choice(names)
        steps: list[Any] = [
            lambda server=server: tokens.append(roster.begin(server, draw.choice(["something", TIDY]))),
            lambda token=token: roster.enter(token, spare=draw.random() < 0.5),
            lambda token=token, name=name: roster.started(token, name, more=draw.random() < 0.3),
            lambda token=token, name=name: roster.drain(token, name, fewer=draw.random() < 0.3),
            lambda token=token, name=name, to=to: roster.drain(token, name, to),
            lambda token=token, name=name: roster.remove(token, name),
            lambda token=token: roster.end(token),
            lambda token=token: roster.give_up(token),
            lambda token=token: roster.serve(token, {"a": "b"}),
            lambda server=server: roster.lapse(server),
        ]
        before, version = roster.plain(), roster.version
        try:
            draw.choice(steps)()
        except UserError:
            assert roster.plain() == before, "a refusal changed something"
        assert roster.version >= version
        assert least <= roster.wanted <= least + more
        assert len(roster.decoders) <= least + more + 1
        assert any(one.state != "starting" for one in roster.decoders.values()), "nobody is left"
        assert roster.change is not None or roster.takes, "nobody takes sessions, and nobody changes that"
    with contextlib.suppress(UserError):
        roster.give_up(tokens[-1])
    for _ in range(40):  # then one puts it in order
        if roster.change is None:
            token = roster.begin("one", TIDY)
        going = [name for name, one in roster.decoders.items() if one.state == "draining"]
        if len(roster.takes) < roster.wanted and len(roster.decoders) <= roster.most:
            roster.started(token, roster.enter(token))
        elif going:
            roster.remove(token, going[0])
        elif roster.surplus:
            roster.drain(token, roster.surplus[0])
    roster.end(token)
    assert roster.tidy
