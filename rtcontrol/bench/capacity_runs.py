"""`rtcontrol bench capacity`: the costs that `rtcontrol plan` sizes by, fitted to some runs and checked by others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rtcontrol.bench import capacity_memory
from rtcontrol.bench.capacity import MBIT, MS, BatchCost, Capacity, DoorCost, ModelCost, as_document, fitted
from rtcontrol.bench.capacity_served import LOADS, ServedLoad, served
from rtcontrol.bench.crowd import batches
from rtcontrol.bench.situations import agent_of
from rtcontrol.bench.timing import Progress, stepped
from rtcontrol.models.errors import UserError

MODELS = ("lander", "base", "driver", "paddle")
# Sizes of batches that the costs are fitted to, and that they are checked by.
SIZES, CHECK_SIZES = (1, 4, 16, 64), (2, 8, 32)
ROUNDS, SECONDS = 12, 5.0
MEMORY_STEPS = 10  # of the progress
QUIETER = "Measure again on a machine that does nothing else meanwhile, or take a smaller model."
Row = dict[str, Any]


def measure(models: Sequence[str], quick: bool, progress: Progress) -> dict[str, Any]:
    """The document of `bench capacity`: `costs`, `checks` of them by runs that they were not fitted to, and all `runs`.
    Servers are of the first model alone: others differ from it in their batches and their memory. UserError for a model
    that cannot be measured."""
    began, load = datetime.now(UTC), round(os.getloadavg()[0], 2)
    rounds, seconds = (3, 1.0) if quick else (ROUNDS, SECONDS)
    asked = [replace(load, hz=load.hz / 4) for load in LOADS] if quick else LOADS
    step = stepped(progress, len(models) * (rounds + 2 + MEMORY_STEPS) + 2 * len(LOADS) * seconds)
    costs: dict[str, ModelCost] = {}
    checks, runs = list[Row](), dict[str, Any]()
    for model in models:
        agent = agent_of(model)
        timed = batches(model, rounds, (*SIZES, *CHECK_SIZES), agent, 1, step, again=True)
        kept = capacity_memory.runs(model, agent, check=model == models[0])
        step(MEMORY_STEPS)
        costs[model] = model_cost(agent, timed, kept)
        checks += [{"model": model, **row} for row in model_checks(costs[model], timed, kept)]
        runs[model] = {"cpu_ms": timed["median_cpu_ms"], "mib": kept}
    first, cost = models[0], costs[models[0]]
    runs["served"] = loads = served(first, cost.agent, seconds, step, asked)
    for run in loads if quick else ():
        run["full"] = False  # whatever came of so little: its figures are none
    capacity = Capacity(first, cost, door_cost(cost, loads))
    checks += [{"model": first, **row} for row in served_checks(capacity, loads)]
    conditions = {"quick": quick, "measured": began.strftime("%Y-%m-%d"), "load": load}
    return {
        "bench": "capacity",
        **conditions,
        "costs": as_document(capacity.door, costs),
        "checks": checks,
        "runs": runs,
    }


def model_cost(agent: str, timed: Mapping[str, Any], kept: Mapping[str, Any]) -> ModelCost:
    """Fitted to the runs that are no checks."""
    most = int(timed["together"])
    took = timed["median_cpu_ms"]
    rows = [(-(-size // most), size) for size in SIZES]
    pass_ms, each_ms = fitted(rows, [took[str(size)] for size in SIZES])
    return ModelCost(agent, BatchCost(pass_ms, each_ms, most), **capacity_memory.costs(kept))


def model_checks(cost: ModelCost, timed: Mapping[str, Any], kept: Mapping[str, Any]) -> list[Row]:
    """By the sizes and the memory that nothing was fitted to."""
    took = timed["median_cpu_ms"]
    found = [_row(f"a batch of {n}", cost.batch.ms(n), took[str(n)], "ms of a core") for n in CHECK_SIZES]
    return found + [_row(*one, "MiB") for one in capacity_memory.checks(kept, cost)]


def _known(loads: Sequence[Row], check: bool) -> list[tuple[ServedLoad, Row]]:
    """Runs to fit, or to check, with their loads: without those where a process had no more to give, or calls were
    late, which tell of nothing but a limit. UserError where too few are left."""
    found = [(_load(run), run) for run in loads if run["check"] == check and not run["full"]]
    if not check and len(found) < sum(not run["check"] for run in loads):
        full = ", ".join(_load(run).name for run in loads if run["full"])
        raise UserError(f"The server had no time left at {full}: its costs cannot be told.", QUIETER)
    return found


def _load(run: Row) -> ServedLoad:
    return ServedLoad(run["kind"], run["count"], run["hz"], run["check"])


def door_cost(cost: ModelCost, loads: Sequence[Row]) -> DoorCost:
    """Of the parts that know no model, from the runs that are no checks, beside what the model itself costs."""
    known = _known(loads, check=False)
    apart = [(load, run) for load, run in known if not load.crowd], [(load, run) for load, run in known if load.crowd]
    alone, crowds = ([_rates(load, run) for load, run in part] for part in apart)
    server, size = ([[read(run) for _, run in part] for part in apart] for read in (_server_ms, _bytes))
    tick_ms, idle_ms = fitted([(ticks, 1.0) for ticks, _, _ in alone], server[0])
    call_ms, crowd_ms, crowd_idle_ms = fitted([(calls, periods, 1.0) for _, calls, periods in crowds], server[1])
    (tick_bytes,) = fitted([(ticks,) for ticks, _, _ in alone], size[0])
    call_bytes, crowd_bytes = fitted([(calls, periods) for _, calls, periods in crowds], size[1])
    decided = [(_decided_ms(cost, load, run), load.crowd) for load, run in known]
    rows = [(0.0 if crowd else ms, ms if crowd else 0.0, 1.0) for ms, crowd in decided]
    decoder = fitted(rows, [MS * run["busy"]["decoder"] for _, run in known])
    sessions = [(load.count, run["mib"]) for load, run in known if not load.crowd]
    door_mib, door_session_mib = fitted([(1.0, n) for n, _ in sessions], [mib["server"] for _, mib in sessions])
    spare = [mib["decoder"] - cost.model_mib - n * cost.sequence_mib for n, mib in sessions]
    sizes = [mib["decoder"] for _, mib in sessions]
    decoder_mib, decoder_session_mib = fitted([(1.0, n) for n, _ in sessions], spare, sizes)
    return DoorCost(
        tick_ms=tick_ms,
        idle_ms=idle_ms,
        call_ms=call_ms,
        crowd_ms=crowd_ms,
        crowd_idle_ms=crowd_idle_ms,
        decoder_idle_ms=decoder[2],
        session_factor=decoder[0],
        crowd_factor=decoder[1],
        tick_bytes=tick_bytes,
        call_bytes=call_bytes,
        crowd_bytes=crowd_bytes,
        door_mib=door_mib,
        door_session_mib=door_session_mib,
        decoder_mib=decoder_mib,
        decoder_session_mib=decoder_session_mib,
        ray_mib=max(run["mib"]["ray"] for _, run in known),
        ray_ms=MS * sum(run["busy"]["ray"] for _, run in known) / len(known),
    )


def _rates(load: ServedLoad, run: Row) -> tuple[float, float, float]:
    """Ticks of sessions, calls of crowds, and periods of crowds a second."""
    return (0.0, run["ticks_per_s"], load.hz) if load.crowd else (run["ticks_per_s"], 0.0, 0.0)


def _server_ms(run: Row) -> float:
    return MS * float(run["busy"]["server"])


def _bytes(run: Row) -> float:
    return float(run["bytes_per_s"])


def _decided_ms(cost: ModelCost, load: ServedLoad, run: Row) -> float:
    """Milliseconds of a core that the decisions of a second take, by the model's cost alone."""
    bare = Capacity("", cost, DoorCost.nothing())
    hz = run["ticks_per_s"] / load.count
    return MS * (bare.crowd_busy(load.count, hz) if load.crowd else bare.sessions_busy(load.count, hz))


def served_checks(capacity: Capacity, loads: Sequence[Row]) -> list[Row]:
    """Of each run that is a check: door and decoder, and the wire."""
    found, most = [], max(load.count for load, _ in _known(loads, check=False) if not load.crowd)
    for load, run in _known(loads, check=True):
        ticks, calls, periods = _rates(load, run)
        hz = run["ticks_per_s"] / load.count
        decoder = (capacity.crowd_busy if load.crowd else capacity.sessions_busy)(load.count, hz)
        door = capacity.crowd_door_busy(calls, periods) if load.crowd else capacity.door_busy(ticks)
        link = capacity.link_mbit(ticks, calls, periods)
        found += [
            _row(f"decoder, {load.name}", 100 * decoder, 100 * run["busy"]["decoder"], "% of a core"),
            _row(f"door, {load.name}", 100 * door, 100 * run["busy"]["server"], "% of a core"),
            _row(f"wire, {load.name}", link, MBIT * run["bytes_per_s"], "Mbit/s"),
        ]
        # What a process has had once it keeps: the memory of the largest load alone tells of its own.
        if not load.crowd and load.count > most:
            decoder_mib, door_mib = capacity.decoder_mib(load.count), capacity.door_mib(load.count)
            found.append(_row(f"decoder's memory, {load.name}", decoder_mib, run["mib"]["decoder"], "MiB"))
            found.append(_row(f"door's memory, {load.name}", door_mib, run["mib"]["server"], "MiB"))
    return found


def _row(what: str, predicted: float, measured: float, unit: str) -> Row:
    """A line of the checks; `deviation` is the prediction's, as a part of what was measured."""
    deviation = predicted / measured - 1 if measured else 0.0
    figures = {"predicted": round(predicted, 4), "measured": round(measured, 4), "deviation": round(deviation, 4)}
    return {"what": what, "unit": unit, **figures}
