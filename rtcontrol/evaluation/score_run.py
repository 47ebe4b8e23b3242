"""Flies the cells of a plan, a few cases at a time, and says how long the rest takes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.envs.evaluate import Case, Played, play
from rtcontrol.envs.skill import Skill
from rtcontrol.evaluation.policies import SCRIPTED, Flyer, ModelFlyer
from rtcontrol.evaluation.score_document import Document
from rtcontrol.evaluation.score_plan import Cell

CHUNK, WALL_CHUNK = 32, 4  # cases; what is interrupted loses at most these
START_S = 2.0  # of a run in real time
GUESS_S = {"scripted": 0.05, "model": 0.5, "wall": 15.0}  # of an episode


@dataclass
class Estimate:
    """How long what is left takes, by what episodes of each kind took so far; in real time, by how long they last in
    the `document`."""

    document: Document
    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))

    def learn(self, cell: Cell, count: int, seconds: float) -> None:
        one = self.took[_kind(cell)]
        one[0], one[1] = one[0] + seconds, one[1] + count

    def seconds(self, cell: Cell, count: int) -> float:
        if cell.wall:
            return START_S * -(-count // WALL_CHUNK) + count * self._lasts(cell)
        spent, flown = self.took.get(_kind(cell), (0.0, 0.0))
        return count * (spent / flown if flown else GUESS_S["scripted" if cell.by in SCRIPTED else "model"])

    def _lasts(self, cell: Cell) -> float:
        known = [
            second
            for flown in self.document.cells.values()
            if (flown["part"], flown["title"]) == ("goals", cell.title) and flown["by"] in (cell.by, "expert")
            for second in flown["seconds"]
        ]
        return sum(known) / len(known) if known else GUESS_S["wall"]


def _kind(cell: Cell) -> str:
    return f"{cell.by} {cell.wall} {cell.longest_s}"


# What is flown, cases done, of, seconds left, seconds that everything (`--full`) would take beside.
Progress = Callable[[str, int, int, float, float], None]
InRealTime = Callable[[Cell, Sequence[Case]], tuple[list[Played], dict[str, Any]]]


def measure(
    skill: Skill,
    cells: Sequence[Cell],
    flyers: Mapping[str, Flyer],
    document: Document,
    progress: Progress,
    wall: InRealTime | None = None,
    more: Sequence[Cell] = (),
) -> None:
    """Fly what the document has not yet, in real time by `wall`; how long `more` would take is told beside. Raises
    UserError; what was flown until then is in the document."""
    estimate, total = Estimate(document), sum(len(cell.cases) for cell in cells)
    left = {cell.key: len(cell.cases) - document.done(cell) for cell in cells}
    for cell in cells:
        while left[cell.key]:
            remaining = sum(estimate.seconds(c, left[c.key]) for c in cells)
            beside = sum(estimate.seconds(c, len(c.cases)) for c in more)
            progress(f"{cell.part}: {cell.title}, {cell.by}", total - sum(left.values()), total, remaining, beside)
            began, first, figures = time.perf_counter(), document.done(cell), None
            if cell.wall:
                assert wall is not None, "cells in real time are flown by a loop"
                flown, figures = wall(cell, cell.cases[first : first + WALL_CHUNK])
            else:
                flown = fly(skill, cell, first, flyers[cell.by])
            estimate.learn(cell, len(flown), time.perf_counter() - began)
            document.add(cell, flown, figures)
            left[cell.key] -= len(flown)
    document.data["complete"] = True
    document.write()


def fly(skill: Skill, cell: Cell, first: int, flyer: Flyer) -> list[Played]:
    """The cell's next cases, from the `first` on."""
    cases: Sequence[Case] = cell.cases[first : first + CHUNK]
    parallel = flyer.parallel if isinstance(flyer, ModelFlyer) else CHUNK
    return play(skill, flyer, cases, cell.hz, parallel, delay_ticks=cell.delay, longest_s=cell.longest_s)
