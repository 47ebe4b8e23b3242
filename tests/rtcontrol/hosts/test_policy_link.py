"""A conversation with a policy server: what answers which question; when a connection is cut or opened."""

from __future__ import annotations

import random

import pytest
from simulated import MS

from rtcontrol.hosts import policy_link_core as core
from rtcontrol.hosts.array_message import pack_message
from rtcontrol.hosts.policy_link_core import OPEN_NS, RETRY_NS, LinkCore

HELLO = pack_message({"policy": "standin"})
URL = "ws://robot:8000"


class Link:
    """A `LinkCore` on a clock that the test moves: each event gives the actions as words."""

    def __init__(self) -> None:
        self.core, self.ms = LinkCore(URL), 0.0
        self.lost: list[tuple[str, str]] = []

    @property
    def ns(self) -> int:
        return round(self.ms * MS)

    def words(self, actions: list[core.Action]) -> list[str]:
        words = []
        for action in actions:
            if isinstance(action, core.Lose):
                self.lost.append((action.lost.loss, str(action.lost)))
                words.append(f"lose {action.lost.loss}")
            elif isinstance(action, core.Answer | core.Send):
                text = action.message if isinstance(action, core.Answer) else action.packed
                words.append(f"{type(action).__name__.lower()} {text.decode()}")
            else:
                words.append(type(action).__name__.lower())
        return words

    def ask(self, text: str = "q", ms: float = 50.0) -> list[str]:
        return self.words(self.core.requested(text.encode(), round(ms * MS), self.ns))

    def open(self, first: bytes | str = HELLO) -> list[str]:
        return self.words(self.core.opened(first, self.ns))

    def refuse(self) -> list[str]:
        return self.words(self.core.refused("http", "HTTP 503", self.ns))

    def answer(self, text: str = "a", more: bool = False) -> list[str]:
        return self.words(self.core.received(text.encode(), more, self.ns))

    def pong(self) -> list[str]:
        return self.words(self.core.pong(self.ns))

    def close(self, why: str = "gone") -> list[str]:
        return self.words(self.core.closed(why, self.ns))

    def give_up(self) -> list[str]:
        return self.words(self.core.given_up(self.ns))

    def distrust(self) -> list[str]:
        return self.words(self.core.distrusted(self.ns))

    def wake(self) -> list[str]:
        """Let the time pass until something is due."""
        assert self.core.wake_ns is not None
        self.ms = max(self.ms, self.core.wake_ns / MS)
        return self.words(self.core.woke(self.ns))


@pytest.fixture
def link() -> Link:
    """A link with a connection on which nothing was asked."""
    made = Link()
    assert made.ask("0") == ["open"] and made.open() == ["send 0"]
    assert made.answer("0") == ["ping", "answer 0"] and made.pong() == []
    return made


def test_question_waits_for_the_pong_of_the_one_before(link: Link) -> None:
    assert link.ask("1") == ["send 1"] and link.answer("1") == ["ping", "answer 1"]
    assert link.ask("2") == [], "a second answer may be under way"
    assert link.pong() == ["send 2"]
    assert link.core.wake_ns == 50 * MS and link.answer("2") == ["ping", "answer 2"]
    assert link.core.wake_ns is None


# huggingface/OpenEnv#1143: it takes no timeout, an answer too many shifts all later ones as well.
def test_second_answer_cuts_wherever_it_comes(link: Link) -> None:
    link.ask("1")
    assert link.answer("1", more=True) == ["lose malformed", "cut", "open"]
    link.open()
    link.ask("2")
    assert link.answer("2") == ["ping", "answer 2"]
    assert link.answer("2 again") == ["cut", "open"], "before the pong"
    link.open()
    link.ask("3")
    link.answer("3")
    link.ask("4")
    assert link.answer("3 again") == ["cut", "open"], "while the next question waits for the pong"
    assert link.open() == ["send 4"]


# huggingface/OpenEnv#1143: after a timeout the socket was kept, and each answer from then on was one too old.
def test_late_answer_is_none_of_a_later_question(link: Link) -> None:
    link.ask("1", ms=20)
    assert link.wake() == ["lose timeout", "cut", "open"] and link.ms == 20
    assert link.lost[-1] == ("timeout", "no answer in time")
    assert link.ask("2", ms=20) == [] and link.open() == ["send 2"]


# strands-labs/robots#3321: a listener that accepts the connection and says nothing held its client for ever.
def test_silent_listener_costs_the_time_of_the_question() -> None:
    link = Link()
    assert link.ask(ms=100) == ["open"] and link.wake() == ["lose timeout"]
    assert link.lost == [("timeout", "no connection in time")]
    assert link.ask(ms=100) == [] and link.wake() == ["lose timeout"], "one try to open at a time"
    assert link.wake() == ["cut"] and link.ms == OPEN_NS / MS
    assert link.ask() == ["lose timeout"] and "accepted no connection within 10 s" in link.lost[-1][1]


def test_refused_connection_is_tried_again_after_a_pause() -> None:
    link = Link()
    link.ask()
    assert link.refuse() == ["lose http"]
    assert link.ask() == ["lose http"], "at once"
    link.ms += RETRY_NS / MS - 1
    assert link.ask() == ["lose http"]
    link.ms += 1
    assert link.ask() == ["open"]


@pytest.mark.parametrize(
    ("first", "loss", "what"),
    [
        ("Traceback\nValueError: no checkpoint", "server_error", "failed: ValueError: no checkpoint"),
        (b"\xc1", "malformed", "is not a policy server's"),
        (b"\x07", "malformed", "it is no map"),
    ],
)
def test_first_message_that_is_no_metadata_is_lost(first: bytes | str, loss: str, what: str) -> None:
    link = Link()
    link.ask()
    assert link.open(first) == ["cut", f"lose {loss}"] and what in link.lost[0][1]


def test_connection_that_ends_in_a_question_loses_it(link: Link) -> None:
    link.ask("1")
    assert link.close("no close frame") == ["lose connection", "open"]
    assert link.lost[-1] == ("connection", "the connection to the policy server ended: no close frame")
    link.open()
    assert link.close() == [] and link.ask("2") == ["open"], "an idle one is opened when it is needed"
    link.open()
    link.answer("2")
    link.ask("3")
    assert link.close() == ["open"] and link.open() == ["send 3"]


def test_servers_words_are_a_server_error(link: Link) -> None:
    link.ask()
    words = link.words(link.core.received("Traceback ...\nRuntimeError: CUDA out of memory\n", False, link.ns))
    assert words == ["lose server_error", "cut", "open"]
    assert link.lost[-1][1].endswith("failed: RuntimeError: CUDA out of memory")


def test_given_up_question_cuts_only_where_it_was_sent(link: Link) -> None:
    link.ask("1")
    assert link.give_up() == ["cut", "open"]
    link.ask("2")
    assert link.give_up() == [] and link.open() == []
    assert link.give_up() == [], "of no question"
    assert link.distrust() == ["cut", "open"] and link.distrust() == []


@pytest.mark.parametrize("seed", range(25))
def test_random_conversation_gives_each_question_its_own_answer(seed: int) -> None:
    """Whatever the server sends twice, late or never: one end of each question, and never another one's answer."""
    chance, link = random.Random(seed), Link()
    wire: list[tuple[float, str, str]] = []  # when, what and which text this connection will bring
    ends = dict[str, str]()
    asked = ""

    def take(words: list[str]) -> None:
        nonlocal wire, asked
        for word in words:
            kind, _, text = word.partition(" ")
            if kind == "open":
                wire = [(link.ms + chance.uniform(1, 30), chance.choice(["refuse", *["open"] * 9]), "")]
            elif kind == "cut":
                wire = []
            elif kind == "send":
                assert not any(what == "answer" for _, what, _ in wire), "something is under way"
                at = link.ms + chance.choice((5.0, 5.0, 5.0, 80.0))
                wire += [(at, chance.choice(["two", "close", *["answer"] * 18]), text)]
                wire += [(at + 1.0, "answer", text)] if chance.random() < 0.15 else []
            elif kind == "ping":
                wire += [(max([link.ms, *(w[0] for w in wire)]) + 2.0, "pong", "")]
            elif kind in ("answer", "lose"):
                assert asked and asked not in ends and (kind == "lose" or text == asked)
                ends[asked], asked = kind, ""

    happen = {
        "open": lambda text: link.open(),
        "refuse": lambda text: link.refuse(),
        "answer": link.answer,
        "two": lambda text: link.answer(text, more=True),
        "close": lambda text: link.close(),
        "pong": lambda text: link.pong(),
    }
    for number in range(80):
        asked = f"{number}"
        take(link.ask(asked))
        end_ms = link.ms + chance.uniform(20.0, 70.0)
        if asked and chance.random() < 0.1:
            ends[asked], asked = "given up", ""
            take(link.give_up())
        while True:
            due = link.core.wake_ns
            times = [w[0] for w in wire] + ([due / MS] if due is not None else [])
            if not times or (min(times) > end_ms and not asked):
                break
            link.ms = max(link.ms, min(times))
            wire.sort()
            if wire and wire[0][0] <= link.ms:
                _, what, text = wire.pop(0)
                take(happen[what](text))
            else:
                take(link.wake())
        link.ms = max(link.ms, end_ms)
        assert not asked, "each question ends within its time"
    assert len(ends) == 80 and list(ends.values()).count("answer") > 10
