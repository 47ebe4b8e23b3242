"""Tests of causes from evidence."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.loop.attribution import (
    STEPS,
    Evidence,
    ThreadUsage,
    attribute,
    covered_ms,
    step_durations,
    usual_durations,
)
from rtcontrol.telemetry.causes import CAUSES, Cause

D = 60.0
ms = st.floats(0, 200, allow_nan=False)
spans_ms = st.tuples(ms, ms).map(lambda pair: (min(pair), max(pair)))
faults = st.sampled_from(
    [None, None, None]
    + [(cause, sub) for cause in (Cause.NO_OBSERVATION, Cause.STALE_OBSERVATION) for sub in CAUSES[cause].subcauses]
    + [(Cause.DECIDE, "error"), (Cause.DECIDE, "send"), (Cause.INVALID, None)]
    + [(Cause.EXECUTE, sub) for sub in ("raised", "slow", "busy")]
)
kernels = st.builds(
    ThreadUsage,
    state=st.sampled_from([None, "S", "R", "T", "D", "X"]),
    ran_ms=st.none() | ms,
    delayed_ms=st.none() | ms,
    waking_ms=st.none() | ms,
    major_faults=st.none() | st.integers(0, 9),
    throttled_ms=st.none() | ms,
)


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    """Yield evidence about a tick that got only so far, with random further evidence."""
    reached = draw(st.integers(1, len(STEPS)))
    at, spans = 0.0, {}
    for _, stamp in STEPS[:reached]:
        at += draw(st.floats(0, 60, allow_nan=False))
        spans[stamp] = round(at, 4)
    over = reached in (6, 8) and draw(st.booleans())
    end = at if over else at + draw(st.floats(0, 60, allow_nan=False))
    fault = draw(faults)
    return Evidence(
        deadline_ms=D,
        end_ms=round(max(end, D) if fault is None else end, 4),
        spans=spans,
        over=over,
        fault=fault,
        late_ms=draw(ms) if fault is not None and fault[0] is Cause.STALE_OBSERVATION else None,
        usual=draw(st.dictionaries(st.sampled_from([name for name, _ in STEPS]), st.floats(0, 20))),
        pauses=[
            (b, e, draw(st.sampled_from(["gc", "starved", "stall", "stopped"])))
            for b, e in draw(st.lists(spans_ms, max_size=3))
        ],
        apart=draw(st.booleans()),
        gaps=draw(st.lists(spans_ms, max_size=3)),
        decoder_busy=draw(st.booleans()),
        arrival=draw(st.booleans()),
        host=draw(st.none() | st.sampled_from([*CAUSES[Cause.HOST].subcauses])),
        texts=draw(st.lists(spans_ms, max_size=3)),
        acting=draw(st.lists(spans_ms, max_size=3)),
        loop=draw(kernels),
        actuator=draw(kernels),
        decoder=draw(kernels),
        sockets=draw(kernels),
    )


@given(evidences())
def test_cause_explains_at_least_half_of_lateness(e: Evidence) -> None:
    verdict = attribute(e)
    published = CAUSES[verdict.cause].subcauses
    assert verdict.subcause in published if published else verdict.subcause is None
    if verdict.explained_ms is not None:
        assert verdict.explained_ms >= e.lateness_ms / 2
    json.dumps(e.fields(), allow_nan=False)
    assert attribute(e) == verdict, "nothing but its evidence"


@given(evidences())
def test_missing_evidence_gives_no_pause_and_no_wake(e: Evidence) -> None:
    blind = replace(
        e, pauses=(), texts=(), acting=(), loop=ThreadUsage(), actuator=ThreadUsage(), sockets=ThreadUsage()
    )
    assert attribute(blind).cause not in (Cause.PAUSE, Cause.WAKE)


@given(evidences())
def test_pause_of_the_whole_time_precedes_other_causes(e: Evidence) -> None:
    stopped = replace(e, apart=False, pauses=[(e.since_ms, e.end_ms, "stall")], late_ms=None)
    verdict = attribute(stopped)
    need = max(stopped.excess_ms / 2, 1.0)
    if e.fault is None and e.end_ms >= need:
        assert verdict.cause is Cause.PAUSE


@given(st.lists(spans_ms, max_size=6), st.lists(spans_ms, max_size=3))
def test_covered_time_is_counted_once(spans: list[tuple[float, float]], windows: list[tuple[float, float]]) -> None:
    covered = covered_ms(spans, windows)
    assert 0 <= covered <= covered_ms(windows, windows) + 1e-6
    assert covered <= sum(e - b for b, e in spans) + 1e-6
    assert covered_ms([*spans, *spans], [*windows, *windows]) == covered


def cause_of(e: Evidence) -> str:
    cause, subcause, _ = attribute(e)
    return cause.value if subcause is None else f"{cause.value}.{subcause}"


def unanswered(**more: Any) -> Evidence:
    """Return a tick that was requested at once, and has no answer at its deadline."""
    spans = {"woke": 0.1, "text": 0.5, "submitted": 1.0}
    return Evidence(deadline_ms=D, end_ms=D + 0.1, spans=spans, usual={"decide": 5.0}, **{"apart": True, **more})


def answered(begun: float, decided: float, replied: float, **more: Any) -> Evidence:
    spans = {**unanswered().spans, "received": 1.2, "begun": begun, "decided": decided, "replied": replied}
    return Evidence(D, replied, spans, over=True, usual={"decide": 5.0}, **{"apart": True, **more})


def read_slowly(woke: float = 32.0, text: float = 127.0, replied: float = 224.0, **more: Any) -> Evidence:
    spans = {"woke": woke, "text": text, "submitted": text, "begun": text, "decided": text + 1.0, "replied": replied}
    return Evidence(D, replied, spans, over=True, usual={"decide": 5.0}, apart=True, **more)


def acted(woke: float, decided: float, executed: float, usual: dict[str, float]) -> Evidence:
    spans = {"woke": woke, "text": woke, "submitted": woke, "begun": woke, "decided": decided, "replied": decided}
    spans |= {"executing": decided, "executed": executed}
    return Evidence(D, executed, spans, over=True, usual=usual, apart=True)


@pytest.mark.parametrize(
    ("evidence", "name"),
    [
        # What a step takes anyway explains nothing.
        (acted(0.1, 46.0, 71.0, {"decide": 10.0, "execute": 25.0}), "decide.decoder_slow"),
        (acted(0.1, 20.0, 71.0, {"decide": 20.0, "execute": 25.0}), "execute.slow"),
        (acted(40.0, 75.0, 75.0, {"decide": 35.0}), "unknown"),
        # Its own text, and those of the ticks before and after it.
        (read_slowly(texts=[(0.0, 32.0), (33.0, 127.0), (128.0, 223.0)]), "decide.observe"),
        (read_slowly(), "unknown"),
        (read_slowly(32.0, 72.0, texts=[(0.0, 32.0), (73.0, 90.0)], replied=150.0), "decide.observe"),
        (unanswered(), "decide.decoder_slow"),
        (unanswered(decoder_busy=True), "decide.queued"),
        (unanswered(decoder=ThreadUsage("T", 0.0)), "decide.decoder_stopped"),
        (unanswered(decoder=ThreadUsage("T", 0.0), decoder_busy=True), "decide.decoder_stopped"),
        (unanswered(decoder=ThreadUsage("R", 5.0, 50.0)), "decide.decoder_starved"),
        (unanswered(decoder=ThreadUsage("R", 0.0, 0.0)), "decide.decoder_starved"),
        (answered(1.2, 90.0, 90.2, decoder=ThreadUsage("S", 5.0, throttled_ms=80.0)), "decide.decoder_starved"),
        (unanswered(decoder=ThreadUsage("R", 20.0, 0.0)), "decide.decoder_slow"),
        (
            unanswered(decoder=ThreadUsage("R", 0.665, 0.0), decoder_busy=True),
            "decide.queued",
        ),  # it woke from the earlier one just now
        (unanswered(decoder=ThreadUsage("S", 0.0, 0.0)), "decide.decoder_slow"),
        (unanswered(decoder=ThreadUsage("X")), "host.lost"),
        (unanswered(host="restarting"), "host.restarting"),
        (unanswered(host="restarting", decoder=ThreadUsage("X")), "host.restarting"),
        # Meanwhile the decoder was at work: it would have been late all the same.
        (unanswered(pauses=[(10.0, 50.0, "stall")]), "decide.decoder_slow"),
        (unanswered(pauses=[(10.0, 50.0, "gc")], apart=False), "pause.gc"),
        (unanswered(pauses=[(10.0, 50.0, "stall")], apart=False, loop=ThreadUsage(major_faults=2)), "pause.disk"),
        (answered(1.2, 90.0, 90.2), "decide.decoder_slow"),
        (answered(80.0, 90.0, 90.2), "decide.queued"),
        (answered(1.2, 90.0, 90.2, gaps=[(10.0, 85.0)]), "decide.decoder_stopped"),
        (answered(80.0, 90.0, 90.2, gaps=[(2.0, 79.0)]), "decide.decoder_stopped"),
        (answered(1.2, 6.0, 90.0), "unknown"),
        (answered(1.2, 6.0, 90.0, loop=ThreadUsage(delayed_ms=70.0)), "wake.scheduler"),
        (answered(1.2, 6.0, 90.0, sockets=ThreadUsage(delayed_ms=70.0)), "wake.scheduler"),
        (unanswered(sockets=ThreadUsage("S", 0.1, 88.5)), "wake.scheduler"),  # the request left late
        (unanswered(decoder=ThreadUsage("S", 0.0), pauses=[(0.3, 79.2, "stopped")]), "pause.stopped"),
        (unanswered(decoder=ThreadUsage("S", 5.0), pauses=[(0.3, 79.2, "stopped")]), "decide.decoder_slow"),
        (answered(1.2, 6.0, 90.0, acting=[(5.0, 88.0)]), "wake.executor"),
        (answered(1.2, 6.0, 90.0, loop=ThreadUsage(major_faults=3)), "wake.disk"),
        (answered(1.2, 6.0, 90.0, pauses=[(7.0, 89.0, "stall")]), "pause.stall"),
        (answered(1.2, 6.0, 90.0, pauses=[(7.0, 89.0, "stopped")]), "pause.stopped"),
        (answered(1.2, 6.0, 90.0, pauses=[(7.0, 89.0, "starved")]), "pause.starved"),
        (answered(1.2, 6.0, 90.0, pauses=[(7.0, 89.0, "stopped")], loop=ThreadUsage(delayed_ms=60.0)), "pause.starved"),
        (answered(1.2, 6.0, 90.0, pauses=[(7.0, 10.0, "gc")]), "unknown"),
        # The heartbeat stands still in a collection, too, and a little longer.
        (unanswered(pauses=[(10.0, 50.0, "gc"), (9.0, 54.0, "stall")], apart=False), "pause.gc"),
        (unanswered(pauses=[(10.0, 14.0, "gc"), (9.0, 54.0, "stall")], apart=False), "pause.stall"),
        # It is late by a hair, and not for its late wake-up.
        (answered(55.0, 60.0, 60.9, gaps=[(1.0, 54.0)], loop=ThreadUsage(delayed_ms=0.9)), "decide.decoder_stopped"),
        (answered(4.0, 60.2, 61.8, loop=ThreadUsage(waking_ms=0.1, delayed_ms=1.6)), "decide.decoder_slow"),
        # No part of the decision alone took half of the lateness; together they did.
        (answered(58.0, 125.0, 186.0, gaps=[(125.0, 184.0)]), "decide.decoder_slow"),
    ],
)
def test_stamps_give_the_cause_of_a_miss(evidence: Evidence, name: str) -> None:
    assert cause_of(evidence) == name


def test_delay_before_the_request_gives_the_cause() -> None:
    slow_text = Evidence(D, 90.0, {"woke": 0.1, "text": 80.0, "submitted": 80.2, "begun": 81.0, "decided": 89.0}, True)
    assert cause_of(slow_text) == "decide.observe"
    late = Evidence(D, 70.0, {"woke": 50.0, "text": 51.0, "submitted": 51.1}, usual={"decide": 10.0})
    assert cause_of(late) == "unknown"
    assert cause_of(replace(late, texts=[(-20.0, 50.0)])) == "decide.observe"
    assert cause_of(replace(late, arrival=True)) == "decide.queued"
    assert cause_of(replace(late, loop=ThreadUsage(waking_ms=49.0))) == "wake.scheduler"
    assert cause_of(replace(late, loop=ThreadUsage(waking_ms=49.0), host="lost")) == "host.lost"
    assert cause_of(replace(late, loop=ThreadUsage(waking_ms=49.0), pauses=[(0.0, 49.0, "gc")])) == "pause.gc"


def test_late_end_of_call_is_blamed_on_executor() -> None:
    spans = {**answered(1.2, 40.0, 40.1).spans, "executing": 40.2, "executed": 90.0}
    slow = Evidence(D, 90.0, spans, True, usual={"decide": 38.0})
    assert cause_of(slow) == "execute.slow"
    assert cause_of(replace(slow, spans={**spans, "executing": 89.0}, acting=[(30.0, 88.9)])) == "execute.busy"
    waits = Evidence(D, D + 0.1, answered(1.2, 4.0, 4.1).spans, fault=(Cause.EXECUTE, "slow"), acting=[(4.2, 60.1)])
    assert cause_of(waits) == "execute.slow"
    # It was decided a moment before the deadline: neither the world nor the tool took long.
    close = {**answered(1.2, 59.5, 59.6).spans, "executing": 59.7, "executed": 60.2}
    assert cause_of(Evidence(D, 60.2, close, True)) == "decide.decoder_slow"


@pytest.mark.parametrize("sub", ["busy", "slow"])
def test_waiting_call_is_blamed_on_busy_world(sub: str) -> None:
    waits = Evidence(D, D + 0.1, answered(1.2, 4.0, 4.1).spans, fault=(Cause.EXECUTE, sub), usual={"decide": 3.0})
    assert cause_of(waits) == "unknown"
    assert cause_of(replace(waits, acting=[(4.2, 14.0)])) == "unknown"
    assert cause_of(replace(waits, acting=[(-40.0, 14.0), (14.0, 45.0)])) == f"execute.{sub}"
    # It was not run.
    assert cause_of(replace(waits, actuator=ThreadUsage("S", 1.0, 40.0))) == "wake.scheduler"
    assert cause_of(replace(waits, actuator=ThreadUsage("R", 0.0, 0.0))) == "wake.scheduler", "it waits still"
    assert cause_of(replace(waits, actuator=ThreadUsage("R", 20.0, 0.0))) == "unknown"
    early = replace(waits, end_ms=D - 20.0)
    assert cause_of(early) == f"execute.{sub}", "it gave way, and not for being late"
    stood = replace(early, pauses=[(5.0, D - 21.0, "stall")])
    assert cause_of(stood) == ("pause.stall" if sub == "busy" else "execute.slow")
    assert cause_of(replace(waits, loop=ThreadUsage("R", 1.0, 40.0))) == "unknown", (
        "another thread's waiting is none of it"
    )


@pytest.mark.parametrize(
    "fault", [(Cause.INVALID, None), (Cause.EXECUTE, "raised"), (Cause.DECIDE, "error"), (Cause.DECIDE, "send")]
)
def test_failure_in_time_is_not_blamed_on_machine(fault: tuple[Cause, str | None]) -> None:
    paused = Evidence(D, 40.0, {"woke": 30.0}, fault=fault, pauses=[(0.0, 30.0, "stall")], host="lost")
    assert attribute(paused)[:2] == fault


def test_stale_observation_in_paused_process_is_a_pause() -> None:
    stale = Evidence(D, 0.1, {"woke": 0.1}, fault=(Cause.STALE_OBSERVATION, "frozen"), late_ms=40.0, since_ms=-100.0)
    assert cause_of(stale) == "stale_observation.frozen"
    assert cause_of(replace(stale, pauses=[(-70.0, -1.0, "stall")])) == "pause.stall"
    assert cause_of(replace(stale, host="lost")) == "host.lost"


def test_usual_time_is_not_counted_as_excess() -> None:
    # The text always takes 30 ms; today the decision took longer.
    spans = {"woke": 0.1, "text": 30.0, "submitted": 30.1, "begun": 30.2, "decided": 55.0, "replied": 70.0}
    often = usual_durations([{**spans, "decided": 40.0, "replied": 40.1}] * 3)
    assert step_durations(spans)["observe"] > step_durations(spans)["decide"]
    assert cause_of(Evidence(D, 70.0, {**spans, "decided": 69.9}, True, usual=often)) == "decide.decoder_slow"
