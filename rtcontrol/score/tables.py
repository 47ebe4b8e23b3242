"""Build the tables of a score from its document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from rtcontrol.models.intervals import wilson_interval
from rtcontrol.score.policies import SCRIPTED

GOALS_NOTE = (
    "successes of attempts (Wilson 95 %). `another goal`: the instruction names another goal, but the row's goal is "
    "judged. A model that ignores instructions succeeds there."
)
PHRASINGS_NOTE = (
    "right: reached the goal of the sentence, and not unsure. canonical right: the same by the canonical instruction. "
    "unsure: most decisions of the first second were held, by the gate or a null call."
)


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """Yield tables of the existing results for a terminal."""
    settings, cells = document["settings"], list(document["cells"].values())
    if any(cell["part"] == "goals" for cell in cells):
        yield _goals_table(cells, settings)
    counts = {model: phrasing_counts(document, model) for model in settings["models"]}
    if any(counts.values()):
        table = Table("model", "gate", title="phrasings", caption=PHRASINGS_NOTE)
        for column in ("sentences", "right", "canonical right", "unsure", "nonsense", "held"):
            table.add_column(column, justify="right")
        for (model, played), gate in zip(counts.items(), settings["gates"], strict=True):
            table.add_row(model, f"{gate:g}", *map(str, (played or {}).values()))
        yield table


def unfamiliar_notes(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each model that received observations unlike those of its training."""
    for model in document["settings"]["models"]:
        cells = [cell for cell in document["cells"].values() if cell["by"] == model]
        if count := sum(cell.get("unfamiliar", 0) for cell in cells):
            example = next(cell["example"] for cell in cells if cell.get("unfamiliar"))
            yield f"{model}: {count:,} decisions were held, because training had no such observations: {example}."


def share_text(outcomes: Sequence[int]) -> str:
    """Return successes, attempts and the 95 % Wilson interval as a text such as `19/20 (0.76-0.99)`."""
    if not outcomes:
        return "-"
    low, high = wilson_interval(sum(outcomes), len(outcomes))
    return f"{sum(outcomes)}/{len(outcomes)} ({low:.2f}-{high:.2f})"


def outcomes_of(cells: Sequence[Mapping[str, Any]], part: str, title: str, by: str) -> list[int]:
    """Return the outcomes (1: success) of the cell of a policy `by`, in the order of its seeds."""
    chosen = (cell for cell in cells if (cell["part"], cell["title"], cell["by"]) == (part, title, by))
    return [outcome for cell in chosen for outcome in cell["outcomes"]]


def _goals_table(cells: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Table:
    models = settings["models"]
    title = f"{settings['env']}, lockstep at {settings['hz']:g} Hz, the same seeds for all"
    table = Table("goal", title=title, caption=GOALS_NOTE)
    others = [name for name in SCRIPTED if name not in models]
    columns = [column for model in models for column in (model, "another goal")]
    for column in (*columns, *others, "expert, another goal"):
        table.add_column(column, justify="right")
    for goal in dict.fromkeys(cell["title"] for cell in cells if cell["part"] == "goals"):
        row = [share_text(outcomes_of(cells, part, goal, model)) for model in models for part in ("goals", "other")]
        row += [share_text(outcomes_of(cells, "goals", goal, name)) for name in others]
        table.add_row(goal, *row, share_text(outcomes_of(cells, "other", goal, "expert")))
    return table


def phrasing_counts(document: Mapping[str, Any], model: str) -> dict[str, int] | None:
    """Return the counts of a model's row in the table of phrasings, or None if there are no phrasings, or if some of
    their episodes were not played."""
    cells = {cell["part"]: cell for cell in document["cells"].values() if cell["by"] == model}
    lines = document.get("lines", ())
    meant = sum(line["means"] is not None for line in lines)
    parts = {"phrasings": meant, "canonical": meant, "nonsense": len(lines) - meant}
    nothing: dict[str, list[int]] = {"outcomes": [], "unsure": []}
    phrased, canonical, nonsense = (cells.get(part, nothing) for part in parts)
    if not lines or [len(cell["outcomes"]) for cell in (phrased, canonical, nonsense)] != [*parts.values()]:
        return None
    outcomes = zip(phrased["outcomes"], phrased["unsure"], strict=True)
    return {
        "sentences": meant,
        "right": sum(right and not unsure for right, unsure in outcomes),
        "canonical_right": sum(canonical["outcomes"]),
        "unsure": sum(phrased["unsure"]),
        "nonsense": len(lines) - meant,
        "held": sum(nonsense["unsure"]),
    }
