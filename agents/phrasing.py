"""Sentences from templates with slots (`{lead} land on the {pad}` takes any alternative of each slot), and the shared
code of the bundled agents' instructions."""

from __future__ import annotations

import itertools
import random
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib import resources
from typing import Any, Generic, Protocol, TypeVar
from zlib import crc32

from rtcontrol.agents.goal_tools import GoalKind, GoalTools

# fmt: off
# None of these changes what any sentence asks for, whatever world it is for.
BEFORE = (
    "please", "please", "pls", "um", "uh", "er", "hmm", "well", "so", "ok", "okay", "ok now", "ok so", "now", "and now",
    "hey", "hey you", "listen", "alright", "attention:", "new order:", "new plan:", "change of plan,", "quick,", "dude",
    "mate", "sir,", "robot,", "computer,", "dear computer,", "yo", "come on,", "ah,", "oh,", "just", "actually,",
    "once more:", "i repeat:", "my dear,", "buddy,", "then", "for now", "this time", "from now on", "as i said,",
)
AFTER = (
    "please", "please", "pls", "plz", "thanks", "thank you", "thx", "now", "ok?", "okay", "if you can", "asap",
    "ok", "if you don't mind", "mate", "buddy", "dude", "from now on", "for now", "this time", "got it?",
    "my friend", "would you", "will you", "at once", "quickly", "when you are ready", "if possible", "sir", "dear",
    "as i said",
)
# Single words that change no sentence; none that turns, orders or counts what is asked for.
_FILLERS = """
a an the this that these those it its is are was be been am i you he she we they me him us them my your our their
please pls plz thanks thank thx um uh er hmm well so ok okay now hey listen alright dude mate sir robot computer dear
yo ah oh just actually buddy friend will would can could shall should may might must do does did have has had want wants
need needs like let lets let's i'd i'll i'm you'd you'll we'll that's it's of to
"""
FILLERS = frozenset(_FILLERS.split())
_NEIGHBOURS = {
    "a": "sqz", "b": "vnh", "c": "xvd", "d": "sfe", "e": "wrd", "f": "dgr", "g": "fht", "h": "gjy", "i": "uok",
    "j": "hku", "k": "jli", "l": "kop", "m": "nj", "n": "bmh", "o": "ipl", "p": "ol", "q": "wa", "r": "etf", "s": "adw",
    "t": "ryg", "u": "yij", "v": "cbf", "w": "qes", "x": "zcs", "y": "tuh", "z": "xa",
}
# fmt: on
MARKS = (".", "!", "I")  # as people type
LONG = 4  # letters of a word in which a slip leaves enough to read


def casual(rng: random.Random, text: str, words: frozenset[str], slips: float = 0.15) -> str:
    """Return a sentence as people type it: with fillers, and one typing error with probability `slips`, which never
    results in one of `words`."""
    if rng.random() < 0.2:
        text = f"{rng.choice(BEFORE)} {text}"
    if rng.random() < 0.15:
        text = f"{text.rstrip('.!?')} {rng.choice(AFTER)}"
    if rng.random() < slips:
        text = _slipped(rng, text, words)
    look = rng.random()
    if look < 0.15:
        text = text[:1].upper() + text[1:]
    elif look < 0.18:
        text = text.upper()
    if text[-1:].isalnum() and rng.random() < 0.2:
        text += rng.choice((".", ".", "!", "!!", "...", "?"))
    return text


def _slipped(rng: random.Random, text: str, words: frozenset[str]) -> str:
    spots = [m for m in re.finditer(r"[a-z]+", text) if len(m[0]) >= LONG]
    if not spots:
        return text
    spot = rng.choice(spots)
    word, at = spot[0], rng.randrange(1, len(spot[0]) - 1)
    slips = (
        word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        word[:at] + word[at + 1 :],
        word[: at + 1] + word[at:],
        word[:at] + rng.choice(_NEIGHBOURS[word[at]]) + word[at + 1 :],
    )
    slip = rng.choice(slips)
    return text if slip in words else text[: spot.start()] + slip + text[spot.end() :]


_SLOT = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"[A-Za-z]+|[-+]?\d+(?:\.\d+)?|[^\s\w]")


def sentences(agent: str) -> dict[str, Any]:
    """Return the tables of `agents/AGENT/sentences.toml`: slots, and templates by split and kind; lists as tuples."""
    return {name: _tuples(table) for name, table in _read(f"rtcontrol.agents.{agent}", "sentences.toml").items()}


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list) else value


def split_words(text: str) -> list[str]:
    """Return the words, signed numbers and punctuation marks of a sentence, as in vocabularies."""
    return _WORD.findall(text)


def as_typed(rng: random.Random, text: str) -> str:
    """Return a lower-case sentence as people type it: sometimes with `I`, a capital, a full stop or a `!`."""
    if rng.random() < 0.5:
        text = re.sub(r"\bi\b", "I", text)
    if rng.random() < 0.2:
        text = text[0].upper() + text[1:]
    mark = rng.random()
    return text + ("." if mark < 0.1 else "!" if mark < 0.15 else "")


class Grammar:
    """Slots by name. Unknown slots, such as those of numbers, stay as they are."""

    def __init__(self, slots: Mapping[str, tuple[str, ...]]) -> None:
        self.slots = slots

    def fill(self, rng: random.Random, template: str) -> str:
        """Return one sentence with random alternatives."""
        text = _SLOT.sub(lambda m: rng.choice(self.slots[m[1]]) if m[1] in self.slots else m[0], template)
        return " ".join(text.split())

    def expand(self, template: str) -> Iterator[str]:
        """Yield every sentence of a template, with duplicates."""
        slots = [slot for slot in _SLOT.findall(template) if slot in self.slots]
        for choice in itertools.product(*(self.slots[slot] for slot in slots)):
            values = iter(choice)
            text = _SLOT.sub(lambda m, values=values: next(values) if m[1] in self.slots else m[0], template)  # type: ignore[misc]
            yield " ".join(text.split())

    def words(self, templates: Iterable[str]) -> set[str]:
        """Return every word and punctuation mark of the templates."""
        words: set[str] = set()
        for template in templates:
            for part in (template, *(a for slot in _SLOT.findall(template) for a in self.slots.get(slot, ()))):
                words.update(split_words(_SLOT.sub(" ", part)))
        return words


class SpokenGoal(Protocol):
    """A goal of a kind; `text()` is the canonical instruction."""

    @property
    def kind(self) -> Any: ...

    def text(self) -> str: ...


KindT = TypeVar("KindT", bound=str)
GoalT = TypeVar("GoalT", bound=SpokenGoal)


class Phrasings(ABC, Generic[KindT, GoalT]):
    """Many ways to instruct a bundled agent: sampled for training, listed for evaluation.

    Training samples sentences from templates. A pattern is a sentence whose numbers are still marks. `spoken_patterns`
    are sentences by people who never saw a template; the evaluation list (`held_out_words`) is a tenth of them, kept
    out of training.

    `agent` is the folder of the tables; `seed` is the prefix of the list's seeds, which has `per_goal` sentences a
    kind; `canonical` is the share of training sentences in canonical words.
    """

    per_goal = 60
    canonical = 0.2

    def __init__(
        self, agent: str, kinds: Sequence[GoalKind], recognise: Callable[[str], GoalT | None], seed: str = ""
    ) -> None:
        self.agent, self.recognise, self.seed = agent, recognise, seed or agent
        self._kinds: dict[KindT, GoalKind] = {kind.kind: kind for kind in kinds}
        self.tables = sentences(agent)
        self.grammar = Grammar({name.strip("<>"): values for name, values in self.tables["slots"].items()})
        self.templates = cache(self._templates)
        self.held_out_words = cache(self._held_out)

    @property
    def kinds(self) -> tuple[KindT, ...]:
        return tuple(self._kinds)

    # -- what an agent has of it ---------------------------------------------------------------------------------------

    @abstractmethod
    def spoken_tables(self, goal: GoalT) -> tuple[Sequence[str], bool]:
        """Return the tables with what people say for `goal`, and whether the second word of each pair applies."""

    @abstractmethod
    def _templates(self, kind: KindT) -> tuple[str, ...]:
        """Return the training templates of a kind."""

    def _sampled(self, rng: random.Random, goal: GoalT) -> str:
        """Return a training sentence in small letters."""
        return self.grammar.fill(rng, rng.choice(self.templates(goal.kind)))

    def sample_goal(self, rng: random.Random) -> GoalT:
        """Return a random goal: its kind by the weights, its value uniform over those of the kind."""
        (kind,) = rng.choices(list(self._kinds.values()), [kind.weight for kind in self._kinds.values()])
        goal: GoalT = rng.choice(kind.goals)
        return goal

    def spoken_patterns(self, goal: GoalT, kept: bool | None = None) -> tuple[str, ...]:
        """Return what people say for `goal`, with marks for numbers; `kept` as in `spoken`."""
        tables, partner = self.spoken_tables(goal)
        return spoken(self.agent, *tables, partner=partner, kept=kept)

    def goals_of(self, kind: KindT) -> tuple[GoalT, ...]:
        """Return the goals of a kind in the evaluation list."""
        return self._kinds[kind].goals

    def named_goals(self) -> Iterator[GoalT]:
        """Yield every goal of sentences without a free number."""
        for kind in self.kinds:
            yield from self.goals_of(kind)

    @cached_property
    def goal_tools(self) -> GoalTools:
        """Return the goals as tools."""
        kinds = [*self._kinds.values()]
        return GoalTools(self.agent, kinds, self.recognise, lambda: (goal for kind in kinds for goal in kind.goals))

    def written(self, rng: random.Random, pattern: str, goal: GoalT) -> str:
        """Return a spoken pattern with the goal's numbers, in figures or words as its marks require."""
        return pattern

    def _values(self) -> Iterable[str]:
        """Return the words of goals' values."""
        return ()

    # -- training ------------------------------------------------------------------------------------------------------

    def training_instruction(self, rng: random.Random, goal: GoalT) -> str:
        """Return a random training sentence for `goal`, as people type it."""
        return goal.text() if rng.random() < self.canonical else as_typed(rng, self._sampled(rng, goal))

    def training_patterns(self, kind: KindT) -> Iterator[str]:
        """Yield every training pattern of a kind, in lower case without punctuation, with duplicates."""
        for template in self.templates(kind):
            yield from self.grammar.expand(template)

    def training_sentences(self, kind: KindT) -> Iterable[str]:
        """Return the training sentences of a kind, with values if there are few."""
        return self.training_patterns(kind)

    def spoken_sentence(self, rng: random.Random, goal: GoalT) -> str:
        """Return what a person says for `goal`; never from the held-out tenth."""
        return self.written(rng, rng.choice(self.spoken_patterns(goal, kept=False)), goal)

    def spoken_instruction(self, rng: random.Random, goal: GoalT) -> str:
        """Return such a sentence as people type it; never one of the evaluation list."""
        while True:
            typed = casual(rng, self.spoken_sentence(rng, goal), words_of(self.agent))
            if bare(typed) not in self._listed:
                return typed

    def vocabulary(self) -> frozenset[str]:
        """Return every word, number and mark of the training sentences."""
        words = {*MARKS, *self._values()}
        for kind in self.kinds:
            words |= self.grammar.words(self.templates(kind))
        return frozenset(words | {word.capitalize() for word in words})

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def meant(self, text: str) -> GoalT | None:
        """Return the goal of an instruction: from the tables of what people say, else by the plain rule; None if
        neither applies. For judging only, never for control."""
        return self._meanings.get(bare(text)) or self.recognise(text)

    def _held_out(self, kind: KindT) -> tuple[tuple[str, GoalT], ...]:
        """Return held-out sentences of people with their goals, at most `per_goal`, deterministic."""
        rng, goals = random.Random(f"{self.seed} held out {kind}"), self.goals_of(kind)
        listed: dict[str, GoalT] = {}
        for index in range(self.per_goal):
            goal = goals[index % len(goals)]
            patterns = self.spoken_patterns(goal, kept=True)
            pattern = patterns[index % len(patterns)]
            text = self.written(rng, pattern, goal)
            if self._trained.isdisjoint((bare(pattern), bare(text))):
                listed[text] = goal
        return tuple(listed.items())

    @cached_property
    def _meanings(self) -> Mapping[str, GoalT]:
        goals = self.named_goals()
        return {bare(text): goal for goal in goals for text in self.spoken_patterns(goal) if "{" not in text}

    @cached_property
    def _trained(self) -> frozenset[str]:
        """Return all training sentences of templates and canonical words."""
        canonical = (goal.text() for goal in self.named_goals())
        return frozenset(map(bare, itertools.chain(canonical, *map(self.training_sentences, self.kinds))))

    @cached_property
    def _listed(self) -> frozenset[str]:
        return frozenset(bare(text) for kind in self.kinds for text, _ in self.held_out_words(kind))


KEPT_EVERY = 10
# fmt: off
_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on
_FRACTIONS = {25: "a quarter", 50: "a half", 75: "three quarters"}
NUMBER_WORDS = " ".join((*_ONES, *_TENS, *_FRACTIONS.values(), "nought oh point minus negative"))


@cache
def spoken(agent: str, *tables: str, partner: bool = False, kept: bool | None = None) -> tuple[str, ...]:
    """Return the patterns of an agent's tables, in order; with `partner`, each word of a pair is its second. `kept`:
    only those held out of training, or only the others."""
    read = _read(f"rtcontrol.agents.{agent}", "spoken.toml")
    words = {pair[0]: pair[partner] for pair in read["pairs"]}
    lines = [line for table in tables for line in read[table].splitlines() if kept in (None, kept_back(line))]
    return tuple(_SLOT.sub(lambda mark: words.get(mark[1], mark[0]), line) for line in lines)


@cache
def nonsense(kept: bool | None = None) -> tuple[str, ...]:
    """Return sentences that name no goal of any bundled world; `kept` as in `spoken`."""
    tables = _read("rtcontrol.agents", "nonsense.toml").values()
    return tuple(line for table in tables for line in table.splitlines() if kept in (None, kept_back(line)))


def kept_back(line: str) -> bool:
    """Return whether a line of a table belongs to the held-out tenth; the same in every process."""
    return crc32(line.encode()) % KEPT_EVERY == 0


def bare(text: str) -> str:
    """Normalise a sentence for comparison: lower case, single spaces, no punctuation around words."""
    return " ".join(re.findall(r"[\w{}.'-]+", text.lower())).rstrip(".")


@cache
def shown(agent: str) -> tuple[str, ...]:
    """Return every training line of an agent's tables, without numbers, in both words of a pair."""
    tables = [name for name, text in _read(f"rtcontrol.agents.{agent}", "spoken.toml").items() if isinstance(text, str)]
    lines = [line for partner in (False, True) for line in spoken(agent, *tables, partner=partner, kept=False)]
    return tuple(dict.fromkeys(_SLOT.sub(" ", line) for line in lines))


@cache
def words_of(agent: str) -> frozenset[str]:
    """Return every word of an agent's tables, in lower case."""
    tables = [text for text in _read(f"rtcontrol.agents.{agent}", "spoken.toml").values() if isinstance(text, str)]
    return frozenset(re.findall(r"[a-z]+", " ".join(tables).lower()))


def written_in(pattern: str, marks: Mapping[str, str]) -> str:
    """Return the pattern with its marks filled in. Raises KeyError for an unknown mark."""
    return _SLOT.sub(lambda mark: marks[mark[1]], pattern)


def integer_in_words(rng: random.Random, value: int) -> str:
    """Return 0 to 99 as people say it: fifty five, fifty-five."""
    tens, ones = divmod(value, 10)
    if value < 20 or not ones:
        return _ONES[value] if value < 20 else _TENS[tens]
    return f"{_TENS[tens]}{rng.choice(' -')}{_ONES[ones]}"


def hundredths_in_words(rng: random.Random, hundredths: int) -> str:
    """Return a number with at most two decimals as people say it, in a random way: zero, nought or just point seven."""
    if hundredths < 0:
        return f"{rng.choice(('minus', 'negative'))} {hundredths_in_words(rng, -hundredths)}"
    whole, rest = divmod(hundredths, 100)
    if not rest:
        return rng.choice((_ONES[whole], f"{_ONES[whole]} point zero")) if whole else rng.choice(("zero", "nought"))
    ways = [_decimals(rng, rest)]
    if whole:
        return f"{_ONES[whole]} {ways[0]}"
    ways += [f"zero {ways[0]}", f"zero {ways[0]}", f"nought {ways[0]}"]
    return rng.choice([*ways, _FRACTIONS[rest]] if rest in _FRACTIONS else ways)


def _decimals(rng: random.Random, rest: int) -> str:
    tenths, ones = divmod(rest, 10)
    if not ones:
        return f"point {_ONES[tenths]}"
    if not tenths:
        return f"point {rng.choice(('zero', 'oh'))} {_ONES[ones]}"
    pair = integer_in_words(rng, rest)
    return rng.choice((f"point {_ONES[tenths]} {_ONES[ones]}", f"point {_ONES[tenths]} {_ONES[ones]}", f"point {pair}"))


@cache
def _read(package: str, name: str) -> Mapping[str, Any]:
    return tomllib.loads(resources.files(package).joinpath(name).read_text("utf-8"))
