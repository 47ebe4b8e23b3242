"""Generate instructions for the bundled agents from templates with slots, such as `{lead} land on the {pad}`. A slot is
replaced by one of its alternatives."""

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
from rtcontrol.models.numbers import ONES, TENS

# fmt: off
# Words before and after a sentence that do not change its meaning in any of the bundled worlds.
PREFIXES = (
    "please", "please", "pls", "um", "uh", "er", "hmm", "well", "so", "ok", "okay", "ok now", "ok so", "now", "and now",
    "hey", "hey you", "listen", "alright", "attention:", "new order:", "new plan:", "change of plan,", "quick,", "dude",
    "mate", "sir,", "robot,", "computer,", "dear computer,", "yo", "come on,", "ah,", "oh,", "just", "actually,",
    "once more:", "i repeat:", "my dear,", "buddy,", "then", "for now", "this time", "from now on", "as i said,",
)
SUFFIXES = (
    "please", "please", "pls", "plz", "thanks", "thank you", "thx", "now", "ok?", "okay", "if you can", "asap",
    "ok", "if you don't mind", "mate", "buddy", "dude", "from now on", "for now", "this time", "got it?",
    "my friend", "would you", "will you", "at once", "quickly", "when you are ready", "if possible", "sir", "dear",
    "as i said",
)
# Single words that do not change the meaning of a sentence. Negations, ordinals and numbers are not in this list.
_FILLERS = """
a an the this that these those it its is are was be been am i you he she we they me him us them my your our their
please pls plz thanks thank thx um uh er hmm well so ok okay now hey listen alright dude mate sir robot computer dear
yo ah oh just actually buddy friend will would can could shall should may might must do does did have has had want wants
need needs like let lets let's i'd i'll i'm you'd you'll we'll that's it's of to
"""
FILLERS = frozenset(_FILLERS.split())
_NEIGHBOUR_KEYS = {
    "a": "sqz", "b": "vnh", "c": "xvd", "d": "sfe", "e": "wrd", "f": "dgr", "g": "fht", "h": "gjy", "i": "uok",
    "j": "hku", "k": "jli", "l": "kop", "m": "nj", "n": "bmh", "o": "ipl", "p": "ol", "q": "wa", "r": "etf", "s": "adw",
    "t": "ryg", "u": "yij", "v": "cbf", "w": "qes", "x": "zcs", "y": "tuh", "z": "xa",
}
# fmt: on
MARKS = (".", "!", "I")  # tokens that `as_typed` adds to sentences
MIN_TYPO_LETTERS = 4  # shorter words get no typing errors, because they would be unreadable


def with_typing_noise(rng: random.Random, text: str, words: frozenset[str], typo_probability: float = 0.15) -> str:
    """Return a sentence with random changes as people type it: fillers, another case, punctuation, and a typing error
    whose result is not one of `words`."""
    if rng.random() < 0.2:
        text = f"{rng.choice(PREFIXES)} {text}"
    if rng.random() < 0.15:
        text = f"{text.rstrip('.!?')} {rng.choice(SUFFIXES)}"
    if rng.random() < typo_probability:
        text = _with_typo(rng, text, words)
    case = rng.random()
    if case < 0.15:
        text = text[:1].upper() + text[1:]
    elif case < 0.18:
        text = text.upper()
    if text[-1:].isalnum() and rng.random() < 0.2:
        text += rng.choice((".", ".", "!", "!!", "...", "?"))
    return text


def _with_typo(rng: random.Random, text: str, words: frozenset[str]) -> str:
    long_words = [m for m in re.finditer(r"[a-z]+", text) if len(m[0]) >= MIN_TYPO_LETTERS]
    if not long_words:
        return text
    match = rng.choice(long_words)
    word, at = match[0], rng.randrange(1, len(match[0]) - 1)
    typos = (
        word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        word[:at] + word[at + 1 :],
        word[: at + 1] + word[at:],
        word[:at] + rng.choice(_NEIGHBOUR_KEYS[word[at]]) + word[at + 1 :],
    )
    typo = rng.choice(typos)
    return text if typo in words else text[: match.start()] + typo + text[match.end() :]


_SLOT = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"[A-Za-z]+|[-+]?\d+(?:\.\d+)?|[^\s\w]")


def sentence_tables(agent: str) -> dict[str, Any]:
    """Return the tables of `agents/AGENT/sentences.toml` (slots and training templates); lists become tuples."""
    return {name: _to_tuples(table) for name, table in _toml(f"rtcontrol.agents.{agent}", "sentences.toml").items()}


def _to_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_tuples(inner) for key, inner in value.items()}
    return tuple(_to_tuples(inner) for inner in value) if isinstance(value, list) else value


def split_words(text: str) -> list[str]:
    """Split a sentence into words, signed numbers and punctuation marks, the units of a model's vocabulary."""
    return _WORD.findall(text)


def as_typed(rng: random.Random, text: str) -> str:
    """Return a lower-case sentence with random changes: `I`, a capital letter at the start, a full stop or `!`."""
    if rng.random() < 0.5:
        text = re.sub(r"\bi\b", "I", text)
    if rng.random() < 0.2:
        text = text[0].upper() + text[1:]
    mark = rng.random()
    return text + ("." if mark < 0.1 else "!" if mark < 0.15 else "")


class Grammar:
    """Fills the slots of templates. `slots` maps a name to its alternatives; unknown slots such as `{X}` are kept."""

    def __init__(self, slots: Mapping[str, tuple[str, ...]]) -> None:
        self.slots = slots

    def fill(self, rng: random.Random, template: str) -> str:
        """Return one sentence of a template, with a random alternative for each slot."""
        text = _SLOT.sub(lambda m: rng.choice(self.slots[m[1]]) if m[1] in self.slots else m[0], template)
        return " ".join(text.split())

    def expand(self, template: str) -> Iterator[str]:
        """Yield every sentence that a template can produce; a sentence may occur more than once."""
        slots = [slot for slot in _SLOT.findall(template) if slot in self.slots]
        for choice in itertools.product(*(self.slots[slot] for slot in slots)):
            values = iter(choice)
            text = _SLOT.sub(lambda m, rest=values: next(rest) if m[1] in self.slots else m[0], template)  # type: ignore[misc]
            yield " ".join(text.split())

    def words(self, templates: Iterable[str]) -> set[str]:
        """Return every word and punctuation mark of the templates and of their slots' alternatives."""
        words: set[str] = set()
        for template in templates:
            for part in (template, *(a for slot in _SLOT.findall(template) for a in self.slots.get(slot, ()))):
                words.update(split_words(_SLOT.sub(" ", part)))
        return words


class SpokenGoal(Protocol):
    """The interface of a goal, which has a `kind`, and whose `text()` is the canonical instruction."""

    @property
    def kind(self) -> Any: ...

    def text(self) -> str: ...


KindT = TypeVar("KindT", bound=str)
GoalT = TypeVar("GoalT", bound=SpokenGoal)


class Phrasings(ABC, Generic[KindT, GoalT]):
    """The instructions of a bundled agent: random ones for training, and a fixed list for evaluation.

    Training samples sentences from templates. A pattern is a sentence with marks such as `{V}` instead of numbers.
    `spoken_patterns` are patterns of people who did not know the templates. A tenth of the patterns is held out (not
    used in training); `held_out_words` returns at most `per_kind` evaluation sentences of held-out patterns for a kind.

    `agent` is the name of the folder with the tables, `seed` the prefix of the random seeds of the evaluation list,
    `canonical_share` the share of canonical sentences in training.
    """

    per_kind = 60
    canonical_share = 0.2

    def __init__(
        self, agent: str, kinds: Sequence[GoalKind], recognise: Callable[[str], GoalT | None], seed: str = ""
    ) -> None:
        self.agent, self.recognise, self.seed = agent, recognise, seed or agent
        self._kinds: dict[KindT, GoalKind] = {kind.kind: kind for kind in kinds}
        self.tables = sentence_tables(agent)
        self.grammar = Grammar({name.strip("<>"): values for name, values in self.tables["slots"].items()})
        self.templates = cache(self._templates)
        self.held_out_words = cache(self._list_held_out)

    @property
    def kinds(self) -> tuple[KindT, ...]:
        return tuple(self._kinds)

    # -- methods that an agent may override ----------------------------------------------------------------------------

    @abstractmethod
    def spoken_tables(self, goal: GoalT) -> tuple[Sequence[str], bool]:
        """Return the names of the tables with people's sentences for `goal`, and whether to mirror these sentences
        (replace words such as left by right)."""

    @abstractmethod
    def _templates(self, kind: KindT) -> tuple[str, ...]:
        """Return the training templates of a kind."""

    def _sample_sentence(self, rng: random.Random, goal: GoalT) -> str:
        """Return a random training sentence in lower case."""
        return self.grammar.fill(rng, rng.choice(self.templates(goal.kind)))

    def sample_goal(self, rng: random.Random) -> GoalT:
        """Return a random goal: the kind by its weight, then one of the kind's goals with equal probability."""
        (kind,) = rng.choices(list(self._kinds.values()), [kind.weight for kind in self._kinds.values()])
        goal: GoalT = rng.choice(kind.goals)
        return goal

    def spoken_patterns(self, goal: GoalT, held_out: bool | None = None) -> tuple[str, ...]:
        """Return people's patterns for `goal`; `held_out` selects patterns as in `load_patterns`."""
        tables, mirrored = self.spoken_tables(goal)
        return load_patterns(self.agent, *tables, mirrored=mirrored, held_out=held_out)

    def goals_of(self, kind: KindT) -> tuple[GoalT, ...]:
        """Return the goals of a kind in the evaluation list."""
        return self._kinds[kind].goals

    def named_goals(self) -> Iterator[GoalT]:
        """Yield every goal of the evaluation list whose sentences contain no arbitrary number."""
        for kind in self.kinds:
            yield from self.goals_of(kind)

    @cached_property
    def goal_tools(self) -> GoalTools:
        """Return a tool for each kind of goal."""
        kinds = [*self._kinds.values()]
        return GoalTools(self.agent, kinds, self.recognise, lambda: (goal for kind in kinds for goal in kind.goals))

    def with_values(self, rng: random.Random, pattern: str, goal: GoalT) -> str:
        """Replace the marks of a pattern by the goal's numbers, in digits or in words as each mark requires."""
        return pattern

    def _words_of_values(self) -> Iterable[str]:
        """Return the words that represent values of goals, such as numbers."""
        return ()

    # -- training ------------------------------------------------------------------------------------------------------

    def training_instruction(self, rng: random.Random, goal: GoalT) -> str:
        """Return a random training sentence for `goal`, as people type it."""
        return goal.text() if rng.random() < self.canonical_share else as_typed(rng, self._sample_sentence(rng, goal))

    def training_patterns(self, kind: KindT) -> Iterator[str]:
        """Yield every training pattern of a kind, in lower case without punctuation; patterns may occur repeatedly."""
        for template in self.templates(kind):
            yield from self.grammar.expand(template)

    def training_sentences(self, kind: KindT) -> Iterable[str]:
        """Return the training patterns of a kind; a subclass may return sentences if the kind has few values."""
        return self.training_patterns(kind)

    def spoken_sentence(self, rng: random.Random, goal: GoalT) -> str:
        """Return a random sentence that people wrote for `goal`, from a pattern that is not held out."""
        return self.with_values(rng, rng.choice(self.spoken_patterns(goal, held_out=False)), goal)

    def spoken_instruction(self, rng: random.Random, goal: GoalT) -> str:
        """Return a random sentence of people for `goal` with typing noise, but no sentence of the evaluation list."""
        while True:
            typed = with_typing_noise(rng, self.spoken_sentence(rng, goal), table_words(self.agent))
            if normalised(typed) not in self._held_out_sentences:
                return typed

    def vocabulary(self) -> frozenset[str]:
        """Return every word, number and punctuation mark of the training sentences."""
        words = {*MARKS, *self._words_of_values()}
        for kind in self.kinds:
            words |= self.grammar.words(self.templates(kind))
        return frozenset(words | {word.capitalize() for word in words})

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def goal_of(self, text: str) -> GoalT | None:
        """Return the goal for which people wrote this instruction, else the result of `recognise`. For evaluation only,
        never for control."""
        return self._goals_by_sentence.get(normalised(text)) or self.recognise(text)

    def _list_held_out(self, kind: KindT) -> tuple[tuple[str, GoalT], ...]:
        """Return a fixed list of at most `per_kind` held-out sentences with their goals."""
        rng, goals = random.Random(f"{self.seed} held out {kind}"), self.goals_of(kind)
        listed: dict[str, GoalT] = {}
        for index in range(self.per_kind):
            goal = goals[index % len(goals)]
            patterns = self.spoken_patterns(goal, held_out=True)
            pattern = patterns[index % len(patterns)]
            text = self.with_values(rng, pattern, goal)
            if self._training_sentences.isdisjoint((normalised(pattern), normalised(text))):
                listed[text] = goal
        return tuple(listed.items())

    @cached_property
    def _goals_by_sentence(self) -> Mapping[str, GoalT]:
        goals = self.named_goals()
        return {normalised(text): goal for goal in goals for text in self.spoken_patterns(goal) if "{" not in text}

    @cached_property
    def _training_sentences(self) -> frozenset[str]:
        """Return all canonical sentences and all training sentences from templates, normalised."""
        canonical = (goal.text() for goal in self.named_goals())
        return frozenset(map(normalised, itertools.chain(canonical, *map(self.training_sentences, self.kinds))))

    @cached_property
    def _held_out_sentences(self) -> frozenset[str]:
        return frozenset(normalised(text) for kind in self.kinds for text, _ in self.held_out_words(kind))


HELD_OUT_EVERY = 10
_FRACTIONS = {25: "a quarter", 50: "a half", 75: "three quarters"}
NUMBER_WORDS = " ".join((*ONES, *TENS, *_FRACTIONS.values(), "nought oh point minus negative"))


@cache
def load_patterns(agent: str, *tables: str, mirrored: bool = False, held_out: bool | None = None) -> tuple[str, ...]:
    """Return the patterns of an agent's tables in `spoken.toml`, in order. If `mirrored`, use the second word of each
    pair such as (left, right). `held_out` selects held-out patterns (True), other patterns (False) or all (None)."""
    document = _toml(f"rtcontrol.agents.{agent}", "spoken.toml")
    words = {pair[0]: pair[mirrored] for pair in document["pairs"]}
    lines = [line for table in tables for line in document[table].splitlines() if held_out in (None, is_held_out(line))]
    return tuple(_SLOT.sub(lambda mark: words.get(mark[1], mark[0]), line) for line in lines)


@cache
def nonsense(held_out: bool | None = None) -> tuple[str, ...]:
    """Return sentences that name no goal of a bundled world; `held_out` selects lines as in `load_patterns`."""
    tables = _toml("rtcontrol.agents", "nonsense.toml").values()
    return tuple(line for table in tables for line in table.splitlines() if held_out in (None, is_held_out(line)))


def is_held_out(line: str) -> bool:
    """Return whether a line of a table is held out of training; its checksum decides, for a tenth of the lines."""
    return crc32(line.encode()) % HELD_OUT_EVERY == 0


def normalised(text: str) -> str:
    """Normalise a sentence for comparison: lower case, single spaces, no punctuation around words."""
    return " ".join(re.findall(r"[\w{}.'-]+", text.lower())).rstrip(".")


@cache
def training_lines(agent: str) -> tuple[str, ...]:
    """Return the lines of an agent's `spoken.toml` that are not held out, in both mirrored forms, without numbers."""
    tables = [name for name, text in _toml(f"rtcontrol.agents.{agent}", "spoken.toml").items() if isinstance(text, str)]
    lines = itertools.chain(*(load_patterns(agent, *tables, mirrored=m, held_out=False) for m in (False, True)))
    return tuple(dict.fromkeys(_SLOT.sub(" ", line) for line in lines))


@cache
def table_words(agent: str) -> frozenset[str]:
    """Return every word of an agent's tables in `spoken.toml`, in lower case."""
    tables = [text for text in _toml(f"rtcontrol.agents.{agent}", "spoken.toml").values() if isinstance(text, str)]
    return frozenset(re.findall(r"[a-z]+", " ".join(tables).lower()))


def fill_marks(pattern: str, marks: Mapping[str, str]) -> str:
    """Replace the marks of a pattern, such as `{V}`, by the texts in `marks`. Raises KeyError for an unknown mark."""
    return _SLOT.sub(lambda mark: marks[mark[1]], pattern)


def integer_in_words(rng: random.Random, value: int) -> str:
    """Return an integer from 0 to 99 in words; a space or a hyphen is chosen at random: fifty five, fifty-five."""
    tens, ones = divmod(value, 10)
    if value < 20 or not ones:
        return ONES[value] if value < 20 else TENS[tens]
    return f"{TENS[tens]}{rng.choice(' -')}{ONES[ones]}"


def hundredths_in_words(rng: random.Random, hundredths: int) -> str:
    """Return a number in hundredths (70 is 0.7) in words with a random wording, such as `zero point seven`."""
    if hundredths < 0:
        return f"{rng.choice(('minus', 'negative'))} {hundredths_in_words(rng, -hundredths)}"
    whole, rest = divmod(hundredths, 100)
    if not rest:
        return rng.choice((ONES[whole], f"{ONES[whole]} point zero")) if whole else rng.choice(("zero", "nought"))
    wordings = [_decimals_in_words(rng, rest)]
    if whole:
        return f"{ONES[whole]} {wordings[0]}"
    wordings += [f"zero {wordings[0]}", f"zero {wordings[0]}", f"nought {wordings[0]}"]
    return rng.choice([*wordings, _FRACTIONS[rest]] if rest in _FRACTIONS else wordings)


def _decimals_in_words(rng: random.Random, rest: int) -> str:
    tenths, ones = divmod(rest, 10)
    if not ones:
        return f"point {ONES[tenths]}"
    if not tenths:
        return f"point {rng.choice(('zero', 'oh'))} {ONES[ones]}"
    pair = integer_in_words(rng, rest)
    return rng.choice((f"point {ONES[tenths]} {ONES[ones]}", f"point {ONES[tenths]} {ONES[ones]}", f"point {pair}"))


@cache
def _toml(package: str, name: str) -> Mapping[str, Any]:
    return tomllib.loads(resources.files(package).joinpath(name).read_text("utf-8"))
