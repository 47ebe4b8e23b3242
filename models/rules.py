"""Which of the listed values a schema's rules allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.references import BOUNDS
from rtcontrol.models.size import Room
from rtcontrol.models.validator import ABOUT, Validator, constants

# Rules that are kept by listing the values.
KEPT: tuple[set[str], ...] = ({"enum"}, {"const"}, {"type", "multipleOf", *BOUNDS, *BOUNDS.values()})


class ValidatorCache:
    """Says whether a value satisfies a schema, of many that are asked about more than once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._known: dict[int, tuple[Any, Validator]] = {}

    def allows(self, schema: Any, value: Any) -> bool:
        """Raises UserError for a pattern that cannot be searched for."""
        if isinstance(schema, bool):
            return schema
        if id(schema) not in self._known:  # it is kept, for its id
            self._known[id(schema)] = schema, Validator(schema, self._where)
        return self._known[id(schema)][1].takes(value)


def weight(rules: Any) -> int:
    """Parts of a schema that are checked one by one: constants among alternatives are looked up."""
    if isinstance(rules, Mapping):
        return 1 + sum(weight(v) for k, v in rules.items() if k not in ("enum", "const", *ABOUT))
    if isinstance(rules, list | tuple):
        return sum(weight(v) for v in rules if constants(v) is None)
    return 0


def kept_values(values: Sequence[Any], document: Mapping[str, Any], where: str, room: Room) -> list[Any]:
    """Those of the listed values that all rules of their `document`, a schema without references, allow.

    Raises UserError for a pattern that cannot be searched for, and for more checks than there is room for."""
    said = set(document) - {*ABOUT}
    if any(said <= kept for kept in KEPT):
        return list(values)
    room.take(where, checks=len(values) * weight(document))
    judge = Validator(document, where)
    kept = [v for v in values if judge.takes(v)]
    other = [] if len(kept) == len(values) else [v for v in values if v is not None and not judge.takes(v)]
    if said <= {"type", "enum"} and other:
        kind = document["type"]
        raise UserError(f"{where}: the value {other[0]!r} is no {kind}.", f"List values of type {kind} only.")
    return kept
