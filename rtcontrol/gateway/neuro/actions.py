"""A game's actions: which there are, which of them a model can be offered, and which is the safe choice."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from rtcontrol.agents import Tools
from rtcontrol.gateway.neuro.messages import MOST_ACTIONS, GameAction
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.random_call import random_call
from rtcontrol.models.schema.tool_schema import ToolSchema

KEPT = 32  # sets of actions whose tools are remembered
# Values that free parameters are tried with where nobody decides.
PLAIN: tuple[Any, ...] = ("", "none", "0", 0, 1, 0.5, False, [], {})


class OfferedTools(Tools):
    """The tools of the question that is open. `offer` puts others in their place: while nothing is decided."""

    def __init__(self, definitions: Sequence[dict[str, Any]]) -> None:
        self._kept: OrderedDict[str, Tools] = OrderedDict()
        super().__init__(definitions)

    def offer(self, key: str, definitions: Sequence[dict[str, Any]]) -> None:
        """Raises UserError for those that do not stand together."""
        if (tools := self._kept.get(key)) is None:
            tools = self._kept[key] = Tools(definitions)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self.schemas, self._tools = tools.schemas, tools._tools


class GameActions:
    """What is registered now. `preferred` are the names that a safe choice takes first."""

    def __init__(self, preferred: Sequence[str] = ()) -> None:
        self._preferred = tuple(preferred)
        self._actions: dict[str, GameAction] = {}
        self._schemas: dict[str, ToolSchema | str] = {}  # or why a model cannot be offered it

    def __contains__(self, name: str) -> bool:
        return name in self._actions

    def __len__(self) -> int:
        return len(self._actions)

    @property
    def names(self) -> list[str]:
        return list(self._actions)

    def clear(self) -> None:
        self._actions.clear()
        self._schemas.clear()

    def register(self, actions: Sequence[GameAction]) -> list[str]:
        """Those that are new. One that is there already is ignored, as the API says. Gives what people are told."""
        lines = []
        for one in actions:
            if (there := self._actions.get(one.name)) is not None:
                if there != one:
                    lines.append(f"action {one.name} is registered already, and stays as it was: unregister it first")
                continue
            if len(self._actions) >= MOST_ACTIONS:
                lines.append(f"action {one.name} is left out: {MOST_ACTIONS} are registered, and no more may be")
                continue
            self._actions[one.name] = one
            try:
                self._schemas[one.name] = ToolSchema.from_openai(one.tool())
            except UserError as error:
                self._schemas[one.name] = error.what
                lines.append(f"action {one.name} is offered to no model: {error}")
        return lines

    def unregister(self, names: Sequence[str]) -> None:
        """Of those that are not there nothing is said."""
        for name in names:
            self._actions.pop(name, None)
            self._schemas.pop(name, None)

    def there(self, names: Sequence[str]) -> list[str]:
        """Those of these that are registered, each once."""
        return [name for name in dict.fromkeys(names) if name in self._actions]

    def definitions(self, names: Sequence[str]) -> tuple[dict[str, Any], ...]:
        """Of those of these that a model can be offered; in the order in which they were registered, as a game may name
        them in another each time, and another set of tools would have to be made ready."""
        wanted = set(names)
        offered = (name for name, schema in self._schemas.items() if isinstance(schema, ToolSchema))
        return tuple(self._actions[name].tool() for name in offered if name in wanted)

    def arguments(self, call: Call) -> dict[str, Any] | None:
        """As the game is told them; None where the action has no schema."""
        there = self._actions.get(call.name)
        return dict(call.arguments) if call.arguments or (there and there.parameters) else None

    def safe_choices(self, names: Sequence[str]) -> list[str]:
        """What is done where nothing is decided, the best first: those that the user named, those that take nothing,
        then the others. All of `names` are registered."""
        first = {name: i for i, name in enumerate(self._preferred)}

        def order(name: str) -> tuple[int, bool]:
            schema = self._schemas[name]
            takes = not isinstance(schema, ToolSchema) or any(p.required for p in schema.parameters)
            return first.get(name, len(first)), takes

        return sorted(names, key=order)

    def plainest(self, name: str) -> Call:
        """The call of this registered action with the plainest arguments that it allows."""
        return Call(name, self._arguments(name))

    def _arguments(self, name: str) -> dict[str, Any]:
        schema = self._schemas[name]
        if not isinstance(schema, ToolSchema):
            return {}
        try:
            if schema.rules is not None:
                return dict(random_call((schema,), random.Random(0)).arguments)
            return {p.name: _plainest_value(p) for p in schema.parameters if p.required}
        except (UserError, LookupError):
            return {}  # the game says what it wants instead


def _plainest_value(p: Parameter) -> Any:
    """Raises LookupError where none is known."""
    if isinstance(p.domain, ClosedDomain):
        return p.domain.values[0]
    if p.nullable:
        return None
    if (grid := p.domain.grid) is not None:
        value = next((v for v in map(grid.at, range(min(grid.count, 64))) if p.domain.judge.takes(v)), None)
        if value is not None:
            return value
    for value in PLAIN:
        if p.domain.judge.fault(value) is None:
            return value
    raise LookupError(p.name)
