"""Define an agent: its tools, text form of observations, instruction, fallback and model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.agents.goals import Goal, Goals
from rtcontrol.agents.signatures import check_signatures
from rtcontrol.agents.tool import InvalidCall, Tools
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError


@dataclass(frozen=True)
class Fallback:
    """The calls that are active after a missed deadline: the last call for up to `hold_ms`, then the safe call.

    For several actuators, `calls` has a safe call for each of them: `Fallback(calls=[stop, open_gripper])`; `safe_call`
    is then the first of `calls`. Omit both if the world itself enters a safe state after a missed deadline, as a
    network client may.
    """

    safe_call: Call | None = None
    hold_ms: float = 500.0
    calls: Sequence[Call] = ()

    def __post_init__(self) -> None:
        calls = tuple(self.calls) or (() if self.safe_call is None else (self.safe_call,))
        if self.safe_call not in (None, *calls[:1]):
            raise UserError("The safe_call and calls of a Fallback differ.", "Set only one of them.")
        object.__setattr__(self, "calls", calls)
        object.__setattr__(self, "safe_call", calls[0] if calls else None)

    @property
    def safe_calls(self) -> tuple[Call, ...]:
        return tuple(self.calls)


@dataclass(frozen=True)
class Agent:
    """The tools, texts, safe calls and model that decide which tool to call for an observation.

    `observe` converts a raw observation to the text that the model reads. `history` is the number of executed calls in
    the prompt. If `allow_null` is True, the model may choose `<|null|>` instead of a tool, so that the active call
    continues. If `null_is_doubt` is True, `<|null|>` means that the model does not understand the instruction; the
    decision is then withheld like a call with low confidence. `instruction` is the default instruction, `model` the
    name of a bundled model or the path of a checkpoint. `confirm` names tools whose calls need a person's approval. A
    run prints `notices` at its start.

    `goals` are the instructions that the agent can follow. `expert` returns the correct call for a raw observation and
    a goal, or a plan: a list of the calls for this tick and the following ticks. `rtcontrol fit` trains a model with
    `goals` and `expert`, and `--model expert` runs the expert instead of a model.
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
    notices: Sequence[str] = ()

    def __post_init__(self) -> None:
        functions = {"observe": (self.observe, ("data",))}
        check_signatures(functions if self.expert is None else functions | {"expert": (self.expert, ("data", "goal"))})
        try:
            for call in self.fallback.safe_calls:
                self.tools.validate(call)
        except InvalidCall as error:
            raise UserError(
                f"Agent {self.name}: the safe call is not valid ({error}).", "Correct the agent's fallback."
            ) from None
        if unknown := set(self.confirm) - {tool.name for tool in self.tools}:
            raise UserError(
                f"Agent {self.name}: confirm names the unknown tool {min(unknown)}.", "Use names of the agent's tools."
            )
        if not 0 <= self.history <= 6:
            raise UserError(f"Agent {self.name}: history={self.history} is out of range.", "Use 0 to 6 calls.")
