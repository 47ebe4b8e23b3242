"""The tables of a score, from its document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from rtcontrol.models.intervals import wilson
from rtcontrol.score.policies import SCRIPTED

NAMED = 12  # sentences that are listed below a table
COUNTS = ("said", "right", "canonical_right", "unsure")
GOALS_NOTE = (
    "successes of tried (Wilson 95 %). Told another goal: judged by this one all the same, so that a model that "
    "ignores instructions succeeds."
)
PHRASINGS_NOTE = (
    "right: ended as the meaning asks, and not held; canonical right: its canonical instruction on the same seed; "
    "unsure: held back, by the gate or by an answer that says so, for most of the first second."
)


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """Yield those of what was measured so far."""
    settings, cells = document["settings"], list(document["cells"].values())
    if any(cell["part"] == "goals" for cell in cells):
        yield _goals(cells, settings)
    for model in settings["models"]:
        shares = phrasing_shares(document, model) if "lines" in document else None
        if shares is not None and ("all" in shares or shares["gate"] or shares["nonsense"]["held"]):
            yield _phrasings(shares, model)


def share(outcomes: Sequence[int]) -> str:
    """Return `19/20 (0.76-0.99)`: successes, tried, Wilson's interval at 95 %."""
    if not outcomes:
        return "-"
    low, high = wilson(sum(outcomes), len(outcomes))
    return f"{sum(outcomes)}/{len(outcomes)} ({low:.2f}-{high:.2f})"


def pick(cells: Sequence[Mapping[str, Any]], part: str, title: str, by: str) -> list[int]:
    """Return the outcomes of one cell, in the order of the seeds."""
    chosen = (cell for cell in cells if (cell["part"], cell["title"], cell["by"]) == (part, title, by))
    return [outcome for cell in chosen for outcome in cell["outcomes"]]


def _goals(cells: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Table:
    models = settings["models"]
    title = f"{settings['env']}, lockstep at {settings['hz']:g} Hz, the same seeds for all"
    table = Table("told", title=title, caption=GOALS_NOTE)
    others = [name for name in SCRIPTED if name not in models]
    columns = [column for model in models for column in (model, "told another")]
    for column in (*columns, *others, "expert told another"):
        table.add_column(column, justify="right")
    for goal in dict.fromkeys(cell["title"] for cell in cells if cell["part"] == "goals"):
        row = [share(pick(cells, part, goal, model)) for model in models for part in ("goals", "other")]
        row += [share(pick(cells, "goals", goal, name)) for name in others]
        table.add_row(goal, *row, share(pick(cells, "other", goal, "expert")))
    return table


def phrasing_shares(document: Mapping[str, Any], model: str) -> dict[str, Any] | None:
    """Return of the phrasings, in all and by meaning, the `COUNTS`; those that are neither right nor held where the
    canonical instruction is right (`acted_wrongly`); of nonsense how many there are and are held. None before all were
    played."""
    settings, lines = document["settings"], document["lines"]
    cells = {cell["part"]: cell for cell in document["cells"].values() if cell["by"] == model}
    phrases = [(line["say"], line["means"]) for line in lines if line["means"] is not None]
    nonsense = len(lines) - len(phrases)
    for part, count in (("phrasings", len(phrases)), ("canonical", len(phrases)), ("nonsense", nonsense)):
        if count and (part not in cells or len(cells[part]["outcomes"]) < count):
            return None
    shares: dict[str, Any] = {"gate": settings["gates"][settings["models"].index(model)], "by_meaning": {}}
    if phrases:
        phrased = cells["phrasings"]
        outcomes = zip(phrased["outcomes"], cells["canonical"]["outcomes"], phrased["unsure"], strict=True)
        total, by_meaning, wrong = Counter[str](), shares["by_meaning"], []
        for (say, means), (right, canonical, unsure) in zip(phrases, outcomes, strict=True):
            counts = {"said": 1, "right": int(right and not unsure), "canonical_right": canonical, "unsure": unsure}
            for counter in (total, by_meaning.setdefault(means, Counter())):
                counter.update(counts)
            if canonical and not right and not unsure:
                wrong.append({"say": say, "means": means})
        shares |= {"all": total, "acted_wrongly": wrong}
    if nonsense:
        shares["nonsense"] = {"said": nonsense, "held": sum(cells["nonsense"]["unsure"])}
    return shares


def _phrasings(shares: Mapping[str, Any], model: str) -> Table:
    gate = f"held below {shares['gate']:g}" if shares["gate"] else "no gate"
    note = PHRASINGS_NOTE
    if wrong := shares.get("acted_wrongly"):
        listed = "".join(f'\n  "{entry["say"]}": {entry["means"]}' for entry in wrong[:NAMED])
        more = f"\n  and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        note += f" Taken for something else, where the canonical instruction is done:{listed}{more}"
    table = Table("means", title=f"phrasings, {model} ({gate})", caption=note)
    for column in COUNTS:
        table.add_column(column.replace("_", " "), justify="right")
    for means, counts in shares["by_meaning"].items():
        table.add_row(means, *(str(counts[column]) for column in COUNTS))
    if "all" in shares:
        table.add_section()
        table.add_row("all", *(str(shares["all"][column]) for column in COUNTS))
    if "nonsense" in shares:
        table.add_row("nothing (nonsense)", str(shares["nonsense"]["said"]), "", "", str(shares["nonsense"]["held"]))
    return table
