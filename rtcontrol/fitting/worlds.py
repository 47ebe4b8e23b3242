"""Rows from a world of one's own: its expert's calls in disturbed episodes, flown by the expert and by the learner.

The learner visits the states, the expert labels them (S. Ross, G. Gordon, D. Bagnell: A Reduction of Imitation
Learning and Structured Prediction to No-Regret Online Learning, AISTATS 2011).
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rtcontrol.agents import Goal
from rtcontrol.envs.curriculum import CurriculumOptions, DisturbedCurriculum
from rtcontrol.envs.evaluate import Case, Played, Seat, play
from rtcontrol.fitting.held_out import HeldOut, Share
from rtcontrol.fitting.making import Lessons
from rtcontrol.fitting.material import Taught, contradictions
from rtcontrol.fitting.run import FitRun
from rtcontrol.models.call import Call
from rtcontrol.models.train.probes import COMMON, with_word_probes
from rtcontrol.models.train.rows import Row
from rtcontrol.recipes.nonsense import Nonsense
from rtcontrol.run.skills import OwnSkill

# Worlds of training have seeds from the first of these on, those of held-out rows from the second, played ones from the
# third; what lies below is for scores.
TRAINED, HELD, PLAYED_FROM = 1_000_000, 2_000_000, 3_000_000
WORLDS = 64
SAMPLE = 4_096  # rows whose words are the model's
HELD_ROWS = 400
TRIED = 16  # by the expert, before anything is learnt
TOGETHER = 16
NAMED = 8  # ways to say a goal that failed
EPISODES = 48  # played for the card, told canonically, and told in ways that were held out
# From this share of the time on the learner flies some of the episodes itself.
LEARNER_FROM, LEARNER_SHARE, BETA = 0.15, 0.5, 0.2
UNHEARD = 0.08  # share of the rows that are told what asks for nothing here
KEPT = 0.4  # share of the ticks that become rows: neighbours are much alike
OTHERWISE = 0.5  # share of the rows that are told something else than their episode: only the words tell them apart


class WorldLesson(DisturbedCurriculum[Goal]):
    """One world, told, disturbed and restarted for ever. `held_out` ones have seeds that those of training never have.
    `flown`: the learner's calls act in this episode."""

    def __init__(self, skill: OwnSkill, rng: random.Random, hz: float, held_out: bool = False) -> None:
        self._world, self._held_out = skill.make(), held_out
        self._goals, self._history = skill.all_goals, skill.agent.history
        self.called: deque[str] = deque(maxlen=max(1, self._history))
        self.learner_share, self.flown = 0.0, False
        options = CurriculumOptions(
            noise=(0.0, 0.02, 0.1), burst=round(hz / 2) or 1, switch=0.01, lasts_s=(10.0, 120.0), late_steps=1,
            scatter=0.0, rephrase=0.05, plain=0.15, hz=hz, seeds=HELD - TRAINED,
        )  # fmt: skip
        super().__init__(rng, options, skill, self._world.step_s)

    def row(self) -> Row:
        """What is seen now, and what the expert calls."""
        seen = self.look()
        return Row(seen.instruction, seen.observation, seen.call, self._shown(), meant=seen.goal.text())

    def otherwise(self, row: Row) -> Row:
        """The same situation, told any goal: what the expert would call then."""
        goal = self._goals.sample(self.rng)
        call = self._skill.expert(self._skill.read_back(row.observation), goal)
        return Row(self._sentence(goal), row.observation, call, row.history, meant=goal.text())

    def _shown(self) -> tuple[str, ...]:
        return tuple(self.called)[-self._history :] if self._history else ()

    def _restart(self, seed: int) -> None:
        # Most worlds want to know what is asked for before they begin.
        self._world.judge_by(self._goals.sample(self.rng))
        self._world.reset(seed + (HELD if self._held_out else TRAINED))
        self.called.clear()
        self.flown = self.rng.random() < self.learner_share

    def _observe(self) -> dict[str, object]:
        return dict(self._world.observe())

    def _obey(self, call: Call) -> None:
        self._world.bindings[call.name](**call.arguments)
        self.called.append(call.text())

    def _step(self) -> None:
        self._world.step()

    def _over(self) -> bool:
        return self._world.outcome() is not None

    def _scatter(self) -> None:
        """Nothing of a world of one's own can be set from outside."""

    def _sample_goal(self) -> Goal:
        goal = self._goals.sample(self.rng)
        self._world.judge_by(goal)
        return goal

    def _sentence(self, goal: Goal) -> str:
        return self._goals.sentence(self.rng, goal)

    _spoken = _sentence


class WorldRows:
    """A `Stream`: the same worlds go on from the first row to the last."""

    def __init__(self, skill: OwnSkill, hz: float) -> None:
        self._skill, self._hz, self._unheard = skill, hz, unheard(skill)
        self._answers: HeldOut | None = None
        self._run: FitRun | None = None

    def begin(self, answers: HeldOut, run: FitRun) -> None:
        """The learner flies from now on, too."""
        self._answers, self._run = answers, run

    def rows(self, rng: random.Random) -> Iterator[Row]:
        """Rows for ever, each with words of its observation to quote."""
        return with_word_probes(self._rows(rng), random.Random(rng.random()))

    def _rows(self, rng: random.Random) -> Iterator[Row]:
        lessons = [WorldLesson(self._skill, random.Random(rng.random()), self._hz) for _ in range(WORLDS)]
        while True:
            share = self._learner_share()
            rows = [lesson.row() for lesson in lessons]
            for lesson, row in zip(lessons, rows, strict=True):
                if rng.random() < UNHEARD * KEPT:
                    yield replace(row, instruction=self._unheard(rng), call=None, meant="")
                elif rng.random() < KEPT:
                    yield lesson.otherwise(row) if rng.random() < OTHERWISE else row
            calls = self._calls(lessons, rows, rng)
            for lesson, call in zip(lessons, calls, strict=True):
                lesson.learner_share = share
                lesson.act(call)

    def _learner_share(self) -> float:
        run = self._run
        return LEARNER_SHARE if run is not None and run.seconds >= LEARNER_FROM * run.ends else 0.0

    def _calls(self, lessons: Sequence[WorldLesson], rows: Sequence[Row], rng: random.Random) -> list[Call]:
        """The expert's calls, or the learner's own where it flies."""
        calls = [row.call or self._skill.still for row in rows]
        asked = [i for i, lesson in enumerate(lessons) if lesson.flown and rng.random() >= BETA]
        if asked and self._answers is not None:
            for i, answer in zip(asked, self._answers.answers([rows[i] for i in asked]), strict=True):
                if isinstance(answer, Call):
                    calls[i] = answer
        return calls


def lessons_of(skill: OwnSkill, hz: float, seed: int, files: Mapping[str, str] | None = None) -> Lessons:
    """What a world of one's own has to teach; `files` are digests of its code. Raises UserError for what that gets
    wrong."""
    rng = random.Random(f"{seed}/sample")
    stream = WorldRows(skill, hz)
    notes = (*_too_often(skill, hz), *_tried(skill, hz))
    sample = list(itertools.islice(stream._rows(rng), SAMPLE))
    if (told := contradictions([Taught(row, where=_where(row)) for row in sample]).told()) is not None:
        notes = (*notes, told)
    held = [WorldLesson(skill, random.Random(f"{seed}/held/{i}"), hz, held_out=True) for i in range(16)]
    taught: list[Taught] = []
    seen: dict[str, Mapping[str, Any]] = {}

    def expert(told: str, text: str) -> Call:
        if (goal := skill.recognise(told)) is None:
            raise LookupError(told)
        return skill.expert(seen[text], goal)

    while len(taught) < HELD_ROWS:
        # Episode by episode: neighbours would be the same question again and again.
        for lesson in held:
            row = lesson.row()
            seen[row.observation] = skill.read_back(row.observation)
            taught.append(Taught(lesson.otherwise(row) if rng.random() < OTHERWISE else row))
            for _ in range(max(1, round(hz))):
                lesson.act(lesson.look().call)
    goals = skill.all_goals
    return Lessons(
        skill.agent.tools,
        stream,
        [Taught(row) for row in sample],
        taught[:HELD_ROWS],
        f"The expert of {skill.agent.name} in the world {skill.name}, {hz:g} decisions a second",
        None,
        skill.agent.instruction,
        {"world": skill.name, "goals": sorted(goals.ways), "hz": hz, "files": dict(files or {})},
        expert=expert,
        texts=goals.texts(),
        notes=notes,
        rate_hz=hz,
        unheard=unheard(skill).held_out,
    )


def unheard(skill: OwnSkill) -> Nonsense:
    """What asks for nothing in this world: no word of its goals is in it."""
    return Nonsense("", skill.recognise, _words(skill) - COMMON)


def _words(skill: OwnSkill) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+", skill.all_goals.texts().lower()))


def played(skill: OwnSkill, hz: float, seconds: float, answers: HeldOut) -> tuple[Mapping[str, Share], tuple[str, ...]]:
    """How many episodes succeed, of seeds that training never had: told canonically, in ways that training never had,
    and the expert beside it; at most EPISODES each, and about so many seconds in all. Then the ways that failed, in a
    sentence."""
    plain = _cases(skill, EPISODES)
    kept = [pair for kind in skill.kinds for pair in skill.phrasings["unseen"](kind)]
    unseen = [Case(*kept[i % len(kept)], PLAYED_FROM + i) for i in range(EPISODES if kept else 0)]
    history = skill.agent.history

    def model(seats: Sequence[Seat]) -> list[Call | None]:
        rows = [Row(s.case.instruction, s.seen, None, tuple(s.called[-history:]) if history else ()) for s in seats]
        return [answer if isinstance(answer, Call) else None for answer in answers.answers(rows)]

    told = {"told canonically": (plain, model), "told in ways kept from training": (unseen, model)}
    found, missed = {}, []
    for name, (cases, decide) in (told | {"by the expert": (plain, partial(_expert, skill))}).items():
        ended: list[Played] = []
        started = time.monotonic()
        while (left := cases[len(ended) :]) and (not ended or time.monotonic() - started < seconds / len(told)):
            ended += play(skill, decide, left[:TOGETHER], hz)
        if ended:
            found[name] = Share(sum(bool(one.episode.success) for one in ended), len(ended))
        if cases is unseen:
            missed = list(dict.fromkeys(one.case.instruction for one in ended if not one.episode.success))
    return found, _unheard_of(missed) if missed else ()


def _unheard_of(missed: Sequence[str]) -> tuple[str, ...]:
    listed = ", ".join(f'"{said}"' for said in missed[:NAMED])
    more = f", and {len(missed) - NAMED} more" if len(missed) > NAMED else ""
    return (
        f"Of the ways kept from training, these failed in an episode: {listed}{more}. Words that no goal has cannot be "
        "known: write ways with the same words into the goals, several of each kind, and fit it anew.",
    )


def _too_often(skill: OwnSkill, hz: float) -> tuple[str, ...]:
    step_s = skill.make().step_s
    if hz * step_s <= 1.0:
        return ()
    return (
        f"The world goes on every {step_s:g} s: at {hz:g} Hz some decisions see what the one before saw. "
        f"--hz {1 / step_s:g} decides once a step.",
    )


def _tried(skill: OwnSkill, hz: float) -> tuple[str, ...]:
    """The expert and nobody play a little before anything is learnt: what that notices. Raises UserError for a world
    that does not end."""
    told = _cases(skill, TRIED)
    play(skill, lambda seats: [skill.still] * len(seats), told[: len(skill.kinds)], hz)
    done = play(skill, partial(_expert, skill), told, hz)
    share = Share(sum(bool(one.episode.success) for one in done), len(done))
    failed = next((one.case for one in done if not one.episode.success), None)
    if failed is None:
        return ()
    return (
        f"The expert itself succeeds in {share.right} of {share.count} episodes at {hz:g} Hz (not in seed "
        f'{failed.seed}, told "{failed.instruction}"): a model learns no better.',
    )


def _cases(skill: OwnSkill, count: int) -> list[Case]:
    goals = [skill.goals[i % len(skill.goals)] for i in range(count)]
    return [Case(goal.text(), goal, PLAYED_FROM + i) for i, goal in enumerate(goals)]


def _expert(skill: OwnSkill, seats: Sequence[Seat]) -> list[Call | None]:
    return [skill.expert(skill.read_back(seat.seen), seat.case.goal) for seat in seats]


def _where(row: Row) -> str:
    return f'told "{row.instruction}", seeing "{row.observation}"'
