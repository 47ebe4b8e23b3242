"""The timeline says of each tick what the account counts of all."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from flown import flown, header, recorded, timeline_of
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.timeline import Timeline

CAUSES = st.sampled_from(["decide", "pause", "wake", "unknown"])


@st.composite
def runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Ticks with what may be told of them later, in the order in which a loop tells it."""
    events: list[dict[str, Any]] = [{"header": header(16)}]
    k = 0
    for _ in range(draw(st.integers(1, 30))):
        skipped = draw(st.integers(0, 2))
        k += skipped
        tick = {
            "k": k,
            "t_s": k / 16,
            "superseded": 0,
            **({"skipped": skipped, "skip_cause": "wake"} if skipped else {}),
        }
        cause = draw(st.none() | CAUSES)
        tick |= (
            {"kind": "call", "call": "push()", "latency_ms": 9.0} if cause is None else {"kind": "miss", "cause": cause}
        )
        events.append(tick)
        earlier = draw(st.integers(0, k))
        events += draw(
            st.sampled_from(
                [
                    [],
                    [
                        {
                            "ack": earlier,
                            "status": draw(st.sampled_from(["executed", "expired", "failed"])),
                            "t_s": k / 16,
                        }
                    ],
                    [{"late": earlier, "used": False, "latency_ms": 80.0, "cause": "decide", "subcause": "queued"}],
                    [{"overran": earlier, "effect": "acted", "call": "push()", "t_s": k / 16}],
                    [{"revised": earlier, "cause": "decide", "subcause": "decoder_stopped", "t_s": k / 16}],
                ]
            )
        )
        k += 1
    return events


@given(runs())
def test_what_each_tick_became_adds_up_to_what_the_account_counts(events: list[dict[str, Any]]) -> None:
    timeline, account = timeline_of(events), Account()
    for event in events:
        account.add(event)
    causes = [timeline.words["cause"][row] for row in range(len(timeline.k))]
    assert Counter(filter(None, causes)) == +account.misses_by_cause
    both = [(c, timeline.words["subcause"][row]) for row, c in enumerate(causes)]
    assert Counter(f"{c}.{s}" for c, s in both if s) == +account.misses_by_subcause
    assert causes.count("") == account.on_time
    assert sum(s for s in timeline.numbers["skipped"] if s == s) == account.skipped_releases
    assert [*timeline.k] == sorted(timeline.k)


def test_what_was_seen_is_kept_of_misses_alone_told_before_the_tick_or_after_it() -> None:
    tick = {"superseded": 0, "kind": "miss", "cause": "decide"}
    timeline = timeline_of(
        [
            {"header": header(16)},
            {"observation": "first", "instruction": "go", "k": 0},
            {"k": 0, "t_s": 0.0, **tick},
            {"k": 1, "t_s": 0.0625, **tick},
            {"observation": "second", "instruction": "go", "k": 1},
            {"observation": "third", "instruction": "go", "k": 2},
            {"k": 2, "t_s": 0.125, "superseded": 0, "kind": "call", "call": "push()", "latency_ms": 9.0},
        ]
    )
    assert {k: saw["observation"] for k, saw in timeline.saw.items()} == {0: "first", 1: "second"}
    # An observation has an instruction, and is no change of it.
    assert timeline.instructions == timeline.marks == []


CALL = {"superseded": 0, "kind": "call", "call": "push(force=2)", "latency_ms": 20.0}
MISS = {"superseded": 0, "kind": "miss", "cause": "decide", "subcause": "decoder_slow", "action": "hold"}


def told(timeline: Timeline, row: int) -> list[tuple[str, str, float]]:
    return [(call, why, round(ms, 6)) for call, why, ms in timeline.instead(row)]


def test_what_a_record_says_of_its_calls_is_what_acted() -> None:
    """Each safe call, and a late one by its name; a fresh call that its client did not carry out acted nowhere."""
    push = {"called": "push", "arguments": {"force": 1}}
    timeline = timeline_of(
        [
            {"header": header(10)},
            {**push, "k": 0, "why": "fresh", "t_s": 0.02},
            {"k": 0, "t_s": 0.0, **CALL, "call": "push(force=1)"},
            {"called": "push", "arguments": {"force": 2}, "k": 1, "why": "fresh", "t_s": 0.12},
            {"k": 1, "t_s": 0.1, **CALL},
            {"ack": 1, "status": "expired", "why": "fresh", "error": "too old", "t_s": 0.18},
            {"called": "brake", "arguments": {}, "k": 1, "why": "safe", "t_s": 0.23},
            {"safe": "brake()", "why": "miss", "t_s": 0.23, "attempt": 1, "in_force": False},
            {"called": "push", "arguments": {"force": 0}, "k": 1, "why": "safe", "t_s": 0.24},
            {"safe": "push(force=0)", "why": "miss", "t_s": 0.24, "attempt": 1, "in_force": True},
            {"k": 2, "t_s": 0.2, **MISS},
            {"called": "push", "arguments": {"force": -1}, "k": 2, "why": "late", "t_s": 0.35},
            {"late": 2, "used": True, "latency_ms": 150.0, "t_s": 0.35},
        ]
    )
    assert told(timeline, 1) == [
        ("push(force=1)", "held", 30.0),
        ("brake()", "safe", 10.0),
        ("push(force=0)", "safe", 110.0),
    ]
    assert told(timeline, 2) == [("push(force=0)", "held", 50.0)]
    assert timeline.acts[-1][1:3] == ("push(force=-1)", "late")
    assert timeline.details[1]["error"] == "too old"
    assert (timeline.misses, timeline.words["cause"][1], timeline.words["subcause"][1]) == (2, "execute", "expired")


def test_a_held_call_that_a_person_lets_act_keeps_the_times_of_its_tick() -> None:
    held = {"superseded": 0, "kind": "held", "why": "confirm", "call": "push(force=2)", "latency_ms": 12.0}
    timeline = timeline_of(
        [
            {"header": header(10)},
            {"people": "ask", "k": 0, "call": "push(force=2)", "seconds": 10.0, "t_s": 0.01},
            {"k": 0, "t_s": 0.0, **held},
            {"people": "confirm", "by": "page", "k": 0, "call": "push(force=2)", "t_s": 3.0},
            {"called": "push", "arguments": {"force": 2}, "k": 0, "why": "late", "t_s": 3.01},
            {"late": 0, "used": True, "latency_ms": 3010.0, "t_s": 3.01},
            {"people": "stop", "by": "keyboard", "t_s": 4.0},
            {"instruction": "go to 0", "refused": "fly", "t_s": 5.0},
            {"log": "a line for people", "t_s": 6.0},
        ]
    )
    assert timeline.numbers["latency_ms"][0] == 12.0 and timeline.words["why"][0] == "confirm"
    assert timeline.acts == [(3.01, "push(force=2)", "late", 0)]
    assert [what for _, what in timeline.marks] == [
        "ask of push(force=2)",
        "confirm by page of push(force=2)",
        "stop by keyboard",
        "refused: fly",
        "a line for people",
    ]


def test_when_a_tick_was_written_down_is_told_against_the_soonest(tmp_path: Path) -> None:
    run = recorded(tmp_path, seconds=2)
    stages = [run.timeline.stage_ms(row, "record") for row in range(len(run.timeline.k))]
    assert run.stages()["record"].count == sum(not math.isnan(ms) for ms in stages) > 10
    numbers, causes = run.timeline.numbers, run.timeline.words["cause"].codes
    ended = [1e3 / 16 if cause else ms for cause, ms in zip(causes, numbers["latency_ms"], strict=True)]
    after = [written - ms for written, ms in zip(numbers["recorded"], ended, strict=True)]
    assert min(after) == pytest.approx(0, abs=0.01)


def test_a_decoder_that_begins_before_the_request_is_handed_over_takes_no_queue() -> None:
    events = [*flown(16, 1, lambda k: 20)]
    for event in events:
        if "kind" in event:
            event["spans_ms"] |= {"received": 0.3, "begun": 0.35}  # submitted at 0.4
    timeline = timeline_of(events)
    assert timeline.stage_ms(3, "queue") == 0 and math.isclose(timeline.stage_ms(3, "send"), 0.1)


def test_a_late_decision_adds_its_spans_to_its_tick() -> None:
    timeline = timeline_of(flown(16, 1, lambda k: 70 if k == 3 else 20))
    row = timeline.row(3)
    assert timeline.words["subcause"][row] == "decoder_slow"
    assert math.isclose(timeline.stage_ms(row, "decide"), 70, abs_tol=0.01)
    assert math.isnan(timeline.stage_ms(row, "execute"))
    assert timeline.details[3]["evidence"] == {"decide_ms": 70}
