"""Word probes: beside its call, a row asks for words of its own observation.

A call says little about where the model must look; a word that follows another one says it at once. So the content
head, which no controller waits for, quotes the observation: told a word, the next ones; told nothing, from the word
that the instruction names. It costs a few tokens a row, behind a prompt that is computed anyway.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from rtcontrol.models.train.rows import Quote, Row

_SPAN = re.compile(r"\s*\S+")
_BARE = re.compile(r"^\W+|\W+$")
# Words that a sentence holds whatever it names.
_COMMON = {*re.findall(r"\w+", "a an the of to at in on is it its and or what where which one that this go")}
QUOTED = 3  # words of a quote


def with_word_probes(rows: Iterable[Row], rng: random.Random, quotes: int = 2) -> Iterator[Row]:
    """The same rows, each with up to `quotes` passages of its observation to quote, from a random word on that stands
    there once; and, where the instruction names just one such word, from that one on, unprompted."""
    for row in rows:
        yield replace(row, quotes=(*row.quotes, *_quotes(row, rng, quotes)))


def _quotes(row: Row, rng: random.Random, count: int) -> Iterator[Quote]:
    spans = _SPAN.findall(row.observation)
    words = [_BARE.sub("", span).lower() for span in spans]
    counted = Counter(words)
    once = [i for i, word in enumerate(words[:-1]) if word and counted[word] == 1]
    told = {_BARE.sub("", word).lower() for word in row.instruction.split()} - _COMMON
    named = [i for i in once if words[i] in told]
    starts = dict.fromkeys([*named[:1], *rng.sample(once, min(count, len(once)))])
    for i in starts:
        yield Quote("".join(spans[i : i + 1]), "".join(spans[i + 1 : i + QUOTED]), len(named) == 1 and i == named[0])
