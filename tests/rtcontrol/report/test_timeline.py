"""The timeline says of each tick what the account counts of all."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from flown import flown, header, timeline_of
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.report.account import Account

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
    assert timeline.instructions == []


def test_what_acted_instead_is_told_with_how_long() -> None:
    timeline = timeline_of(
        [
            {"header": header(10)},
            {"k": 0, "t_s": 0.0, "superseded": 0, "kind": "call", "call": "push(force=2)", "latency_ms": 20.0},
            {"k": 1, "t_s": 0.1, "superseded": 0, "kind": "miss", "cause": "decide", "action": "hold"},
            {"safe": "push(force=0)", "why": "miss", "t_s": 0.25, "attempt": 1, "in_force": True},
            {"k": 2, "t_s": 0.2, "superseded": 0, "kind": "miss", "cause": "decide", "action": "safe"},
            {"k": 3, "t_s": 0.3, "superseded": 0, "kind": "call", "call": "push(force=1)", "latency_ms": 30.0},
            {"k": 4, "t_s": 0.4, "superseded": 0, "kind": "miss", "cause": "decide", "action": "hold"},
        ]
    )
    held, safe = timeline.instead(1)
    assert held[:2] == ("push(force=2)", "held") and math.isclose(held[2], 50)
    assert safe[:2] == ("push(force=0)", "safe") and math.isclose(safe[2], 80)
    assert [(call, why) for call, why, _ in timeline.instead(2)] == [("push(force=0)", "held")]
    ((call, why, ms),) = timeline.instead(4)
    assert (call, why) == ("push(force=1)", "held") and math.isnan(ms)


def test_a_late_decision_adds_its_spans_to_its_tick() -> None:
    timeline = timeline_of(flown(16, 1, lambda k: 70 if k == 3 else 20))
    row = timeline.row(3)
    assert timeline.words["subcause"][row] == "decoder_slow"
    assert math.isclose(timeline.stage_ms(row, "decide"), 70, abs_tol=0.01)
    assert math.isnan(timeline.stage_ms(row, "execute"))
    assert timeline.details[3]["evidence"] == {"decide_ms": 70}
