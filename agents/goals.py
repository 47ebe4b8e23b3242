"""Define the goals of a user's agent: canonical sentences with placeholders, and other ways to say the same."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from typing import Annotated, Any

from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from rtcontrol.agents.goal_tools import GoalKind, GoalTools, schema_of, slug
from rtcontrol.agents.phrasing import FILLERS, Grammar
from rtcontrol.models.checkpoint.training_metadata import KnownWords, words
from rtcontrol.models.errors import UserError

_SLOT = re.compile(r"\{(\w+)\}")
_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_TEXT = Annotated[StrictStr, Field(pattern=r"\S")]
_FLOAT = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_WAYS: TypeAdapter[Any] = TypeAdapter(dict[_TEXT, list[_TEXT] | None])
_VALUES: TypeAdapter[Any] = TypeAdapter(
    dict[StrictStr, Annotated[list[StrictStr | StrictInt | _FLOAT], Field(min_length=1)]]
)
# Every fifth way to say a goal is held out from training, so that a score can use sentences that are new to the model.
HELD_OUT_EVERY = 5
MOST_SENTENCES = 1_000  # sentences that are checked at most for each way to say a goal


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, with its template in canonical words as `kind` (`go to the {thing}`).

    `values` has the values of the template's placeholders, in order; `goal["thing"]` returns one value.
    """

    kind: str
    values: tuple[tuple[str, Any], ...] = ()

    def text(self) -> str:
        """Return the canonical instruction for this goal."""
        return _filled(self.kind, dict(self.values))

    def __getitem__(self, name: str) -> Any:
        return dict(self.values)[name]


class Goals:
    """The goals of an agent: templates in canonical words, each with other ways to say the same.

    `placeholders` lists the texts or numbers for each `{name}` in a template. `words` lists the alternatives for slots
    such as `{lead}`, which only the other ways may have. `source` is the file name for error messages. Raises UserError
    if goals are ambiguous or cannot be filled in.
    """

    def __init__(
        self,
        goals: Mapping[str, Sequence[str]] | Sequence[str],
        placeholders: Mapping[str, Sequence[Any]] | None = None,
        words: Mapping[str, Sequence[str]] | None = None,
        source: str = "goals",
    ) -> None:
        self.source = source
        ways: Any = goals if isinstance(goals, Mapping | str) else dict.fromkeys(goals, ())
        self.placeholders = self._table("placeholders", placeholders, _VALUES)
        slots = self._table("words", words, _VALUES)
        self._grammar = Grammar({name: tuple(map(str, values)) for name, values in slots.items()})
        self.ways = self._table("goals", ways, _WAYS)
        for kind, others in self.ways.items():
            for way in (kind, *others):
                self._check(way, kind)
        if not self.ways:
            raise self._wrong("there are no goals.", 'Write one: goals = {"go to the {thing}": ["drive to {thing}"]}.')
        if both := sorted(set(self.placeholders) & set(slots)):
            raise self._wrong(f"{{{both[0]}}} is both a placeholder and a word.", "Rename one of the two.")
        self._apart()

    # -- goals --------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Goal]:
        """Yield every goal with every listed value, kind by kind."""
        for kind in self.ways:
            names = _names(kind)
            for chosen in itertools.product(*(self.placeholders[name] for name in names)):
                yield Goal(kind, tuple(zip(names, chosen, strict=True)))

    def spread(self, count: int) -> list[Goal]:
        """Return all goals, or a deterministic sample of `count` goals if there are more.

        A sample takes one goal of each kind after the other, with random values.
        """
        if len(few := list(itertools.islice(self, count + 1))) <= count:
            return few
        rng = random.Random(0)
        turns = [self._goal(rng, kind) for _ in range(count) for kind in self.ways]
        return list(dict.fromkeys(turns))[:count]

    def sample(self, rng: random.Random) -> Goal:
        """Return a random goal; all kinds are equally likely."""
        return self._goal(rng, rng.choice(tuple(self.ways)))

    def sentence(self, rng: random.Random, goal: Goal) -> str:
        """Return a random training sentence for a goal: the canonical words, or a way that is not held out."""
        return self._say(rng, rng.choice(self._sides[goal.kind][0]), goal)

    def held_out(self, goal: Goal) -> tuple[str, ...]:
        """Return a sentence for each held-out way to say a goal; an empty tuple if the goal has too few ways."""
        rng = random.Random(goal.text())
        return tuple(self._say(rng, pattern, goal) for pattern in self._sides[goal.kind][1])

    def goal_tools(self, agent: str) -> GoalTools:
        """Return the goals as tools."""
        kinds: dict[str, GoalKind] = {}
        for kind in self.ways:
            name = slug(_SLOT.sub(r" \1 ", kind), kinds)
            schemas = {place: schema_of(self.placeholders[place], _text) for place in _names(kind)}
            canonical = next(goal for goal in self if goal.kind == kind).text() if schemas else kind
            kinds[name] = GoalKind(
                kind, name, canonical, partial(self._made, kind), partial(_arguments, schemas), schemas
            )
        return GoalTools(agent, list(kinds.values()), self.recognise, self._in_turn)

    def recognise(self, text: str) -> Goal | None:
        """Return the goal that a sentence names, or None if the sentence is not a way to say a goal.

        Case, spaces and final punctuation do not matter. A number may be any value within the range of the listed ones.
        """
        plain = _plain(text)
        for kind, pattern in self._patterns:
            if (match := pattern.fullmatch(plain)) is None:
                continue
            values = [self._read(name, match[name]) for name in _names(kind)]
            if all(value is not None for value in values):
                return Goal(kind, tuple(zip(_names(kind), values, strict=True)))
        return None

    def texts(self) -> str:
        """Return a text with all words of all sentences, to build a tokenizer."""
        slots = [*self.placeholders.values(), *self._grammar.slots.values()]
        texts = [_SLOT.sub(" ", way) for kind, ways in self.ways.items() for way in (kind, *ways)]
        return " ".join([*texts, *(_text(value) for values in slots for value in values)])

    def taught(self) -> str:
        """Return a text with all words of the training sentences."""
        return " ".join(word for kept in self._sides.values() for way in kept[0] for word in self._words(way))

    def unknown(self, sentence: str) -> tuple[str, ...]:
        """Return the words of a sentence that training sentences do not contain and that may change the meaning."""
        return self._known.unknown(sentence)

    def known(self, most: int = 8) -> str:
        """Return a text for people with the canonical templates and the values of their placeholders."""
        kinds, names = [f'"{kind}"' for kind in self.ways], [name for kind in self.ways for name in _names(kind)]
        values = [f"{name}: {_values(self.placeholders[name], most)}" for name in dict.fromkeys(names)]
        return _first(kinds, most) + (f" ({'; '.join(values)})" if values else "")

    # -- sentences and patterns --------------------------------------------------------------------------------------

    def _words(self, way: str) -> list[str]:
        """Return the words of a way to say a goal, with all values of its slots."""
        filled = _SLOT.sub(
            lambda m: " ".join(map(_text, self._grammar.slots.get(m[1], self.placeholders.get(m[1], ())))), way
        )
        return words(filled)

    def _goal(self, rng: random.Random, kind: str) -> Goal:
        return Goal(kind, tuple((name, rng.choice(self.placeholders[name])) for name in _names(kind)))

    def _made(self, kind: str, arguments: Mapping[str, Any]) -> Goal:
        """Return the goal for the arguments of a goal tool; an argument becomes the equal listed value."""
        values = []
        for name in _names(kind):
            value, listed = arguments[name], self.placeholders[name]
            plain = _numbers(listed)
            same = (known for known in listed if (known == value if plain else _text(known) == value))
            values.append((name, next(same, value)))
        return Goal(kind, tuple(values))

    def _in_turn(self) -> Iterator[Goal]:
        """Yield one goal of each kind, then all goals."""
        for kind in self.ways:
            yield Goal(kind, tuple((name, self.placeholders[name][0]) for name in _names(kind)))
        yield from self

    def _say(self, rng: random.Random, pattern: str, goal: Goal) -> str:
        return " ".join(_filled(self._grammar.fill(rng, pattern), dict(goal.values)).split())

    @cached_property
    def _known(self) -> KnownWords:
        return KnownWords({*words(self.taught()), *FILLERS})

    @cached_property
    def _sides(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return for each kind of goal the ways for training and the held-out ways.

        A way whose sentences a training way also matches is not held out.
        """
        sides = {}
        for kind, ways in self.ways.items():
            every = ways[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
            trained = [self._pattern(way) for way in (kind, *ways) if way not in every]
            kept = tuple(way for way in every if not any(p.fullmatch(s) for s in self._all(way) for p in trained))
            sides[kind] = tuple(way for way in (kind, *ways) if way not in kept), kept
        return sides

    def _all(self, way: str) -> list[str]:
        """Return the sentences of a way with all alternatives of its words, and one value for each placeholder."""
        values = {name: listed[0] for name, listed in self.placeholders.items()}
        return [_plain(_filled(text, values)) for text in itertools.islice(self._grammar.expand(way), MOST_SENTENCES)]

    @cached_property
    def _patterns(self) -> list[tuple[str, re.Pattern[str]]]:
        return [(kind, self._pattern(way)) for kind, ways in self.ways.items() for way in (kind, *ways)]

    def _pattern(self, way: str) -> re.Pattern[str]:
        parts, names = [], set[str]()
        for i, part in enumerate(_SLOT.split(way.rstrip(".!? "))):
            if i % 2 == 0:
                parts.append(r"\s+".join(map(re.escape, part.lower().split())))
            elif part in self._grammar.slots:
                parts.append(f"(?:{_any(self._grammar.slots[part])})")
            elif part in names:
                parts.append(f"(?P={part})")
            else:
                names.add(part)
                values = self.placeholders[part]
                parts.append(f"(?P<{part}>{_NUMBER if _numbers(values) else _any(tuple(map(_text, values)))})")
        # Spaces between parts are optional, because an alternative of a word may be empty.
        return re.compile(r"\s*".join(parts))

    def _read(self, name: str, text: str) -> Any:
        values = self.placeholders[name]
        if not _numbers(values):
            return next((value for value in values if _plain(_text(value)) == text), None)
        number = float(text) if "." in text else int(text)
        listed = next((value for value in values if value == number), None)
        return number if listed is None and min(values) <= number <= max(values) else listed

    # -- checks -------------------------------------------------------------------------------------------------------

    def _table(self, name: str, written: Any, kind: TypeAdapter[Any]) -> dict[str, tuple[Any, ...]]:
        if isinstance(written, Mapping):
            written = {key: [*values] if isinstance(values, range) else values for key, values in written.items()}
        try:
            table = kind.validate_python({} if written is None else written)
            return {key: tuple(values or ()) for key, values in table.items()}
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join([name, *(f"{part}" for part in fault["loc"][:2])])
            hint = 'Write a table of lists. In YAML, put words such as no, on and yes, and "a: b", in quotes.'
            raise self._wrong(f"{place}: {fault['msg']} (it is {fault['input']!r:.80}).", hint) from None

    def _check(self, way: str, kind: str) -> None:
        for name in _names(way):
            if name not in self.placeholders and (way == kind or name not in self._grammar.slots):
                # A way may have only those placeholders that its goal has.
                table, use = ("placeholders", "it stands for") if way == kind else ("words", "may be said there")
                hint = f"List what {use} under {table}: {name}: [...]."
                raise self._wrong(f'"{way}": there are no values for {{{name}}}.', hint)
        if missing := sorted(set(_names(kind)) - set(_names(way))):
            hint = "Use every placeholder of the goal in each way, or make this way a separate goal."
            raise self._wrong(f'"{way}" does not contain {{{missing[0]}}} of "{kind}".', hint)
        if more := sorted((set(_names(way)) - set(_names(kind))) & set(self.placeholders)):
            problem = f'"{way}" has a placeholder {{{more[0]}}} that "{kind}" does not have.'
            raise self._wrong(problem, "Put the placeholder into both.")

    def _apart(self) -> None:
        """Raise UserError if two goals can be said with the same words."""
        rng = random.Random(0)
        for goal in self.spread(MOST_SENTENCES):
            kind = goal.kind
            for way in (kind, *self.ways[kind]):
                read = self.recognise(self._say(rng, way, goal))
                if read is None or read.kind != kind or read.text() != goal.text():
                    other = f'"{kind}" with other values' if read is None or read.kind == kind else f'"{read.kind}"'
                    raise self._wrong(f'"{way}" means both "{kind}" and {other}.', "Use other words for one of them.")

    def _wrong(self, problem: str, hint: str) -> UserError:
        return UserError(f"{self.source}: {problem}", hint)


def _arguments(schemas: Mapping[str, Mapping[str, Any]], goal: Goal) -> dict[str, Any]:
    """Return the arguments of a goal tool for the values of a goal."""
    return {name: _argument(schemas[name]["type"], value) for name, value in goal.values}


def _argument(kind: str, value: Any) -> Any:
    if kind == "string":
        return _text(value)
    # A value such as 2.0 is written as the integer 2 that the schema requires.
    return int(value) if kind == "integer" and float(value).is_integer() else value


def _names(template: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_SLOT.findall(template)))


def _values(listed: Sequence[Any], most: int) -> str:
    """Return the listed values as text for people; numbers are shown as a range."""
    ends = sorted({min(listed), max(listed)}) if _numbers(listed) else []
    return " to ".join(map(_text, ends)) if len(ends) == 2 else _first(listed, most)


def _first(listed: Sequence[Any], most: int) -> str:
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(map(_text, listed[:most])) + more


def _filled(template: str, values: Mapping[str, Any]) -> str:
    return _SLOT.sub(lambda m: _text(values[m[1]]) if m[1] in values else m[0], template)


def _text(value: Any) -> str:
    """Return a value as people write it: 0.00001, not 1e-05."""
    return format(Decimal(str(value)), "f") if isinstance(value, float) else str(value)


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".!? ")


def _any(values: Sequence[str]) -> str:
    return "|".join(re.escape(_plain(value)) for value in sorted(values, key=len, reverse=True))


def _numbers(values: Sequence[Any]) -> bool:
    return all(not isinstance(value, str) for value in values)
