"""Two deciders of one session: whose answer is used, when, and what is reported of the first decider's answer."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import pytest
from cart import Scripted
from pooled import reply_of
from simulated import MS, SimulatedHost, Simulation, call_of

from rtcontrol.hosts.backup import BACKUP, FIRST, BackupCore, BackupRule
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.layered import BackupHost
from rtcontrol.hosts.layered_core import usually_in_time
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision

PERIOD_MS = 50
TERMS = BackupRule(0.5, PERIOD_MS * MS, 4)


class Pair(Simulation):
    """Two simulated deciders under a `BackupCore`."""

    def __init__(self) -> None:
        self.first = SimulatedHost(FIRST, call_of(FIRST))
        self.backup = SimulatedHost(BACKUP, call_of(BACKUP))
        super().__init__(BackupCore(TERMS), {FIRST: self.first, BACKUP: self.backup})

    def take_ms(self, first: float | None, backup: float | None = 1.0) -> None:
        """Set how many ms the deciders' answers take from now on; None: they never come."""
        self.first.after_ms, self.backup.after_ms = lambda request: first, lambda request: backup

    def fail(self, host: SimulatedHost, error: str) -> None:
        def decide(request: DecisionRequest) -> Decision:
            raise ConnectionError(error)

        host.decide = decide

    def decided(self, tick: int, within_ms: float = 50.0, **more: Any) -> tuple[str, float]:
        """Request a decision; return which decider answered, and after how many ms. The loop waits for a period."""
        began, count = self.now_ms, len(self.replies)
        self.ask(tick, within_ms, **more)
        self.run(max(within_ms, PERIOD_MS))
        ((at, reply),) = self.replies[count:]
        assert reply.tick == tick and reply.decision is not None and reply.decision.call is not None, reply
        assert reply.decision.call == Call(reply.decided_by, {"to": more.get("observation", f"o{tick}")})
        return reply.decided_by, at - began

    def discourage(self, by: str = BACKUP) -> None:
        """Make the first decider late a few times, so that it is not waited for any more."""
        self.take_ms(60)
        for tick in (-101, -100):
            self.ask(tick)
            self.run(100)
            assert self.replies[-1][1].decided_by == by
        assert not usually_in_time(self.core.recent)
        self.take_ms(1)

    def outcomes(self) -> dict[int, str]:
        """Return the reported outcomes of the first decider's answers, by tick."""
        return {event["first"]: event["outcome"] for event in self.reports}


@pytest.fixture
def pair() -> Pair:
    return Pair()


# First's time, the backup's, the time there is: who decides, after how long, and what becomes of the first's answer.
COURSES = {
    "both in time": (15.0, 1.0, 400.0, FIRST, 15.0, "in_time"),
    "the first at once": (0.5, 1.0, 400.0, FIRST, 0.5, "in_time"),
    "the first late": (500.0, 1.0, 400.0, BACKUP, 350.0, "late"),
    "the first never": (None, 1.0, 400.0, BACKUP, 350.0, None),
    "the first in its last eighth": (360.0, 1.0, 400.0, BACKUP, 350.0, "late"),
    "both slow, the first faster": (380.0, 390.0, 400.0, FIRST, 380.0, "in_time"),
    "both slow, the backup faster": (390.0, 380.0, 400.0, BACKUP, 380.0, "late"),
}


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES.keys())
def test_backup_decides_before_deadline_if_first_decider_late(pair: Pair, course: tuple[Any, ...]) -> None:
    first, backup, within_ms, by, after_ms, outcome = course
    pair.take_ms(first, backup)
    assert pair.decided(0, within_ms) == (by, after_ms)
    pair.run(1000)
    assert pair.outcomes() == ({} if outcome is None else {0: outcome}) and len(pair.replies) == 1
    assert [request.tick for request in pair.backup.requests] == [0], "it is there should the first one not be"


def test_usually_late_first_decider_is_not_waited_for(pair: Pair) -> None:
    pair.discourage()
    pair.take_ms(5)
    assert pair.decided(1, 400.0) == (BACKUP, 1.0)
    assert pair.outcomes()[1] == "late"
    assert [pair.decided(tick, 400.0) for tick in (2, 3)] == [(BACKUP, 1.0), (FIRST, 5.0)], "half are in time again"


@pytest.mark.parametrize(("sure", "by", "outcome"), [(0.49, BACKUP, "unsure"), (0.51, FIRST, "in_time")])
def test_unconfident_answer_leaves_decision_to_backup(pair: Pair, sure: float, by: str, outcome: str) -> None:
    pair.first.decide = call_of(FIRST, sure)
    pair.take_ms(1, 5)
    assert pair.decided(0) == (by, 5.0 if by == BACKUP else 1.0)
    (event,) = pair.reports
    assert (event["outcome"], event["confidence"], event["answer_ms"]) == (outcome, sure, 1.0)


def test_first_decider_alone_decides_even_if_unconfident_or_late(pair: Pair) -> None:
    pair.first.decide = call_of(FIRST, 0.1)
    pair.lose(pair.backup)
    assert pair.core.state.up and pair.decided(5) == (FIRST, 1.0)
    pair.first.decide = call_of(FIRST)
    pair.discourage(FIRST)
    pair.lose(pair.backup, "out of memory")
    assert pair.core.state.up
    assert pair.notices == [
        "the backup cannot be restarted (out of memory): from now on only the first decider decides"
    ]
    pair.fail(pair.first, "gone")
    pair.ask(6)
    pair.run(50)
    assert pair.replies[-1][1].error == "ConnectionError: gone"
    pair.lose(pair.first, "out of luck")
    assert pair.core.state.gave_up == "out of memory" and not pair.core.state.up


def test_failed_backup_leaves_time_to_first_decider(pair: Pair) -> None:
    pair.discourage()
    pair.fail(pair.backup, "no backup")
    pair.take_ms(20)
    assert pair.decided(10, 400.0) == (FIRST, 20.0)
    pair.take_ms(None)
    pair.ask(11, 400.0)
    pair.run(400)
    at, reply = pair.replies[-1]
    assert (reply.decided_by, reply.error, at) == (BACKUP, "ConnectionError: no backup", pair.now_ms - 50)
    pair.backup.refuses = True  # its request cannot be sent
    pair.take_ms(1)
    assert pair.decided(12) == (FIRST, 1.0)


def test_further_call_of_tick_gets_its_own_answer(pair: Pair) -> None:
    pair.take_ms(70)
    assert pair.decided(7)[0] == BACKUP
    pair.take_ms(70, 30)
    pair.ask(7, history=("backup()",), observation="o7, after it")
    pair.run(40)
    further = pair.replies[-1][1]
    assert further.tick == 7 and further.decision is not None and further.decision.call is not None
    assert further.decision.call.arguments["to"] == "o7, after it"
    pair.run(100)
    assert len(pair.replies) == 2 and [(event.get("n", 0), event["outcome"]) for event in pair.reports] == [
        (0, "late"),
        (1, "late"),
    ]
    assert len({request.tick for request in pair.first.requests}) == 2, "each under a number of its own"


def test_lost_first_decider_costs_requests_but_no_tick(pair: Pair) -> None:
    pair.take_ms(30)
    pair.ask(0, 400.0)
    pair.lose(pair.first)
    pair.run(50)
    assert (pair.replies[0][0], pair.replies[0][1].decided_by) == (1.0, BACKUP), "a lost one is not waited for"
    assert pair.decided(1) == (BACKUP, 1.0)
    assert pair.outcomes() == {0: "lost"} and pair.core.state.incarnation == 0
    pair.restore(pair.first)
    assert [(event.decider, event.event) for event in pair.core.state.events] == [(FIRST, "lost"), (FIRST, "restarted")]
    pair.lose(pair.backup)
    pair.restore(pair.backup)
    assert pair.core.state.incarnation == 1, "what is pending is lost with the backup"


@pytest.mark.parametrize("seed", range(25))
def test_random_course_keeps_the_rules(seed: int) -> None:
    """Each request gets one reply for its own observation, with random failures, delays, losses and cancellations."""
    chance, pair = random.Random(seed), Pair()
    slow = chance.choice((5.0, 40.0, 120.0))
    replied = Counter[int]()

    def decide(name: str) -> Any:
        def made(request: DecisionRequest) -> Decision:
            if chance.random() < 0.1:
                raise ConnectionError("no")
            return call_of(name, chance.choice((0.3, 0.9)))(request)

        return made

    def judged(reply: DecisionReply) -> None:
        replied[reply.tick] += 1
        if reply.decision is not None and reply.decision.call is not None:
            assert reply.decision.call.arguments["to"] == f"o{reply.tick}"

    pair.on_reply = judged
    pair.first.decide, pair.backup.decide = decide(FIRST), decide(BACKUP)
    pair.first.after_ms = lambda request: None if chance.random() < 0.05 else chance.uniform(0.2, slow)
    pair.backup.after_ms = lambda request: chance.uniform(0.2, 60.0 if chance.random() < 0.1 else 5.0)
    for tick in range(150):
        host = chance.choice((pair.first, pair.backup))
        if chance.random() < 0.08:
            pair.lose(host) if host.up else pair.restore(host)
        pair.ask(tick)
        pair.run(PERIOD_MS)
        if not replied[tick]:
            pair.cancel(tick)
    pair.run(5_000)
    pair.ask(1_000)
    pair.run(5_000)
    assert max(replied.values()) == 1 and pair.first.most <= TERMS.in_flight and len(+replied) > 20
    asked = Counter(request.tick for request in pair.first.requests if request.tick < 1_000)
    assert Counter(event["first"] for event in pair.reports if event["first"] < 1_000) == asked, "each answer once"


@pytest.mark.integration
def test_first_decider_answers_before_deadline_and_wake_ends_wait() -> None:
    gone = threading.Event()

    def slowly(request: DecisionRequest) -> Decision:
        gone.wait(20)
        return call_of(FIRST)(request)

    host = BackupHost(InProcessHost(Scripted(slowly), 1), InProcessHost(Scripted(call_of(BACKUP)), 1), TERMS)
    host.start()
    host.submit(DecisionRequest(1, 1, "o1", "go", within_ns=60_000 * MS))
    threading.Timer(0.05, host.wake).start()
    assert host.wait(50_000 * MS) is None
    gone.set()
    assert reply_of(host).decided_by == FIRST
    host.close()
