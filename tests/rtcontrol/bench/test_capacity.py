"""The model of capacities: by numbers alone, and beside figures that were published before it."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused
from hypothesis import assume, given
from hypothesis import strategies as st

from rtcontrol.bench import capacity_memory, capacity_runs
from rtcontrol.bench.capacity import (
    CROWD,
    BatchCost,
    Capacity,
    DoorCost,
    Measured,
    ModelCost,
    as_document,
    fitted,
    read,
    session_share_ms,
)
from rtcontrol.bench.capacity_runs import door_cost, model_cost, served_checks
from rtcontrol.bench.capacity_served import LOADS
from rtcontrol.bench.capacity_tables import BUSY, filled
from rtcontrol.bench.capacity_tables import capacity as tables
from rtcontrol.models.errors import UserError
from tests.helpers.processes import ROOT

BATCH = BatchCost(2.4, 1.3, 64)
MODEL = ModelCost("lander", BATCH, 280.0, 0.4, 0.002, 133)
DOOR = DoorCost(
    tick_ms=1.5, idle_ms=15.0, call_ms=0.2, crowd_ms=8.0, crowd_idle_ms=10.0, decoder_idle_ms=12.0,
    session_factor=1.1, crowd_factor=1.05, tick_bytes=600.0, call_bytes=310.0, crowd_bytes=500.0, door_mib=128.0,
    door_session_mib=1.0, decoder_mib=75.0, decoder_session_mib=3.0, ray_mib=500.0, ray_ms=17.0,
)  # fmt: skip
CAPACITY = Capacity("lander", MODEL, DOOR)

costs = st.builds(BatchCost, st.floats(0.05, 50.0), st.floats(0.02, 20.0), st.sampled_from([1, 8, 64]))
rates = st.floats(0.1, 60.0)


@given(batch=costs, sessions=st.integers(1, 400), hz=rates)
def test_a_decision_costs_no_more_than_alone_and_no_less_than_in_the_largest_batch(
    batch: BatchCost, sessions: int, hz: float
) -> None:
    share = session_share_ms(batch, sessions, hz)
    most = min(sessions, batch.most)
    assert batch.ms(most) / most - 1e-6 <= share <= batch.ms(1) + 1e-6


@given(batch=costs, hz=rates)
def test_who_has_a_decoder_alone_shares_nothing(batch: BatchCost, hz: float) -> None:
    assert session_share_ms(batch, 1, hz) == pytest.approx(batch.ms(1))


@given(batch=costs, sessions=st.integers(1, 300), hz=rates)
def test_one_more_session_takes_more_of_a_core_until_it_is_full(batch: BatchCost, sessions: int, hz: float) -> None:
    capacity = Capacity("", replace(MODEL, batch=batch), DoorCost.nothing())
    now, more = capacity.sessions_busy(sessions, hz), capacity.sessions_busy(sessions + 1, hz)
    assume(now < 0.95)
    assert more >= now - 1e-9


def test_sessions_are_simulated_as_the_chain_of_batches_says() -> None:
    """Against the queue itself: robots with a period and a phase of their own; the decoder takes all that wait."""
    for sessions, hz in ((4, 10.0), (16, 5.0), (24, 8.0)):
        shares = []
        for seed in range(30):
            draw = random.Random(seed)
            due = sorted((draw.random() + k) / hz for _ in range(sessions) for k in range(40))
            now, at, batches = 0.0, 0, 0.0
            while at < len(due):
                now = max(now, due[at])
                count = 1
                while count < 64 and at + count < len(due) and due[at + count] <= now:
                    count += 1
                took = BATCH.ms(count)
                batches, now, at = batches + took, now + took / 1e3, at + count
            shares.append(batches / len(due))
        assert session_share_ms(BATCH, sessions, hz) == pytest.approx(sum(shares) / len(shares), rel=0.15)


def test_the_batches_that_were_published_are_met_by_a_fit_to_half_of_them() -> None:
    took = json.loads((ROOT / "docs" / "benchmarks" / "batch.json").read_text("utf-8"))["result"]["ms"]["sessions"]
    sizes = capacity_runs.SIZES
    each = fitted([(1, size) for size in sizes], [took[str(size)]["p50"] for size in sizes])
    for size in capacity_runs.CHECK_SIZES:
        assert BatchCost(each[0], each[1], 64).ms(size) == pytest.approx(took[str(size)]["p50"], rel=0.15)


@given(characters=st.integers(1, 3000), hz=st.floats(0.1, 20.0))
def test_one_more_character_takes_more_of_a_core(characters: int, hz: float) -> None:
    assert CAPACITY.crowd_busy(characters, hz) <= CAPACITY.crowd_busy(characters + 1, hz)
    assert CAPACITY.crowd_busy(0, hz) == pytest.approx(DOOR.decoder_idle_ms / 1e3)


def test_a_crowd_is_decided_in_four_batches_of_a_period_and_no_larger_than_a_decoder_remembers() -> None:
    busy = lambda count: (CAPACITY.crowd_busy(count, 1.0) * 1e3 - DOOR.decoder_idle_ms) / DOOR.crowd_factor  # noqa: E731
    assert busy(64) == pytest.approx(4 * BATCH.ms(16))
    assert busy(3) == pytest.approx(3 * BATCH.ms(1))
    assert busy(CROWD + 1) == pytest.approx(8 * BATCH.pass_ms + (CROWD + 1) * BATCH.each_ms)


# llm-d/llm-d-autoscaling#1500: what memory a replica has left was taken for what it can still decide.
def test_memory_and_time_are_told_apart() -> None:
    small = Capacity("", replace(MODEL, model_mib=1.0, session_mib=0.0, token_mib=0.0), DOOR)
    assert small.sessions_busy(30, 10.0) == CAPACITY.sessions_busy(30, 10.0)
    assert small.decoder_mib(30) < CAPACITY.decoder_mib(30)


@given(factors=st.tuples(st.floats(0.0, 20.0), st.floats(0.01, 20.0)))
def test_a_fit_finds_the_costs_that_made_the_figures(factors: tuple[float, float]) -> None:
    rows = [(1.0, float(size)) for size in (1, 4, 16, 64)]
    found = fitted(rows, [factors[0] + factors[1] * size for _, size in rows])
    assert found == pytest.approx(factors, abs=1e-6)


def test_no_cost_is_below_nothing() -> None:
    assert fitted([(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)], [0.5, 2.5, 4.5])[0] == 0.0
    assert fitted([(1.0,), (1.0,)], [-1.0, -2.0]) == [0.0]


def runs(capacity: Capacity = CAPACITY, full: str = "") -> list[dict[str, Any]]:
    """What servers with exactly these costs would have shown."""
    found = []
    for load in LOADS:
        per_s, periods = load.count * load.hz, load.hz
        door = capacity.crowd_door_busy(per_s, periods) if load.crowd else capacity.door_busy(per_s)
        busy = (capacity.crowd_busy if load.crowd else capacity.sessions_busy)(load.count, load.hz)
        mbit = capacity.link_mbit(0, per_s, periods) if load.crowd else capacity.link_mbit(per_s)
        mib = {"server": capacity.door_mib(load.count), "decoder": capacity.decoder_mib(load.count), "ray": 500.0}
        parts = {"server": door, "decoder": busy, "ray": 0.017}
        rest = {"ticks_per_s": per_s, "bytes_per_s": mbit / 8e-6, "full": load.name == full}
        found.append({**asdict(load), "busy": parts, "mib": mib, **rest})
    return found


def test_costs_are_found_again_in_the_runs_that_they_make_and_the_others_agree() -> None:
    door = door_cost(MODEL, runs())
    for name, cost in as_document(door, {})["door"].items():
        assert cost == pytest.approx(getattr(DOOR, name), rel=0.02, abs=1e-3), name
    checks = served_checks(Capacity("lander", MODEL, door), runs())
    assert {one["what"].partition(",")[0] for one in checks} >= {"decoder", "door", "wire"}
    assert len(checks) == 3 * sum(load.check for load in LOADS) + 2
    assert all(abs(one["deviation"]) < 0.02 for one in checks)


# inference-sim/inference-sim#1275: a simulator was calibrated by a server that had nothing more to give.
def test_a_run_that_had_all_of_a_core_is_no_check_and_nothing_is_fitted_to_it() -> None:
    check = next(load.name for load in LOADS if load.check)
    assert not [one for one in served_checks(CAPACITY, runs(full=check)) if check in one["what"]]
    fit = next(load.name for load in LOADS if not load.check)
    with pytest.raises(UserError, match=f"no time left at {fit}"):
        door_cost(MODEL, runs(full=fit))


def test_a_models_costs_come_from_the_sizes_that_are_no_checks() -> None:
    sizes = (*capacity_runs.SIZES, *capacity_runs.CHECK_SIZES)
    wrong = {size: 2.0 if size in capacity_runs.CHECK_SIZES else 1.0 for size in sizes}
    timed = {"together": 64, "median_cpu_ms": {str(n): wrong[n] * BATCH.ms(n) for n in sizes}}
    own = {
        "prefix_tokens": 100,
        "mib": {str(n): 200.0 + 0.6 * n for n in (*capacity_memory.FIT, capacity_memory.CHECK)},
    }
    long = {"prefix_tokens": 1100, "mib": {str(n): 300.0 + 2.6 * n for n in capacity_memory.LONG}}
    kept = {"own": own, "long": long, "shorter": {"prefix_tokens": 600, "mib": {"2": 100.0, "8": 109.6}}}
    cost = model_cost("lander", timed, kept)
    assert (cost.batch.pass_ms, cost.batch.each_ms) == pytest.approx((BATCH.pass_ms, BATCH.each_ms))
    assert (cost.model_mib, cost.session_mib, cost.token_mib) == pytest.approx((200.0, 0.4, 0.002))
    deviations = [one["deviation"] for one in capacity_runs.model_checks(cost, timed, kept)]
    assert deviations == pytest.approx([-0.5] * len(capacity_runs.CHECK_SIZES) + [0.0, 0.0], abs=1e-3)


# -- the file ----------------------------------------------------------------------------------------------------------


def document() -> dict[str, Any]:
    machine = {"cores": 2, "cpu": "a test"}
    return {"costs": as_document(DOOR, {"lander": MODEL}), "measured": "2026-01-01", "machine": machine, "checks": []}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "capacity.json"
    path.write_text(json.dumps(document()))
    found = read(path)
    assert found.of("lander") == CAPACITY and found.where == "2 cores of a test, 2026-01-01"


@pytest.mark.parametrize(
    ("key", "value"), [("tick_ms", -1.0), ("tick_ms", math.nan), ("call_bytes", None), ("ray_mib", "much")]
)
def test_costs_that_are_none_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    changed = document()
    changed["costs"]["door"][key] = value
    (tmp_path / "capacity.json").write_text(json.dumps(changed))
    with pytest.raises(UserError, match=key):
        read(tmp_path / "capacity.json")


@pytest.mark.parametrize(("model", "told"), [("nobody", "There is no folder 'nobody'"), ("village", "Measure it here")])
def test_what_is_no_model_is_told_so_and_not_to_be_measured(
    capsys: pytest.CaptureFixture[str], model: str, told: str
) -> None:
    shown = refused(capsys, "plan", "--sessions", "5", "--model", model)
    assert told in shown and ("Measure it here" in shown) == (model == "village")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"costs": 1}', '{"costs": {"door": {}, "models": {}}}'])
def test_a_file_that_holds_no_costs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "capacity.json").write_text(text)
    given = ("plan", "--sessions", "5", "--measured", str(tmp_path / "capacity.json"))
    assert "holds no costs" in refused(capsys, *given)
    assert "cannot be read" in refused(capsys, *given[:-1], str(tmp_path / "nothing.json"))


def test_the_bundled_costs_are_of_models_that_are_bundled_and_say_on_what() -> None:
    bundled = read(None)
    assert set(bundled.models) == set(capacity_runs.MODELS)
    assert bundled.document["machine"]["cores"] and bundled.document["measured"] and not bundled.document["quick"]
    if bundled.document["load"] <= BUSY:  # what was measured beside other work says so instead
        assert max(abs(one["deviation"]) for one in bundled.document["checks"]) <= 0.15, "measure it again"
    else:
        assert "busy with other work" in tables(dict(bundled.document))[-1].note


def test_the_page_has_the_bundled_costs() -> None:
    text = (ROOT / "docs" / "scaling.md").read_text("utf-8")
    assert text == filled(text, read(None)), "run `rtcontrol bench tables`"


def test_a_page_without_its_marks_is_told() -> None:
    measured = Measured(DOOR, {"lander": MODEL}, {**document(), "quick": True, "load": 0.1})
    with pytest.raises(UserError, match="<!-- capacity: costs -->"):
        filled("nothing", measured)


@pytest.mark.serial
@pytest.mark.timeout(600)
def test_a_machine_is_measured_and_planned_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "capacity.json"
    assert call("bench", "capacity", "lander", "--quick", "--json", str(out)) == 0
    shown = capsys.readouterr().out
    assert "Predicted and measured" in shown and "a few decisions only" in shown
    written = json.loads(out.read_text())
    assert set(written["costs"]["models"]) == {"lander"} and len(written["runs"]["served"]) == len(LOADS)
    found = read(out).of("lander")
    assert found.cost.batch.each_ms > 0 and found.door.tick_ms > 0 and found.door.door_mib > 10
    assert call("plan", "--sessions", "20", "--hz", "2", "--measured", str(out)) == 0
    assert "rtcontrol serve --model lander" in capsys.readouterr().out
