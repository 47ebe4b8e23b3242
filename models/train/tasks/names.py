"""Names to bind anew in every row: words, and names that share their syllables. One in eight is never trained."""

from __future__ import annotations

import itertools
import zlib
from random import Random

from rtcontrol.models.train.tasks import schemas

_PARTS = """
ba ke lo mi nu ra se to vi za dor fen gal hul jor kin lun mar nex pol quil ras sil tam ven wex yor zin bri clo dra fli
gre pra ska sto tri vla
"""
_ONSETS = (
    "b",
    "c",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "w",
    "z",
    "ch",
    "sh",
    "tr",
    "br",
)
_CODAS = ("", "", "", "n", "r", "l", "s", "t", "m", "ck", "nd", "st")
SYLLABLES = tuple(_PARTS.split())
_COLOUR_WORDS = """
red green blue black white amber violet silver orange yellow purple grey pink brown gold cyan
"""
COLOURS = tuple(_COLOUR_WORDS.split())
_OBJECT_WORDS = """
crate box ball door lamp tower bridge pump valve tank shelf table chair robot drone truck ship cart gate wheel bottle
key coin gem barrel rock tree flower mug book station dock depot charger camera sensor lever panel switch engine
battery cable hammer cone bin pallet rack conveyor bench ladder fence wall pillar portal chest torch shield sword
potion goblin dragon turret base flag beacon buoy island harbour hangar runway silo furnace oven sink fridge plate
bowl spoon basket apple pear lemon bread fish bird cat dog horse wolf guard worker pilot doctor miner
"""
OBJECTS = tuple(_OBJECT_WORDS.split())
MADE_UP = tuple(dict.fromkeys(map("".join, itertools.product(SYLLABLES, repeat=2))))


def held_out(name: str) -> bool:
    """Whether a name is kept from training: by its checksum, so for ever."""
    return zlib.crc32(name.encode()) % 8 == 0


TRAINING = {
    "words": tuple(n for n in COLOURS + OBJECTS if not held_out(n)),
    "made up": tuple(n for n in MADE_UP if not held_out(n)),
    "two words": tuple(n for n in map(" ".join, itertools.product(COLOURS, OBJECTS)) if not held_out(n)),
}
HELD_OUT = {
    "words": tuple(n for n in COLOURS + OBJECTS if held_out(n)),
    "made up": tuple(n for n in MADE_UP if held_out(n)),
    "two words": tuple(n for n in map(" ".join, itertools.product(COLOURS, OBJECTS)) if held_out(n)),
}


# What sentences and values say themselves is no name: "go to go" names nothing, "back 3 back" two things.
_SENTENCE_WORDS = ("to", "is", "it", "if", "no", "now", "how", "more", "less")
_SAID = frozenset(itertools.chain(_SENTENCE_WORDS, *schemas.VERBS.values(), *schemas.WAYS))
KINDS = (*TRAINING, "spelt")
Mix = tuple[float, float, float, float]
MIX: Mix = (3, 3, 2, 3)  # how often a name is of each kind


def draw(rng: Random, count: int, unseen: bool = False, mix: Mix = MIX) -> list[str]:
    """`count` different names, all of one kind: of a list (two words: some share one), or spelt anew."""
    kind = rng.choices(KINDS, mix)[0]
    if kind != "spelt":
        return rng.sample((HELD_OUT if unseen else TRAINING)[kind], count)
    found: dict[str, None] = {}
    while len(found) < count:
        name = "".join(_syllable(rng) for _ in range(rng.choice((1, 2, 2, 3))))
        if held_out(name) == unseen and name not in _SAID:
            found[name] = None
    return list(found)


def _syllable(rng: Random) -> str:
    return rng.choice(_ONSETS) + rng.choice("aeiou") + rng.choice(_CODAS)
