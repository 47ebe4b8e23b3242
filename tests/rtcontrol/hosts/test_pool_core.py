"""Sessions whose decider's process is lost and comes back: who is up, what is freed, and when a build is given up."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rtcontrol.hosts.pool_core import (
    DEAD_AFTER_S,
    DOUBT_AFTER_S,
    PING_EVERY_S,
    REBUILDS,
    STILL_S,
    DeciderTable,
    PoolCore,
    Rebuild,
    Session,
    SilenceCore,
)
from rtcontrol.hosts.protocol import LIMIT, DecoderUnavailable

S = 1_000_000_000
STOPPED, WAITING, BUSY, GONE = "stopped", "waiting", "busy", "gone"  # as the kernel's word is read


def pool_of(*names: str) -> tuple[PoolCore, list[Session]]:
    """Return a pool whose process is up, with these sessions."""
    core = PoolCore(LIMIT)
    core.restored("life 1")
    sessions = [Session(name, name.encode()) for name in names]
    assert all(core.built(session, "life 1", 0) for session in sessions)
    return core, sessions


def test_loss_and_return_are_events_of_each_session() -> None:
    core, (a, b) = pool_of("a", "b")
    core.lost(5 * S)
    assert core.life is None and not (a.up or b.up)
    core.lost(6 * S)
    core.restored("life 2")
    assert core.built(a, "life 2", 8 * S) and a.up and not b.up
    assert [(e.event, e.t_ns, e.seconds) for e in a.events] == [("lost", 5 * S, 0.0), ("restarted", 8 * S, 3.0)]
    core.lost(9 * S)
    assert [e.event for e in b.events] == ["lost"], "it was not back from the loss before"
    assert (a.incarnation, b.incarnation) == (1, 0)


def test_decider_of_an_older_life_does_not_count() -> None:
    core, (a,) = pool_of("a")
    core.lost(S)
    assert not core.built(a, "life 1", 2 * S), "the process is away"
    core.restored("life 2")
    assert not core.built(a, "life 1", 2 * S) and not a.up
    core.released(a)
    assert not core.built(a, "life 2", 3 * S), "it was closed while it was lost"


def test_every_session_that_ends_while_the_process_is_away_is_freed_when_it_is_back() -> None:
    core, sessions = pool_of(*map(str, range(LIMIT)))
    core.lost(S)
    assert [core.released(session) for session in sessions] == [[]] * LIMIT
    assert core.freed(b"one that was being built") == [] and len(core.restored("life 2")) == LIMIT
    assert core.freed(b"x") == [b"x"] and core.restored("life 3") == []


def test_session_counts_from_its_opening_and_a_failed_one_is_freed() -> None:
    core, (a,) = PoolCore(2), [Session("a", b"a")]
    core.restored("life 1")
    core.open()
    assert core.built(a, "life 1", 0) and core.opened(a) == []
    core.open()
    with pytest.raises(DecoderUnavailable, match="2 open sessions") as refused:
        core.open()
    assert refused.value.full
    assert core.opened(Session("b", b"b")) == [b"b"]
    assert core.released(a) == [b"a"] and core.released(a) == [] and not core.sessions


def test_closed_pool_and_one_that_gave_up_have_no_decider() -> None:
    core, (a,) = pool_of("a")
    core.end("Ray was lost.")
    assert (a.up, a.gave_up, core.gave_up, core.closed) == (False, "Ray was lost.", "Ray was lost.", False)
    core, (a,) = pool_of("a")
    core.end()
    assert (a.up, a.gave_up, core.closed) == (False, None, True)
    assert core.restored("life 2") == [] and core.life is None and Rebuild(core).over


def test_build_that_fails_in_every_round_is_given_up_with_its_reason() -> None:
    core, (a, b, closed) = pool_of("a", "b", "closed")
    core.lost(S)
    core.restored("life 2")
    rebuild = Rebuild(core)
    core.built(b, "life 2", 2 * S)
    core.sessions.discard(closed)
    assert rebuild.round([a, closed], "No such checkpoint.") == [b"closed"]
    for _ in range(REBUILDS - 2):
        assert rebuild.round([a], None) == [] and not rebuild.over
    rebuild.round([a], None)
    assert rebuild.over and b.gave_up is None
    assert a.gave_up == "The decider could not be made again 30 times: No such checkpoint."


@pytest.mark.parametrize("seed", range(25))
def test_random_lives_leave_no_decider_unfreed_and_none_up_in_a_dead_process(seed: int) -> None:
    """What was built in the life that is up is of an open session, or is freed, once."""
    chance, core = random.Random(seed), PoolCore(LIMIT)
    life, built_in = 0, dict[Session, int]()
    there: dict[bytes, int] = {}  # what the process holds, by the life that it was built in
    freed = Counter[bytes]()
    closed: list[Session] = []

    def free(keys: list[bytes]) -> None:
        for key in keys:
            freed[key] += 1
            there.pop(key, None)

    for step in range(300):
        now, open_ = step * S, list(core.sessions)
        what = chance.random()
        if core.life is None and what < 0.4:
            life += 1
            there.clear()
            free(core.restored(f"life {life}"))
        elif core.life is not None and what < 0.06:
            core.lost(now)
        elif what < 0.35 or not open_:
            session = Session(str(step), b"%d" % step)
            there[session.key] = life
            if core.built(session, core.life, now):
                built_in[session] = life
            else:
                free(core.freed(session.key))
        elif what < 0.5:
            session = chance.choice(open_)
            closed.append(session)
            free(core.released(session))
        else:
            session = chance.choice(open_)
            if core.life is not None and not session.up:
                there[session.key] = life
                assert core.built(session, core.life, now)
                built_in[session] = life
        for session in core.sessions:
            assert not session.up or (core.life is not None and built_in[session] == life)
            assert [e.event for e in session.events] == (["lost", "restarted"] * 300)[: len(session.events)]
            assert session.incarnation == len(session.events) // 2
        if core.life is not None:
            assert set(there) <= {session.key for session in core.sessions}, "what no session needs is freed"
    assert all(count == 1 for count in freed.values()) and len(closed) > 5


def test_deciders_of_a_session_closed_while_they_are_built_are_not_kept() -> None:
    table = DeciderTable()
    assert table.open(b"a") and table.open(b"b") and table.open(b"c")
    table.opened(b"a", ["left"])
    table.opened(b"b", None)
    assert not table.close(b"c")
    table.opened(b"c", ["right"])
    assert table.there == {b"a": ["left"]} and not table.open(b"c"), "its opening may come after its close"
    assert table.close(b"a") and not table.close(b"a") and table.there == {}
    for number in range(DeciderTable.REMEMBERED):
        table.close(b"%d" % number)
    assert table.open(b"c"), "so many are remembered"


def lost_after(states: list[str | None], answers: set[int] = frozenset()) -> float | None:  # type: ignore[assignment]
    """Return after how many s it is lost, where a round brings these states, and an answer where it is named."""
    silence = SilenceCore()
    for i, state in enumerate(states, start=1):
        silence.pinged()
        if i in answers:
            silence.answered()
        elif silence.lost(state):
            return i * PING_EVERY_S
    return None


@pytest.mark.parametrize(
    ("states", "after_s"),
    [
        ([WAITING] * 200, DOUBT_AFTER_S + PING_EVERY_S),
        ([STOPPED] * 200, DOUBT_AFTER_S + PING_EVERY_S),
        ([BUSY] * 200, DEAD_AFTER_S + PING_EVERY_S),
        ([WAITING, GONE], 2 * PING_EVERY_S),
        ([BUSY] * 30 + [WAITING] * 100, 3.0 + STILL_S + PING_EVERY_S),
        (([WAITING] * 10 + [BUSY]) * 20, DEAD_AFTER_S + PING_EVERY_S),
    ],
    ids=["waits", "stopped", "works", "gone", "works, then waits", "gets somewhere now and then"],
)
def test_silent_process_is_lost_by_what_the_kernel_reports(states: list[str | None], after_s: float) -> None:
    assert lost_after(states) == pytest.approx(after_s)


def test_doubt_begins_again_after_an_answer() -> None:
    assert lost_after([STOPPED] * 1000, set(range(19, 1000, 19))) is None, "every 1.9 s"
    assert lost_after([WAITING] * 100, {20}) == pytest.approx(2.0 + DOUBT_AFTER_S + PING_EVERY_S)
