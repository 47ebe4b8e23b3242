"""Runs with a slow, a dying and an unsure first decider: the backup flies on, and the record says who decided."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cart import Flight, Scripted, cart_agent, good
from linked import LinkedHost

from rtcontrol.hosts.failover import BackupHost, Handover
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Decision
from rtcontrol.telemetry import report
from rtcontrol.telemetry.record_reader import teacher_rows

pytestmark = pytest.mark.realtime
Decide = Callable[[DecisionRequest], Decision]
PERIOD_NS = 20_000_000


def slowly(least: float, most: float, loss: float = 0.0, sure: float = 0.9, decide: Decide = good) -> Decide:
    """As an endpoint far away: it answers after so many seconds, and loses some."""
    chance = random.Random(3)

    def answer(request: DecisionRequest) -> Decision:
        time.sleep(chance.uniform(least, most))
        if chance.random() < loss:
            raise ConnectionError("the endpoint hung up")
        return replace(decide(request), confidence={"function": sure})

    return answer


def backed(first: Any, backup: Decide = good, in_flight: int = 4) -> BackupHost:
    host = InProcessHost(Scripted(first), in_flight) if callable(first) else first
    terms = Handover(0.5, PERIOD_NS, in_flight)
    return BackupHost(host, InProcessHost(Scripted(backup), 1), terms)


def fly(out: Path, host: BackupHost, **more: Any) -> Flight:
    settings = {"backup": "local", "duration_s": 1.0, **more}
    return Flight(out, host=host, **settings).run()


def is_exact(flown: Flight) -> Counter[str]:
    """Each tick has one decision at most, and the account counts what the record says."""
    account, ticks, answers = flown.loop.account, flown.ticks, [e for e in flown.lines if "first" in e]
    assert len({tick["k"] for tick in ticks}) == len(ticks) == account.ticks
    assert len([e for e in flown.lines if e.get("why") == "fresh"]) <= account.ticks
    by = Counter(tick["decided_by"] for tick in ticks if "decided_by" in tick)
    assert (by["first"], by["backup"]) == (account.decided_by_first, account.decided_by_backup)
    assert by.total() >= account.on_time
    outcomes = Counter(event["outcome"] for event in answers)
    told = report.of_record(flown.path)
    assert told["decided_by"] == {"first": by["first"], "backup": by["backup"]}
    assert {name: n for name, n in told["first_answers"].items() if n} == dict(outcomes)
    assert told["answer_ms"]["max"] is None or told["answer_ms"]["max"] >= max(e["answer_ms"] for e in answers) * 0.99
    return outcomes


def test_a_slow_first_decider_costs_no_tick_and_all_that_it_answers_is_kept(tmp_path: Path) -> None:
    flown = fly(tmp_path, backed(slowly(0.06, 0.2, loss=0.1)))
    outcomes, account = is_exact(flown), flown.loop.account
    assert account.decided_by_first == 0 and account.decided_by_backup >= account.on_time
    flown.blames("decide", 0, 3)
    assert outcomes["late"] >= 20 and outcomes["failed"] >= 1 and outcomes["in_time"] == 0
    assert any("the endpoint hung up" in error["error"] for error in report.of_record(flown.path)["errors"])


def test_rows_of_unsure_illegal_and_further_answers_are_not_made() -> None:
    tool = {"type": "function", "function": {"name": "push", "parameters": {"type": "object", "properties": {}}}}
    events: list[dict[str, Any]] = [{"header": {"tools": [tool], "model": "m", "allow_null": False}}]
    events += [{"observation": str(k), "instruction": "go", "history": [], "k": k} for k in range(6)]
    call = {"name": "push", "arguments": {}}
    answer = {"outcome": "late", "answer": call}
    events += [
        {"first": 0, **answer},
        {"first": 1, **answer, "outcome": "unsure"},
        {"first": 2, **answer, "answer": {"name": "pull", "arguments": {}}},
        {"first": 3, **answer, "answer": None},
        {"first": 4, **answer, "n": 1},
        {"first": 5, "outcome": "failed", "error": "lost"},
        {"first": 99, **answer},
    ]
    assert [row["observation"] for row in teacher_rows(events)] == ["0"]
    events[0]["header"]["allow_null"] = True
    assert [(row["observation"], row["call"]) for row in teacher_rows(events)] == [("0", call), ("3", None)]


def test_a_first_decider_that_is_killed_is_told_and_the_backup_goes_on(tmp_path: Path) -> None:
    linked = LinkedHost(tmp_path)
    flown = Flight(tmp_path, host=backed(linked, in_flight=1), duration_s=3.5, backup="local")
    flown.after(20, lambda: os.kill(linked.pid, signal.SIGKILL))
    flown.run()
    outcomes, account = is_exact(flown), flown.loop.account
    assert account.decided_by_first >= 5 and account.decided_by_backup >= 40
    assert outcomes["in_time"] >= 5 and outcomes["lost"] >= 1
    flown.blames("decide", 0, 4)


def test_where_both_fail_the_loops_own_fallback_acts(tmp_path: Path) -> None:
    def broken(request: DecisionRequest) -> Decision:
        if request.tick >= 10:
            raise RuntimeError("no backup any more")
        return good(request)

    flown = fly(tmp_path, backed(slowly(0.1, 0.2), broken), agent=cart_agent(hold_ms=100.0), duration_s=0.8)
    is_exact(flown)
    missed = [tick for tick in flown.ticks if tick["k"] >= 10 and tick.get("cause") == "decide"]
    assert len(missed) >= 20 and {tick["subcause"] for tick in missed} <= {"error", "decoder_slow", "queued"}
    assert not any("decided_by" in tick for tick in missed)
    # The hold ends where tick 14 begins. Whoever is first: the safe call acts once, not before; nothing is held after.
    order = ("hold", "safe", "none")
    actions = [tick["action"] for tick in missed]
    assert actions[0] == "hold" and actions == sorted(actions, key=order.index) and actions.count("safe") <= 1
    acted = [event for event in flown.lines if "safe" in event and event["why"] == "miss"]
    assert len(acted) == 1 and acted[0]["in_force"] and actions[-1] == "none"
    last = max(tick["t_s"] for tick in flown.ticks if "cause" not in tick)
    assert acted[0]["t_s"] >= last + 0.0999 and flown.loop.account.safe_calls >= 1
    assert any("no backup any more" in line for line in flown.said)


def test_both_lost_for_good_end_the_run_and_one_alone_does_not(tmp_path: Path) -> None:
    host = backed(slowly(0.001, 0.002))
    first, backup = host.first.host, host._backup
    flight = Flight(tmp_path, host=host, duration_s=20.0, backup="local")
    flight.after(10, lambda: setattr(first, "gave_up", "out of memory"))
    flight.after(30, lambda: setattr(backup, "gave_up", "out of luck"))
    flight.run()
    assert flight.loop.ended_by == "host" and flight.loop.account.ticks >= 30
    told = [line for line in flight.said if "lost for good" in line]
    assert told == [
        "the first decider is lost for good (out of memory): from now on the backup alone decides",
        "the backup is lost for good (out of luck): from now on the first decider alone decides",
    ]
    assert flight.said[-1] == "no more decisions: out of luck"


def test_in_lockstep_the_backup_decides_and_the_accounts_are_exact(tmp_path: Path) -> None:
    flown = fly(tmp_path, backed(slowly(0.02, 0.05)), clock="lockstep", duration_s=20.0)
    is_exact(flown)
    account = flown.loop.account
    assert account.ticks == 1000 and account.decided_by_backup > 0.9 * account.ticks
