"""The tables of a score, from its document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from rtcontrol.evaluation.policies import SCRIPTED
from rtcontrol.models.intervals import wilson

MEANINGS = 16  # lines of a table at most, where its meanings differ in numbers
NAMED = 12  # sentences that are named below it
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """Those of what was measured so far."""
    settings, cells = document["settings"], list(document["cells"].values())
    models = settings["models"]
    if any(cell["part"] == "goals" for cell in cells):
        yield _goals(cells, models, settings)
    for model in models:
        found = phrasing_shares(document, model) if "lines" in document else None
        if found is not None and ("all" in found or found["gate"] or found["nonsense"]["held"]):
            yield _phrasings(found, model)


def share(outcomes: Sequence[int]) -> str:
    """`19/20 (0.76-0.99)`: successes, tried, Wilson's interval at 95 %."""
    if not outcomes:
        return "-"
    low, high = wilson(sum(outcomes), len(outcomes))
    return f"{sum(outcomes)}/{len(outcomes)} ({low:.2f}-{high:.2f})"


def pick(cells: Sequence[Mapping[str, Any]], part: str, title: str, by: str) -> list[int]:
    """The outcomes of one cell, in the order of the seeds."""
    return [
        outcome
        for cell in cells
        if (cell["part"], cell["title"], cell["by"]) == (part, title, by)
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
    found: dict[str, Any] = {
        "gate": settings["gates"][settings["models"].index(model)],
        "by_meaning": {},
    }
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


def _counts(rows: Sequence[tuple[str, int, int, bool]]) -> dict[str, int]:
    return {
        "said": len(rows),
        "right": sum(right and not unsure for _, right, _, unsure in rows),
        "canonical_right": sum(plain for _, _, plain, _ in rows),
        "unsure": sum(unsure for *_, unsure in rows),
    }


def _phrasings(found: Mapping[str, Any], model: str) -> Table:
    gate = f"held below {found['gate']:g}" if found["gate"] else "no gate"
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
