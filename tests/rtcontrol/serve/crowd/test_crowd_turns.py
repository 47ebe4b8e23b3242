"""Who of a crowd is decided for now: earliest deadline, then priority; nobody is forgotten."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.serve.crowd.member import CrowdMember, MemberSight, MemberTerms, MemberTick
from rtcontrol.serve.crowd.turns import MARGIN, MOST, BatchTimes, choose, in_time, stretched

MS = 1_000_000


def member(serial: int, priority: int = 0, **terms: Any) -> CrowdMember:
    given = {"instruction": "go", "period_ns": 200 * MS, "deadline_ns": 200 * MS, "ttl_ms": 900.0}
    given |= {"every_tick": False, "safe_calls": None, **terms}
    return CrowdMember(str(serial), 0, MemberTerms(priority=priority, **given), serial, 0)  # type: ignore[arg-type]


def tick(serial: int, deadline_ms: int, priority: int = 0, served: int = 0) -> MemberTick:
    one = member(serial, priority)
    one.served = served
    return MemberTick(one, serial, 0, deadline_ms * MS, 0)


ticks = st.lists(
    st.builds(tick, st.integers(1, 99), st.integers(-50, 400), st.integers(0, 9), st.integers(0, 3)),
    max_size=30,
    unique_by=lambda one: one.k,
)


@given(ticks, st.integers(0, 60), st.integers(0, 60), st.integers(1, 64))
def test_everybody_is_asked_for_told_or_waits_and_the_most_urgent_first(
    waiting: list[MemberTick], alone_ms: int, more_ms: int, most: int
) -> None:
    expected: Callable[[int], float] = lambda n: (alone_ms + (n - 1) * more_ms) * MS  # noqa: E731
    turn = choose(waiting, 0, expected, most)
    assert sorted(t.k for part in turn for t in part) == sorted(t.k for t in waiting)
    assert len(turn.batch) <= most
    # An empty batch, where the first one alone is too much: gittensor-ai-lab/sparkinfer#217.
    assert turn.batch or all(t.deadline_ns <= 0 for t in waiting)
    assert all(t.deadline_ns < alone_ms * MS or t.deadline_ns <= 0 for t in turn.hopeless)
    if len(turn.batch) > 1:
        assert expected(len(turn.batch)) <= MARGIN * turn.batch[0].deadline_ns
    for later in turn.waiting:
        for now in turn.batch:
            earlier = (now.deadline_ns, -now.member.terms.priority) <= (later.deadline_ns, -later.member.terms.priority)
            assert earlier or now.member.terms.priority >= later.member.terms.priority


def test_where_not_all_can_be_in_time_the_lowest_priority_waits_however_early_its_deadline_is() -> None:
    waiting = [tick(i, 30 + i, priority=9 * (i == 3)) for i in range(4)]
    turn = choose(waiting, 0, lambda n: 12.0 * n * MS, 64)
    assert 3 in [t.k for t in turn.batch] or turn.waiting[0].k == 3
    kept, later = in_time(waiting, 0, lambda n: 12.0 * n * MS)
    assert len(kept) == 2 and kept[-1].k == 3 and {t.k for t in later} == {0, 1, 2} - {kept[0].k}


# Requests of a low priority never had their turn: kubernetes/kubernetes#86373, volcano-sh/volcano#748.
def test_where_there_is_never_time_for_all_nobody_of_one_priority_starves() -> None:
    members, numbers = [member(i) for i in range(10)], itertools.count(1)
    served = dict.fromkeys(range(10), 0)
    for _ in range(100):
        waiting = [MemberTick(one, i, 0, 200 * MS, 0) for i, one in enumerate(members)]
        for one in choose(waiting, 0, lambda n: 30.0 * n * MS, 64).batch:
            one.member.served = next(numbers)
            served[one.k] += 1
    assert max(served.values()) - min(served.values()) <= 1


def test_a_batch_that_was_late_is_halved_until_it_is_in_time_and_grows_again() -> None:
    times = BatchTimes()
    seen = []
    for _ in range(12):
        seen.append(count := min(64, times.most))
        times.took(count, 1, late=False)
    assert seen[-1] == 64
    for _ in range(7):
        times.took(min(64, times.most), 1, late=True)
    assert times.most == 1
    for _ in range(40):
        times.took(times.most, 1, late=False)
    assert times.most > 32


def test_a_member_that_nothing_happens_to_is_asked_less_often_and_never_beyond_half_of_its_ttl() -> None:
    one = member(1, ttl_ms=1200.0)
    one.look = MemberSight(1, 0, 0, "still", None)
    one.standing, one.newest_decided = "call", ("still", "go")
    periods = []
    for _ in range(6):
        assert one.rests
        one.stretch = stretched(one.stretch)
        periods.append(one.period_ns // MS)
    assert periods == [400, 600, 600, 600, 600, 600] and one.stretch == MOST
    one.look = MemberSight(2, 0, 0, "moved", None)
    assert not one.rests
    assert not member(2, every_tick=True).rests
