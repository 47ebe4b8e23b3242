"""Sessions of a decoder pool: deciders after a loss, the order of requests."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from pooled import request

from rtcontrol.hosts.deciders import NoopSource
from rtcontrol.hosts.pool import (
    ATTEMPTS,
    OLD_BATCHES,
    REBUILD_DELAY_NS,
    REBUILDS,
    UNLIMITED_NS,
    EdfScheduler,
    Pool,
    PooledHost,
    ScheduledRequest,
)
from rtcontrol.hosts.protocol import MAX_SESSIONS, DecisionRequest, DecoderUnavailable
from rtcontrol.models.errors import UserError

S = 1_000_000_000


def session(pool: Pool, name: str) -> PooledHost:
    return PooledHost(pool, NoopSource(), name)


def pool_of(*names: str) -> tuple[Pool, list[PooledHost]]:
    """Return a pool whose process is up, with these sessions."""
    pool = Pool("pool", MAX_SESSIONS)
    pool.mark_running("life 1")
    hosts = [session(pool, name) for name in names]
    for host in hosts:
        pool.add(host)
        assert pool.mark_built(host, "life 1", 0)
    return pool, hosts


def test_process_loss_and_return_are_events_of_each_session() -> None:
    pool, (a, b) = pool_of("a", "b")
    pool.mark_lost(5 * S)
    assert pool.process_info is None and not (a.up or b.up) and pool.hosts_to_build(5 * S) == []
    pool.mark_running("life 2")
    assert pool.mark_built(a, "life 2", 8 * S) and a.up and pool.hosts_to_build(8 * S) == [b]
    assert [(e.event, e.t_ns, e.seconds) for e in a.events] == [("lost", 5 * S, 0.0), ("restarted", 8 * S, 3.0)]
    pool.mark_lost(9 * S)
    assert [e.event for e in b.events] == ["lost"], "it was not back from the loss before"
    assert (a.incarnation, b.incarnation) == (1, 0)


def test_decider_built_in_earlier_process_does_not_count() -> None:
    pool, (a,) = pool_of("a")
    pool.mark_lost(S)
    assert not pool.mark_built(a, "life 1", 2 * S), "the process is away"
    pool.mark_running("life 2")
    assert not pool.mark_built(a, "life 1", 2 * S) and not a.up
    pool.remove(a)
    assert not pool.mark_built(a, "life 2", 3 * S), "it was closed while it was lost"


def test_session_counts_toward_limit_from_open_to_close() -> None:
    pool = Pool("pool", 1)
    a, b = (session(pool, name) for name in "ab")
    pool.mark_running("life 1")
    pool.add(a)
    with pytest.raises(DecoderUnavailable, match="1 open sessions") as refused:
        pool.add(b)
    assert refused.value.full
    assert pool.remove(a) and not pool.remove(a)
    pool.add(b)
    assert pool.hosts_to_build(0) == [b]


def test_closed_or_ended_pool_has_no_decider() -> None:
    pool, (a,) = pool_of("a")
    pool.end("Ray was lost.")
    assert (a.up, a.gave_up, pool.gave_up, pool.closed) == (False, "Ray was lost.", "Ray was lost.", False)
    pool, (a,) = pool_of("a")
    pool.end()
    pool.mark_running("life 2")
    assert (a.up, a.gave_up, pool.closed, pool.process_info) == (False, None, True, None)
    with pytest.raises(DecoderUnavailable, match="closed"):
        pool.add(session(pool, "b"))


@pytest.mark.parametrize(
    ("error", "attempts"), [(UserError("No such checkpoint.", ""), 1), (DecoderUnavailable("lost", ""), ATTEMPTS)]
)
def test_new_session_gets_error_of_its_build(error: UserError, attempts: int) -> None:
    pool = Pool("pool", MAX_SESSIONS)
    a = session(pool, "a")
    pool.mark_running("life 1")
    pool.add(a)
    for _ in range(attempts):
        assert pool.hosts_to_build(0) == [a]
        pool.mark_failed(a, error, 0)
    assert a.error is error and pool.hosts_to_build(S) == []


def test_failing_rebuild_is_given_up_with_reason() -> None:
    pool, (a, b) = pool_of("a", "b")
    pool.mark_lost(S)
    pool.mark_running("life 2")
    pool.mark_built(b, "life 2", 2 * S)
    now_ns = 2 * S
    for _ in range(REBUILDS):
        assert pool.hosts_to_build(now_ns) == [a]
        pool.mark_failed(a, UserError("No such checkpoint.", ""), now_ns)
        assert pool.hosts_to_build(now_ns + REBUILD_DELAY_NS - 1) == []
        now_ns += REBUILD_DELAY_NS
    assert pool.hosts_to_build(now_ns) == [] and b.gave_up is None
    assert a.gave_up is not None and a.gave_up.startswith(
        "The decider could not be built again after a loss, in 30 attempts: No such"
    )


@pytest.mark.parametrize("seed", range(25))
def test_random_restarts_leave_no_session_up_without_process(seed: int) -> None:
    chance, pool = random.Random(seed), Pool("pool", MAX_SESSIONS)
    life, built_in = 0, dict[PooledHost, int]()
    for step in range(300):
        now, open_ = step * S, list(pool.sessions)
        event = chance.random()
        if pool.process_info is None and event < 0.4:
            life += 1
            pool.mark_running(f"life {life}")
        elif pool.process_info is not None and event < 0.06:
            pool.mark_lost(now)
        elif event < 0.35 or not open_:
            pool.add(session(pool, str(step)))
        elif event < 0.5:
            assert pool.remove(chance.choice(open_))
        for host in pool.hosts_to_build(now):
            if chance.random() < 0.5:
                assert pool.mark_built(host, pool.process_info, now)
                built_in[host] = life
        for host in pool.sessions:
            assert not host.up or (pool.process_info is not None and built_in[host] == life)
            assert [e.event for e in host.events] == (["lost", "restarted"] * 300)[: len(host.events)]
            assert host.incarnation == len(host.events) // 2


# -- whose turn it is -----------------------------------------------------------------------------------------------

MS = 1_000_000


def due(tick: int, ms: float) -> DecisionRequest:
    return DecisionRequest(tick, 1, "x", "go", within_ns=int(ms * MS))


class Scheduler(EdfScheduler):
    """A scheduler with a clock, in ms, that the test moves."""

    ms = 0.0

    def ask(self, key: Any, request: DecisionRequest) -> None:
        self.enqueue(key, request, int(self.ms * MS))

    def turn(self, *arguments: Any, **named: Any) -> list[ScheduledRequest]:
        return self.next_batch(int(self.ms * MS), *arguments, **named)


def keys(turn: Any) -> list[Any]:
    return [key for key, _ in turn]


def one_kind(key: Any) -> str:
    return "model"


def test_patient_session_is_decided_after_all_others() -> None:
    scheduler = Scheduler()
    scheduler.ask("late", request(1))
    scheduler.ask("other", request(1))
    late = "late".__eq__
    taken = [scheduler.turn(patient=late, allow_patient=allow) for allow in (True, False, True)]
    assert [keys(t) for t in taken] == [["other"], [], ["late"]]
    assert scheduler.turn(patient=late) == []


def test_session_that_cancels_keeps_its_place_in_queue() -> None:
    scheduler = Scheduler()
    scheduler.ask("hasty", request(1))
    scheduler.ask("patient", request(1))
    scheduler.cancel("hasty", 1)
    scheduler.ask("hasty", request(2))
    taken = [*scheduler.turn(), *scheduler.turn(), *scheduler.turn()]
    assert [(key, entry.tick) for key, entry in taken] == [("hasty", 2), ("patient", 1)]
    scheduler.ask("hasty", request(3))
    scheduler.ask("patient", request(2))
    scheduler.cancel("hasty", 2)  # another's tick, or one long gone
    scheduler.remove("patient")
    taken = [*scheduler.turn(), *scheduler.turn()]
    assert [(key, entry.tick) for key, entry in taken] == [("hasty", 3)]


def test_request_with_earliest_deadline_goes_first() -> None:
    scheduler = Scheduler()
    for key, ms in (("slow", 100), ("fast", 10), ("middle", 50)):
        scheduler.ask(key, due(1, ms))
    assert [keys(scheduler.turn()) for _ in range(3)] == [["fast"], ["middle"], ["slow"]]


def test_requests_too_slow_together_are_decided_separately() -> None:
    scheduler = Scheduler()
    scheduler.record_duration("model", 1, 4 * MS)
    scheduler.record_duration("model", 2, 6 * MS)
    for key, ms in (("a", 5), ("b", 50), ("c", 60), ("d", 70)):
        scheduler.ask(key, due(1, ms))
    assert keys(scheduler.turn(one_kind)) == ["a"]  # two take 6 ms
    assert keys(scheduler.turn(one_kind)) == ["b", "c", "d"]  # three perhaps 9
    assert scheduler.turn(one_kind) == []


def test_batch_size_that_was_slow_once_is_tried_again() -> None:
    scheduler = Scheduler()
    scheduler.record_duration("model", 1, 4 * MS)
    scheduler.record_duration("model", 2, 500 * MS)
    for key in ("a", "b", "c"):
        scheduler.ask(key, due(1, 12))
    assert [scheduler.expected_ns("model", n) for n in (1, 2, 3)] == [4 * MS, 8 * MS, 12 * MS]
    assert keys(scheduler.turn(one_kind)) == ["a", "b", "c"]


def test_fast_time_of_batch_size_expires() -> None:
    scheduler = Scheduler()
    scheduler.record_duration("model", 1, 1 * MS)  # when the machine did nothing else
    for _ in range(OLD_BATCHES + 1):
        scheduler.record_duration("model", 4, 20 * MS)
    assert scheduler.expected_ns("model", 4) == pytest.approx(20 * MS)
    assert scheduler.expected_ns("model", 2) == 2 * MS, "there is nothing newer"
    for key in ("a", "b", "c", "d"):
        scheduler.ask(key, due(1, 12))
    assert keys(scheduler.turn(one_kind)) == ["a", "b", "c"], "four would be late"
    scheduler.record_duration("model", 1, 6 * MS)
    assert scheduler.expected_ns("model", 1) == 6 * MS, "it counts anew"


@pytest.mark.parametrize("seed", range(25))
def test_random_load_is_served_by_deadline(seed: int) -> None:
    """Each request is decided, replaced by a newer one, or cancelled exactly once."""
    chance, scheduler = random.Random(seed), Scheduler(depth=chance_depth(seed))
    within = {key: chance.choice((5.0, 20.0, 100.0, 0.0)) for key in range(chance.randint(2, 12))}
    waiting: dict[int, list[int]] = {key: [] for key in within}
    began: dict[int, float] = {}  # when each session began to wait
    served = Counter[int]()
    for tick in range(400):
        key = chance.choice(list(within))
        scheduler.ask(key, due(tick, within[key]))
        waiting[key] = [*waiting[key], tick][-chance_depth(seed) :]
        began.setdefault(key, scheduler.ms)
        if chance.random() < 0.1 and waiting[key]:
            scheduler.cancel(key, waiting[key].pop(0))
        if chance.random() < 0.5:
            turn = scheduler.turn(one_kind)
            ends = {k: round(began[k] + (within[k] or UNLIMITED_NS / MS), 5) for k in within if waiting[k]}
            assert len(turn) < 2 or scheduler.expected_ns("model", len(turn)) <= (turn[0][1].within_ns or UNLIMITED_NS)
            taken = [ends.pop(k) for k, _ in turn]
            assert taken == sorted(taken) and max(taken, default=0.0) <= min(ends.values(), default=1e9) + 1e-5
            for k, newest in turn:
                assert newest.tick == waiting[k].pop(), "the newest"
                served[k] += 1
                del began[k]
                if waiting[k]:
                    began[k] = scheduler.ms
            took = chance.uniform(1.0, 4.0)
            scheduler.ms += took
            if turn:
                scheduler.record_duration("model", len(turn), round(took * MS))
        assert all(scheduler.ms - since <= UNLIMITED_NS / MS + 100 for k, since in began.items() if waiting[k]), (
            "starved"
        )
    while turn := scheduler.turn(one_kind):
        for k, newest in turn:
            assert newest.tick == waiting[k].pop()
    assert not any(waiting.values()) and all(served.values())


def chance_depth(seed: int) -> int:
    return 1 + seed % 3
