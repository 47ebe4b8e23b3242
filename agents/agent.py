"""An Agent: tools + observation text + instruction + fallback + model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.agents.tool import InvalidCall, Tools
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError


@dataclass(frozen=True)
class Fallback:
    """What acts when a decision misses its deadline: hold the last call at most `hold_ms`, then `safe_call`.

    None where the world has a safe state of its own and only needs to be told (a client of the wire, say).
    """

    safe_call: Call | None
    hold_ms: float = 500.0


@dataclass(frozen=True)
class Agent:
    """Who decides.

    `observe` turns a raw observation into the text that the model reads. `history` is how many executed calls the
    prompt shows (0: none). `allow_null` lets the function head choose `<|null|>`: leave the call in force.
    `instruction` is the default goal in natural language, `model` the zoo name or path of its checkpoint.
    """

    name: str
    description: str
    tools: Tools
    observe: Callable[[Mapping[str, Any]], str]
    instruction: str
    fallback: Fallback
    model: str
    history: int = 6
    allow_null: bool = False

    def __post_init__(self) -> None:
        try:
            if self.fallback.safe_call is not None:
                self.tools.validate(self.fallback.safe_call)
        except InvalidCall as error:
            raise UserError(
                f"Agent {self.name}: its safe call is illegal ({error}).", "Correct its fallback."
            ) from None
        if not 0 <= self.history <= 6:
            raise UserError(f"Agent {self.name}: history={self.history}.", "The prompt shows 0 to 6 calls.")
