"""Tests that words of the glossary become rarer: `.ci/words.txt` has the limit for each word to avoid."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.processes import ROOT

WORDS = ROOT / ".ci" / "words.txt"
# Strings and comments are prose; what is left of a Python file is names.
PROSE = re.compile(r'"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*')
# In these folders and pages, lanes and vehicles behind others are those of roads.
ROADS = re.compile(r"^((rtcontrol/)?(agents|envs)/road|bridges/rtcontrol_client/carla|tests/.*(carla|road)|docs/carla)")
ROAD_WORDS = ("lane", "behind")
NAME_PART = re.compile(r"[A-Z]?[a-z]+")


def counted() -> dict[tuple[str, str], int]:
    """Return the limit for each word by kind: `name` (a part of an identifier) or `prose`."""
    lines = (line.split(maxsplit=2) for line in WORDS.read_text().splitlines() if line and not line.startswith("#"))
    return {(kind, word): int(count) for kind, count, word in lines}


def prose_and_code() -> Iterator[tuple[Path, str, str]]:
    """Yield each file with its prose and its code."""
    for folder in ("rtcontrol", "agents", "envs", "models", "bridges", "tests", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            yield path, " ".join(PROSE.findall(text)), PROSE.sub(" ", text)
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bridges").rglob("*.md")):
        if page.name not in ("CHANGELOG.md", "CONTRIBUTING.md"):  # the one is history, the other has the glossary
            yield page, page.read_text(), ""


def count() -> dict[tuple[str, str], int]:
    """Return how often each listed word occurs in names or prose."""
    listed = counted()
    words = sorted((word for kind, word in listed if kind == "prose"), key=len, reverse=True)
    pattern = re.compile(rf"(?<![a-z])({'|'.join(words)})(?![a-z])", re.IGNORECASE)
    prose: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for path, text, code in prose_and_code():
        skipped = ROAD_WORDS if ROADS.match(str(path.relative_to(ROOT))) else ()
        listed_words = (word.lower() for word in pattern.findall(" ".join(text.split())))
        prose.update(word for word in listed_words if word not in skipped)
        names.update(part for part in map(str.lower, NAME_PART.findall(code)) if part not in skipped)
    return {(kind, word): (names if kind == "name" else prose)[word] for kind, word in listed}


def test_no_word_of_the_glossary_became_more_frequent() -> None:
    limits = counted()
    more = {key: (limits[key], now) for key, now in count().items() if now > limits[key]}
    assert not more, f"more than {WORDS.name} allows (kind, word: limit, now); CONTRIBUTING.md has the words to use"
