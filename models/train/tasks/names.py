"""Names to bind anew in every row: words, and names that share their syllables. Some of each are never trained."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.train.tasks import names, schemas
from rtcontrol.models.train.tasks.check import Directive, SyntheticTask

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
OBJECTS = tuple(_OBJECT_WORDS.split())
FIRST = COLOURS + OBJECTS[:95]  # of which a model learns first to find any
MADE_UP = tuple(dict.fromkeys(map("".join, itertools.product(SYLLABLES, repeat=2))))


# Words that no list has. One that is a token is written only where it was trained: those are all names of training.
_UNSEEN_WORDS = """
accordion awl banjo bassoon beaker bellows bobbin buckle bugle burner canoe caravan cello chisel cistern cobbler
colander crayon crowbar cymbal dolly dredger easel fiddle flagon flannel funnel gasket gauge gondola griddle hacksaw
hammock harp harpoon hatchet hinge hydrant icebox jigsaw kayak kennel keg ladle lathe lawnmower lever lute mallet
mandolin manhole mattock muzzle nozzle oboe padlock parasol pickaxe pliers plough pulley quiver rasp ratchet rivet
rudder sabre saddle scythe sextant shackle shovelboard sickle spanner spatula spindle sprocket stapler stirrup
tambourine tandem teaspoon thimble toboggan tongs trowel trumpet tuba tweezers ukulele wheelbarrow winch wrench
xylophone yoke
"""


def held_out(name: str) -> bool:
    """Whether a name of several pieces is kept from training: by its checksum, so for ever."""
    return zlib.crc32(name.encode()) % 8 == 0


_MADE = {"made up": MADE_UP, "two words": tuple(map(" ".join, itertools.product(COLOURS, OBJECTS)))}
_PLAIN = {"first": FIRST, "words": COLOURS + OBJECTS}
UNSEEN = tuple(word for word in _UNSEEN_WORDS.split() if word not in OBJECTS)
TRAINING = _PLAIN | {kind: tuple(n for n in found if not held_out(n)) for kind, found in _MADE.items()}
HELD_OUT = dict.fromkeys(_PLAIN, UNSEEN) | {kind: tuple(filter(held_out, found)) for kind, found in _MADE.items()}


# What sentences and values say themselves is no name: "go to go" names nothing, "back 3 back" two things. Nor
# is one of the lists spelt anew.
_SENTENCE_WORDS = ("to", "is", "it", "if", "no", "now", "how", "more", "less")
_WORDS = (*schemas.VERBS.values(), *schemas.WAYS, *schemas.STATES)
_SAID = frozenset(itertools.chain(_SENTENCE_WORDS, UNSEEN, COLOURS, OBJECTS, *_WORDS))
KINDS = (*TRAINING, "spelt")
Mix = tuple[float, float, float, float, float]
MIX: Mix = (0, 3, 3, 2, 3)  # how often a name is of each kind


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


NUMBERS = range(1, 100)
SIDES = (("left", "right"), ("down", "up"), ("west", "east"), ("back", "forward"))


def compare(rng: Random, things: int = 3, unseen: bool = False) -> Iterator[SyntheticTask]:
    """Things shown with numbers: is this one more, or less, than another, or than a number told?"""
    words = rng.choice((("yes", "no"), ("true", "false")))
    asked = rng.choice((("more", "less"), ("above", "below"), ("higher", "lower")))
    plain = _plain(unseen)

    def told(rng: Random, facts: dict[str, int]) -> Iterator[tuple[str, str]]:
        for _ in range(TOLD):
            (a, mine), (b, other) = rng.sample(list(facts.items()), 2)
            if rng.random() < 0.4:
                other = rng.choice([n for n in NUMBERS if n != mine])
                b = str(other)
            more = rng.random() < plain
            answer = mine > other if more else mine < other
            yield f"is {a} {asked[not more]} than {b}", words[not answer]

    yield from _numbered(rng, max(2, things), unseen, "answer", words, told)


def nearest(rng: Random, things: int = 3, unseen: bool = False) -> Iterator[SyntheticTask]:
    """Things at a distance and on a side: where is the nearest one, where the farthest?"""
    ways = rng.choice([w for w in schemas.WAYS if len(w) > 2])
    asked = rng.choice((("nearest", "farthest"), ("closest", "furthest")))
    verb = rng.choice(schemas.VERBS["move"])
    tool, named = schemas.a_tool(rng, verb, {"way": schemas.words(rng, ways)})
    layout = rng.choice(LAYOUTS)
    for _ in range(SITUATIONS):
        far = rng.sample(NUMBERS, max(2, things))
        where = [rng.choice(ways) for _ in far]
        found = names.draw(rng, len(far), unseen)
        seen = shown(layout, [*zip(found, zip(far, where, strict=True), strict=True)])
        near, away = where[far.index(min(far))], where[far.index(max(far))]
        told = [
            Directive(f"{verb} to the {word}", Call(verb, {named["way"]: way}))
            for word, way in zip(asked, (near, away), strict=True)
        ]
        yield SyntheticTask((tool,), seen, tuple(told))


def count(rng: Random, things: int = 4, unseen: bool = False) -> Iterator[SyntheticTask]:
    """Things on sides: how many are on this one?"""
    ways = rng.choice([w for w in schemas.WAYS if len(w) > 2])
    verb = rng.choice(schemas.VERBS["tell"])
    tool, named = schemas.a_tool(rng, verb, {"count": schemas.digits()})
    layout = rng.choice(LAYOUTS)
    for _ in range(SITUATIONS):
        where = [rng.choice(ways) for _ in range(things)]
        seen = shown(layout, [*zip(names.draw(rng, things, unseen), ([w] for w in where), strict=True)])
        asked = rng.sample(ways, TOLD)
        told = [Directive(f"how many are {way}", Call(verb, {named["count"]: where.count(way)})) for way in asked]
        yield SyntheticTask((tool,), seen, tuple(told))


def towards(rng: Random, things: int = 3, unseen: bool = False) -> Iterator[SyntheticTask]:
    """Things at signed places: go towards the named one, or away from it."""
    words = rng.choice(SIDES)
    plain = _plain(unseen)
    verb = rng.choice(schemas.VERBS["move"])

    def told(rng: Random, facts: dict[str, int]) -> Iterator[tuple[str, str]]:
        for name in list(facts)[:TOLD]:
            to = rng.random() < plain
            yield f"{verb} {'towards' if to else 'away from'} the {name}", words[(facts[name] > 0) == to]

    yield from _numbered(rng, things, unseen, "way", words, told, signed=True, verb=verb)


def if_then(rng: Random, things: int = 2, unseen: bool = False) -> Iterator[SyntheticTask]:
    """If the named thing is on that side, one way, else another."""
    ways, goes = rng.choice([w for w in schemas.WAYS if len(w) > 2]), rng.choice(SIDES)
    plain = _plain(unseen)
    verb = rng.choice(schemas.VERBS["move"])
    tool, named = schemas.a_tool(rng, verb, {"way": schemas.words(rng, goes)})
    layout = rng.choice(LAYOUTS)
    for _ in range(SITUATIONS):
        found = names.draw(rng, things, unseen)
        facts = {name: rng.choice(ways) for name in found}
        told = []
        for name in found[:TOLD]:
            way = facts[name] if rng.random() < plain else rng.choice(ways)
            then, other = rng.sample(goes, 2)
            sentence = f"if {name} is {way} {verb} {then} else {verb} {other}"
            told.append(Directive(sentence, Call(verb, {named["way"]: then if facts[name] == way else other})))
        yield SyntheticTask((tool,), shown(layout, [(n, [w]) for n, w in facts.items()]), tuple(told))


def _plain(unseen: bool) -> float:
    """How often a question is asked the plain way: in training mostly. Where *more* and *less* are even, neither the
    numbers alone nor the word alone tell anything of the answer, and nothing is learnt (docs/base.md has the trial)."""
    return 0.5 if unseen else 0.8


def _numbered(
    rng: Random,
    things: int,
    unseen: bool,
    meaning: str,
    words: Sequence[str],
    ask: Callable[[Random, dict[str, int]], Iterator[tuple[str, str]]],
    signed: bool = False,
    verb: str | None = None,
) -> Iterator[SyntheticTask]:
    verb = verb or rng.choice(schemas.VERBS["tell"])
    tool, named = schemas.a_tool(rng, verb, {meaning: schemas.words(rng, words)})
    layout = rng.choice(LAYOUTS)
    for _ in range(SITUATIONS):
        numbers = rng.sample(NUMBERS, things)
        found = names.draw(rng, things, unseen)
        facts: dict[str, int] = {
            n: v * rng.choice((-1, 1)) if signed else v for n, v in zip(found, numbers, strict=True)
        }
        told = [Directive(sentence, Call(verb, {named[meaning]: word})) for sentence, word in ask(rng, facts)]
        yield SyntheticTask((tool,), shown(layout, [(n, [v]) for n, v in facts.items()]), tuple(told))


# What stands around a thing and its values; in the second half the values come first.
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


@dataclass(frozen=True)
class Variety:
    """How much differs from task to task: the mix of names, so many of the first sentences and layouts, how often there
    are several tools (two, or at most `most_tools`), a digit beside each direction, an argument for the name, and
    something said of each thing that nobody asks for."""

    names: names.Mix = names.MIX
    sentences: int = len(SENTENCES)
    layouts: int = len(LAYOUTS)
    several_tools: float = 0.3
    most_tools: int = 4
    digit: float = 0.3
    name: float = 0.45
    unasked: float = 0.3


SITUATIONS = 2  # of one set of tools: its text is most of a row, and computed once for all of these
FULL = Variety()
TOLD = 3  # instructions a situation


def shown(layout: tuple[str, str], things: Sequence[tuple[str, Sequence[Any]]]) -> str:
    """An observation of (name, values), in this order."""
    form, between = layout
    return between.join(form.format(name=name, values=" ".join(map(str, values))) for name, values in things)


def look_up(rng: Random, things: int, unseen: bool = False, variety: Variety = FULL) -> Iterator[SyntheticTask]:
    """Situations of one set of tools. One of `things` is named; its direction, and at times a digit and its own name,
    are the arguments."""
    ways = rng.choice([w for w in schemas.WAYS if len(w) > 2 or things < 4])
    extra = rng.random() < variety.digit
    parameters: dict[str, Any] = {"way": schemas.words(rng, ways)}
    if extra:
        parameters["count"] = schemas.digits()
    if rng.random() < variety.name:
        parameters["name"] = {"type": "string"}
    verbs = schemas.verbs(rng, rng.randint(2, variety.most_tools) if rng.random() < variety.several_tools else 1)
    tools, named = zip(*(schemas.a_tool(rng, verb, parameters) for verb in verbs), strict=True)
    tools = schemas.arranged(rng, tools)
    sentence, layout = rng.choice(SENTENCES[: variety.sentences]), rng.choice(LAYOUTS[: variety.layouts])
    states = rng.choice(schemas.STATES) if rng.random() < variety.unasked else None
    place = rng.randint(0, 1 + extra)
    for _ in range(SITUATIONS):
        found = names.draw(rng, things, unseen, variety.names)
        facts: dict[str, dict[str, Any]] = {
            name: {"way": rng.choice(ways), "count": rng.choice(schemas.DIGITS), "name": name} for name in found
        }
        said = {n: [facts[n]["way"], *[facts[n]["count"]] * extra] for n in found}
        if states is not None:
            for values in said.values():
                values.insert(place, rng.choice(states))
        seen = shown(layout, [(n, said[n]) for n in rng.sample(found, things)])
        told = []
        for name in found[:TOLD]:
            by = rng.randrange(len(verbs))
            arguments = {written: facts[name][meaning] for meaning, written in named[by].items()}
            told.append(Directive(sentence.format(verb=verbs[by], name=name), Call(verbs[by], arguments)))
        yield SyntheticTask(tools, seen, tuple(told))
