"""Which words of an instruction a checkpoint was taught: a sentence with others may mean anything, however sure a model
is of it. A classifier spreads all that it believes over what it knows."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

_SIGN = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # of scripts that put no space between words: each is one
_WORD = re.compile(rf"[{_SIGN}]|(?:(?![{_SIGN}])[^\W\d_])+(?:['\u2019][^\W\d_]+)*")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
ENDINGS = ("s", "es", "ed", "d", "ing", "ly", "'s")
SLIPS, STEM = 4, 3  # letters of a word in which a slip, or an ending less, leaves enough to read
# What is looked at: beyond that a sentence is not understood anyway, and a hostile one costs no more.
MOST_UNKNOWN, MOST_FORMS, LONGEST = 8, 64, 32
# Words that turn a sentence round: none is a slip of another word, or a form of it.
_TURNING = """
not no non nor never none nothing neither without except unless until instead avoid both all every each any only dont
wont cant don't won't can't doesn't isn't shouldn't mustn't
"""
TURNING = frozenset(_TURNING.split())


def words(text: str) -> list[str]:
    """The words of a sentence, in small letters; numbers are none."""
    return [word.replace("\u2019", "'") for word in _WORD.findall(text.lower())]


class KnownWords:
    """Words with their forms: an ending more or less, a slip of the finger behind the first letter."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = frozenset(known)

    def unknown(self, text: str) -> tuple[str, ...]:
        """The words of a sentence that are none of these, each once, as they are said first; MOST_UNKNOWN at most."""
        found: list[str] = []
        others = [word for word in dict.fromkeys(words(text)) if word not in self._known]
        for n, word in enumerate(others):
            if n >= MOST_FORMS or not self._is_form(word):
                found.append(word)
                if len(found) == MOST_UNKNOWN:
                    break
        return tuple(found)

    def _is_form(self, word: str) -> bool:
        if word in TURNING or len(word) > LONGEST:
            return False
        return any(form in self._known and form not in TURNING for form in _forms(word))


def _forms(word: str) -> Iterator[str]:
    """With an ending more or less (`driving` is `drive`, `stopped` is `stop`), and with one slip: a letter missing,
    doubled, swapped or another."""
    for ending in ENDINGS:
        yield word + ending
        if word.endswith(ending) and len(stem := word[: -len(ending)]) >= STEM:
            yield from (stem, stem + "e", stem[:-1] if stem[-1] == stem[-2] else stem)
    if word.endswith("e"):
        yield word[:-1] + "ing"
    for i in range(1, len(word) - 1):
        yield word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if len(word) >= SLIPS:
        for i in range(1, len(word) + 1):
            yield word[:i] + word[i + 1 :]
            for letter in _LETTERS:
                yield word[:i] + letter + word[i:]
                yield word[:i] + letter + word[i + 1 :]
