"""Represent the goals of an agent as tools: a tool for each kind of goal, with the goal's values as parameters.

A model that interprets a person's sentence calls one of these tools to name the goal; training data use them, too.
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
from rtcontrol.models.numbers import parse_number, with_plain_numbers

Schema = Mapping[str, Any]
MAX_NAME_LENGTH = 64  # maximum characters of a tool's name in chat APIs


@dataclass(frozen=True)
class GoalKind:
    """A kind of goal, and the tool that represents it.

    `parameters` has a JSON schema for each parameter; a call may omit the parameters in `optional`. `values` converts a
    goal to arguments, and `make` converts valid arguments to a goal (if `make` is None, to `goals[0]`). Evaluations use
    the goals in `goals`; training samples goals of this kind with the relative probability `weight`.
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
    """The tools for the goals of the agent `name`, and methods that convert goals to calls and back.

    `recognise` returns the goal that a sentence names, or None. `examples` yields goals to show to people.
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
        if len(self._by_name) != len(self.kinds):
            raise ValueError(f"{name}: two kinds of goals have the same name")

    @cached_property
    def definitions(self) -> tuple[dict[str, Any], ...]:
        """Return the OpenAI-style definitions of the tools."""
        return tuple(kind.tool() for kind in self.kinds)

    @cached_property
    def tools(self) -> Tools:
        return Tools(list(self.definitions))

    def call_of(self, goal: Any) -> Call:
        """Return the call of the goal tool that represents this goal."""
        kind = self._by_kind[goal.kind]
        return Call(kind.name, dict(kind.values(goal)))

    def goal_of(self, call: Call) -> Any:
        """Return the goal that a call represents. Numbers in texts are converted, and rounded to the nearest step.

        Raises InvalidCall if the tool's name is unknown or an argument is not valid.
        """
        kind = self._by_name.get(call.name)
        if kind is None:
            raise InvalidCall(f"{call.name[:80]!r} is not a goal tool; these are {', '.join(self._by_name)}")
        arguments = {k: v for k, v in call.arguments.items() if not (v is None and k in kind.optional)}
        converted = {name: _to_schema_type(kind.parameters.get(name, {}), value) for name, value in arguments.items()}
        self.tools.validate(Call(kind.name, converted))
        return kind.goals[0] if kind.make is None else kind.make(converted)

    def canonical_goal(self, text: str) -> Any | None:
        """Return the goal whose canonical sentence is `text`, or None if no goal with valid values has this sentence.

        Ignores case, spaces, number formats and final punctuation.
        """
        goal = self.recognise(text)
        if goal is None or _normalise(goal.text()) != _normalise(text):
            return None
        try:
            self.tools.validate(self.call_of(goal))
        except (InvalidCall, LookupError):
            return None
        return goal

    def examples(self, limit: int = 4) -> list[str]:
        """Return up to `limit` canonical sentences to show to people, starting with one for each kind of goal."""
        first_of_kind: dict[Any, str] = {}
        others: dict[str, None] = {}
        for goal in self._examples():
            text = goal.text()
            if first_of_kind.setdefault(goal.kind, text) != text and len(others) < limit:
                others[text] = None
            if len(first_of_kind) == len(self.kinds) and len(first_of_kind) + len(others) >= limit:
                break
        return [*first_of_kind.values(), *others][:limit]


def unique_tool_name(words: str, used: Mapping[str, Any]) -> str:
    """Return a tool name that consists of the words of a template and is not in `used`."""
    name = full = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:MAX_NAME_LENGTH] or "goal"
    number = 1
    while name in used:
        number += 1
        name = f"{full[: MAX_NAME_LENGTH - 4]}_{number}"
    return name


def value_schema(values: Sequence[Any], text: Callable[[Any], str] = str) -> dict[str, Any]:
    """Return the JSON schema of a placeholder with these values: an enum for texts, or a range for numbers.

    The step of a range of floats is the last decimal place of the values, for example 0.1 for 0.5 and 1.5.
    """
    if any(isinstance(value, str) for value in values):
        return {"type": "string", "enum": list(dict.fromkeys(map(text, values)))}
    if len(set(values)) == 1:
        return {"type": "integer" if isinstance(values[0], int) else "number", "enum": [values[0]]}
    ends = {"minimum": min(values), "maximum": max(values)}
    if all(float(value).is_integer() for value in values):
        return {"type": "integer", "minimum": int(ends["minimum"]), "maximum": int(ends["maximum"])}
    return {"type": "number", **ends, "multipleOf": float(Decimal(1).scaleb(-max(map(decimal_places, values))))}


def decimal_places(value: int | float) -> int:
    """Return the number of decimal places of a number."""
    return max(0, -int(Decimal(str(value)).as_tuple().exponent))


def _to_schema_type(schema: Schema, value: Any) -> Any:
    """Convert a value to the type that the schema requires; return a value that cannot be converted unchanged."""
    kind, listed = schema.get("type"), schema.get("enum")
    if kind == "string" and isinstance(value, str | int | float):
        plain = _normalise(str(value))
        return next((item for item in listed or () if _normalise(str(item)) == plain), value)
    if kind not in ("integer", "number"):
        return value
    if isinstance(value, str):
        value = value if (number := parse_number(value)) is None else number
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) > 1e12:
        return value
    if listed is not None:
        return next((item for item in listed if item == value), value)
    step = schema.get("multipleOf")
    if kind == "number" and step is not None:
        return round(round(value / step) * step, decimal_places(step))
    return int(value) if kind == "integer" and float(value).is_integer() else value


def _normalise(text: str) -> str:
    """Normalise a sentence for comparison: lower case, single spaces, one number format, no final punctuation."""
    plain = text.lower().rstrip(".!?, ")
    return " ".join((with_plain_numbers(plain) or plain).split())
