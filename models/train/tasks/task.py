"""One synthetic situation: tools and an observation, and what is right under each of several instructions."""

from __future__ import annotations

from dataclasses import dataclass

from rtcontrol.models.call import Call
from rtcontrol.models.schema import ToolSchema
from rtcontrol.models.train.rows import Row


@dataclass(frozen=True, slots=True)
class Directive:
    """One instruction, and what is right under it."""

    instruction: str
    call: Call


@dataclass(frozen=True, slots=True)
class SyntheticTask:
    """One observation under one set of tools. What is `told` differs in what it names alone: the swapped-name check
    asks for the call under each."""

    tools: tuple[ToolSchema, ...]
    observation: str
    told: tuple[Directive, ...]

    def rows(self) -> list[Row]:
        """A row for each instruction."""
        return [Row(told.instruction, self.observation, told.call, tools=self.tools) for told in self.told]
