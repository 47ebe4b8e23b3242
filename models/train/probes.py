"""Word probes: beside its call, a row asks for words of its own observation.

A call says little about where the model must look; a word that follows another one says it at once. So the content
head, which no controller waits for, quotes the observation: told a word, the next ones; told nothing, from the word
that the instruction names. It costs a few tokens a row, behind a prompt that is computed anyway.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rtcontrol.models.train.rows import Quote, Row

_SPAN = re.compile(r"\s*\S+")
_BARE = re.compile(r"^\W+|\W+$")
# Words that a sentence holds whatever it names.
COMMON = {*re.findall(r"\w+", "a an the of to at in on is it its and or what where which one that this go")}
QUOTED = 3  # words of a quote


def with_word_probes(rows: Iterable[Row], rng: random.Random, quotes: int = 2) -> Iterator[Row]:
    """The same rows, each with up to `quotes` passages of its observation to quote, from a random word on that stands
    there once; and, where the instruction names a thing there (a word, or several in a row), from the first one on,
    unprompted; and with what is `named`, for all heads to hold half way through the model."""
    for row in rows:
        spans = _SPAN.findall(row.observation)
        words = [_BARE.sub("", span).lower() for span in spans]
        counted = Counter(words)
        once = [i for i, word in enumerate(words[:-1]) if word and counted[word] == 1]
        told = [w for w in (_BARE.sub("", word).lower() for word in row.instruction.split()) if w not in COMMON]
        name = _named(words, counted, told)
        starts = dict.fromkeys([*name[:1], *rng.sample(once, min(quotes, len(once)))])
        found = (
            Quote(spans[i], "".join(spans[i + 1 : i + QUOTED]), i in name[:1]) for i in starts if i + 1 < len(spans)
        )
        yield replace(row, quotes=(*row.quotes, *found), named=f" {words[name[-1]]}" if name else "")


def _named(words: Sequence[str], counted: Counter[str], told: Sequence[str]) -> range:
    """Where the thing stands that is told first: words in a row of which one at least stands nowhere else."""
    first = next((word for word in told if counted[word] == 1), None)
    if first is None:
        return range(0)
    start = words.index(first)
    stop = start + 1
    while start > 0 and words[start - 1] in told:
        start -= 1
    while stop < len(words) and words[stop] in told:
        stop += 1
    return range(start, stop)
