"""How steady calls are: against brute force, in bounded memory, through the record's parts, and as people read it."""

from __future__ import annotations

import io
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from rtcontrol.telemetry import report, steadiness, table
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.steadiness import WINDOW_S, Steadiness, steps_of

SIDE = {"enum": [-1, 1]}
TOOLS = [
    {"name": "engines", "parameters": {"properties": {"main": {"minimum": 0, "maximum": 100}, "side": SIDE}}},
    {"name": "say", "parameters": {"properties": {"text": {"type": "string"}, "loud": {"type": "boolean"}}}},
    {"name": "follow", "parameters": {"properties": {}}},
]
MAIN = st.sampled_from((0, 3, 5, 6, 50, 100.0))
CALLS = st.one_of(
    st.tuples(st.just("engines"), st.fixed_dictionaries({"main": MAIN, "side": st.sampled_from((-1, 1))})),
    st.tuples(st.just("say"), st.fixed_dictionaries({"text": st.sampled_from("ab"), "loud": st.booleans()})),
    st.just(("follow", {})),
)
GAPS_S = st.sampled_from((0.0625, 0.0625, 0.5, 1.9, 2.5))
WHY = st.sampled_from(("fresh",) * 6 + ("late", "safe", "further"))
EVENTS = st.lists(
    st.tuples(CALLS, GAPS_S, WHY, st.sampled_from((0, 0, 0, 0, 0, 1)), st.sampled_from(("", "", "anna"))), max_size=60
)


def flight(drawn: Sequence[Any]) -> list[dict[str, Any]]:
    t_s, epochs, events = 0.0, defaultdict[str, int](int), list[dict[str, Any]]()
    for (name, arguments), gap_s, why, resets, member in drawn:
        t_s = round(t_s + gap_s, 4)
        epochs[member] += resets
        event = {"called": name, "arguments": arguments, "k": len(events), "why": why, "t_s": t_s}
        events.append(event | {"epoch": epochs[member]} | ({"member": member} if member else {}))
    return events


def fed(events: Sequence[dict[str, Any]]) -> Steadiness:
    made = Steadiness()
    made.header({"tools": TOOLS})
    for event in events:
        made.call(event)
    return made


class ByHand:
    """The same counts, by looking back over whole lists."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self.calls = self.repeated = 0
        self.seconds = 0.0
        self.turned = set[int]()
        self.by_value = defaultdict[str, int](int)
        self.dwells = list[float]()
        first = [event for event in events if event["why"] != "further"]
        for member, epoch in {(event.get("member", ""), event["epoch"]) for event in first}:
            self._flight([e for e in first if (e.get("member", ""), e["epoch"]) == (member, epoch)])

    def _flight(self, flown: Sequence[dict[str, Any]]) -> None:
        texts = [json.dumps([event["called"], event["arguments"]], sort_keys=True) for event in flown]
        self.calls += sum(event["why"] != "safe" for event in flown)
        self.seconds += flown[-1]["t_s"] - flown[0]["t_s"]
        after = zip(flown[1:], pairwise(texts), strict=True)
        self.repeated += sum(one == other and event["why"] != "safe" for event, (one, other) in after)
        starts = [0, *(i for i in range(1, len(texts)) if texts[i] != texts[i - 1])]
        self.dwells += [1e3 * (flown[b]["t_s"] - flown[a]["t_s"]) for a, b in pairwise(starts)]
        parts: list[list[dict[str, Any]]] = [[]]  # between safe calls
        for event in flown:
            if event["why"] == "safe":
                parts.append([])
            else:
                parts[-1].append(event)
        for part in parts:
            lists = defaultdict[str, list[tuple[Any, float, int]]](list)
            for event in part:
                values = {f"{event['called']}.{name}": value for name, value in event["arguments"].items()}
                for key, value in {"function": event["called"], **values}.items():
                    lists[key].append((value, event["t_s"], event["k"]))
            for key, line in lists.items():
                turned = self._turns(key, line)
                self.by_value[key] += len(turned)
                self.turned |= turned

    def _turns(self, key: str, line: Sequence[tuple[Any, float, int]]) -> set[int]:
        changes = [line[0], *(one for before, one in pairwise(line) if one[0] != before[0])]
        steps = {"engines.main": 5.0, "engines.side": 0.1}
        if key not in steps:
            triples = zip(changes, changes[1:], changes[2:], strict=False)
            return {c[2] for a, b, c in triples if c[0] == a[0] and c[1] - b[1] <= WINDOW_S}
        large = [(b[0] - a[0], b[1], b[2]) for a, b in pairwise(changes) if abs(b[0] - a[0]) > steps[key]]
        return {b[2] for a, b in pairwise(large) if a[0] * b[0] < 0 and b[1] - a[1] <= WINDOW_S}


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_the_counts_are_what_brute_force_says(drawn: list[Any]) -> None:
    events = flight(drawn)
    made, hand = fed(events), ByHand(events)
    assert (made.calls, made.repeated, made.reversals) == (hand.calls, hand.repeated, len(hand.turned))
    assert dict(made.by_value) == {key: n for key, n in hand.by_value.items() if n}
    assert made.seconds == pytest.approx(hand.seconds)
    for series, each in ((made.dwell_ms, hand.dwells),):
        assert series.count == len(each) and series.total == pytest.approx(sum(each))
        if each:
            rank = sorted(each)[math.ceil(len(each) * 0.99) - 1]
            assert series.percentile(99) == pytest.approx(rank, rel=0.006, abs=1e-3)
    if made.seconds:
        expected = 60 * len(hand.turned) / hand.seconds
        assert made.summary()["reversals_a_minute"] == pytest.approx(expected, abs=1e-3)


def test_the_time_of_a_world_that_waits_is_its_own() -> None:
    made = Steadiness()
    made.header({"clock": "lockstep", "hz": 16.0})
    for k, name in enumerate(("follow", "rest") * 16):  # decided as fast as the machine can
        made.call({"called": name, "arguments": {}, "k": k, "why": "fresh", "t_s": k / 1000})
    assert made.summary()["reversals_a_minute"] == pytest.approx(30 / 31 * 16 * 60, abs=0.01)
    assert made.dwell_ms.summary()["p50"] == pytest.approx(62.5, rel=0.01)


GARBLED = {"b": {"enum": []}, "c": {"minimum": "0", "maximum": 1}, "d": 7, "e": {"minimum": 0, "maximum": math.inf}}


@pytest.mark.parametrize(
    "tools", [None, [None], [{"function": []}], [{"name": "a", "parameters": {"properties": GARBLED}}]]
)
def test_tools_that_a_record_has_garbled_have_no_ranges(tools: Any) -> None:
    assert steps_of(tools) == {}


def test_a_report_and_its_table_say_how_steady_it_was_also_by_member() -> None:
    account = Account()
    about = {"env": "yard", "agent": "guard", "model": "own", "engine": "torch", "host": "ray", "max_age_ms": 250.0}
    about |= {"hz": 16.0, "clock": "wall", "deadline_ms": 62.5, "instruction": "go"}
    account.add({"header": {"tools": TOOLS, **about}})
    for k, name in enumerate(("follow", "rest") * 8):
        which = {"k": k, "epoch": 1, "t_s": k / 4, "member": "anna"}
        account.add({"called": name, "arguments": {}, "why": "fresh", **which})
        tick = {"kind": "call", "call": f"{name}()", "superseded": 0, "seq": k, "latency_ms": 1.0}
        account.add({**tick, **which, **({"kept": {"function": "x"}} if k < 2 else {})})
    made = report.build(account, "record.mcap")
    steady = made["steadiness"]
    assert steady["reversals"] == 14 and steady["reversals_a_minute"] == pytest.approx(14 / 3.75 * 60, abs=0.01)
    assert steady["dwell_ms"]["p50"] == pytest.approx(250, rel=0.01) and steady["repeated_share"] == 0.0
    assert made["crowd"]["by_member"]["anna"]["reversals"] == 14
    line = steadiness.steadiness(made)
    assert line == (
        "steadiness: 224.0 reversals a minute (function 14), a call stays 250 ms (p50), 250 (p99), repeated 0.0 %, "
        "stale 0.0 %, kept by hysteresis in 2 ticks"
    )
    shown = io.StringIO()
    table.show(made, Console(file=shown, width=250))
    assert line in shown.getvalue()
