"""The strings of a schema: the patterns that are found in them, and how long they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rtcontrol.models.flatten import TOO
from rtcontrol.models.formats import FORMATS
from rtcontrol.models.pattern import Pattern, PatternError, compiled, matcher

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Texts:
    """The strings of a schema: each `pattern` is found in them, and they have `least` to `most` (None: any number of)
    characters."""

    patterns: tuple[Pattern, ...]
    least: int
    most: int | None

    def regexes(self, one: str = "(?s:.)") -> list[str]:
        """Regular expressions that all of them match, of characters that are such `one`."""
        length = f"(?:{one}){{{self.least},{'' if self.most is None else self.most}}}"
        return [*(p.regex for p in self.patterns), length]


def texts_of(schema: Schema) -> Texts:
    """Of a schema of type string; a format that leaves no text is passed over. Raises PatternError."""
    parts = [schema, *schema.get(TOO, ())]
    patterns = [compiled(p["pattern"]) for p in parts if "pattern" in p]
    found = Texts(
        tuple(dict.fromkeys(patterns)),
        max(p.get("minLength", 0) for p in parts),
        min((p["maxLength"] for p in parts if "maxLength" in p), default=None),
    )
    formats = [compiled(FORMATS[p["format"]]) for p in parts if p.get("format") in FORMATS]
    narrow = Texts(tuple(dict.fromkeys((*patterns, *formats))), found.least, found.most)
    return narrow if formats and possible(narrow) else found


@lru_cache(maxsize=4096)
def possible(texts: Texts, one: str = "(?s:.)") -> bool:
    """Whether there is such a text, of such characters as `one` says."""
    if texts.most is not None and texts.least > texts.most:
        return False
    try:
        matcher(f"start: T\nT: {' & '.join(f'/{r}/' for r in texts.regexes(one))}\n")
    except PatternError:
        return False
    return True
