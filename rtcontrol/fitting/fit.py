"""The one verb: from rows and tools to a folder that `--model` takes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rtcontrol.agents import Tools
from rtcontrol.fitting.held_out import split
from rtcontrol.fitting.making import Fitted, Lessons, check_folder, make
from rtcontrol.fitting.material import Taught, check, contradictions, read_files, tools_of
from rtcontrol.fitting.sources import GivenRows, Probed, RowStream, name_things
from rtcontrol.fitting.worlds import lessons_of, played
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.trainer import Progress
from rtcontrol.run.skills import OwnSkill, skill_of

PLAYED = 0.1  # of the time, beside it, to play what was learnt in its world


def fit(
    rows: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Iterable[Any] | None = None,
    tools: Any = None,
    *,
    out: str | os.PathLike[str],
    env: str | None = None,
    agent: str | None = None,
    goals: str | os.PathLike[str] | None = None,
    hz: float = 16.0,
    goal: str | None = None,
    minutes: float = 15.0,
    seed: int = 0,
    threads: int | None = None,
    tell: Progress | None = None,
    say: Callable[[str], object] | None = None,
) -> Fitted:
    """Fit a controller to rows, or to a world's expert, and write it to the folder `out`, which `--model` and
    `rtcontrol.load` take.

    `rows` is a file of rows (JSONL, the format of docs/fit.md), several, or rows: dicts, or tuples (observation, call)
    and (instruction, observation, call), where a call is a `Call`, a dict, or the name of a tool without parameters.
    `tools` as `rtcontrol.load(...).session` takes them, or names with descriptions (None: those that the rows name).
    Or `env` and `agent` are the files of a world and of an agent with an expert and goals (or those of the file
    `goals`), as of `rtcontrol run`: rows come from its episodes, decided `hz` times a second, and what was learnt is
    played there (docs/your-own-game.md).

    `goal` is the instruction of rows that have none, and what the model is told by default. `minutes` is the most it
    takes; it ends earlier where all held-out rows are right. Started again with the same arguments, a run that was
    interrupted goes on. `tell` gets a dict now and then: seconds, left_s, samples, loss, accuracy, held_out; `say` a
    line that people should read.

    Raises UserError for rows that do not fit the tools (by file and line), for what a world's own code gets wrong, for
    a folder that holds something else or another run, and for a full disk; what was done before is kept.
    """
    say = say or (lambda told: None)
    if not isinstance(minutes, int | float) or not 0 < minutes <= 7 * 24 * 60:
        raise UserError(f"minutes={minutes!r} is no time to train.", "Give a number of minutes above 0.")
    if (rows is None) == (env is None):
        raise UserError("Rows or a world: one of them is what is learnt from.", "Give rows, or env and agent.")
    folder = Path(out)
    if env is not None:
        if tools is not None or goal is not None:
            raise UserError("Tools and goals of a world are its agent's.", "Leave `tools` and `goal` out.")
        skill = _own_skill(env, agent, None if goals is None else Path(goals))
        check_folder(folder)
        lessons = lessons_of(skill, hz, seed)
        flown = partial(played, skill, hz, PLAYED * 60 * minutes)
        return make(lessons, folder, float(minutes), seed, threads, tell, say, flown)
    if agent is not None or goals is not None:
        raise UserError("An agent and its goals are learnt in a world.", "Give env, too.")
    given = None if tools is None else tools_of(tools)
    source, (known, taught) = _read(rows, given, goal)
    check_folder(folder)
    notes = [told] if (told := (found := contradictions(taught)).told()) else []
    learn, held = split(taught)
    stream: RowStream = GivenRows(given_rows := [t.row for t in learn])
    if name_things(given_rows):
        stream = Probed(stream)
    lessons = Lessons(
        known,
        stream,
        learn,
        held,
        source,
        len(learn),
        goal or _commonest(learn),
        {"rows": _digest(taught), "goal": goal},
        allow_null=any(one.row.call is None for one in taught),
        ceiling=found.ceiling,
        notes=tuple(notes),
    )
    return make(lessons, folder, float(minutes), seed, threads, tell, say)


def _own_skill(env: str, agent: str | None, goals: Path | None) -> OwnSkill:
    skill = skill_of(env, agent, goals)
    if not isinstance(skill, OwnSkill):
        remedy = "Give an agent's FILE.py with `goals` and `expert`, or train it by `rtcontrol models train --recipe`."
        raise UserError(f"The agent of {env} is bundled, and has a recipe of its own.", remedy)
    return skill


def _read(rows: Any, tools: Tools | None, goal: str | None) -> tuple[str, tuple[Tools, list[Taught]]]:
    if isinstance(rows, str | os.PathLike):
        rows = [rows]
    listed = list(rows)
    files = [Path(r) for r in listed if isinstance(r, os.PathLike) or (isinstance(r, str) and not r.startswith("{"))]
    if files and len(files) == len(listed):
        return f"Rows of {', '.join(f.name for f in files)}", read_files(files, tools, goal)
    return "Rows given in Python", check(((f"row {n}", r) for n, r in enumerate(listed, start=1)), tools, goal)


def _digest(rows: Sequence[Taught]) -> str:
    found = hashlib.sha256()
    for one in rows:
        found.update(repr((one.row, one.allowed)).encode())
    return f"{len(rows)} rows, {found.hexdigest()[:16]}"


def _commonest(rows: Sequence[Taught]) -> str:
    counted: dict[str, int] = {}
    for one in rows:
        counted[one.row.instruction] = counted.get(one.row.instruction, 0) + 1
    return max(counted, key=lambda text: counted[text])
