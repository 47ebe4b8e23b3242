"""The tables of a score, from its document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from rich.table import Table

from rtcontrol.evaluation.policies import SCRIPTED, ScoringGate
from rtcontrol.models.metrics.intervals import calibration, wilson

THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)


def sweep(sure: dict[str, Sequence[float]], gate: float = 0.0) -> Iterator[tuple[float, dict[str, int]]]:
    """At each threshold (and at the `gate`) how many of each list of sentences would be held: their confidence in the
    first second is below it."""
    for threshold in sorted({*THRESHOLDS, *([gate] if gate else [])}):
        yield threshold, {name: sum(one < threshold for one in listed) for name, listed in sure.items()}


MEANINGS = 16  # lines of a table at most, where its meanings differ in numbers
NAMED = 12  # sentences that are named below it
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def tables(document: Mapping[str, Any], steadiness: bool = False) -> Iterator[Table]:
    """Those of what was measured so far; how steady the calls are where it is asked for."""
    settings, cells = document["settings"], list(document["cells"].values())
    models = settings["models"]
    if any(cell["part"] == "goals" for cell in cells):
        yield _goals(cells, models, settings)
        if steadiness:
            yield _steadiness(cells, models, settings)
    if any(cell["part"] == "delays" for cell in cells):
        yield _delays(cells, settings)
    if any(cell["wall"] for cell in cells):
        yield _rates(cells, settings)
    for model in models:
        found = phrasing_shares(document, model) if "lines" in document else None
        if found is not None and ("all" in found or found["gate"] != "0" or found["nonsense"]["held"]):
            yield _phrasings(found, model)
        if (measured := calibrated(cells, model)) is not None:
            yield _sweep(cells, model, _gate(settings, model), measured)


def share(outcomes: Sequence[int]) -> str:
    """`19/20 (0.76-0.99)`: successes, tried, Wilson's interval at 95 %."""
    if not outcomes:
        return "-"
    low, high = wilson(sum(outcomes), len(outcomes))
    return f"{sum(outcomes)}/{len(outcomes)} ({low:.2f}-{high:.2f})"


def pick(cells: Sequence[Mapping[str, Any]], part: str, title: str, by: str, **more: Any) -> list[int]:
    """The outcomes of one cell, in the order of the seeds."""
    return [
        outcome
        for cell in cells
        if (cell["part"], cell["title"], cell["by"]) == (part, title, by)
        if all(cell[name] == value for name, value in more.items())
        for outcome in cell["outcomes"]
    ]


def paired(model: Sequence[int], expert: Sequence[int]) -> str:
    """On how many of the same seeds the one alone succeeds, and the other alone."""
    both = list(zip(model, expert, strict=False))
    return f"+{sum(a > b for a, b in both)} -{sum(a < b for a, b in both)}"


def _goals(cells: Sequence[Mapping[str, Any]], models: Sequence[str], settings: Mapping[str, Any]) -> Table:
    title = f"{settings['env']}, lockstep at {settings['hz']:g} Hz, the same seeds for all"
    note = (
        "successes of tried (Wilson 95 %). Told another goal: judged by this one all the same, so that who ignores "
        "what is told succeeds. Alone: on so many seeds the model succeeds and the expert not (+), or only the expert "
        "(-)."
    )
    found = Table("told", title=title, caption=note)
    for model in models:
        for column in (model, "told another", "alone"):
            found.add_column(column, justify="right")
    others = [name for name in SCRIPTED if name not in models]
    for name in others:
        found.add_column(name, justify="right")
    found.add_column("expert told another", justify="right")
    for goal in dict.fromkeys(cell["title"] for cell in cells if cell["part"] == "goals"):
        row = []
        for model in models:
            own = pick(cells, "goals", goal, model)
            row += [share(own), share(pick(cells, "other", goal, model))]
            row.append(paired(own, pick(cells, "goals", goal, "expert")))
        row += [share(pick(cells, "goals", goal, name)) for name in others]
        found.add_row(goal, *row, share(pick(cells, "other", goal, "expert")))
    return found


def _steadiness(cells: Sequence[Mapping[str, Any]], models: Sequence[str], settings: Mapping[str, Any]) -> Table:
    how = f"hysteresis {settings['hysteresis']}" if settings.get("hysteresis") else "no hysteresis"
    note = (
        "Reversals a minute: calls that take a value back within 2 s. Stays: until another call acted, p50 and p99. "
        "Repeated: the call that is in force, again. Stale: ticks that leave it in force undecided. Kept: ticks in "
        "which hysteresis kept a value (docs/report.md)."
    )
    found = Table("told", title=f"how steady the calls are; models with {how}", caption=note)
    found.add_column("by")
    for column in ("episodes", "calls", "reversals a minute", "stays, s", "repeated", "stale", "kept"):
        found.add_column(column, justify="right")
    for cell in cells:
        told = cell.get("steadiness")
        if cell["part"] != "goals" or told is None or cell["by"] not in (*models, "expert"):
            continue
        stays = [told["dwell_ms"][name] for name in ("p50", "p99")]
        found.add_row(
            cell["title"],
            cell["by"],
            str(len(cell["outcomes"])),
            str(told["calls"]),
            _figure(told["reversals_a_minute"], ".1f"),
            "-" if stays[0] is None else ", ".join(f"{ms / 1e3:.2f}" for ms in stays),
            _figure(told["repeated_share"], ".1%"),
            _figure(told["stale_share"], ".1%"),
            str(told["kept_by_hysteresis"]),
        )
    return found


def _figure(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def phrasing_shares(document: Mapping[str, Any], model: str) -> dict[str, Any] | None:
    """Of the phrasings: in all and by meaning `said`, `right`, `canonical_right` and `unsure`; those that are neither
    right nor held where the canonical instruction is right (`acted_wrongly`); of nonsense how many there are and how
    many are held. None before all were flown."""
    settings, lines = document["settings"], document["lines"]
    cells = {c["part"]: c for c in document["cells"].values() if c["by"] == model}
    meant = [line["means"] for line in lines if line["means"] is not None]
    nonsense = len(lines) - len(meant)
    parts = [("phrasings", len(meant)), ("canonical", len(meant)), ("nonsense", nonsense)]
    if any(count and len(cells.get(part, {"outcomes": ()})["outcomes"]) < count for part, count in parts):
        return None
    found: dict[str, Any] = {"gate": str(_gate(settings, model)), "by_meaning": {}}
    if meant:
        phrased, plain = cells["phrasings"], cells["canonical"]
        unsure = [bool(one) for one in phrased["unsure"]]
        rows = list(zip(meant, phrased["outcomes"], plain["outcomes"], unsure, strict=True))
        for means in dict.fromkeys(meant):
            found["by_meaning"][means] = _counts([row for row in rows if row[0] == means])
        found["all"] = _counts(rows)
        phrases = [line["say"] for line in lines if line["means"] is not None]
        wrong = [(say, row) for say, row in zip(phrases, rows, strict=True) if row[2] and not row[1] and not row[3]]
        found["acted_wrongly"] = [{"say": say, "means": row[0]} for say, row in wrong]
    if nonsense:
        found["nonsense"] = {"said": nonsense, "held": sum(cells["nonsense"]["unsure"])}
    return found


def _gate(settings: Mapping[str, Any], model: str) -> ScoringGate:
    return ScoringGate.parse(settings["gates"][settings["models"].index(model)])


def _counts(rows: Sequence[tuple[str, int, int, bool]]) -> dict[str, int]:
    return {
        "said": len(rows),
        "right": sum(right and not unsure for _, right, _, unsure in rows),
        "canonical_right": sum(plain for _, _, plain, _ in rows),
        "unsure": sum(unsure for *_, unsure in rows),
    }


def _phrasings(found: Mapping[str, Any], model: str) -> Table:
    gate = "no gate" if found["gate"] == "0" else f"held below {found['gate']}"
    note = (
        "right: ended as the meaning asks, and not held; canonical right: its canonical instruction on the same seed; "
        "unsure: held back, by the gate or by an answer that says so, for most of the first second."
    )
    if wrong := found.get("acted_wrongly"):
        listed = "".join(f'\n  "{one["say"]}": {one["means"]}' for one in wrong[:NAMED])
        more = f"\n  and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        note += f" Taken for something else, where the canonical instruction is done:{listed}{more}"
    shown = Table("means", title=f"phrasings, {model} ({gate})", caption=note)
    columns = ("said", "right", "canonical_right", "unsure")
    for column in columns:
        shown.add_column(column.replace("_", " "), justify="right")
    meanings = found["by_meaning"]
    if len(meanings) > MEANINGS:  # those that differ in their numbers together
        together: dict[str, dict[str, int]] = {}
        for means, counts in meanings.items():
            row = together.setdefault(_NUMBER.sub("N", means), dict.fromkeys(columns, 0))
            row.update({column: row[column] + counts[column] for column in columns})
        meanings = together
    rows = [*meanings.items(), *([("all", found["all"])] if "all" in found else [])]
    for means, counts in rows:
        shown.add_row(means, *(str(counts[column]) for column in columns), end_section=means == rows[-2][0])
    if "nonsense" in found:
        shown.add_row("nothing (nonsense)", str(found["nonsense"]["said"]), "", "", str(found["nonsense"]["held"]))
    return shown


def _by_goal(cells: Sequence[Mapping[str, Any]], part: str) -> list[str]:
    return list(dict.fromkeys(cell["title"] for cell in cells if cell["part"] == part))


def _delays(cells: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Table:
    period_ms = 1e3 / settings["hz"]
    note = f"lockstep at {settings['hz']:g} Hz, the same seeds: each call acts so many ticks ({period_ms:g} ms) late."
    found = Table("by", "told", title="what a late call costs", caption=note)
    delays = [0, *(delay for delay in settings["delays"] if delay)]
    for delay in delays:
        found.add_column(f"{delay} ticks late", justify="right")
    goals = _by_goal(cells, "delays")
    for by in (*settings["models"], "expert"):
        rows = []
        for goal in goals:
            late = [pick(cells, "delays", goal, by, delay=delay) for delay in delays[1:]]
            rows.append([pick(cells, "goals", goal, by), *late])
        for goal, row in zip(goals, rows, strict=True):
            found.add_row(by, goal, *map(share, row))
        together = [share([*chain(*column)]) for column in zip(*rows, strict=True)]
        found.add_row(by, "all", *together, end_section=True)
    return found


def _rates(cells: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Table:
    note = (
        "all goals together, the same seeds. In lockstep the world waits; in real time it does not, and a decision "
        "that misses its deadline (a period) does not act. Alone: succeeded in real time only (+), in lockstep only "
        "(-). Latency: the worst of the runs."
    )
    found = Table("by", "Hz", title="what being late costs, in real time", caption=note)
    for column in ("lockstep", "real time", "alone", "missed ticks", "latency p50, p99"):
        found.add_column(column, justify="right")
    for by in (*settings["models"], "expert"):
        for hz in settings["rates"]:
            flown = [c for c in cells if c["wall"] and c["by"] == by and c["hz"] == hz]
            goals = [cell["title"] for cell in flown]
            # Goal by goal: where a run was interrupted, each has its own seeds.
            pairs = [
                pair
                for goal in goals
                for pair in zip(
                    pick(cells, "rates", goal, by, hz=hz, wall=True),
                    pick(cells, "goals" if hz == settings["hz"] else "rates", goal, by, hz=hz, wall=False),
                    strict=False,
                )
            ]
            runs = [run for cell in flown for run in cell["runs"]]
            if not runs:
                continue
            releases = sum(run["releases"] for run in runs)
            missed = sum(run["misses"] + run["skipped_releases"] for run in runs)
            live, waited = ([pair[i] for pair in pairs] for i in (0, 1))
            row = [share(waited), share(live), paired(live, waited)]
            found.add_row(by, f"{hz:g}", *row, f"{missed}/{releases}", latency(runs))
    return found


def latency(runs: Sequence[Mapping[str, Any]]) -> str:
    """The worst of the runs; a run that missed every tick has none."""
    worst = []
    for q in ("p50", "p99"):
        known = [ms for run in runs if (ms := run["latency_ms"][q]) is not None]
        worst.append(f"{max(known):.1f}" if known else "-")
    return f"{worst[0]}, {worst[1]} ms"


def calibrated(cells: Sequence[Mapping[str, Any]], model: str) -> dict[str, Any] | None:
    """Of all goals together, each with its share of their decisions, of which there are `of`; None where no decision
    has a confidence, or no expert is known."""
    own = [cell for cell in cells if cell["part"] == "goals" and cell["by"] == model]
    every = max((cell["every"] for cell in own), default=1)  # long cells keep every so manieth of theirs
    kept = {name: [*chain(*(c[name][:: every // c["every"]] for c in own))] for name in ("confidence", "agrees")}
    if not kept["confidence"]:
        return None
    return calibration(kept["confidence"], kept["agrees"]) | {"of": sum(cell["decisions"] for cell in own)}


def _sweep(cells: Sequence[Mapping[str, Any]], model: str, gate: ScoringGate, measured: Mapping[str, Any]) -> Table:
    names = {"goals": "canonical", "phrasings": "phrased", "nonsense": "nonsense"}
    every = {
        title: [one for cell in cells if cell["part"] == part and cell["by"] == model for one in cell.get("sure", ())]
        for part, title in names.items()
    }
    listed: dict[str, Sequence[float]] = {title: sure for title, sure in every.items() if sure}
    note = (
        f"of {measured['of']} decisions the expert makes the same call in "
        f"{_agreed(measured):.1%}; expected calibration error (15 bins of equal mass) {measured['ece']:.3f}. Held: "
        "less sure than the threshold for most of the first second."
    )
    found = Table(f"--gate {gate.head}=..." if gate.head else "--gate", title=f"confidence, {model}", caption=note)
    for title, sure in listed.items():
        found.add_column(f"{title} held, of {len(sure)}", justify="right")
    for threshold, held in sweep(listed, gate.least):
        mark = " (this gate)" if gate.least and threshold == gate.least else ""
        found.add_row(f"{threshold:g}{mark}", *(f"{held[title] / len(sure):.1%}" for title, sure in listed.items()))
    return found


def _agreed(measured: Mapping[str, Any]) -> float:
    return float(sum(count * share for count, _, share in measured["bins"]) / max(measured["decisions"], 1))
