"""Two deciders of one session: who decides each question, once, and what of an answer is never used."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from cart import Scripted

from rtcontrol.hosts import failover as first_deciders
from rtcontrol.hosts.failover import BackupHost, Handover
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision
from tests.helpers.processes import until

MS = 1_000_000
PERIOD_NS = 50 * MS


@dataclass
class Gate:
    """A decider on threads that answers when it is let: each call names who decided, and what."""

    name: str
    sure: float = 1.0
    asked: list[int] = field(default_factory=list)
    under_way: int = 0
    most: int = 0
    open: Callable[[DecisionRequest], bool] = lambda request: True
    error: str = ""

    def __call__(self, request: DecisionRequest) -> Decision:
        self.asked.append(request.tick)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            while not self.open(request):
                time.sleep(0.0005)
            if self.error:
                raise ConnectionError(self.error)
            return Decision(Call(self.name, {"to": request.observation}), {"function": 1.0, "arg1": self.sure})
        finally:
            self.under_way -= 1


class Pair:
    """The host under test, its two deciders, and what it told."""

    def __init__(self) -> None:
        self.first, self.backup = Gate("first"), Gate("backup")
        self.hosts = InProcessHost(Scripted(self.first), 4), InProcessHost(Scripted(self.backup), 1)
        self.host = BackupHost(*self.hosts, Handover(0.5, PERIOD_NS, 4))
        self.told: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.host.first.emit = lambda t_ns, event: self.told.append({**event, "t_ns": t_ns})
        self.host.first.notify = self.said.append
        self.host.start()

    def ask(self, tick: int, within_ms: float = 50.0, age_ms: float = 0.0, **more: Any) -> DecisionRequest:
        captured_ns = time.monotonic_ns() - round(age_ms * MS)
        told = {"epoch": 1, "instruction": "go", "within_ns": round(within_ms * MS), "seq": tick, **more}
        request = DecisionRequest(tick, observation=f"o{tick}", captured_ns=captured_ns, **told)
        self.host.submit(request)
        return request

    def reply(self, seconds: float = 5.0) -> DecisionReply:
        found: list[DecisionReply | None] = [None]
        until(lambda: found.append(self.host.wait(10 * MS)) or found[-1], "no reply", seconds, every=0.0)
        assert found[-1] is not None
        return found[-1]

    def decided(self, tick: int, **more: Any) -> tuple[str, str]:
        """Who decided, and of which observation."""
        self.ask(tick, **more)
        reply = self.reply()
        assert reply.tick == tick and reply.decision is not None and reply.decision.call is not None, reply
        assert reply.decision.call.name == reply.by
        return reply.by, reply.decision.call.arguments["to"]

    def outcomes(self, count: int) -> dict[int, str]:
        """Of the first one's answers, by tick, once there are so many."""
        until(lambda: self.heard() and len(self.told) >= count, f"not {count} answers: {self.told}", every=0.001)
        return {event["first"]: event["outcome"] for event in self.told}

    def heard(self) -> bool:
        """Look for what came; a reply that nobody waits for any more says nothing here."""
        self.host.wait(0)
        return True

    def answered(self, tick: int) -> None:
        """Wait for the first one's late answer to this tick."""
        until(lambda: self.heard() and tick in self.outcomes(0), every=0.001)
        assert self.outcomes(0)[tick] == "late"

    def discourage(self) -> None:
        """The first one is late for a few, so that it is not waited for."""
        self.first.open = lambda request: False
        for tick in range(2):
            assert self.decided(tick, within_ms=4.0)[0] == "backup"
            time.sleep(0.005)
        self.first.open = lambda request: True
        self.outcomes(2)
        self.told.clear()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.first.open = made.backup.open = lambda request: True
    made.host.close()


def test_the_first_one_decides_while_it_is_there_in_time_and_the_backups_answer_waits_for_it(pair: Pair) -> None:
    pair.first.open = lambda request: time.monotonic_ns() > request.captured_ns + 15 * MS
    for tick in range(5):
        assert pair.decided(tick, within_ms=400.0) == ("first", f"o{tick}")
    assert pair.backup.asked == list(range(5)), "it is there should the first one not be"
    assert pair.outcomes(5) == dict.fromkeys(range(5), "in_time")
    assert all(10 < event["answer_ms"] < 400 for event in pair.told), pair.told


def test_where_the_first_one_is_not_there_in_time_the_backup_decides_before_the_deadline(pair: Pair) -> None:
    pair.first.open = lambda request: False
    began = time.monotonic()
    assert pair.decided(0, within_ms=400.0) == ("backup", "o0")
    assert 0.3 < time.monotonic() - began < 0.4, "it was waited for, and not for too long"
    time.sleep(0.06)
    # One that is not usually in time is not waited for.
    began = time.monotonic()
    assert pair.decided(1, within_ms=400.0) == ("backup", "o1")
    assert time.monotonic() - began < 0.2
    pair.first.open = lambda request: True
    assert pair.outcomes(2) == {0: "late", 1: "late"}


def test_an_unsure_answer_of_the_first_one_is_the_backups_to_decide(pair: Pair) -> None:
    pair.first.sure = 0.49
    assert pair.decided(0, within_ms=400.0) == ("backup", "o0")
    pair.first.sure = 0.51
    assert pair.decided(1, within_ms=400.0) == ("first", "o1")
    assert pair.outcomes(2) == {0: "unsure", 1: "in_time"}


def test_of_one_question_one_reply_is_given_whoever_else_answers_it(pair: Pair) -> None:
    chance = random.Random(5)
    took = [(chance.choice((1, 8, 30)), chance.choice((1, 5))) for _ in range(60)]
    pair.first.open = lambda request: time.monotonic_ns() > request.captured_ns + took[request.tick][0] * MS
    pair.backup.open = lambda request: time.monotonic_ns() > request.captured_ns + took[request.tick][1] * MS
    replies: list[DecisionReply] = []
    for tick in range(60):
        pair.ask(tick, within_ms=10.0)
        until_ns = time.monotonic_ns() + 10 * MS
        while (left := until_ns - time.monotonic_ns()) > 0:
            if (reply := pair.host.wait(left)) is not None:
                replies.append(reply)
    until_ns = time.monotonic_ns() + 100 * MS
    while (left := until_ns - time.monotonic_ns()) > 0:
        if (reply := pair.host.wait(left)) is not None:
            replies.append(reply)
    ticks = [reply.tick for reply in replies]
    assert sorted(set(ticks)) == sorted(ticks), "no tick has two"
    assert set(ticks) == set(range(60)) and {reply.by for reply in replies} == {"first", "backup"}


def test_what_was_answered_in_the_warm_up_decides_no_tick() -> None:
    pair = Pair()
    pair.first.open = lambda request: False
    pair.ask(-1, within_ms=0.0)
    assert pair.reply().by == "backup"
    pair.first.open = lambda request: request.tick < 0
    time.sleep(0.02)
    assert pair.decided(0, within_ms=4.0) == ("backup", "o0")
    assert pair.told == [], "it is no tick's"
    pair.first.open = lambda request: True
    pair.host.close()


def test_a_slow_first_one_is_asked_no_more_than_may_be_under_way_and_none_of_it_waits(pair: Pair) -> None:
    pair.first.open = lambda request: False
    for tick in range(182):
        assert pair.decided(tick, within_ms=2.0)[0] == "backup"
    assert sorted(pair.first.asked) == [0, 1, 2, 3] and pair.first.most == 4
    pair.first.open = lambda request: True
    assert pair.outcomes(4) == dict.fromkeys(range(4), "late")
    assert len(pair.backup.asked) == 182


def test_a_request_that_is_never_answered_is_lost_and_gives_its_place_to_another(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_deciders, "GIVE_UP_NS", 60 * MS)
    pair.first.open = lambda request: request.tick >= 4
    for tick in range(4):
        assert pair.decided(tick, within_ms=2.0)[0] == "backup"
    time.sleep(0.07)
    assert pair.decided(4, within_ms=2.0)[0] == "backup"
    assert pair.outcomes(4) == dict.fromkeys(range(4), "lost")
    assert "no answer within 0.06 s" in pair.told[0]["error"]
    pair.first.open = lambda request: True  # what comes now is of no question
    assert pair.outcomes(5)[4] == "late" and len(pair.told) == 5


def test_a_first_one_that_fails_is_told_once_asked_seldom_and_decides_again_when_it_is_back(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_deciders, "RETRY_NS", 100 * MS)
    pair.first.error = "refused"
    for tick in range(12):
        assert pair.decided(tick, within_ms=4.0)[0] == "backup"
        pair.outcomes(min(tick + 1, 8))
    assert len(pair.first.asked) == 8 and pair.outcomes(8) == dict.fromkeys(range(8), "failed")
    assert len(pair.said) == 1 and "failed 8 times in a row (ConnectionError: refused)" in pair.said[0]
    time.sleep(0.1)
    assert pair.decided(20, within_ms=4.0)[0] == "backup"
    assert pair.outcomes(9)[20] == "failed" and len(pair.said) == 1
    time.sleep(0.1)
    pair.first.error = ""
    pair.decided(21)
    assert pair.outcomes(10)[21] in ("in_time", "late") and pair.said[1:] == ["the first decider answers again"]
    for tick in range(22, 40):
        pair.decided(tick)
        pair.outcomes(tick - 11)
    assert pair.decided(40) == ("first", "o40"), "it is waited for again"


def test_without_the_backup_the_first_one_decides_alone_though_it_is_unsure(pair: Pair) -> None:
    pair.first.sure = 0.1
    pair.hosts[1].close()
    assert pair.host.alive()
    assert pair.decided(5) == ("first", "o5")
    pair.first.error = "gone"
    pair.ask(6)
    reply = pair.reply()
    assert reply.decision is None and reply.error == "ConnectionError: gone"
    pair.hosts[0].close()
    assert not pair.host.alive()


def test_without_the_backup_a_first_one_that_is_late_is_no_decoder_unless_it_is_alone_for_good(pair: Pair) -> None:
    pair.discourage()
    assert pair.host.alive()
    pair.hosts[1].close()
    assert not pair.host.alive(), "what misses now misses for want of the backup"
    pair.hosts[1].gave_up = "out of memory"
    assert pair.host.alive()


def test_where_the_backup_fails_the_first_one_has_the_time_that_is_left_and_the_loop_the_rest(pair: Pair) -> None:
    pair.discourage()
    pair.backup.error = "no backup"
    pair.first.open = lambda request: time.monotonic_ns() > request.captured_ns + 20 * MS
    assert pair.decided(10, within_ms=400.0) == ("first", "o10")
    pair.first.open = lambda request: False
    began = time.monotonic()
    pair.ask(11, within_ms=400.0)
    reply = pair.reply()
    assert (reply.by, reply.decision, reply.error) == ("backup", None, "ConnectionError: no backup")
    assert 0.3 < time.monotonic() - began < 0.4


def test_an_answer_to_a_ticks_first_call_is_none_to_its_further_one(pair: Pair) -> None:
    pair.discourage()
    gone = threading.Event()
    pair.first.open = lambda request: gone.is_set()
    assert pair.decided(7) == ("backup", "o7")
    pair.backup.open = lambda request: gone.is_set()
    pair.ask(7, history=("backup()",))
    pair.host.wait(5 * MS)
    gone.set()
    replies = [pair.reply()]
    assert pair.outcomes(2) and [event.get("n", 0) for event in pair.told].count(1) == 1
    assert {event["outcome"] for event in pair.told if not event.get("n")} == {"late"}
    assert pair.host.wait(20 * MS) is None and replies[0].tick == 7
    assert len(pair.first.asked) == len(set(pair.first.asked)), "each under a number of its own"


def test_what_the_loop_gives_up_is_not_begun_by_the_backup_and_still_answered_by_the_first(pair: Pair) -> None:
    pair.discourage()
    pair.first.open = pair.backup.open = lambda request: False
    pair.ask(11)
    until(lambda: 11 in pair.backup.asked)
    pair.ask(12)
    pair.host.cancel(11)
    pair.host.cancel(12)
    pair.first.open = pair.backup.open = lambda request: True
    assert pair.outcomes(2) == {11: "late", 12: "late"}
    time.sleep(0.02)
    assert 12 not in pair.backup.asked
    assert pair.decided(13)[1] == "o13"


def test_any_thread_ends_a_wait_while_the_first_one_is_waited_for(pair: Pair) -> None:
    pair.first.open = lambda request: False
    pair.ask(1, within_ms=5000.0)
    threading.Timer(0.05, pair.host.wake).start()
    began = time.monotonic()
    assert pair.host.wait(4000 * MS) is None
    assert time.monotonic() - began < 2.0
