"""Names to bind anew in every row: words, and made-up names that share syllables. One in eight is never trained."""

from __future__ import annotations

import itertools
import zlib
from random import Random

_PARTS = """
ba ke lo mi nu ra se to vi za dor fen gal hul jor kin lun mar nex pol quil ras sil tam ven wex yor zin bri clo dra fli
gre pra ska sto tri vla
"""
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


Mix = tuple[float, float, float]
MIX: Mix = (4, 4, 2)  # how often a name is of each kind


def draw(rng: Random, count: int, unseen: bool = False, mix: Mix = MIX) -> list[str]:
    """`count` different names, all of one kind; of two words, some share one of them."""
    names = (HELD_OUT if unseen else TRAINING)[rng.choices(tuple(TRAINING), mix)[0]]
    return rng.sample(names, count)
