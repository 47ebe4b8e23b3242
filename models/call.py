"""Data classes that all packages share: a typed function call, a plan of calls, and a decision of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A function call with typed arguments. Optional parameters without a value are not in `arguments`."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the call as text for people and for the prompt's history: `engines(main=70, side=0)`."""
        pairs = (f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in self.arguments.items())
        return f"{self.name}({', '.join(pairs)})"

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "arguments": dict(self.arguments)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Call:
        return cls(value["name"], dict(value["arguments"]))


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls to execute after one observation: the first call at once, then a call every `step_ns`."""

    calls: tuple[Call, ...]
    step_ns: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of one decision of the model.

    `call` is None if the model chose the null function, which keeps the active call. `confidence` maps each head
    (`function`, `arg1`, ...) to the probability of its value among the legal values, in (0, 1]. `tokens` counts the
    tokens that the model computed, and `reused_tokens` the tokens from the cache. `unknown` lists parts of the
    instruction that are not in the training data; each lowers the function's confidence. `unfamiliar` lists parts of
    the observation that are not in the training data; any of them lowers the confidence below the gate. If there is a
    `plan`, `call` is its first call. If hysteresis kept the active value of a head, `kept` maps the head to the text of
    the value that the model preferred (None: the null token)."""

    call: Call | None
    confidence: Mapping[str, float] = field(default_factory=dict)
    forward_passes: int = 0
    tokens: int = 0
    reused_tokens: int = 0
    unknown: Sequence[str] = ()
    plan: Plan | None = None
    kept: Mapping[str, str | None] = field(default_factory=dict)
    unfamiliar: Sequence[str] = ()
