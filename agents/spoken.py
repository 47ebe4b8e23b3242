"""How people say it: the hand-written tables of `agents/AGENT/spoken.toml` and of `agents/nonsense.toml`.

A table's sentences mean what the table says. Patterns keep the marks of their goal's numbers ({V}, {X}, {Y} in figures,
{Vw}, {Xw}, {Yw} in words) until they are written.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any
from zlib import crc32

KEPT_EVERY = 10
_MARK = re.compile(r"\{(\w+)\}")
# fmt: off
_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on
_FRACTIONS = {25: "a quarter", 50: "a half", 75: "three quarters"}
NUMBER_WORDS = " ".join((*_ONES, *_TENS, *_FRACTIONS.values(), "nought oh point minus negative"))


@cache
def spoken(agent: str, *tables: str, partner: bool = False, kept: bool | None = None) -> tuple[str, ...]:
    """The patterns of an agent's tables, in order; `partner`: each word of a pair is the pair's second. `kept`: those
    that are kept from training alone, or all others."""
    read = _read(f"rtcontrol.agents.{agent}", "spoken.toml")
    words = {pair[0]: pair[partner] for pair in read["pairs"]}
    lines = [line for table in tables for line in read[table].splitlines() if kept in (None, kept_back(line))]
    return tuple(_MARK.sub(lambda mark: words.get(mark[1], mark[0]), line) for line in lines)


@cache
def nonsense(kept: bool | None = None) -> tuple[str, ...]:
    """Sentences that name no goal of any bundled world; `kept` as in `spoken`."""
    tables = _read("rtcontrol.agents", "nonsense.toml").values()
    return tuple(line for table in tables for line in table.splitlines() if kept in (None, kept_back(line)))


def kept_back(line: str) -> bool:
    """Whether a line of a table is one of the tenth that is kept from training, the same in every process."""
    return crc32(line.encode()) % KEPT_EVERY == 0


def bare(text: str) -> str:
    """A sentence as it is compared with others: small letters, single spaces, no marks around words."""
    return " ".join(re.findall(r"[\w{}.'-]+", text.lower())).rstrip(".")


@cache
def shown(agent: str) -> tuple[str, ...]:
    """Every line of an agent's tables that training shows, its numbers left out, in both words of a pair."""
    tables = [name for name, text in _read(f"rtcontrol.agents.{agent}", "spoken.toml").items() if isinstance(text, str)]
    lines = [line for partner in (False, True) for line in spoken(agent, *tables, partner=partner, kept=False)]
    return tuple(dict.fromkeys(_MARK.sub(" ", line) for line in lines))


@cache
def words_of(agent: str) -> frozenset[str]:
    """Every word of an agent's tables, in small letters."""
    tables = [text for text in _read(f"rtcontrol.agents.{agent}", "spoken.toml").values() if isinstance(text, str)]
    return frozenset(re.findall(r"[a-z]+", " ".join(tables).lower()))


def written_in(pattern: str, marks: Mapping[str, str]) -> str:
    """The pattern with its marks filled; KeyError for a mark that `marks` has not."""
    return _MARK.sub(lambda mark: marks[mark[1]], pattern)


def integer_in_words(rng: random.Random, value: int) -> str:
    """0 to 99 as people say it: fifty five, fifty-five."""
    tens, ones = divmod(value, 10)
    if value < 20 or not ones:
        return _ONES[value] if value < 20 else _TENS[tens]
    return f"{_TENS[tens]}{rng.choice(' -')}{_ONES[ones]}"


def hundredths_in_words(rng: random.Random, hundredths: int) -> str:
    """A number of at most two decimals as people say it, in one of its ways: zero, nought or just point seven."""
    if hundredths < 0:
        return f"{rng.choice(('minus', 'negative'))} {hundredths_in_words(rng, -hundredths)}"
    whole, rest = divmod(hundredths, 100)
    if not rest:
        return rng.choice((_ONES[whole], f"{_ONES[whole]} point zero")) if whole else rng.choice(("zero", "nought"))
    ways = [_decimals(rng, rest)]
    if whole:
        return f"{_ONES[whole]} {ways[0]}"
    ways += [f"zero {ways[0]}", f"zero {ways[0]}", f"nought {ways[0]}"]
    return rng.choice([*ways, _FRACTIONS[rest]] if rest in _FRACTIONS else ways)


def _decimals(rng: random.Random, rest: int) -> str:
    tenths, ones = divmod(rest, 10)
    if not ones:
        return f"point {_ONES[tenths]}"
    if not tenths:
        return f"point {rng.choice(('zero', 'oh'))} {_ONES[ones]}"
    pair = integer_in_words(rng, rest)
    return rng.choice((f"point {_ONES[tenths]} {_ONES[ones]}", f"point {_ONES[tenths]} {_ONES[ones]}", f"point {pair}"))


@cache
def _read(package: str, name: str) -> Mapping[str, Any]:
    return tomllib.loads(resources.files(package).joinpath(name).read_text("utf-8"))
