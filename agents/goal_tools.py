"""Represent the goals of an agent as tools: a tool for each kind of goal, with the goal's values as parameters.

These tools map free text to a goal for a checkpoint's heads, a chat model, a decision API, and training rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any

from rtcontrol.agents.tool import InvalidCall, Tools
from rtcontrol.models.call import Call

Schema = Mapping[str, Any]
NAME_LENGTH = 64  # characters of a tool's name at most, in chat APIs
_FIGURES = re.compile(r"[-+]?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class GoalKind:
    """A kind of goal, and the tool that represents this kind.

    `parameters` has a JSON schema for each parameter; those in `optional` may be left out. `values` returns the
    arguments of a goal, and `make` returns the goal of valid arguments (None: the first of `goals`). `goals` are used
    in an evaluation; training samples the kind with probability `weight`.
    """

    kind: Any
    name: str
    description: str
    make: Callable[[Mapping[str, Any]], Any] | None = None
    values: Callable[[Any], Mapping[str, Any]] = lambda goal: {}
    parameters: Mapping[str, Schema] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    goals: tuple[Any, ...] = ()
    weight: float = 1.0

    def tool(self) -> dict[str, Any]:
        """Return the OpenAI-style definition of the tool for this kind of goal."""
        required = [name for name in self.parameters if name not in self.optional]
        properties = {name: dict(schema) for name, schema in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": required}
        body = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": body}


class GoalTools:
    """The tools for the goals of the agent `name`, which convert between goals and calls.

    `recognise` returns the goal of a sentence, and `examples` returns goals to show to people.
    """

    def __init__(
        self,
        name: str,
        kinds: Sequence[GoalKind],
        recognise: Callable[[str], Any],
        examples: Callable[[], Iterator[Any]],
    ) -> None:
        self.name, self.kinds = name, tuple(kinds)
        self.recognise, self._examples = recognise, examples
        self._by_kind = {kind.kind: kind for kind in self.kinds}
        self._by_name = {kind.name: kind for kind in self.kinds}
        assert len(self._by_name) == len(self.kinds), f"{name}: two kinds of goals have one name"

    @cached_property
    def definitions(self) -> tuple[dict[str, Any], ...]:
        """Return the OpenAI-style definitions of the tools."""
        return tuple(kind.tool() for kind in self.kinds)

    @cached_property
    def tools(self) -> Tools:
        return Tools(list(self.definitions))

    def call(self, goal: Any) -> Call:
        """Return the call that represents a goal."""
        kind = self._by_kind[goal.kind]
        return Call(kind.name, dict(kind.values(goal)))

    def goal(self, call: Call) -> Any:
        """Return the goal of a call; numbers may be given as text, and are rounded to the next step.

        Raises InvalidCall if a name is unknown or a value is illegal.
        """
        kind = self._by_name.get(call.name)
        if kind is None:
            raise InvalidCall(f"{call.name[:80]!r} is not one of {', '.join(self._by_name)}")
        arguments = {k: v for k, v in call.arguments.items() if not (v is None and k in kind.optional)}
        read = {name: _value(kind.parameters.get(name, {}), value) for name, value in arguments.items()}
        self.tools.validate(Call(kind.name, read))
        return kind.goals[0] if kind.make is None else kind.make(read)

    def canonical(self, text: str) -> Any | None:
        """Return the goal with these canonical words; None for other words, or for values that the tools do not allow.

        Case, spaces, number formats and final punctuation do not matter.
        """
        goal = self.recognise(text)
        if goal is None or _plain(goal.text()) != _plain(text):
            return None
        try:
            self.tools.validate(self.call(goal))
        except (InvalidCall, LookupError):
            return None
        return goal

    def examples(self, most: int = 4) -> list[str]:
        """Return up to `most` canonical sentences to show to people, starting with one of each kind."""
        firsts: dict[Any, str] = {}
        others: dict[str, None] = {}
        for goal in self._examples():
            text = goal.text()
            if firsts.setdefault(goal.kind, text) != text and len(others) < most:
                others[text] = None
            if len(firsts) == len(self.kinds) and len(firsts) + len(others) >= most:
                break
        return [*firsts.values(), *others][:most]


def slug(words: str, taken: Mapping[str, Any]) -> str:
    """Return a tool name made from the words of a template, different from the names in `taken`."""
    name = full = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:NAME_LENGTH] or "goal"
    number = 1
    while name in taken:
        number += 1
        name = f"{full[: NAME_LENGTH - 4]}_{number}"
    return name


def schema_of(values: Sequence[Any], text: Callable[[Any], str] = str) -> dict[str, Any]:
    """Return the JSON schema of a placeholder with these values: an enum of texts, or a range of numbers.

    The step of a range is the last decimal of the values.
    """
    if any(isinstance(value, str) for value in values):
        return {"type": "string", "enum": list(dict.fromkeys(map(text, values)))}
    if len(set(values)) == 1:
        return {"type": "integer" if isinstance(values[0], int) else "number", "enum": [values[0]]}
    ends = {"minimum": min(values), "maximum": max(values)}
    if all(float(value).is_integer() for value in values):
        return {"type": "integer", "minimum": int(ends["minimum"]), "maximum": int(ends["maximum"])}
    return {"type": "number", **ends, "multipleOf": float(Decimal(1).scaleb(-max(map(places_of, values))))}


def places_of(value: int | float) -> int:
    """Return the number of decimal places of a number."""
    return max(0, -int(Decimal(str(value)).as_tuple().exponent))


def _value(schema: Schema, value: Any) -> Any:
    """Convert a value to the type in its parameter's schema if possible; otherwise return the value unchanged."""
    kind, listed = schema.get("type"), schema.get("enum")
    if kind == "string" and isinstance(value, str | int | float):
        plain = _plain(str(value))
        return next((item for item in listed or () if _plain(str(item)) == plain), value)
    if kind not in ("integer", "number"):
        return value
    if isinstance(value, str):
        value = value if (number := number_of(value)) is None else number
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) > 1e12:
        return value
    if listed is not None:
        return next((item for item in listed if item == value), value)
    step = schema.get("multipleOf")
    if kind == "number" and step is not None:
        return round(round(value / step) * step, places_of(step))
    return int(value) if kind == "integer" and float(value).is_integer() else value


def _plain(text: str) -> str:
    """Normalise a sentence for comparison: lower case, single spaces, one number format, no final punctuation."""
    plain = " ".join(text.lower().split()).rstrip(".!?, ")
    return _FIGURES.sub(lambda figure: f"{float(figure[0]):g}", plain)


_THOUSANDS = re.compile(r"[-+]?0*[1-9]\d{0,2}(?:[.,]\d{3})+")  # or decimals: ambiguous
_ALONE = re.compile(r"[-+]?(?:\d+(?:[.,]\d+)?|[.,]\d+)")


def number_of(text: str) -> int | float | None:
    """Return the number of a text such as `0.7`, `,7` or `-.5`; None for any other text.

    A number that may have a thousands separator, such as `1,000`, is ambiguous and gives None.
    """
    plain = text.strip().replace("\u2212", "-")
    if _THOUSANDS.fullmatch(plain) or not _ALONE.fullmatch(plain):
        return None
    return int(plain) if plain.lstrip("+-").isdigit() else float(plain.replace(",", "."))
