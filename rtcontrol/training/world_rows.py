"""Rows from a world of one's own: its expert's calls in disturbed episodes, flown by the expert and by the learner.

The learner visits the states, the expert labels them (S. Ross, G. Gordon, D. Bagnell: A Reduction of Imitation
Learning and Structured Prediction to No-Regret Online Learning, AISTATS 2011).
"""

from __future__ import annotations

import itertools
import random
import re
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.agents import Goal
from rtcontrol.agents.signatures import carry_out
from rtcontrol.envs.curriculum import CurriculumOptions, DisturbedCurriculum
from rtcontrol.envs.thread import shut
from rtcontrol.models.call import Call
from rtcontrol.models.train.rows import COMMON, Row, with_word_probes
from rtcontrol.run.skills import UserSkill
from rtcontrol.training.dataset import contradictions
from rtcontrol.training.fit_run import FitRun
from rtcontrol.training.gate import Nonsense
from rtcontrol.training.train import Lessons
from rtcontrol.training.validation import HeldOut

EACH, CALLS, TOOLS = 32, 64, 1_024


@dataclass(frozen=True, slots=True)
class Moment:
    """One tick of an episode: the row, the goal that its instruction means, the data of what is seen."""

    row: Row
    goal: Goal
    data: Mapping[str, Any]


class Rehearsal:
    """The newest `each` moments of every decision: a call, for a kind of goal. Of the calls of a tool the `calls` that
    were met last are kept, so that one of many numbers leaves room for the others."""

    def __init__(self, each: int = EACH, calls: int = CALLS) -> None:
        self._each, self._calls = each, calls
        self._kept: dict[Hashable, dict[str, deque[Moment]]] = {}

    def add(self, moment: Moment, *more: Hashable) -> None:
        """Keep it under its kind of goal and its call, and what else makes it another decision."""
        call = moment.row.call
        name, text = ("", "") if call is None else (call.name, call.text())
        calls = _newest(self._kept, (moment.goal.kind, name, *more), {}, TOOLS)
        _newest(calls, text, deque(maxlen=self._each), self._calls).append(moment)

    def draw(self, rng: random.Random) -> Moment:
        """One of them: any kind of goal and tool as likely as another, then any call, then any moment."""
        calls = rng.choice(list(self._kept.values()))
        return rng.choice(rng.choice(list(calls.values())))

    def spread(self, rng: random.Random, count: int) -> list[Moment]:
        """At most so many different ones, of each decision as many as of another where it has so many."""
        sides = [rng.sample(kept, len(kept)) for calls in self._kept.values() for kept in calls.values()]
        rng.shuffle(sides)  # where they are more than `count`
        found: dict[tuple[str, str], Moment] = {}
        for turn in range(max(map(len, sides), default=0)):
            for side in sides:
                if turn < len(side):
                    found.setdefault((side[turn].row.instruction, side[turn].row.observation), side[turn])
        return list(found.values())[:count]


def _newest(kept: dict[Any, Any], key: Hashable, new: Any, most: int) -> Any:
    """What is kept under the key, made the newest; what is oldest goes where there are more than so many."""
    kept[key] = kept.pop(key, new)
    if len(kept) > most:
        del kept[next(iter(kept))]
    return kept[key]


# Worlds of training have seeds from the first of these on, those of held-out rows from the second; what lies below is
# for scores, what lies beyond for flights.
TRAINED, HELD = 1_000_000, 2_000_000
WORLDS = 64
SAMPLE = 4_096  # rows whose words are the model's
HELD_ROWS, HELD_WORLDS = 400, 16
HELD_S, HELD_TICKS = 100.0, 51_200  # of a world's own time; of all worlds together at the most
# From this share of the time on the learner flies some of the episodes itself.
LEARNER_FROM, LEARNER_SHARE, BETA = 0.15, 0.5, 0.2
UNHEARD = 0.08  # share of the rows that are told what asks for nothing here
KEPT = 0.4  # share of the ticks that become rows: neighbours are much alike
OTHERWISE = 0.5  # share of the rows that are told something else than their episode: only the words tell them apart
REHEARSED = 0.3  # share of the rows that are drawn by their decision
SWITCHES_S = 6.25  # of a world's own time until another goal is asked for, in every other world


class WorldLesson(DisturbedCurriculum[Goal]):
    """One world, told, disturbed and restarted for ever. `held_out` ones have seeds that those of training never have.
    `flown`: the learner's calls act in this episode."""

    def __init__(self, skill: UserSkill, rng: random.Random, hz: float, held_out: bool = False) -> None:
        self._world, self._held_out = skill.make(), held_out
        self._goals, self._history = skill.all_goals, skill.agent.history
        self.called: deque[str] = deque(maxlen=max(1, self._history))
        self.learner_share, self.flown = 0.0, False
        options = CurriculumOptions(
            noise=(0.0, 0.02, 0.1), burst=round(hz / 2) or 1, lasts_s=(10.0, 120.0), late_steps=1,
            # What takes long is never done where something else is asked for all the time.
            switch=rng.choice((0.0, min(1.0, 1.0 / (SWITCHES_S * hz)))),
            scatter=0.0, rephrase=0.05, plain=0.15, hz=hz, seeds=HELD - TRAINED,
        )  # fmt: skip
        super().__init__(rng, options, skill, self._world.step_s)

    def close(self) -> None:
        shut(self._world)

    def moment(self) -> Moment:
        """What is seen now, and what the expert calls."""
        seen = self.look()
        row = Row(seen.instruction, seen.observation, seen.call, self._shown(), meant=seen.goal.text())
        return Moment(row, seen.goal, self._skill.read_back(seen.observation))

    def retold(self, moment: Moment) -> Row:
        """The same situation, told something else half of the time, and what the expert would call then."""
        return self.otherwise(moment) if self.rng.random() < OTHERWISE else self.again(moment)

    def otherwise(self, moment: Moment) -> Row:
        """The same situation, told any goal."""
        goal = self._goals.sample(self.rng)
        call = self._skill.expert(moment.data, goal)
        return replace(moment.row, instruction=self._sentence(goal), call=call, meant=goal.text())

    def again(self, moment: Moment) -> Row:
        """The same situation and goal, in other words."""
        return replace(moment.row, instruction=self._sentence(moment.goal))

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
        carry_out(self._world.bindings[call.name], **call.arguments)
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
    """A `RowStream`: the same worlds go on from the first row to the last."""

    def __init__(self, skill: UserSkill, hz: float) -> None:
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
        with ExitStack() as worlds:
            lessons = [
                worlds.enter_context(closing(WorldLesson(self._skill, random.Random(rng.random()), self._hz)))
                for _ in range(WORLDS)
            ]
            yield from self._taught(lessons, rng)

    def _taught(self, lessons: Sequence[WorldLesson], rng: random.Random) -> Iterator[Row]:
        rehearsal = Rehearsal()
        while True:
            share = self._learner_share()
            moments = [lesson.moment() for lesson in lessons]
            for lesson, moment in zip(lessons, moments, strict=True):
                rehearsal.add(moment)
                if rng.random() < UNHEARD * KEPT:
                    yield replace(moment.row, instruction=self._unheard(rng), call=None, meant="")
                elif rng.random() < KEPT:
                    if rng.random() < REHEARSED:
                        yield lesson.retold(rehearsal.draw(rng))
                    else:
                        yield lesson.otherwise(moment) if rng.random() < OTHERWISE else moment.row
            calls = self._calls(lessons, moments, rehearsal, rng)
            for lesson, call in zip(lessons, calls, strict=True):
                lesson.learner_share = share
                lesson.act(call)

    def _learner_share(self) -> float:
        run = self._run
        return LEARNER_SHARE if run is not None and run.seconds >= LEARNER_FROM * run.ends else 0.0

    def _calls(
        self, lessons: Sequence[WorldLesson], moments: Sequence[Moment], rehearsal: Rehearsal, rng: random.Random
    ) -> list[Call]:
        """The expert's calls, or the learner's own where it flies; where that errs, it is a decision to rehearse."""
        calls = [_right(moment) for moment in moments]
        asked = [i for i, lesson in enumerate(lessons) if lesson.flown and rng.random() >= BETA]
        if asked and self._answers is not None:
            for i, answer in zip(asked, self._answers.answers([moments[i].row for i in asked]), strict=True):
                if self._answers.key(answer) != self._answers.key(moments[i].row.call):
                    rehearsal.add(moments[i], "missed")
                if isinstance(answer, Call):
                    calls[i] = answer
        return calls


def lessons_of(skill: UserSkill, hz: float, seed: int, files: Sequence[str] = ()) -> Lessons:
    """What a world of one's own has to teach; `files` are names and digests of its code. Raises UserError for what
    that gets wrong."""
    rng = random.Random(f"{seed}/sample")
    stream = WorldRows(skill, hz)
    sample = [replace(row, where=_where(row)) for row in itertools.islice(stream._rows(rng), SAMPLE)]
    told = contradictions(sample)[1]
    goals = skill.all_goals
    return Lessons(
        skill.agent.tools,
        stream,
        sample,
        _held_out(skill, hz, seed),
        f"The expert of {skill.agent.name} in the world {skill.name}, {hz:g} decisions a second",
        None,
        skill.agent.instruction,
        {"world": skill.name, "goals": sorted(goals.ways), "hz": hz, "files": ", ".join(files)},
        texts=goals.texts(),
        taught=goals.taught(),
        notes=() if told is None else (told,),
        rate_hz=hz,
        unheard=unheard(skill).held_out,
    )


def _held_out(skill: UserSkill, hz: float, seed: int) -> list[Row]:
    """What is never trained on, one half as time goes by, the other by decision, so that the rare ones count."""
    ticks = min(HELD_TICKS // 2, max(HELD_ROWS, round(HELD_S * hz)))
    worlds = max(2, min(HELD_WORLDS, HELD_TICKS // ticks))
    every = max(1, ticks * worlds // (4 * HELD_ROWS))  # neighbours would be the same question again and again
    lessons = [WorldLesson(skill, random.Random(f"{seed}/held/{i}"), hz, held_out=True) for i in range(worlds)]
    rng, rehearsal = random.Random(f"{seed}/held"), Rehearsal(HELD_TICKS)
    passing: list[Moment] = []
    for tick in range(ticks):
        for lesson in lessons:
            moment = lesson.moment()
            rehearsal.add(moment)
            if tick % every == 0:
                passing.append(moment)
            lesson.act(_right(moment))
    for lesson in lessons:
        lesson.close()
    decisions = rehearsal.spread(rng, HELD_ROWS // 2)
    others = rng.sample(passing, HELD_ROWS - len(decisions))
    rows = [*(moment.row for moment in decisions), *map(lessons[0].retold, others)]
    rng.shuffle(rows)  # the first of these are looked at while it trains
    return rows


def _right(moment: Moment) -> Call:
    assert moment.row.call is not None, "an expert without a call is an error"
    return moment.row.call


def unheard(skill: UserSkill) -> Nonsense:
    """What asks for nothing in this world: no word of its goals is in it."""
    return Nonsense("", skill.recognise, frozenset(re.findall(r"[a-z]+", skill.all_goals.texts().lower())) - COMMON)


def _where(row: Row) -> str:
    return f'told "{row.instruction}", seeing "{row.observation}"'
