"""Which of the listed values a schema's rules allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jsonschema
import referencing
import referencing.exceptions

from rtcontrol.models.domain import json_text
from rtcontrol.models.errors import UserError
from rtcontrol.models.normal import ABOUT, BOUNDS, DEFINITIONS

# Rules that are kept by listing the values.
KEPT: tuple[set[str], ...] = ({"enum"}, {"const"}, {"type", "multipleOf", *BOUNDS, *BOUNDS.values()})


def kept_values(values: Sequence[Any], document: Mapping[str, Any], where: str) -> list[Any]:
    """Those of the listed values that all rules of their `document` allow.

    Raises UserError for rules that cannot be checked: a pattern, which may take Python for ever, and a reference that
    leads nowhere."""
    said = set(document) - {*DEFINITIONS, *ABOUT}
    if any(said <= kept for kept in KEPT):
        return list(values)
    known: dict[int, set[str]] = {}

    def listed(_: Any, allowed: list[Any], value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
        if id(allowed) not in known:
            known[id(allowed)] = {_key(v) for v in allowed}
        if _key(value) not in known[id(allowed)]:
            yield jsonschema.ValidationError("not listed")

    def multiple(_: Any, step: float, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
        # In decimals: jsonschema says that 0.3 is no multiple of 0.1.
        if type(value) in (int, float) and Fraction(str(value)) % Fraction(str(step)):
            yield jsonschema.ValidationError("between the steps")

    def unchecked(_: Any, rule: Any, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
        if isinstance(value, str | Mapping):
            told = f"{where}: a pattern ({repr(rule)[:80]}) beside listed values."
            raise UserError(told, "List the values that match it, and leave the pattern out.")
        yield from ()

    own = {"enum": listed, "multipleOf": multiple, "pattern": unchecked, "patternProperties": unchecked}
    made = jsonschema.validators.extend(jsonschema.Draft202012Validator, own)
    # A registry of nothing: a `$ref` to an address must not be fetched.
    validator = made(document, registry=referencing.Registry())
    try:
        kept = [v for v in values if validator.is_valid(v)]
    except (referencing.exceptions.Unresolvable, RecursionError) as error:
        raise UserError(f"{where}: its rules cannot be checked ({str(error)[:120]}).", "Write them out.") from None
    other = [] if len(kept) == len(values) else [v for v in values if v is not None and not validator.is_valid(v)]
    if said <= {"type", "enum"} and other:
        kind = document["type"]
        raise UserError(f"{where}: the value {other[0]!r} is no {kind}.", f"List values of type {kind} only.")
    return kept


def _key(value: Any) -> str:
    """Equal for what JSON schema calls equal: 1 and 1.0 are, 1 and true are not."""
    return json_text(value) if not isinstance(value, float) or not value.is_integer() else str(int(value))
