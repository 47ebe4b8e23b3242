"""What is measured: cells, each one flyer on one list of cases, in the order in which they are flown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rtcontrol.envs.evaluate import LONGEST_S, Case
from rtcontrol.scoring.flyers import SCRIPTED
from rtcontrol.scoring.phrasings import Saying
from rtcontrol.scoring.subjects import FIRST_SEED, PHRASING_SEED, Subject

LISTENED_S = 1.0  # of a world's time: whether a sentence is understood is told from so much
DELAYS, RATES = (0, 1, 2, 4), (10.0, 16.0, 30.0)


@dataclass(frozen=True)
class Settings:
    """What a score is of; everything here decides its figures, so what was measured with others is never mixed. `hz` 0:
    the rate that the first model learnt; no `gates`: what the checkpoints say;
    `contents` are digests of the files that it names."""

    env: str
    agent: str
    models: tuple[str, ...]
    hz: float
    seeds: int
    goals: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    phrasings: str | None = None
    delays: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    engine: str = "torch"
    goal_file: str | None = None
    contents: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """`part` of the document: goals, other (told another goal), phrasings, canonical, nonsense, delays, rates. In
    `wall` time the world does not wait."""

    part: str
    title: str
    by: str
    cases: Sequence[Case] = field(repr=False)
    hz: float
    delay: int = 0
    wall: bool = False
    longest_s: float = LONGEST_S

    @property
    def key(self) -> str:
        how = f"{self.hz:g} Hz, {'wall' if self.wall else 'lockstep'}, {self.delay} ticks late"
        return f"{self.part} | {self.title} | {self.by} | {how}"


def plan(settings: Settings, told: Sequence[Subject], lines: Sequence[Saying]) -> list[Cell]:
    """All cells: the model's first, so that what they cost is known early."""
    seeds = range(FIRST_SEED, FIRST_SEED + settings.seeds)
    hz, models = settings.hz, settings.models
    found: list[Cell] = []
    for subject in told:
        for by in (*models, *(s for s in SCRIPTED if s not in models)):
            found.append(Cell("goals", subject.title, by, subject.cases(seeds), hz))
        if subject.others:
            for by in (*models, "expert"):
                found.append(Cell("other", subject.title, by, subject.cases(seeds, other=True), hz))
    return [*found, *_said(settings, told, lines), *_late(settings, told, seeds)]


def _late(settings: Settings, told: Sequence[Subject], seeds: Sequence[int]) -> Iterator[Cell]:
    """Delays and rates; what the goals' cells show already is not flown again."""
    single = [subject for subject in told if len(subject.goals) == 1]
    for by in (*settings.models, "expert"):
        for subject in single:
            cases = subject.cases(seeds)
            for delay in settings.delays:
                if delay:
                    yield Cell("delays", subject.title, by, cases, settings.hz, delay)
            for hz in settings.rates:
                if hz != settings.hz:
                    yield Cell("rates", subject.title, by, cases, hz)
    for by in (*settings.models, "expert"):
        for hz in settings.rates:
            for subject in single:
                yield Cell("rates", subject.title, by, subject.cases(seeds), hz, wall=True)


def _said(settings: Settings, told: Sequence[Subject], lines: Sequence[Saying]) -> Iterator[Cell]:
    meant = [(PHRASING_SEED + i, line) for i, line in enumerate(lines) if line.means is not None]
    # What means nothing is told in the worlds of the first goal: nobody judges by it.
    nonsense = [
        Case(line.say, told[0].goals[0], PHRASING_SEED + i) for i, line in enumerate(lines) if line.means is None
    ]
    said = [Case(line.say, line.goal, seed) for seed, line in meant]
    canonical = [Case(line.goal.text(), line.goal, seed) for seed, line in meant]
    for model in settings.models:
        for part, cases, longest_s in (
            ("phrasings", said, LONGEST_S),
            ("canonical", canonical, LONGEST_S),
            ("nonsense", nonsense, LISTENED_S),
        ):
            if cases:
                yield Cell(part, "all", model, cases, settings.hz, longest_s=longest_s)
