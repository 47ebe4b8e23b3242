"""Lists of what people say: `{"say": "...", "means": "<canonical instruction>" or null}`, a line each."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rtcontrol.envs.skill import Skill
from rtcontrol.models.errors import UserError, decoded

MOST = 10_000  # lines
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
    read = (
        (number, _line(skill, text, names, partial(_wrong, given, number))) for number, text in numbered if text.strip()
    )
    found: list[Saying] = []
    means: dict[str, tuple[int, str | None]] = {}
    for number, line in read:
        if line is not None:
            before, meant = means.setdefault(line.say, (number, line.means))
            if meant != line.means:
                raise _wrong(
                    given, number, f'"{line.say}" means {_told(line.means)}, and in line {before} {_told(meant)}'
                )
            found.append(line)
    if not found:
        raise UserError(f"--phrasings {given}: no line of it is for {skill.name}.", FORM)
    return found


def _line(skill: Skill, text: str, names: Sequence[str], wrong: Callable[[str], UserError]) -> Saying | None:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(f"no JSON ({error})") from None
    if not isinstance(read, dict) or not {"say", "means"} <= read.keys():
        raise wrong("no object with `say` and `means`")
    say, means, env = read["say"], read["means"], read.get("env", names[0])
    if not isinstance(say, str) or not say.strip():
        raise wrong("`say` is no text")
    if not isinstance(env, str) or not (means is None or isinstance(means, str)):
        raise wrong("`means` is neither a text nor null" if isinstance(env, str) else "`env` is no name")
    if env not in names:
        return None
    goal = None if means is None else skill.recognise(means)
    if means is not None and goal is None:
        raise wrong(f"`means` is {means!r}, which names no goal of {skill.name}")
    return Saying(say, None if goal is None else goal.text(), goal)


def _told(means: str | None) -> str:
    return "nothing" if means is None else f'"{means}"'


def _wrong(given: str, number: int, what: str) -> UserError:
    return UserError(f"{given}, line {number}: {what}.", FORM)
