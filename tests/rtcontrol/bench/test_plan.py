"""`rtcontrol plan`: what it plans for holds, grows with what is asked of it, and is what so many machines carry."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused, unknown_options
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol.bench.capacity import BatchCost, Capacity, DoorCost
from rtcontrol.bench.plan import DOOR_SESSIONS, LINK_MBIT, MOST_BUSY, Sizing, carried, largest
from rtcontrol.models.errors import UserError
from rtcontrol.serve.options import MOST_DECODERS
from tests.rtcontrol.bench.test_capacity import CAPACITY, DOOR, MODEL, document

batches = st.builds(BatchCost, st.floats(0.1, 20.0), st.floats(0.05, 10.0), st.sampled_from([8, 64]))
doors = st.builds(
    lambda tick, call, crowd, size: replace(DOOR, tick_ms=tick, call_ms=call, crowd_ms=crowd, tick_bytes=size),
    st.floats(0.05, 10.0),
    st.floats(0.01, 3.0),
    st.floats(0.0, 20.0),
    st.floats(100.0, 200_000.0),
)
capacities = st.builds(lambda batch, door: Capacity("lander", replace(MODEL, batch=batch), door), batches, doors)
asked = st.fixed_dictionaries(
    {
        "count": st.integers(1, 200_000),
        "hz": st.floats(0.1, 40.0),
        "crowd": st.booleans(),
        "cores_per_node": st.integers(1, 128),
        "busy_max": st.floats(0.1, MOST_BUSY),
    }
)


def sizing(capacity: Capacity, given: dict[str, Any]) -> Sizing | None:
    """None where one of them is too many."""
    try:
        return Sizing(capacity, **given)
    except UserError as error:
        assert "ms of a core" in error.what
        return None


@settings(deadline=None)
@given(capacity=capacities, given=asked)
def test_nothing_is_planned_above_its_limit_and_everybody_has_a_place(
    capacity: Capacity, given: dict[str, Any]
) -> None:
    plan = sizing(capacity, given)
    if plan is None:
        return
    most = given["busy_max"] + 1e-9
    assert plan.decoder_busy(plan.on_a_decoder) <= most and plan.door_busy(plan.at_a_door) <= most
    assert plan.link_mbit(plan.at_a_door) <= most * LINK_MBIT
    # What is printed has all of them, and at each door's decoders room for its own.
    assert sum(one.doors * one.count for one in plan.layout) == given["count"]
    assert all(plan.crowds(one.count) <= DOOR_SESSIONS and one.count <= plan.per_door for one in plan.layout)
    assert all(one.count <= one.decoders * plan.per_decoder for one in plan.layout)
    assert [(times, int(line.rpartition("--decoders ")[2])) for times, line in plan.commands()] == [
        (one.doors, one.decoders) for one in plan.layout
    ]
    assert plan.nodes * given["cores_per_node"] >= plan.doors + plan.decoders
    assert all(0 <= limit.share <= 1 + 1e-6 for limit in plan.limits if limit.name != "decoders of a door")
    assert [one.share for one in plan.limits] == sorted((one.share for one in plan.limits), reverse=True)


@settings(deadline=None)
@given(capacity=capacities, given=asked, more=st.integers(1, 50_000))
def test_more_of_them_need_no_less(capacity: Capacity, given: dict[str, Any], more: int) -> None:
    plan, larger = sizing(capacity, given), sizing(capacity, {**given, "count": given["count"] + more})
    assert (plan is None) == (larger is None), "whether one can be served is no question of how many there are"
    if plan is not None and larger is not None:
        assert plan.cores <= larger.cores and plan.nodes <= larger.nodes


@settings(deadline=None)
@given(capacity=capacities, given=asked, faster=st.floats(1.0, 8.0))
def test_a_higher_rate_needs_no_less(capacity: Capacity, given: dict[str, Any], faster: float) -> None:
    plan, quick = sizing(capacity, given), sizing(capacity, {**given, "hz": given["hz"] * faster})
    if plan is None:
        assert quick is None
    elif quick is not None:
        assert plan.cores <= quick.cores and plan.nodes <= quick.nodes


@settings(deadline=None, max_examples=50)
@given(capacity=capacities, given=asked, nodes=st.integers(1, 300))
def test_what_machines_carry_is_what_they_are_planned_for(
    capacity: Capacity, given: dict[str, Any], nodes: int
) -> None:
    if sizing(capacity, {**given, "count": 1}) is None or nodes * given["cores_per_node"] < 2:
        return
    fixed = {name: given[name] for name in ("hz", "crowd", "cores_per_node", "busy_max")}
    plan = carried(nodes, capacity, **fixed)
    assert plan.nodes <= nodes
    assert Sizing(capacity, plan.count + 1, **fixed).nodes > nodes


@given(limit=st.integers(0, 5000))
def test_the_largest_that_fits_is_found(limit: int) -> None:
    assert largest(lambda count: count <= limit) == limit
    assert largest(lambda count: True, most=1000) == 1000


# kubernetes/kubernetes#13147, volcano-sh/kthena#1752: what came out between two numbers was rounded down.
def test_what_does_not_fit_into_one_takes_two() -> None:
    one = Sizing(CAPACITY, 1, 5.0)
    assert (one.doors, one.decoders) == (1, 1)
    full = Sizing(CAPACITY, one.per_decoder, 5.0)
    assert full.decoders == 1 and Sizing(CAPACITY, one.per_decoder + 1, 5.0).decoders == 2
    assert full.decoder_busy(full.count) <= 0.8 < full.decoder_busy(full.count + 1)


def test_doors_have_as_many_decoders_as_they_can_fill() -> None:
    plan = Sizing(CAPACITY, 10_000, 5.0)
    fewest = min(-(-10_000 // min(plan.per_door, n * plan.per_decoder)) * (1 + n) for n in range(1, 30))
    assert plan.cores <= fewest
    assert plan.decoders < 1.25 * 10_000 / plan.per_decoder


# aws/karpenter-provider-aws#161: the ratio of none, or to none, divides by zero.
@pytest.mark.parametrize("door", [DoorCost.nothing(), DOOR])
def test_what_costs_nothing_is_planned_too(door: DoorCost) -> None:
    free = Capacity("noop", replace(MODEL, batch=BatchCost(0.0, 0.0, 64)), door)
    plan = Sizing(free, 5_000, 5.0)
    assert plan.decoders >= plan.doors >= 1 and plan.document()["nodes"] == plan.nodes
    assert all(limit.share >= 0 for limit in plan.limits)


@pytest.mark.parametrize("busy", ["0", "-1", "1", "1.5", "nan", "0.99"])
def test_all_of_a_core_is_not_given_away(capsys: pytest.CaptureFixture[str], busy: str) -> None:
    said = refused(capsys, "plan", "--sessions", "5", "--busy-max", busy)
    assert "without bound" in said and "0.95" in said


def test_the_slowest_calls_are_told_by_how_busy_the_busiest_is() -> None:
    few, many = Sizing(CAPACITY, 2, 5.0), Sizing(CAPACITY, Sizing(CAPACITY, 1, 5.0).per_decoder, 5.0)
    assert few.busiest < 0.5 and few.waits.startswith("short")
    assert many.busiest > 0.7 and many.waits.startswith("long")
    assert few.together_ms < many.together_ms <= 200


def test_a_fast_session_raises_the_servers_own_limit_of_rates() -> None:
    quick = Capacity("lander", replace(MODEL, batch=BatchCost(0.5, 0.2, 64)), DOOR)
    assert "--hz-max 150" in Sizing(quick, 3, 150.0).commands()[0][1]
    assert "--hz-max" not in Sizing(quick, 3, 50.0).commands()[0][1]


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path: Path) -> str:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(document()))
    return str(path)


def test_a_plan_is_printed_with_the_commands_that_start_it(
    measured: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    given = ("--sessions", "5000", "--hz", "5", "--model", "lander", "--measured", measured)
    assert call("plan", *given, "--price-per-node-hour", "2", "--json", str(out)) == 0
    shown = capsys.readouterr().out
    plan = Sizing(CAPACITY, 5_000, 5.0)
    found = json.loads(out.read_text())
    assert (found["doors"], found["decoders"], found["nodes"]) == (plan.doors, plan.decoders, plan.nodes)
    assert found["cost"]["hour"] == 2 * plan.nodes and found["gpu"] is None
    assert "breaks first" in shown and "not measured" in shown and "RAY_ADDRESS" in shown
    lines = [line for line in shown.splitlines() if " x  rtcontrol " in line]
    assert len(lines) == len(plan.commands())
    for line in lines:
        assert unknown_options(shlex.split(line.partition(" x  rtcontrol ")[2])) == set()


def test_figures_alone_stand_on_standard_output(measured: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "--characters", "100000", "--hz", "1", "--measured", measured, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "characters" and found["cost"] is None and found["per_crowd"] <= 256


def test_the_other_way_round(measured: str, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ((), ("--crowds",)):
        given = ("plan", "--nodes", "3", "--cores-per-node", "8", "--measured", measured, "--json", "-", *more)
        assert call(*given) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["nodes"] == 3 and found["count"] > 100
        assert found["kind"] == ("characters" if more else "sessions")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ((), "Give one of --sessions, --characters and --nodes"),
        (("--sessions", "5", "--characters", "5"), "Give one of"),
        (("--nodes", "2", "--sessions", "5"), "Give one of"),
        (("--sessions", "5", "--crowds"), "--crowds is for --nodes"),
        (("--nodes", "0"), "Give 1 to"),
        (("--nodes", "1", "--cores-per-node", "1"), "a door and a decoder need one each"),
        (("--sessions", "0"), "Give 1 to"),
        (("--sessions", "5", "--hz", "0"), "is no rate"),
        (("--sessions", "5", "--hz", "nan"), "is no rate"),
        (
            ("--sessions", "5", "--hz", "1000"),
            "takes 4.07 ms of a core, and --hz 1000 leaves 1 ms. Ask for at most 193.61 Hz",
        ),
        (("--sessions", "5", "--hz", "230"), "of which --busy-max gives away 3.48"),
        (("--sessions", "5", "--cores-per-node", "0"), "is no machine"),
        (("--sessions", "5", "--price-per-node-hour", "-1"), "is no price"),
        (("--sessions", "5", "--model", "village"), "rtcontrol bench capacity village --json capacity.json"),
    ],
)
def test_what_cannot_be_planned_is_told_with_what_can(
    measured: str, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], what: str
) -> None:
    assert what in refused(capsys, "plan", *given, "--measured", measured)


def test_the_rate_that_a_refusal_names_can_be_planned() -> None:
    for crowd in (False, True):
        with pytest.raises(UserError) as error:
            Sizing(CAPACITY, 5, 300.0, crowd)
        highest = float(error.value.remedy.partition("at most ")[2].partition(" Hz")[0])
        assert Sizing(CAPACITY, 5, highest, crowd).decoders >= 5


def test_no_door_has_more_decoders_than_a_server_may() -> None:
    slow = Capacity("slow", replace(MODEL, batch=BatchCost(0.0, 700.0, 64)), replace(DOOR, tick_ms=0.01, idle_ms=0.0))
    plan = Sizing(slow, 100_000, 1.0)
    assert plan.per_decoder == 1 and plan.at_a_door <= DOOR_SESSIONS
    assert -(-plan.decoders // plan.doors) <= MOST_DECODERS
