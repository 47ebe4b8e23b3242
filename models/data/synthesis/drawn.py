"""Values drawn at random from what a parameter takes."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.domain import ClosedDomain, Domain, domain_of
from rtcontrol.models.parameters import Parameter

WORDS = (
    *(
        "amber",
        "anchor",
        "basil",
        "bridge",
        "canyon",
        "cedar",
        "copper",
        "delta",
        "ember",
        "falcon",
        "garden",
        "harbour",
    ),
    *(
        "island",
        "jasmine",
        "lantern",
        "maple",
        "meadow",
        "nickel",
        "orchid",
        "paper",
        "quartz",
        "raven",
        "river",
        "saffron",
    ),
    *("silver", "summit", "thunder", "valley", "velvet", "willow", "winter", "zephyr"),
    *("Lisbon", "Oslo", "Nairobi", "Kyoto", "Lima", "Quebec", "Ada", "Bruno", "Chen", "Dalia", "Emeka", "Farid"),
)
LARGEST = 100  # of a number without bounds
MOST = 3  # items of a list, words of a string
NOT_DRAWN = "a parameter whose values cannot be drawn"


def draw(parameter: Parameter, rng: Random) -> Any:
    """A value of a parameter, never null. Raises Unusable for what only a model could make up (a pattern)."""
    return _value(parameter.domain, rng, parameter.name)


def _value(domain: Domain, rng: Random, where: str) -> Any:
    if isinstance(domain, ClosedDomain):
        return rng.choice(domain.values)
    schema = domain.schema
    if domain.grid is not None:
        return domain.grid.at(rng.randrange(domain.grid.count))
    kind = schema.get("type")
    if "pattern" in schema or "not" in schema or "format" in schema:
        raise Unusable(NOT_DRAWN, where)
    if kind in ("integer", "number"):
        return _number(schema, kind, rng, where)
    if kind == "string":
        return " ".join(rng.sample(WORDS, rng.randint(1, MOST)))
    if kind == "array" and isinstance(items := schema.get("items", {"type": "string"}), Mapping):
        least = schema.get("minItems", 1)
        count = rng.randint(least, max(least, min(schema.get("maxItems", MOST), MOST)))
        return [_value(domain_of(items or {"type": "string"}, where), rng, where) for _ in range(count)]
    if kind == "object" and (properties := schema.get("properties")):
        required = schema.get("required", ())
        kept = [k for k in properties if k in required or rng.random() < 0.5]
        return {k: _value(domain_of(properties[k], f"{where}.{k}"), rng, f"{where}.{k}") for k in kept}
    raise Unusable(NOT_DRAWN, where)


def _number(schema: Mapping[str, Any], kind: str, rng: Random, where: str) -> Any:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        low = 0 if high is None or high > 0 else high - LARGEST
    if high is None:
        high = low + LARGEST
    step = 1 if kind == "integer" else 0.5
    count = int((high - low) / step)
    if "multipleOf" in schema or count < 2:
        raise Unusable(NOT_DRAWN, where)
    found = low + step * rng.randrange(1, count)  # inside either kind of bounds
    return int(found) if kind == "integer" else float(found)
