"""Define the goals of a user's agent by canonical sentences with placeholders, and other phrasings of each sentence."""

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

from rtcontrol.agents.goal_tools import GoalKind, GoalTools, unique_tool_name, value_schema
from rtcontrol.agents.phrasing import FILLERS, Grammar
from rtcontrol.models.checkpoint.training_metadata import KnownWords, words
from rtcontrol.models.errors import UserError
from rtcontrol.models.numbers import parse_number

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NUMBER = r"[-+\u2212]?[.,]?\d[\d.,]*"
_TEXT = Annotated[StrictStr, Field(pattern=r"\S")]
_FLOAT = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_PHRASING_TABLE: TypeAdapter[Any] = TypeAdapter(dict[_TEXT, list[_TEXT] | None])
_VALUE_TABLE: TypeAdapter[Any] = TypeAdapter(
    dict[StrictStr, Annotated[list[StrictStr | StrictInt | _FLOAT], Field(min_length=1)]]
)
# Training does not use every fifth phrasing, so that evaluations have sentences that are new to the model.
HELD_OUT_EVERY = 5
MAX_SENTENCES = 1_000  # maximum number of sentences that are checked for each phrasing


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal of an agent. `kind` is its canonical template, such as `go to the {thing}`.

    `values` has a (name, value) pair for each placeholder of the template; `goal["thing"]` is the value of `thing`.
    """

    kind: str
    values: tuple[tuple[str, Any], ...] = ()

    def text(self) -> str:
        """Return the canonical instruction for this goal."""
        return _fill_in(self.kind, dict(self.values))

    def __getitem__(self, name: str) -> Any:
        return dict(self.values)[name]


class Goals:
    """The goals of an agent.

    `goals` maps each canonical template to a list of other phrasings with the same meaning. `placeholders` lists the
    values (texts or numbers) of each `{name}` in a template. `words` lists alternative words for slots such as
    `{lead}`, which may occur in phrasings but not in canonical templates. `source` is the file name in error messages.
    Raises UserError if a sentence can mean two goals, or if a placeholder has no values.
    """

    def __init__(
        self,
        goals: Mapping[str, Sequence[str]] | Sequence[str],
        placeholders: Mapping[str, Sequence[Any]] | None = None,
        words: Mapping[str, Sequence[str]] | None = None,
        source: str = "goals",
    ) -> None:
        self.source = source
        phrasings: Any = goals if isinstance(goals, Mapping | str) else dict.fromkeys(goals, ())
        self.placeholders = self._validate_table("placeholders", placeholders, _VALUE_TABLE)
        slots = self._validate_table("words", words, _VALUE_TABLE)
        self._grammar = Grammar({name: tuple(map(str, values)) for name, values in slots.items()})
        self.phrasings = self._validate_table("goals", phrasings, _PHRASING_TABLE)
        for kind, others in self.phrasings.items():
            for phrasing in (kind, *others):
                self._check_phrasing(phrasing, kind)
        if not self.phrasings:
            raise self._error("there are no goals.", 'Add one: goals = {"go to the {thing}": ["drive to {thing}"]}.')
        if both := sorted(set(self.placeholders) & set(slots)):
            raise self._error(f"{{{both[0]}}} is both a placeholder and a word.", "Rename one of the two.")
        self._check_ambiguity()

    # -- goals --------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Goal]:
        """Yield the goals of each kind with all combinations of the listed values."""
        for kind in self.phrasings:
            names = _placeholder_names(kind)
            for chosen in itertools.product(*(self.placeholders[name] for name in names)):
                yield Goal(kind, tuple(zip(names, chosen, strict=True)))

    def spread(self, count: int) -> list[Goal]:
        """Return all goals, or a fixed sample of at most `count` goals if there are more than `count`.

        The sample contains all kinds of goals in turn, with random values.
        """
        if len(goals := list(itertools.islice(self, count + 1))) <= count:
            return goals
        rng = random.Random(0)
        samples = [self._random_goal(rng, kind) for _ in range(count) for kind in self.phrasings]
        return list(dict.fromkeys(samples))[:count]

    def sample(self, rng: random.Random) -> Goal:
        """Return a random goal; all kinds are equally likely."""
        return self._random_goal(rng, rng.choice(tuple(self.phrasings)))

    def sentence(self, rng: random.Random, goal: Goal) -> str:
        """Return a random training sentence for a goal: canonical, or from a phrasing that is not held out."""
        return self._fill_phrasing(rng, rng.choice(self._split_phrasings[goal.kind][0]), goal)

    def held_out(self, goal: Goal) -> tuple[str, ...]:
        """Return a sentence for each held-out phrasing of a goal (not used in training); may be empty."""
        rng = random.Random(goal.text())
        return tuple(self._fill_phrasing(rng, pattern, goal) for pattern in self._split_phrasings[goal.kind][1])

    def goal_tools(self, agent: str) -> GoalTools:
        """Return a tool for each kind of goal of the agent with this name."""
        kinds: dict[str, GoalKind] = {}
        for kind in self.phrasings:
            name = unique_tool_name(_PLACEHOLDER.sub(r" \1 ", kind), kinds)
            schemas = {place: value_schema(self.placeholders[place], _value_text) for place in _placeholder_names(kind)}
            canonical = next(goal for goal in self if goal.kind == kind).text() if schemas else kind
            kinds[name] = GoalKind(
                kind, name, canonical, partial(self._goal_of_arguments, kind), partial(_arguments_of, schemas), schemas
            )
        return GoalTools(agent, list(kinds.values()), self.recognise, self._goals_of_each_kind_first)

    def recognise(self, text: str) -> Goal | None:
        """Return the goal that a sentence names, or None if the sentence does not match any phrasing.

        Ignores case, spaces and final punctuation. A number may be any value between the listed ones.
        """
        plain = _normalise(text)
        for kind, pattern in self._patterns:
            if (match := pattern.fullmatch(plain)) is None:
                continue
            values = [self._parse_value(name, match[name]) for name in _placeholder_names(kind)]
            if all(value is not None for value in values):
                return Goal(kind, tuple(zip(_placeholder_names(kind), values, strict=True)))
        return None

    def all_words(self) -> str:
        """Return a text that contains the words of all phrasings and values, to build a tokenizer."""
        slots = [*self.placeholders.values(), *self._grammar.slots.values()]
        texts = [_PLACEHOLDER.sub(" ", text) for kind, others in self.phrasings.items() for text in (kind, *others)]
        return " ".join([*texts, *(_value_text(value) for values in slots for value in values)])

    def training_sentences(self) -> list[str]:
        """Return a selection of training sentences that contains every word and number of all training sentences."""
        training = itertools.chain(*(trained for trained, _ in self._split_phrasings.values()))
        values = {**self.placeholders, **self._grammar.slots}
        sentences = []
        for phrasing in training:
            listed = {name: values[name] for name in _placeholder_names(phrasing)}
            count = max(map(len, listed.values()), default=1)
            sentences += [_fill_in(phrasing, {name: v[i % len(v)] for name, v in listed.items()}) for i in range(count)]
        return sentences

    def unknown_words(self, sentence: str) -> tuple[str, ...]:
        """Return the words of a sentence that may change its meaning and occur in no training sentence."""
        return self._known_words.unknown(sentence)

    def describe(self, limit: int = 8) -> str:
        """Return a text for people with at most `limit` canonical templates and `limit` values of each placeholder."""
        names = dict.fromkeys(name for kind in self.phrasings for name in _placeholder_names(kind))
        values = [f"{name}: {_describe_values(self.placeholders[name], limit)}" for name in names]
        kinds = _first_items([f'"{kind}"' for kind in self.phrasings], limit)
        return kinds + (f" ({'; '.join(values)})" if values else "")

    # -- sentences and patterns --------------------------------------------------------------------------------------

    def _random_goal(self, rng: random.Random, kind: str) -> Goal:
        return Goal(kind, tuple((name, rng.choice(self.placeholders[name])) for name in _placeholder_names(kind)))

    def _goal_of_arguments(self, kind: str, arguments: Mapping[str, Any]) -> Goal:
        """Return the goal for arguments of a goal tool. An argument becomes the equal listed value, if there is one."""
        values = []
        for name in _placeholder_names(kind):
            value, listed = arguments[name], self.placeholders[name]
            text_of = (lambda item: item) if _are_numbers(listed) else _value_text
            values.append((name, next((item for item in listed if text_of(item) == value), value)))
        return Goal(kind, tuple(values))

    def _goals_of_each_kind_first(self) -> Iterator[Goal]:
        """Yield one goal of each kind, then all goals."""
        for kind in self.phrasings:
            yield Goal(kind, tuple((name, self.placeholders[name][0]) for name in _placeholder_names(kind)))
        yield from self

    def _fill_phrasing(self, rng: random.Random, pattern: str, goal: Goal) -> str:
        return " ".join(_fill_in(self._grammar.fill(rng, pattern), dict(goal.values)).split())

    @cached_property
    def _known_words(self) -> KnownWords:
        return KnownWords({*words(" ".join(self.training_sentences())), *FILLERS})

    @cached_property
    def _split_phrasings(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return for each kind of goal a pair: its training phrasings, and its held-out phrasings.

        A phrasing with a sentence that a training phrasing can also produce is not held out.
        """
        split = {}
        for kind, others in self.phrasings.items():
            candidates = others[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
            trained = [self._regex_of(phrasing) for phrasing in (kind, *others) if phrasing not in candidates]
            held_out = tuple(
                c for c in candidates if not any(p.fullmatch(s) for s in self._sentences_of(c) for p in trained)
            )
            split[kind] = tuple(phrasing for phrasing in (kind, *others) if phrasing not in held_out), held_out
        return split

    def _sentences_of(self, phrasing: str) -> list[str]:
        """Return the sentences of a phrasing with all alternative words, and one value for each placeholder."""
        values = {name: listed[0] for name, listed in self.placeholders.items()}
        texts = itertools.islice(self._grammar.expand(phrasing), MAX_SENTENCES)
        return [_normalise(_fill_in(text, values)) for text in texts]

    @cached_property
    def _patterns(self) -> list[tuple[str, re.Pattern[str]]]:
        return [(kind, self._regex_of(text)) for kind, others in self.phrasings.items() for text in (kind, *others)]

    def _regex_of(self, phrasing: str) -> re.Pattern[str]:
        parts, names = [], set[str]()
        for i, part in enumerate(_PLACEHOLDER.split(phrasing.rstrip(".!? "))):
            if i % 2 == 0:
                parts.append(r"\s+".join(map(re.escape, part.lower().split())))
            elif part in self._grammar.slots:
                parts.append(f"(?:{_alternatives(self._grammar.slots[part])})")
            elif part in names:
                parts.append(f"(?P={part})")
            else:
                names.add(part)
                values = self.placeholders[part]
                pattern = _NUMBER if _are_numbers(values) else _alternatives(tuple(map(_value_text, values)))
                parts.append(f"(?P<{part}>{pattern})")
        # Spaces between parts are optional, because the alternatives of a slot may include an empty text.
        return re.compile(r"\s*".join(parts))

    def _parse_value(self, name: str, text: str) -> Any:
        values = self.placeholders[name]
        if not _are_numbers(values):
            return next((value for value in values if _normalise(_value_text(value)) == text), None)
        number = parse_number(text)
        for value in values:
            if value == number or _value_text(value) == text:
                return value
        return number if number is not None and min(values) <= number <= max(values) else None

    # -- checks -------------------------------------------------------------------------------------------------------

    def _validate_table(self, name: str, written: Any, kind: TypeAdapter[Any]) -> dict[str, tuple[Any, ...]]:
        if isinstance(written, Mapping):
            written = {key: [*values] if isinstance(values, range) else values for key, values in written.items()}
        try:
            table = kind.validate_python({} if written is None else written)
            return {key: tuple(values or ()) for key, values in table.items()}
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join([name, *(f"{part}" for part in fault["loc"][:2])])
            hint = 'Write a table of lists. In YAML, put words such as no, on and yes, and "a: b", in quotes.'
            raise self._error(f"{place}: {fault['msg']} (the value is {fault['input']!r:.80}).", hint) from None

    def _check_phrasing(self, phrasing: str, kind: str) -> None:
        for name in _placeholder_names(phrasing):
            if name not in self.placeholders and (phrasing == kind or name not in self._grammar.slots):
                # A phrasing may contain only the placeholders of its canonical template.
                hint = f"List its values under {'placeholders' if phrasing == kind else 'words'}: {name}: [...]."
                raise self._error(f'"{phrasing}": there are no values for {{{name}}}.', hint)
        if missing := sorted(set(_placeholder_names(kind)) - set(_placeholder_names(phrasing))):
            hint = "Use every placeholder of the goal in each phrasing, or make this phrasing a separate goal."
            raise self._error(f'"{phrasing}" does not contain {{{missing[0]}}} of "{kind}".', hint)
        if more := sorted((set(_placeholder_names(phrasing)) - set(_placeholder_names(kind))) & set(self.placeholders)):
            problem = f'"{phrasing}" has a placeholder {{{more[0]}}} that "{kind}" does not have.'
            raise self._error(problem, "Use the placeholder in both texts, or in neither.")

    def _check_ambiguity(self) -> None:
        """Raise UserError if the same sentence can mean two different goals."""
        rng = random.Random(0)
        for goal in self.spread(MAX_SENTENCES):
            kind = goal.kind
            for phrasing in (kind, *self.phrasings[kind]):
                read = self.recognise(self._fill_phrasing(rng, phrasing, goal))
                if read is None or read.kind != kind or read.text() != goal.text():
                    other = f'"{kind}" with other values' if read is None or read.kind == kind else f'"{read.kind}"'
                    raise self._error(f'"{phrasing}" means both "{kind}" and {other}.', "Reword one of the two.")

    def _error(self, problem: str, hint: str) -> UserError:
        return UserError(f"{self.source}: {problem}", hint)


def _arguments_of(schemas: Mapping[str, Mapping[str, Any]], goal: Goal) -> dict[str, Any]:
    """Return the arguments of a goal tool for the values of a goal."""
    return {name: _schema_value(schemas[name]["type"], value) for name, value in goal.values}


def _schema_value(kind: str, value: Any) -> Any:
    if kind == "string":
        return _value_text(value)
    # The schema requires an integer, so convert a value such as 2.0 to 2.
    return int(value) if kind == "integer" and float(value).is_integer() else value


def _placeholder_names(template: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(template)))


def _describe_values(listed: Sequence[Any], limit: int) -> str:
    """Return the listed values as text for people; numbers are shown as a range such as `1 to 5`."""
    ends = sorted({min(listed), max(listed)}) if _are_numbers(listed) else []
    return " to ".join(map(_value_text, ends)) if len(ends) == 2 else _first_items(listed, limit)


def _first_items(listed: Sequence[Any], limit: int) -> str:
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(map(_value_text, listed[:limit])) + more


def _fill_in(template: str, values: Mapping[str, Any]) -> str:
    return _PLACEHOLDER.sub(lambda m: _value_text(values[m[1]]) if m[1] in values else m[0], template)


def _value_text(value: Any) -> str:
    """Return a value as text; a float has no exponent: 0.00001, not 1e-05."""
    return format(Decimal(str(value)), "f") if isinstance(value, float) else str(value)


def _normalise(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".!? ")


def _alternatives(values: Sequence[str]) -> str:
    return "|".join(re.escape(_normalise(value)) for value in sorted(values, key=len, reverse=True))


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(not isinstance(value, str) for value in values)
