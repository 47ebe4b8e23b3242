"""Who of a crowd is decided for now: earliest deadline, then priority; nobody is forgotten."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.serve.crowd.member import CrowdMember, MemberSight, MemberTerms, MemberTick
from rtcontrol.serve.crowd.turns import MARGIN, MOST, BatchTimes, choose, stretched

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
def test_most_urgent_that_can_be_in_time_are_decided_for(
    waiting: list[MemberTick], alone_ms: int, more_ms: int, most: int
) -> None:
    expected: Callable[[int], float] = lambda n: (alone_ms + (n - 1) * more_ms) * MS  # noqa: E731
    batch = choose(waiting, 0, expected, most)
    assert len(batch) <= most and {t.k for t in batch} <= {t.k for t in waiting}
    # An empty batch, where the first one alone is too much: gittensor-ai-lab/sparkinfer#217.
    assert batch or all(t.deadline_ns <= 0 for t in waiting)
    able = [t for t in waiting if alone_ms * MS <= t.deadline_ns]
    if len(batch) > 1:
        assert expected(len(batch)) <= MARGIN * min(t.deadline_ns for t in batch)
    if able and expected(len(able)) <= max(t.deadline_ns for t in able):
        assert all(now.deadline_ns <= later.deadline_ns for now in batch for later in able if later not in batch)


def test_highest_priority_is_decided_for_where_not_all_can_be_in_time() -> None:
    waiting = [tick(i, 30 + i, priority=9 * (i == 3)) for i in range(4)]
    assert [t.k for t in choose(waiting, 0, lambda n: 12.0 * n * MS, 64)] == [3]


# Requests of a low priority never had their turn: kubernetes/kubernetes#86373, volcano-sh/volcano#748.
def test_where_there_is_never_time_for_all_nobody_of_one_priority_starves() -> None:
    members, numbers = [member(i) for i in range(10)], itertools.count(1)
    served = dict.fromkeys(range(10), 0)
    for _ in range(100):
        waiting = [MemberTick(one, i, 0, 200 * MS, 0) for i, one in enumerate(members)]
        for one in choose(waiting, 0, lambda n: 30.0 * n * MS, 64):
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
