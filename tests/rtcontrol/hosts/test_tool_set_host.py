"""A host whose tools change from question to question: which are open, what waits, what is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rtcontrol.hosts.deciders import RandomSource
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host
from rtcontrol.hosts.tool_set_host import LIMIT, ToolOffer, ToolSetHost
from rtcontrol.models.errors import UserError
from tests.helpers.processes import until


class Look(dict[str, Any]):
    offer: ToolOffer
    over = False


def offer(name: str) -> ToolOffer:
    return ToolOffer(({"name": name, "parameters": {"type": "object", "properties": {}}},))


def request(tick: int, name: str) -> DecisionRequest:
    look = Look()
    look.offer = offer(name)
    return DecisionRequest(tick, 0, "", "", data=look)


class Opened:
    """Opens hosts in a pool: `opening` may hold it up, `pools` are those that were used."""

    def __init__(self) -> None:
        self.pool = InProcessPool()
        self.pool.start()
        self.names: list[str] = []
        self.opening: Callable[[str], None] = lambda name: None
        self.told: list[str] = []

    def __call__(self, session: str, wanted: ToolOffer) -> Host:
        name = wanted.tools[0]["name"]
        self.names.append(name)
        self.opening(name)
        made = self.pool.open(session, RandomSource(wanted.tools))
        made.start()
        return made


@pytest.fixture
def opened() -> Iterator[Opened]:
    made = Opened()
    yield made
    made.pool.close()


@pytest.fixture
def host(opened: Opened) -> Iterator[ToolSetHost]:
    made = ToolSetHost("game", opened, opened.told.append)
    made.start()
    yield made
    made.close()


def reply(host: ToolSetHost, within_s: float = 20.0) -> DecisionReply:
    give_up = time.monotonic() + within_s
    while time.monotonic() < give_up:
        if (found := host.wait(10_000_000)) is not None:
            return found
    raise AssertionError("no reply")


def called(host: ToolSetHost, tick: int, name: str) -> str:
    host.submit(request(tick, name))
    found = reply(host)
    assert found.tick == tick and found.decision is not None and found.decision.call is not None, found.error
    return found.decision.call.name


def test_each_question_is_decided_with_its_own_tools_and_a_set_is_opened_once(
    host: ToolSetHost, opened: Opened
) -> None:
    assert [called(host, k, name) for k, name in enumerate(("a", "b", "a", "b"))] == ["a", "b", "a", "b"]
    assert opened.names == ["a", "b"]
    assert len(host.shares) == 4 and host.threads


def test_the_set_that_was_not_used_for_longest_is_closed(host: ToolSetHost, opened: Opened) -> None:
    names = [f"n{i}" for i in range(LIMIT)]
    for k, name in enumerate((*names, names[0], "one-more", names[0], names[1])):
        called(host, k, name)
    assert opened.names == [*names, "one-more", names[1]]
    until(lambda: opened.pool.places.taken == LIMIT, 5)


def test_where_the_place_is_full_its_own_oldest_sets_give_way(host: ToolSetHost, opened: Opened) -> None:
    for k, name in enumerate(("a", "b", "c")):
        called(host, k, name)
    opened.pool.places.limit = 3
    assert called(host, 3, "d") == "d" and called(host, 4, "c") == "c"
    assert opened.names == ["a", "b", "c", "d", "d"] and opened.pool.places.taken == 3


def test_a_host_without_a_place_of_its_own_says_that_all_are_taken(host: ToolSetHost, opened: Opened) -> None:
    opened.pool.places.limit = 0
    host.submit(request(0, "a"))
    assert "as many as it may" in str(reply(host).error)


def test_fewer_sets_stay_open_where_fewer_may(opened: Opened) -> None:
    may = [3]
    host = ToolSetHost("game", opened, limit=lambda: may[0])
    host.start()
    for k, name in enumerate(("a", "b", "c")):
        called(host, k, name)
    may[0] = 1
    assert called(host, 3, "d") == "d"
    until(lambda: opened.pool.places.taken == 1, 5)
    host.close()


def test_what_was_prepared_is_open_when_it_is_asked_for(opened: Opened) -> None:
    host = ToolSetHost("game", opened)
    host.prepare(offer("a"))
    until(lambda: opened.names == ["a"], 10)
    assert called(host, 0, "a") == "a" and opened.names == ["a"]
    host.close()


def test_tools_that_cannot_be_opened_are_an_error_of_their_question_told_once(
    host: ToolSetHost, opened: Opened
) -> None:
    def refuse(name: str) -> None:
        if name == "bad":
            raise UserError("No model knows it.", "Name one.")

    opened.opening = refuse
    for tick in range(3):
        host.submit(request(tick, "bad"))
        found = reply(host)
        assert (found.tick, found.decision) == (tick, None) and "No model knows it" in str(found.error)
        assert found.mistake is None, "it is no fault of the instruction"
    assert opened.told == ["No model knows it. Name one."]
    assert called(host, 3, "good") == "good" and host.alive()


def test_a_question_that_was_given_up_while_its_tools_were_opened_has_no_reply(
    host: ToolSetHost, opened: Opened
) -> None:
    free = threading.Event()
    opened.opening = lambda name: free.wait(10) and None
    host.submit(request(0, "a"))
    until(lambda: opened.names == ["a"], 10)
    host.cancel(0)
    free.set()
    assert called(host, 1, "a") == "a" and opened.names == ["a"]


def test_a_question_that_is_over_is_given_up_and_the_next_one_is_decided(host: ToolSetHost, opened: Opened) -> None:
    assert called(host, 0, "a") == "a"
    asked, inner = threading.Event(), host._open[offer("a").key]
    submit, inner.submit = inner.submit, lambda request: asked.set()  # type: ignore[method-assign]
    slow = request(1, "a")
    host.submit(slow)
    assert asked.wait(10)
    inner.submit = submit  # type: ignore[method-assign]
    assert isinstance(slow.data, Look)
    slow.data.over = True
    found = reply(host)
    assert (found.tick, found.decision) == (1, None) and "nobody waits" in str(found.error)
    never = request(2, "never-opened")
    assert isinstance(never.data, Look)
    never.data.over = True
    host.submit(never)
    assert reply(host).tick == 2 and opened.names == ["a"]
    assert called(host, 3, "a") == "a"


def test_a_decoder_that_is_lost_costs_its_question_alone(host: ToolSetHost, opened: Opened) -> None:
    assert called(host, 0, "a") == "a"
    opened.pool.close()
    opened.pool = InProcessPool()
    opened.pool.start()
    before = host.incarnation
    assert called(host, 1, "a") == "a", "the closed one was seen, and another opened"
    held = threading.Event()
    inner = host._open[offer("a").key]
    inner.submit = lambda request: held.set()  # type: ignore[method-assign]
    host.submit(request(2, "a"))
    assert held.wait(10)
    opened.pool.close()
    until(lambda: host.incarnation == before + 1, 10)
    assert [event.event for event in host.events] == ["lost"]
    until(host.alive, 10)
    opened.pool = InProcessPool()
    opened.pool.start()
    assert called(host, 3, "a") == "a"


def test_while_a_lost_decoder_is_away_it_is_not_alive(host: ToolSetHost, opened: Opened) -> None:
    assert called(host, 0, "a") == "a" and host.alive()
    back, asked = threading.Event(), threading.Event()
    host._open[offer("a").key].submit = lambda request: asked.set()  # type: ignore[method-assign]
    host.submit(request(1, "a"))
    assert asked.wait(10)
    opened.opening = lambda name: back.wait(10) and None
    opened.pool.close()
    until(lambda: not host.alive(), 10)
    opened.pool = InProcessPool()
    opened.pool.start()
    until(lambda: opened.names == ["a", "a"], 10)
    assert not host.alive()
    back.set()
    until(host.alive, 10)
    assert called(host, 2, "a") == "a"


def test_a_decoder_whose_standby_takes_over_is_not_opened_anew(host: ToolSetHost, opened: Opened) -> None:
    assert called(host, 0, "a") == "a"
    asked, inner = threading.Event(), host._open[offer("a").key]
    submit, inner.submit = inner.submit, lambda request: asked.set()  # type: ignore[method-assign]
    host.submit(request(1, "a"))
    assert asked.wait(10)
    inner.submit = submit  # type: ignore[method-assign]
    inner.incarnation += 1  # the standby's
    until(lambda: host.incarnation == 1 and host.alive(), 10)
    assert called(host, 2, "a") == "a" and opened.names == ["a"]


def test_a_decoder_that_is_lost_between_two_questions_is_seen(host: ToolSetHost, opened: Opened) -> None:
    assert called(host, 0, "a") == "a" and host.alive()
    host._open[offer("a").key].alive = lambda: False  # type: ignore[method-assign]
    assert not host.alive()


def test_a_wait_ends_early_when_it_is_woken(host: ToolSetHost) -> None:
    threading.Timer(0.05, host.wake).start()
    began = time.monotonic()
    assert host.wait(20_000_000_000) is None and time.monotonic() - began < 10
