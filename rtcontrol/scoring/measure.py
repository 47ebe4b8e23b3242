"""Flies the cells of a plan, a few cases at a time, and says how long the rest takes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rtcontrol.envs.evaluate import Case, Played, play
from rtcontrol.envs.skill import Skill
from rtcontrol.scoring.document import Document
from rtcontrol.scoring.flyers import SCRIPTED, Flyer, ModelFlyer
from rtcontrol.scoring.plan import Cell

CHUNK = 32  # cases; what is interrupted loses at most these
GUESS_S = {True: 0.05, False: 0.5}  # of an episode: scripted, decided by a model


@dataclass
class Estimate:
    """How long what is left takes, by what episodes of each kind took so far."""

    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))

    def learn(self, cell: Cell, count: int, seconds: float) -> None:
        one = self.took[_kind(cell)]
        one[0], one[1] = one[0] + seconds, one[1] + count

    def seconds(self, cell: Cell, count: int) -> float:
        spent, flown = self.took.get(_kind(cell), (0.0, 0.0))
        return count * (spent / flown if flown else GUESS_S[cell.by in SCRIPTED])


def _kind(cell: Cell) -> str:
    return f"{cell.by} {cell.wall} {cell.longest_s}"


Progress = Callable[[str, int, int, float], None]  # what is flown, cases done, of, seconds left


def measure(
    skill: Skill, cells: Sequence[Cell], flyers: Mapping[str, Flyer], document: Document, progress: Progress
) -> None:
    """Fly what the document has not yet. Raises UserError; what was flown until then is in the document."""
    estimate, total = Estimate(), sum(len(cell.cases) for cell in cells)
    left = {cell.key: len(cell.cases) - document.done(cell) for cell in cells}
    for cell in cells:
        while left[cell.key]:
            remaining = sum(estimate.seconds(c, left[c.key]) for c in cells)
            progress(f"{cell.part}: {cell.title}, {cell.by}", total - sum(left.values()), total, remaining)
            began = time.perf_counter()
            flown = fly(skill, cell, document.done(cell), flyers[cell.by])
            estimate.learn(cell, len(flown), time.perf_counter() - began)
            document.add(cell, flown)
            left[cell.key] -= len(flown)
    document.data["complete"] = True
    document.write()


def fly(skill: Skill, cell: Cell, first: int, flyer: Flyer) -> list[Played]:
    """The cell's next cases, from the `first` on."""
    cases: Sequence[Case] = cell.cases[first : first + CHUNK]
    parallel = flyer.parallel if isinstance(flyer, ModelFlyer) else CHUNK
    return play(skill, flyer, cases, cell.hz, parallel, delay_ticks=cell.delay, longest_s=cell.longest_s)
