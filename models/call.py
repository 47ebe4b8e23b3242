"""The values that all layers share: a typed function call, and the decision behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A function call with typed arguments; absent optional parameters are left out."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the call as people and the prompt's history read it: `engines(main=70, side=0)`."""
        shown = (f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in self.arguments.items())
        return f"{self.name}({', '.join(shown)})"

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "arguments": dict(self.arguments)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Call:
        return cls(value["name"], dict(value["arguments"]))


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls for the instants after an observation: the first at once, then one every `step_ns`."""

    calls: tuple[Call, ...]
    step_ns: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of one decision.

    `call` is None when the function head chose `<|null|>`: the active call stays. `confidence` maps a head's name
    (`function`, `arg1`, ...) to the product of its branching probabilities among legal children, in (0, 1]. `tokens`
    went through the model, `reused_tokens` came from the cache. `unknown` are words of the instruction that training
    did not have; they lower the confidence of the function. With a `plan`, `call` is its first call. `kept` maps the
    heads at which hysteresis kept the active value to the text of the preferred one (None: the null token).
    """

    call: Call | None
    confidence: Mapping[str, float] = field(default_factory=dict)
    forward_passes: int = 0
    tokens: int = 0
    reused_tokens: int = 0
    unknown: Sequence[str] = ()
    plan: Plan | None = None
    kept: Mapping[str, str | None] = field(default_factory=dict)
