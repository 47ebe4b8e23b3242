"""The goals of a user's agent: canonical words with placeholders, and other ways to say them."""

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
# One of so many ways to say a goal is kept from training: what is scored with it was never trained on.
HELD_OUT_EVERY = 5
MOST_SENTENCES = 1_000  # sentences of a way that are looked at


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal. `kind` is its template in canonical words (`go to the {thing}`), `values` are the values of its
    placeholders, in order; `goal["thing"]` returns one of them."""

    kind: str
    values: tuple[tuple[str, Any], ...] = ()

    def text(self) -> str:
        """Return the canonical instruction."""
        return _filled(self.kind, dict(self.values))

    def __getitem__(self, name: str) -> Any:
        return dict(self.values)[name]


class Goals:
    """Templates in canonical words, each with other ways to say the same.

    `placeholders` lists the texts or numbers for each `{name}` of a template. `words` are slots of the other ways only:
    `{lead}` is any of its alternatives. `source` is the file in errors. Raises UserError for goals that are ambiguous
    or cannot be filled in.
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
            raise self._wrong("there is no goal.", 'Write one: goals = {"go to the {thing}": ["drive to {thing}"]}.')
        if both := sorted(set(self.placeholders) & set(slots)):
            raise self._wrong(f"{{{both[0]}}} is a placeholder and a word.", "Rename one of them.")
        self._apart()

    # -- its goals ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Goal]:
        """Yield every goal with every listed value, kind by kind."""
        for kind in self.ways:
            names = _names(kind)
            for chosen in itertools.product(*(self.placeholders[name] for name in names)):
                yield Goal(kind, tuple(zip(names, chosen, strict=True)))

    def spread(self, count: int) -> list[Goal]:
        """Return all goals if there are at most `count`; otherwise `count` of them, kinds in turn with values spread
        over their lists. The result is deterministic."""
        if len(few := list(itertools.islice(self, count + 1))) <= count:
            return few
        rng = random.Random(0)
        turns = [self._goal(rng, kind) for _ in range(count) for kind in self.ways]
        return list(dict.fromkeys(turns))[:count]

    def sample(self, rng: random.Random) -> Goal:
        """Return a random goal; all kinds are equally likely."""
        return self._goal(rng, rng.choice(tuple(self.ways)))

    def sentence(self, rng: random.Random, goal: Goal) -> str:
        """Return one way to say a goal: the canonical words, or a way that is not held out."""
        return self._say(rng, rng.choice(self._sides[goal.kind][0]), goal)

    def held_out(self, goal: Goal) -> tuple[str, ...]:
        """Return the ways to say a goal that training never uses, one sentence each; none where a goal has too few."""
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
        """Return the goal of a sentence, ignoring case, spaces and a full stop; None for any other sentence. A number
        may be anywhere in the range of those listed."""
        plain = _plain(text)
        for kind, pattern in self._patterns:
            if (match := pattern.fullmatch(plain)) is None:
                continue
            values = [self._read(name, match[name]) for name in _names(kind)]
            if all(value is not None for value in values):
                return Goal(kind, tuple(zip(_names(kind), values, strict=True)))
        return None

    def texts(self) -> str:
        """Return all words of all sentences, for a tokenizer."""
        slots = [*self.placeholders.values(), *self._grammar.slots.values()]
        texts = [_SLOT.sub(" ", way) for kind, ways in self.ways.items() for way in (kind, *ways)]
        return " ".join([*texts, *(_text(value) for values in slots for value in values)])

    def taught(self) -> str:
        """Return all words of training sentences."""
        return " ".join(word for kept in self._sides.values() for way in kept[0] for word in self._words(way))

    def unknown(self, sentence: str) -> tuple[str, ...]:
        """Return the words of a sentence that no training sentence has and that may change its meaning."""
        return self._known.unknown(sentence)

    def known(self, most: int = 8) -> str:
        """Return the canonical templates and the values of their placeholders, for people."""
        kinds, names = [f'"{kind}"' for kind in self.ways], [name for kind in self.ways for name in _names(kind)]
        values = [f"{name}: {_values(self.placeholders[name], most)}" for name in dict.fromkeys(names)]
        return _first(kinds, most) + (f" ({'; '.join(values)})" if values else "")

    # -- how -----------------------------------------------------------------------------------------------------------

    def _words(self, way: str) -> list[str]:
        """Return the words of a way, with all values of its slots."""
        filled = _SLOT.sub(
            lambda m: " ".join(map(_text, self._grammar.slots.get(m[1], self.placeholders.get(m[1], ())))), way
        )
        return words(filled)

    def _goal(self, rng: random.Random, kind: str) -> Goal:
        return Goal(kind, tuple((name, rng.choice(self.placeholders[name])) for name in _names(kind)))

    def _made(self, kind: str, arguments: Mapping[str, Any]) -> Goal:
        """Return the goal of a tool's arguments, with the listed values."""
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
        """Return for each kind the training ways and the held-out ways; a way that a training way covers is not held
        out."""
        sides = {}
        for kind, ways in self.ways.items():
            every = ways[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
            trained = [self._pattern(way) for way in (kind, *ways) if way not in every]
            kept = tuple(way for way in every if not any(p.fullmatch(s) for s in self._all(way) for p in trained))
            sides[kind] = tuple(way for way in (kind, *ways) if way not in kept), kept
        return sides

    def _all(self, way: str) -> list[str]:
        """Return the sentences of a way with all its words, and one value for each placeholder."""
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
        # Between them a space or none: a word may stand for nothing.
        return re.compile(r"\s*".join(parts))

    def _read(self, name: str, text: str) -> Any:
        values = self.placeholders[name]
        if not _numbers(values):
            return next((value for value in values if _plain(_text(value)) == text), None)
        number = float(text) if "." in text else int(text)
        listed = next((value for value in values if value == number), None)
        return number if listed is None and min(values) <= number <= max(values) else listed

    # -- what is wrong with them ---------------------------------------------------------------------------------------

    def _table(self, name: str, written: Any, kind: TypeAdapter[Any]) -> dict[str, tuple[Any, ...]]:
        if isinstance(written, Mapping):
            written = {key: [*values] if isinstance(values, range) else values for key, values in written.items()}
        try:
            table = kind.validate_python({} if written is None else written)
            return {key: tuple(values or ()) for key, values in table.items()}
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join([name, *(f"{part}" for part in fault["loc"][:2])])
            hint = 'Write a table of lists. Words such as no, on and yes, and "a: b", stand in quotes in YAML.'
            raise self._wrong(f"{place}: {fault['msg']} (it is {fault['input']!r:.80}).", hint) from None

    def _check(self, way: str, kind: str) -> None:
        for name in _names(way):
            if name not in self.placeholders and (way == kind or name not in self._grammar.slots):
                # What the goal itself does not name is not a placeholder of its ways.
                table, use = ("placeholders", "it stands for") if way == kind else ("words", "may be said there")
                hint = f"List what {use} under {table}: {name}: [...]."
                raise self._wrong(f'"{way}": nothing is listed for {{{name}}}.', hint)
        if missing := sorted(set(_names(kind)) - set(_names(way))):
            hint = "Say in each way what the goal needs, or make it a goal of its own."
            raise self._wrong(f'"{way}" leaves {{{missing[0]}}} of "{kind}" open.', hint)
        if more := sorted((set(_names(way)) - set(_names(kind))) & set(self.placeholders)):
            raise self._wrong(f'"{way}" has a {{{more[0]}}} that "{kind}" has not.', "Put it into both.")

    def _apart(self) -> None:
        """Raise UserError for two goals with the same words."""
        rng = random.Random(0)
        for goal in self.spread(MOST_SENTENCES):
            kind = goal.kind
            for way in (kind, *self.ways[kind]):
                read = self.recognise(self._say(rng, way, goal))
                if read is None or read.kind != kind or read.text() != goal.text():
                    other = f'"{kind}" with other values' if read is None or read.kind == kind else f'"{read.kind}"'
                    raise self._wrong(f'"{way}" asks for "{kind}" and for {other}.', "Say one of them otherwise.")

    def _wrong(self, problem: str, hint: str) -> UserError:
        return UserError(f"{self.source}: {problem}", hint)


def _arguments(schemas: Mapping[str, Mapping[str, Any]], goal: Goal) -> dict[str, Any]:
    """Return a goal's values as its tool's arguments."""
    return {name: _argument(schemas[name]["type"], value) for name, value in goal.values}


def _argument(kind: str, value: Any) -> Any:
    if kind == "string":
        return _text(value)
    # 2.0 of a list of whole numbers is the 2 of their schema.
    return int(value) if kind == "integer" and float(value).is_integer() else value


def _names(template: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_SLOT.findall(template)))


def _values(listed: Sequence[Any], most: int) -> str:
    """Return listed values for people; numbers as their range."""
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
