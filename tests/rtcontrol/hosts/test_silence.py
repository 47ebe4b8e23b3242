"""When a decoder's process that answers no ping is lost: by how long, and by what the kernel reports."""

from __future__ import annotations

import pytest

from rtcontrol.hosts.silence_core import DEAD_AFTER_S, DOUBT_AFTER_S, PING_EVERY_S, STILL_S, SilenceCore

STOPPED, WAITING, BUSY, GONE = "stopped", "waiting", "busy", "gone"


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
        ([None] * 200, DEAD_AFTER_S + PING_EVERY_S),
        ([WAITING, GONE], 2 * PING_EVERY_S),
        ([BUSY] * 30 + [WAITING] * 100, 3.0 + STILL_S + PING_EVERY_S),
        (([WAITING] * 10 + [BUSY]) * 20, DEAD_AFTER_S + PING_EVERY_S),
    ],
    ids=["waits", "stopped", "works", "unknown", "gone", "works, then waits", "gets somewhere now and then"],
)
def test_silent_process_is_lost_by_what_the_kernel_reports(states: list[str | None], after_s: float) -> None:
    assert lost_after(states) == pytest.approx(after_s)


def test_process_that_answers_late_is_not_lost() -> None:
    answers = set(range(19, 1000, 19))  # every 1.9 s
    assert lost_after([STOPPED] * 1000, answers) is None


def test_doubt_begins_again_after_an_answer() -> None:
    assert lost_after([WAITING] * 100, {20}) == pytest.approx(2.0 + DOUBT_AFTER_S + PING_EVERY_S)
