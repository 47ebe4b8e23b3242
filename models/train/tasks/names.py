"""Names to bind anew in every row: words, and names that share their syllables. Some of each are never trained."""

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
