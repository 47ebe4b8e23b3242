"""Sessions whose decider's process is lost and comes back: who is up, what is freed, and when a build is given up."""

from __future__ import annotations

import random

import pytest

from rtcontrol.hosts.pool_core import (
    AGAIN_NS,
    ATTEMPTS,
    REBUILDS,
    PoolCore,
    Session,
)
from rtcontrol.hosts.protocol import LIMIT, DecoderUnavailable
from rtcontrol.models.errors import UserError

S = 1_000_000_000


def pool_of(*names: str) -> tuple[PoolCore, list[Session]]:
    """Return a pool whose process is up, with these sessions."""
    core = PoolCore(LIMIT)
    core.restored("life 1")
    sessions = [Session(name, name.encode()) for name in names]
    for session in sessions:
        core.open(session)
        assert core.built(session, "life 1", 0)
    return core, sessions


def test_loss_and_return_are_events_of_each_session() -> None:
    core, (a, b) = pool_of("a", "b")
    core.lost(5 * S)
    assert core.life is None and not (a.up or b.up) and core.missing(5 * S) == []
    core.restored("life 2")
    assert core.built(a, "life 2", 8 * S) and a.up and core.missing(8 * S) == [b]
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


def test_session_counts_from_its_opening_to_its_close() -> None:
    core, (a, b) = PoolCore(1), (Session(name, b"") for name in "ab")
    core.restored("life 1")
    core.open(a)
    with pytest.raises(DecoderUnavailable, match="1 open sessions") as refused:
        core.open(b)
    assert refused.value.full
    assert core.released(a) and not core.released(a)
    core.open(b)
    assert core.missing(0) == [b]


def test_closed_pool_and_one_that_gave_up_have_no_decider() -> None:
    core, (a,) = pool_of("a")
    core.end("Ray was lost.")
    assert (a.up, a.gave_up, core.gave_up, core.closed) == (False, "Ray was lost.", "Ray was lost.", False)
    core, (a,) = pool_of("a")
    core.end()
    core.restored("life 2")
    assert (a.up, a.gave_up, core.closed, core.life) == (False, None, True, None)
    with pytest.raises(DecoderUnavailable, match="closed"):
        core.open(Session("b", b"b"))


@pytest.mark.parametrize(
    ("error", "attempts"), [(UserError("No such checkpoint.", ""), 1), (DecoderUnavailable("lost", ""), ATTEMPTS)]
)
def test_new_session_has_its_builds_error(error: UserError, attempts: int) -> None:
    core, a = PoolCore(LIMIT), Session("a", b"a")
    core.restored("life 1")
    core.open(a)
    for _ in range(attempts):
        assert core.missing(0) == [a]
        core.failed(a, error, 0)
    assert a.error is error and core.missing(S) == []


def test_build_that_fails_again_and_again_is_given_up_with_its_reason() -> None:
    core, (a, b) = pool_of("a", "b")
    core.lost(S)
    core.restored("life 2")
    core.built(b, "life 2", 2 * S)
    now_ns = 2 * S
    for _ in range(REBUILDS):
        assert core.missing(now_ns) == [a]
        core.failed(a, UserError("No such checkpoint.", ""), now_ns)
        assert core.missing(now_ns + AGAIN_NS - 1) == []
        now_ns += AGAIN_NS
    assert core.missing(now_ns) == [] and b.gave_up is None
    assert a.gave_up is not None and a.gave_up.startswith("The decider could not be made again 30 times: No such")


@pytest.mark.parametrize("seed", range(25))
def test_random_lives_leave_none_up_in_a_dead_process(seed: int) -> None:
    chance, core = random.Random(seed), PoolCore(LIMIT)
    life, built_in = 0, dict[Session, int]()
    for step in range(300):
        now, open_ = step * S, sorted(core.sessions, key=lambda session: session.key)
        what = chance.random()
        if core.life is None and what < 0.4:
            life += 1
            core.restored(f"life {life}")
        elif core.life is not None and what < 0.06:
            core.lost(now)
        elif what < 0.35 or not open_:
            core.open(Session(str(step), b"%d" % step))
        elif what < 0.5:
            assert core.released(chance.choice(open_))
        for session in core.missing(now):
            if chance.random() < 0.5:
                assert core.built(session, core.life, now)
                built_in[session] = life
        for session in core.sessions:
            assert not session.up or (core.life is not None and built_in[session] == life)
            assert [e.event for e in session.events] == (["lost", "restarted"] * 300)[: len(session.events)]
            assert session.incarnation == len(session.events) // 2
