"""The one verb: from rows and tools to a folder that `--model` takes."""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rtcontrol.agents import Tools
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.rows import Row
from rtcontrol.models.train.trainer import Progress
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.run.toolsets import tools_from
from rtcontrol.run.user_code import contents
from rtcontrol.run.user_module import is_gym
from rtcontrol.training.dataset import (
    LEAST_ROWS,
    Situations,
    Teacher,
    TeacherRows,
    check,
    contradictions,
    examples,
    is_text,
    read_files,
    tools_of,
)
from rtcontrol.training.fit_run import GivenRows, name_things
from rtcontrol.training.train import Fitted, Lessons, check_folder, make
from rtcontrol.training.validation import split
from rtcontrol.training.world_rows import lessons_of

DRAWN = 8_000  # situations whose words are the model's, and of which some are held out
MOST_SITUATIONS = 200_000
HZ = 16.0


def fit(
    rows: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Iterable[Any] | None = None,
    tools: Any = None,
    *,
    out: str | os.PathLike[str],
    env: str | None = None,
    agent: str | None = None,
    hz: float | None = None,
    teacher: Callable[..., Any] | None = None,
    situations: Callable[[random.Random], Any] | Iterable[Any] | None = None,
    base: str | None = None,
    goal: str | None = None,
    minutes: float = 15.0,
    seed: int = 0,
    tell: Progress | None = None,
    say: Callable[[str], object] | None = None,
) -> Fitted:
    """Fit a controller to rows, a teacher or a world's expert, and write it to the folder `out`, which `--model` and
    `rtcontrol.load` take.

    `rows` is a file of rows (JSONL, the format of docs/fit.md), several, or rows: dicts, or tuples (observation, call)
    and (instruction, observation, call), where a call is a `Call`, a dict, or the name of a tool without parameters.
    `tools` as `rtcontrol.load(...).session` takes them, or names with descriptions (None: those that the rows name).
    Or `teacher` is a function (instruction, observation) or (observation) that gives such a call, and `situations` what
    it is asked: a function of a random.Random that makes one, or a list; one is (instruction, observation), or an
    observation where there is a `goal`.
    Or `env` and `agent` are the files of a world and of an agent with an expert and goals, as of `rtcontrol run`:
    rows come from its episodes, decided `hz` times a second (None: 16, in a Gymnasium world once a step of its).

    `base` is a checkpoint to go on from (None: a new model, sized by what is to be learnt). `goal` is the instruction
    of rows that have none, and what the model is told by default. `minutes` is the most it takes; it ends earlier where
    all held-out rows are right. Started again with the same arguments, a run that was interrupted goes on. `tell` gets
    a dict now and then: seconds, left_s, samples, loss, accuracy, held_out; `say` a line that people should read.

    Raises UserError for rows that do not fit the tools (by file and line), for what a teacher's or a world's own code
    gets wrong, for a folder that holds something else or another run, and for a full disk; what was done is kept.
    """
    say = say or (lambda text: None)
    if not isinstance(minutes, int | float) or not 0 < minutes <= 7 * 24 * 60:
        raise UserError(f"minutes={minutes!r} is no time to train.", "Give a number of minutes above 0.")
    if goal is not None and not is_text(goal):
        raise UserError(f"goal={goal!r} is no instruction.", "Write it as UTF-8 text.")
    if not 0 <= seed < 1 << 63:
        raise UserError(f"seed={seed} is out of range.", "Give one from 0 on.")
    given = {"rows": rows, "teacher": teacher, "env": env}
    if len(named := [name for name, value in given.items() if value is not None]) != 1:
        what = f"{' and '.join(named)} are given" if named else "There is nothing to learn from"
        raise UserError(f"{what}.", "Give one of rows, a teacher with its situations, and a world (env, agent).")
    if (situations is None) != (teacher is None):
        raise UserError("A teacher and situations belong together.", "Give both.")
    if env is None and any(value is not None for value in (agent, hz)):
        raise UserError("agent and hz are a world's.", "Give env, too.")
    folder = Path(out)
    with ExitStack() as worlds:
        if env is not None:
            if tools is not None or goal is not None:
                raise UserError("Tools and goals of a world are its agent's.", "Leave `tools` and `goal` out.")
            skill = _own_skill(env, agent)
            worlds.callback(skill.close)
            check_folder(folder)
            if hz is None:
                hz = round(1.0 / skill.step_s, 6) if is_gym(env) else HZ
            # By name alone, so that a folder may be moved.
            files = contents((env, agent, skill.all_goals.source)).items()
            lessons = lessons_of(skill, hz, seed, [f"{Path(file).name} {digest}" for file, digest in files])
        else:
            if isinstance(tools, str | os.PathLike):
                tools = tools_from(str(tools))
            known = None if tools is None else tools_of(tools)
            if teacher is not None:
                lessons = _taught(teacher, situations, known, goal, seed)
            else:
                source, found = _read(rows, known, goal)
                lessons = _of_rows(source, *found, goal)
            check_folder(folder)
        if base is not None:
            lessons = replace(lessons, base=base, identity={**lessons.identity, "base": base})
        return make(lessons, folder, float(minutes), seed, tell, say)


def _of_rows(source: str, tools: Tools, taught: Sequence[Row], goal: str | None) -> Lessons:
    """Rows there are, over and over."""
    ceiling, told = contradictions(taught)
    learn, held = split(taught)
    return Lessons(
        tools,
        GivenRows(learn),
        learn,
        held,
        source,
        len(learn),
        goal or _commonest(learn),
        {"rows": _digest(taught), "goal": goal},
        allow_null=any(one.call is None for one in taught),
        probes=name_things(learn),
        ceiling=ceiling,
        notes=() if told is None else (told,),
    )


def _taught(function: Any, situations: Any, tools: Tools | None, goal: str | None, seed: int) -> Lessons:
    """What a teacher says: of a list of situations as rows, of endless ones anew for ever."""
    if tools is None:
        raise UserError("A teacher without tools.", "Give the tools that it calls.")
    teacher, asked = Teacher(function, tools), Situations(situations, goal)
    rng = random.Random(f"{seed}/situations")
    found = examples(teacher, asked, DRAWN if asked.endless else MOST_SITUATIONS, rng)
    if len(found) < LEAST_ROWS:
        what = f"There are {len(found)} different situations: too few to learn from and to hold some out."
        raise UserError(what, f"Give at least {LEAST_ROWS}; a few thousand are a good start.")
    source = f"The teacher at {teacher.place}"
    lessons = _of_rows(source, tools, found, goal)
    if not asked.endless:
        return lessons
    return replace(lessons, stream=TeacherRows(teacher, asked, lessons.held), count=None)


def _own_skill(env: str, agent: str | None) -> UserSkill:
    skill = skill_of(env, agent)
    if not isinstance(skill, UserSkill):
        remedy = "Give an agent's FILE.py with `goals` and `expert`, or use models/recipes/bundled_world.py."
        raise UserError(f"The agent of {env} is bundled, and has a recipe of its own.", remedy)
    return skill


def _read(rows: Any, tools: Tools | None, goal: str | None) -> tuple[str, tuple[Tools, list[Row]]]:
    if isinstance(rows, str | os.PathLike):
        rows = [rows]
    listed = list(rows)
    files = [Path(r) for r in listed if isinstance(r, os.PathLike) or (isinstance(r, str) and not r.startswith("{"))]
    if files and len(files) == len(listed):
        return f"Rows of {', '.join(f.name for f in files)}", read_files(files, tools, goal)
    return "Rows given in Python", check(((f"row {n}", r) for n, r in enumerate(listed, start=1)), tools, goal)


def _digest(rows: Sequence[Row]) -> str:
    found = hashlib.sha256()
    for one in rows:
        found.update(repr((one, one.allowed)).encode())
    return f"{len(rows)} rows, {found.hexdigest()[:16]}"


def _commonest(rows: Sequence[Row]) -> str:
    return Counter(one.instruction for one in rows).most_common(1)[0][0]
