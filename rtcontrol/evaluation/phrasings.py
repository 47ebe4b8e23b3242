"""Lists of what people say: `{"say": "...", "means": "<canonical instruction>" or null}`, a line each."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.envs.skill import Skill
from rtcontrol.models.errors import UserError, decoded

MOST = 10_000  # lines, each on a seed of its own, below those of training
FORM = 'Write {"say": "...", "means": "<canonical instruction>"}, with null in its place for what means nothing.'


@dataclass(frozen=True, slots=True)
class Saying:
    """What somebody says, and the goal that it asks for; `means` is its canonical instruction (None: nothing)."""

    say: str
    means: str | None
    goal: Any = None


def lines(skill: Skill, given: str, names: Sequence[str]) -> list[Saying]:
    """A file's lines (JSONL, or that in gzip), without those whose `env` is none of `names`; or one of the skill's own
    lists, by its name. UserError, with the line's number, for what cannot be read."""
    if given in skill.phrasings:
        told = [one for kind in skill.kinds for one in skill.phrasings[given](kind)]
        if not told:
            raise UserError(
                f"--phrasings {given}: {skill.name} has none.",
                "Say each goal in five ways and more, or give a JSONL file.",
            )
        return [Saying(say, goal.text(), goal) for say, goal in told]
    path = Path(given)
    try:
        raw = path.read_bytes()
        written = decoded(gzip.decompress(raw) if path.suffix == ".gz" else raw, f"--phrasings {given}")
    except (OSError, EOFError, zlib.error) as error:
        lists = f", or a list of this world: {', '.join(skill.phrasings)}" if skill.phrasings else ""
        why = error.strerror if isinstance(error, OSError) and error.strerror else f"no text in UTF-8: {error}"
        raise UserError(f"--phrasings {given} cannot be read ({why}).", f"Give a JSONL file{lists}.") from None
    numbered = list(enumerate(written.rstrip("\n").split("\n"), 1))
    if len(numbered) > MOST:
        raise UserError(f"--phrasings {given} has {len(numbered)} lines.", f"Give {MOST} at the most.")
    found: list[Saying] = []
    means: dict[str, tuple[int, str | None]] = {}
    for number, text in numbered:
        try:
            line = _line(skill, text, names) if text.strip() else None
            before, meant = means.setdefault(line.say, (number, line.means)) if line is not None else (0, None)
            if line is not None and meant != line.means:
                raise ValueError(f'"{line.say}" means {_told(line.means)}, and in line {before} {_told(meant)}')
        except ValueError as error:
            raise UserError(f"{given}, line {number}: {error}.", FORM) from None
        found += [line] if line is not None else []
    if not found:
        raise UserError(f"--phrasings {given}: no line of it is for {skill.name}.", FORM)
    return found


def _line(skill: Skill, text: str, names: Sequence[str]) -> Saying | None:
    """Return a line's sentence, None where it is for another world. Raises ValueError."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON ({error})") from None
    if not isinstance(read, dict) or not {"say", "means"} <= read.keys():
        raise ValueError("no object with `say` and `means`")
    say, means, env = read["say"], read["means"], read.get("env", names[0])
    if not isinstance(say, str) or not say.strip():
        raise ValueError("`say` is no text")
    if not (means is None or isinstance(means, str)):
        raise ValueError("`means` is neither a text nor null")
    if env not in names:
        return None
    goal = None if means is None else skill.recognise(means)
    if means is not None and goal is None:
        raise ValueError(f"`means` is {means!r}, which names no goal of {skill.name}")
    return Saying(say, None if goal is None else goal.text(), goal)


def _told(means: str | None) -> str:
    return "nothing" if means is None else f'"{means}"'
