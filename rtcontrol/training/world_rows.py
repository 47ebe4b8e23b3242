"""Create training rows in a user's world: the expert's calls in disturbed episodes that expert or learner play.

The expert labels the states that the learner visits (S. Ross, G. Gordon, D. Bagnell: A Reduction of Imitation Learning
and Structured Prediction to No-Regret Online Learning, AISTATS 2011).
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
from rtcontrol.agents.signatures import run_to_completion
from rtcontrol.envs.curriculum import CurriculumOptions, DisturbedCurriculum
from rtcontrol.envs.thread import close_world
from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Row
from rtcontrol.models.train.encode import COMMON, with_word_probes
from rtcontrol.run.skills import UserSkill
from rtcontrol.training.examples import contradiction_notice
from rtcontrol.training.fit_run import FitData, FitRun, HeldOut
from rtcontrol.training.gate import Nonsense

EACH, CALLS = 32, 64
# First seeds of worlds for training (TRAINED) and for held-out rows (HELD). Scores use lower seeds, runs higher seeds.
TRAINED, HELD = 1_000_000, 2_000_000
WORLDS = 64
SAMPLE = 4_096  # the model's vocabulary is taken from this number of rows
HELD_ROWS, HELD_WORLDS = 400, 16
HELD_S, HELD_TICKS = 100.0, 51_200  # simulated seconds per world, and maximum ticks of all worlds together
# After the share LEARNER_FROM of the training time, the learner plays the share LEARNER_SHARE of the episodes.
LEARNER_FROM, LEARNER_SHARE, BETA = 0.15, 0.5, 0.2
NONSENSE = 0.08  # share of rows with a meaningless instruction
KEPT = 0.4  # share of ticks that become rows; consecutive ticks are similar
OTHERWISE = 0.5  # share of rows with another goal than the episode's, so that the model must read the goal
REHEARSED = 0.3  # share of rows that are repeated from `Rehearsal`
SWITCHES_S = 6.25  # mean simulated seconds between changes of the goal, in half of the worlds


@dataclass(frozen=True, slots=True)
class Moment:
    """A tick of an episode: its training row, the goal of its instruction, and its raw observation (`data`)."""

    row: Row
    goal: Goal
    data: Mapping[str, Any]

    @property
    def call(self) -> Call:
        """Return the expert's call."""
        assert self.row.call is not None, "the expert returns a call for each moment"
        return self.row.call


class Rehearsal:
    """A store of moments, from which rare decisions are sampled as often as frequent decisions. For each kind of goal
    and tool, it stores the newest `calls` different calls, and for each call the newest `each` moments."""

    def __init__(self, each: int = EACH, calls: int = CALLS) -> None:
        self._each, self._calls = each, calls
        self._moments: dict[Hashable, dict[str, deque[Moment]]] = {}

    def add(self, moment: Moment, *more: Hashable) -> None:
        """Store a moment by its kind of goal, its call, and the keys in `more`."""
        call = moment.row.call
        name, text = ("", "") if call is None else (call.name, call.text())
        calls = self._moments.setdefault((moment.goal.kind, name, *more), {})
        calls[text] = newest = calls.pop(text, deque(maxlen=self._each))
        newest.append(moment)
        if len(calls) > self._calls:
            del calls[next(iter(calls))]

    def sample(self, rng: random.Random) -> Moment:
        """Return a random moment. Each kind of goal and tool is equally likely, then each call, then each moment."""
        calls = rng.choice(list(self._moments.values()))
        return rng.choice(rng.choice(list(calls.values())))

    def sample_evenly(self, rng: random.Random, count: int) -> list[Moment]:
        """Return at most `count` different moments, as evenly distributed over the calls as possible."""
        groups = [rng.sample(stored, len(stored)) for calls in self._moments.values() for stored in calls.values()]
        rng.shuffle(groups)  # if there are more than `count`, choose at random
        moments: dict[tuple[str, str], Moment] = {}
        for depth in range(max(map(len, groups), default=0)):
            for group in groups:
                if depth < len(group):
                    moments.setdefault((group[depth].row.instruction, group[depth].row.observation), group[depth])
        return list(moments.values())[:count]


class WorldCurriculum(DisturbedCurriculum[Goal]):
    """An endless series of disturbed episodes in a user's world. If `held_out`, its seeds are not those of training.
    `by_learner`: whether the learner's calls are executed in the current episode."""

    def __init__(self, skill: UserSkill, rng: random.Random, hz: float, held_out: bool = False) -> None:
        self._world, self._held_out = skill.make(), held_out
        self._goals, self._history = skill.all_goals, skill.agent.history
        self.called: deque[str] = deque(maxlen=max(1, self._history))
        self.learner_share, self.by_learner = 0.0, False
        options = CurriculumOptions(
            noise=(0.0, 0.02, 0.1), burst=round(hz / 2) or 1, episode_s=(10.0, 120.0), max_delay_steps=1,
            # In half of the worlds, the goal does not change, so that long tasks can end.
            switch=rng.choice((0.0, min(1.0, 1.0 / (SWITCHES_S * hz)))),
            scatter=0.0, rephrase=0.05, plain=0.15, hz=hz, seeds=HELD - TRAINED,
        )  # fmt: skip
        super().__init__(rng, options, skill, self._world.step_s)

    def close(self) -> None:
        close_world(self._world)

    def moment(self) -> Moment:
        """Return the current tick with the expert's call."""
        now = self.demonstration()
        history = tuple(self.called)[-self._history :] if self._history else ()
        row = Row(now.instruction, now.observation, now.call, history, meant=now.goal.text())
        return Moment(row, now.goal, self._skill.parse_observation(now.observation))

    def vary(self, moment: Moment) -> Row:
        """Return a row for the same situation, with another goal, or with other words for the same goal."""
        return self.with_other_goal(moment) if self.rng.random() < OTHERWISE else self.rephrase(moment)

    def with_other_goal(self, moment: Moment) -> Row:
        """Return a row for the same situation with a random goal, and the expert's call for that goal."""
        goal = self._goals.sample(self.rng)
        call = self._skill.expert(moment.data, goal)
        return replace(moment.row, instruction=self._sentence(goal), call=call, meant=goal.text())

    def rephrase(self, moment: Moment) -> Row:
        """Return a row for the same situation and goal, with another sentence as the instruction."""
        return replace(moment.row, instruction=self._sentence(moment.goal))

    def _restart(self, seed: int) -> None:
        # Set a goal first, because most worlds need one before their reset.
        self._world.judge_by(self._goals.sample(self.rng))
        self._world.reset(seed + (HELD if self._held_out else TRAINED))
        self.called.clear()
        self.by_learner = self.rng.random() < self.learner_share

    def _observe(self) -> dict[str, object]:
        return dict(self._world.observe())

    def _execute(self, call: Call) -> None:
        run_to_completion(self._world.bindings[call.name], **call.arguments)
        self.called.append(call.text())

    def _step(self) -> None:
        self._world.step()

    def _has_ended(self) -> bool:
        return self._world.outcome() is not None

    def _randomise_state(self) -> None:
        """Do nothing, because the state of a user's world cannot be set."""

    def _sample_goal(self) -> Goal:
        goal = self._goals.sample(self.rng)
        self._world.judge_by(goal)
        return goal

    def _sentence(self, goal: Goal) -> str:
        return self._goals.sentence(self.rng, goal)

    _spoken = _sentence


class WorldRows:
    """A generator of training rows from many parallel worlds."""

    def __init__(self, skill: UserSkill, hz: float) -> None:
        self._skill, self._hz, self._nonsense = skill, hz, nonsense_source(skill)
        self._judge: HeldOut | None = None
        self._run: FitRun | None = None

    def start(self, judge: HeldOut, run: FitRun) -> None:
        """Let the model in training (the learner) play a part of the following episodes."""
        self._judge, self._run = judge, run

    def rows(self, rng: random.Random) -> Iterator[Row]:
        """Yield rows endlessly, including probes, which are rows that ask for a word of the observation."""
        return with_word_probes(self.rows_without_probes(rng), random.Random(rng.random()))

    def rows_without_probes(self, rng: random.Random) -> Iterator[Row]:
        """Yield rows endlessly, without probes."""
        with ExitStack() as stack:
            worlds = [
                stack.enter_context(closing(WorldCurriculum(self._skill, random.Random(rng.random()), self._hz)))
                for _ in range(WORLDS)
            ]
            rehearsal = Rehearsal()
            while True:
                late = self._run is not None and self._run.share_done() >= LEARNER_FROM
                moments = [world.moment() for world in worlds]
                for world, moment in zip(worlds, moments, strict=True):
                    rehearsal.add(moment)
                    yield from self._rows(world, moment, rehearsal, rng)
                calls = self._next_calls(worlds, moments, rehearsal, rng)
                for world, call in zip(worlds, calls, strict=True):
                    world.learner_share = LEARNER_SHARE if late else 0.0
                    world.run_tick(call)

    def _rows(self, world: WorldCurriculum, moment: Moment, rehearsal: Rehearsal, rng: random.Random) -> Iterator[Row]:
        """Yield at most one row for a tick: its row, a variation of it, or a row from the rehearsal."""
        if rng.random() < NONSENSE * KEPT:
            yield replace(moment.row, instruction=self._nonsense(rng), call=None, meant="")
        elif rng.random() < KEPT:
            if rng.random() < REHEARSED:
                yield world.vary(rehearsal.sample(rng))
            else:
                yield world.with_other_goal(moment) if rng.random() < OTHERWISE else moment.row

    def _next_calls(
        self, worlds: Sequence[WorldCurriculum], moments: Sequence[Moment], rehearsal: Rehearsal, rng: random.Random
    ) -> list[Call]:
        """Return the next call of each world, from expert or learner. Add the learner's errors to `rehearsal`."""
        calls = [moment.call for moment in moments]
        played = [i for i, world in enumerate(worlds) if world.by_learner and rng.random() >= BETA]
        if played and self._judge is not None:
            for i, answer in zip(played, self._judge.answers([moments[i].row for i in played]), strict=True):
                if self._judge.key(answer) != self._judge.key(moments[i].row.call):
                    rehearsal.add(moments[i], "missed")
                if isinstance(answer, Call):
                    calls[i] = answer
        return calls


def world_data(skill: UserSkill, hz: float, seed: int, files: Sequence[str] = ()) -> FitData:
    """Return the training data of a user's world. `files`: names and digests of the files with its code. Raises
    UserError if the world fails."""
    stream = WorldRows(skill, hz)
    rows = itertools.islice(stream.rows_without_probes(random.Random(f"{seed}/sample")), SAMPLE)
    known = [replace(row, where=f'instruction "{row.instruction}", seeing "{row.observation}"') for row in rows]
    note = contradiction_notice(known)
    goals = skill.all_goals
    return FitData(
        skill.agent.tools,
        stream.rows,
        known,
        _held_out_rows(skill, hz, seed),
        f"The expert of {skill.agent.name} in the world {skill.name}, {hz:g} decisions a second",
        None,
        skill.agent.instruction,
        {"world": skill.name, "goals": sorted(goals.phrasings), "hz": hz, "files": ", ".join(files)},
        texts=goals.all_words(),
        sentences=goals.training_sentences(),
        nonsense=nonsense_source(skill).held_out,
        notes=() if note is None else (note,),
        rate_hz=hz,
        start=stream.start,
    )


def _held_out_rows(skill: UserSkill, hz: float, seed: int) -> list[Row]:
    """Return held-out rows. Half of them are evenly distributed over time, the other half over different calls."""
    ticks = min(HELD_TICKS // 2, max(HELD_ROWS, round(HELD_S * hz)))
    count = max(2, min(HELD_WORLDS, HELD_TICKS // ticks))
    every = max(1, ticks * count // (4 * HELD_ROWS))  # consecutive ticks have nearly the same question
    rng, rehearsal = random.Random(f"{seed}/held"), Rehearsal(HELD_TICKS)
    regular: list[Moment] = []  # a moment for every `every` ticks
    with ExitStack() as stack:
        seeds = (random.Random(f"{seed}/held/{i}") for i in range(count))
        worlds = [stack.enter_context(closing(WorldCurriculum(skill, rng_, hz, held_out=True))) for rng_ in seeds]
        for tick in range(ticks):
            for world in worlds:
                moment = world.moment()
                rehearsal.add(moment)
                if tick % every == 0:
                    regular.append(moment)
                world.run_tick(moment.call)
        decisions = rehearsal.sample_evenly(rng, HELD_ROWS // 2)
        others = rng.sample(regular, HELD_ROWS - len(decisions))
        rows = [*(moment.row for moment in decisions), *map(worlds[0].vary, others)]
    rng.shuffle(rows)  # because training evaluates only the first held-out rows
    return rows


def nonsense_source(skill: UserSkill) -> Nonsense:
    """Return a generator of sentences that are meaningless in this world, because they have no word of its goals."""
    return Nonsense("", skill.recognise, frozenset(re.findall(r"[a-z]+", skill.all_goals.all_words().lower())) - COMMON)
