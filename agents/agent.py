"""Define an agent: its tools, text form of observations, instruction, fallback and model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.agents.goals import Goal, Goals
from rtcontrol.agents.signatures import check_called
from rtcontrol.agents.tool import InvalidCall, Tools
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError


@dataclass(frozen=True)
class Fallback:
    """The calls that act when a decision misses its deadline: the last call for up to `hold_ms`, then the safe call.

    With several actuators, `calls` has a safe call for each actuator: `Fallback(calls=[stop, open_gripper])`;
    `safe_call` is then the first of `calls`. Give neither if the world has its own safe state and only needs a notice,
    as a network client may.
    """

    safe_call: Call | None = None
    hold_ms: float = 500.0
    calls: Sequence[Call] = ()

    def __post_init__(self) -> None:
        calls = tuple(self.calls) or (() if self.safe_call is None else (self.safe_call,))
        if self.safe_call not in (None, *calls[:1]):
            raise UserError("A Fallback has safe_call and calls that differ.", "Give one of them.")
        object.__setattr__(self, "calls", calls)
        object.__setattr__(self, "safe_call", calls[0] if calls else None)

    @property
    def safe_calls(self) -> tuple[Call, ...]:
        """Return all safe calls in order."""
        return tuple(self.calls)


@dataclass(frozen=True)
class Agent:
    """An agent: all that a decision needs except the world.

    `observe` turns a raw observation into the text that the model reads. `history` is the number of executed calls in
    the prompt (0: none). With `allow_null` the function head may choose `<|null|>`, which keeps the active call; with
    `null_is_doubt`, `<|null|>` means that the instruction is not understood, and the decision is held back like an
    unsure call. `instruction` is the default goal in natural language, `model` the zoo name or path of a checkpoint.
    `confirm` names tools that need a person's approval before they act.

    `goals` are the instructions that the agent knows, and `expert` returns the right call for a raw observation and a
    goal. `rtcontrol fit` trains a model with both, and `--model expert` runs the expert. An expert may return a plan:
    a list with a call for now and one call for each following tick.
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
    confirm: Sequence[str] = ()
    goals: Goals | None = None
    expert: Callable[[Mapping[str, Any], Goal], Call | Sequence[Call]] | None = None
    null_is_doubt: bool = False

    def __post_init__(self) -> None:
        called = {"observe": (self.observe, ("data",)), "expert": (self.expert, ("data", "goal"))}
        check_called({name: (function, given) for name, (function, given) in called.items() if function is not None})
        try:
            for call in self.fallback.safe_calls:
                self.tools.validate(call)
        except InvalidCall as error:
            raise UserError(
                f"Agent {self.name}: its safe call is illegal ({error}).", "Correct its fallback."
            ) from None
        if unknown := set(self.confirm) - {tool.name for tool in self.tools}:
            raise UserError(
                f"Agent {self.name}: confirm names {min(unknown)}, which is none of its tools.", "Correct it."
            )
        if not 0 <= self.history <= 6:
            raise UserError(f"Agent {self.name}: history={self.history}.", "The prompt shows 0 to 6 calls.")
