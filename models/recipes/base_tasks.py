"""Look-ups with a known answer, of which the base learns.

Names, tools and layouts are random for each set of tools. A model that never saw a name has to read it.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Row
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema

_PARTS = """
ba ke lo mi nu ra se to vi za dor fen gal hul jor kin lun mar nex pol quil ras sil tam ven wex yor zin bri clo dra fli
gre pra ska sto tri vla
"""
_COLOUR_WORDS = """
red green blue black white amber violet silver orange yellow purple grey pink brown gold cyan
"""
_OBJECT_WORDS = """
crate box ball door lamp tower bridge pump valve tank shelf table chair robot drone truck ship cart gate wheel bottle
key coin gem barrel rock tree flower mug book station dock depot charger camera sensor lever panel switch engine
battery cable hammer cone bin pallet rack conveyor bench ladder fence wall pillar portal chest torch shield sword
potion goblin dragon turret base flag beacon buoy island harbour hangar runway silo furnace oven sink fridge plate
bowl spoon basket apple pear lemon bread fish bird cat dog horse wolf guard worker pilot doctor miner airport ant
antenna anchor anvil archer arena arrow axe badge bag baker bakery balcony balloon bandit bank barn barrier bat bath
beach beam bear bed bee beetle bell belt berry bike block board boat bomb bone boot bow bracelet branch brick brush
bucket bug building bull bus bush butcher butter button cabin cabinet cage cake calendar camel camp candle cannon
canyon cape captain car card carpet carrot castle cave cellar cell chain cheese chef cherry chicken chimney church
circle city cliff clock cloak cloud clown coach coal coat column comet compass computer cook cookie copper cottage
couch cow crab crane crater creek crown crystal cube cup curtain cushion customer cyclist deer demon desert desk
diamond dinosaur disc dish diver dolphin donkey drawer dress driver drum duck dwarf eagle egg elephant elevator elf
envelope factory falcon fan farm farmer feather ferry field file filter flask flute foe folder forest fork fort
fortress fountain fox frame freezer friend frog fruit fuse garage garden generator ghost giant glass glider glove goal
goat goose grain grape grass grave guest guide guitar gun hall ham hamster handle hat hatch hawk hedge helmet hen herb
hero hill hoe hole hook hoop horn hospital hotel house hunter hut ice igloo insect iron jacket jail jar jeep jet jewel
judge jungle kettle king kitchen kite knife knight knot lab ladybug lake lamb lantern laptop leaf leaver library
lighthouse lime line lion lizard loader lobster lock locker log magnet mail mall mango map maple marble mask mast mat
meadow medal melon mermaid meteor microwave mill mine mirror missile mixer moat mole monkey monster moon mop moss
motor mountain mouse mushroom nail needle nest net ninja nurse nut oak oasis ocean octopus office olive onion orb orc
organ otter outpost owl oyster paddle page paint palace palm pan panda paper parachute park parrot patient peach pearl
pen pencil penguin pepper phone piano pie pig pigeon pin pipe pirate pistol pizza plane planet plant player plug plum
pocket pole pond pony pool pot potato princess printer prisoner probe puddle puppet puzzle pyramid quarry queen rabbit
raft ramp ranger raven razor reactor reef ribbon rice rider rifle ring river road rocket roof room rope rose rover
ruby rug ruin sail sailor salad salt sand sandwich satellite saw scarf school scooter scorpion screen screw scroll
seal seat seed shark shed sheep shell sheriff shirt shoe shop shovel shrine skeleton skull sled slime snail snake snow
soap sock sofa soldier soup spade spark spear sphere spider spike sponge spring spy square squirrel stable stairs star
statue steel stick stone stool store stove stranger straw street sugar suitcase sun swamp swan swing syringe tablet
tape target tavern taxi teacher teapot telescope temple tent thief throne ticket tiger tile tin tire toad toaster
toilet tomato tomb tool towel toy track tractor trailer train tram trap tray treasure triangle troll trolley trophy
tube tulip tunnel turbine turkey turtle umbrella valley van vase vault vest village villain violin volcano wagon
waiter warehouse warrior wasp waterfall weasel weed well whale whistle windmill window wing wire witch wizard wood
worm wreck yacht yard zebra zombie zone
"""
SYLLABLES, COLOURS, OBJECTS = (tuple(text.split()) for text in (_PARTS, _COLOUR_WORDS, _OBJECT_WORDS))
_ONSETS = "b c d f g h j k l m n p r s t v w z ch sh tr br"
ONSETS = _ONSETS.split()
CODAS = ("", "", "", "n", "r", "l", "s", "t", "m", "ck", "nd", "st")
FIRST = COLOURS + OBJECTS[:95]  # of which a model learns first to find any
KINDS = ("first", "words", "made up", "two words", "spelt")
Mix = tuple[float, float, float, float, float]
MIX: Mix = (0, 3, 3, 2, 3)  # how often a name is of each kind

VERBS: Mapping[str, tuple[Sequence[str], str]] = {  # by meaning, and what a description may say
    "move": (("go", "move", "drive", "head", "walk", "fly", "travel", "run", "steer"), "Move.|Go that way."),
    "take": (("take", "grab", "pick", "collect", "fetch", "get", "lift"), "Take it."),
    "attack": (("attack", "hit", "shoot", "strike", "fire"), "Attack there."),
    "look": (("look", "inspect", "scan", "watch", "check", "examine"), "Look there."),
    "push": (("push", "press", "shove"), "Push it."),
    "open": (("open", "unlock"), "Open it."),
    "avoid": (("avoid", "dodge", "evade", "flee"), "Keep away."),
    "tell": (("report", "tell", "say", "answer", "name"), "Tell it."),
}
PARAMETERS = {
    "way": ("direction", "way", "heading", "side", "where", "to"),
    "count": ("count", "number", "amount", "level", "value"),
    "name": ("name", "item", "target", "object", "thing"),
}
WAYS = (
    ("north", "south", "east", "west"),
    ("up", "down", "left", "right"),
    ("forward", "back", "left", "right"),
    ("left", "right"),
    ("high", "low", "middle"),
    ("front", "rear", "port", "starboard"),
)
# Of things, and no argument.
STATES: tuple[Sequence[str | int], ...] = (
    ("open", "closed"),
    ("full", "empty"),
    ("hot", "cold", "warm"),
    ("on", "off"),
    ("big", "small"),
    range(10, 100),
)
DIGITS = range(10)
# Around a thing and its values; in the last two the values come first.
LAYOUTS = (
    ("{name} {values}", " "),
    ("{name} {values}", "; "),
    ("{name}: {values}", ", "),
    ("{name} is {values}", "; "),
    ("the {name} {values}", ". "),
    ("{values} {name}", "; "),
    ("{values}: {name}", ", "),
)
SENTENCES = (
    "{verb} to the {name}",
    "{verb} to {name}",
    "{verb} {name}",
    "{verb} the {name}",
    "please {verb} the {name}",
    "{verb} the {name} now",
    "the {name}: {verb} it",
)
SITUATIONS, TOLD = 2, 3  # of one set of tools; instructions of a situation


def trained(name: str) -> bool:
    """Whether training may have a name of several pieces: an eighth is kept for judging."""
    return zlib.crc32(name.encode()) % 8 != 0


NAMES: Mapping[str, Sequence[str]] = {
    "first": FIRST,
    "words": COLOURS + OBJECTS,
    "made up": tuple(filter(trained, dict.fromkeys(map("".join, itertools.product(SYLLABLES, repeat=2))))),
    "two words": tuple(filter(trained, map(" ".join, itertools.product(COLOURS, OBJECTS)))),
}
# A spelt name is none of the words that sentences and values have.
TAKEN = {
    *COLOURS,
    *OBJECTS,
    *["to", "is", "it", "if", "no", "now", "how", "more", "less"],
    *itertools.chain(*WAYS, *STATES),
}
TAKEN |= {verb for verbs, _ in VERBS.values() for verb in verbs}


def draw(rng: Random, count: int, mix: Mix = MIX) -> list[str]:
    """Return `count` different names of one kind."""
    kind = rng.choices(KINDS, mix)[0]
    if kind != "spelt":
        return rng.sample(NAMES[kind], count)
    names: dict[str, None] = {}
    while len(names) < count:
        parts = [rng.choice(ONSETS) + rng.choice("aeiou") + rng.choice(CODAS) for _ in range(rng.choice((1, 2, 2, 3)))]
        name = "".join(parts)
        if trained(name) and name not in TAKEN:
            names[name] = None
    return list(names)


def a_tool(rng: Random, verb: str, parameters: Mapping[str, Any]) -> tuple[ToolSchema, dict[str, str]]:
    """Return a tool with its parameters (by meaning: their schemas) in any order, each under a random name, and these
    names by meaning."""
    named = {meaning: rng.choice(PARAMETERS[meaning]) for meaning in rng.sample(list(parameters), len(parameters))}
    about = next(about for verbs, about in VERBS.values() if verb in verbs)
    schemas = tuple(_parameter(name, json.dumps(parameters[meaning])) for meaning, name in named.items())
    return ToolSchema(verb, rng.choice(("", *about.split("|"))), schemas), named


@lru_cache(4096)
def _parameter(name: str, schema: str) -> Parameter:
    # To check a schema costs more than to train a row of it.
    parameters = {"type": "object", "properties": {name: json.loads(schema)}, "required": [name]}
    return ToolSchema.from_openai({"name": name, "parameters": parameters}).parameters[0]


def choice(rng: Random, values: Sequence[str]) -> dict[str, Any]:
    """Return the schema of one of these words, in any order."""
    return {"enum": rng.sample(values, len(values)), "type": "string"}


def verbs_of(rng: Random, count: int) -> list[str]:
    """Return verbs of `count` different meanings."""
    return [rng.choice(VERBS[meaning][0]) for meaning in rng.sample(list(VERBS), count)]


def shown(layout: tuple[str, str], things: Sequence[tuple[str, Sequence[Any]]]) -> str:
    """Return an observation of (name, values), in this order."""
    form, between = layout
    return between.join(form.format(name=name, values=" ".join(map(str, values))) for name, values in things)


@dataclass(frozen=True)
class Variety:
    """How much differs between look-ups: the mix of names, how many of the first sentences and layouts, how often there
    are several tools, a digit with each direction, an argument for the name, and a state that no argument has."""

    names: Mix = MIX
    sentences: int = len(SENTENCES)
    layouts: int = len(LAYOUTS)
    several_tools: float = 0.3
    unasked: float = 0.3


def look_up(rng: Random, things: int, variety: Variety = Variety()) -> Iterator[Row]:
    """One of `things` is named; its direction, and at times a digit and its name, are the arguments."""
    ways = rng.choice([w for w in WAYS if len(w) > 2 or things < 4])
    extra = rng.random() < 0.3
    parameters: dict[str, Any] = {"way": choice(rng, ways)}
    if extra:
        parameters["count"] = {"type": "integer", "minimum": 0, "maximum": 9}
    if rng.random() < 0.45:
        parameters["name"] = {"type": "string"}
    verbs = verbs_of(rng, rng.randint(2, 4) if rng.random() < variety.several_tools else 1)
    tools, named = zip(*(a_tool(rng, verb, parameters) for verb in verbs), strict=True)
    tools = tuple(rng.sample(tools, len(tools)))
    sentence, layout = rng.choice(SENTENCES[: variety.sentences]), rng.choice(LAYOUTS[: variety.layouts])
    states = rng.choice(STATES) if rng.random() < variety.unasked else None
    place = rng.randint(0, 1 + extra)
    for _ in range(SITUATIONS):
        names = draw(rng, things, variety.names)
        facts = {name: {"way": rng.choice(ways), "count": rng.choice(DIGITS), "name": name} for name in names}
        values_of = {n: [facts[n]["way"], *[facts[n]["count"]] * extra] for n in names}
        if states is not None:
            for values in values_of.values():
                values.insert(place, rng.choice(states))
        observation = shown(layout, [(n, values_of[n]) for n in rng.sample(names, things)])
        for name in names[:TOLD]:
            by = rng.randrange(len(verbs))
            call = Call(verbs[by], {written: facts[name][meaning] for meaning, written in named[by].items()})
            yield Row(sentence.format(verb=verbs[by], name=name), observation, call, tools=tools)
