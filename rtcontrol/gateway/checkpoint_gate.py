"""What a checkpoint says of the tools of a request: whether a call may act, and how it is to be asked."""

from __future__ import annotations

from collections.abc import Sequence

from rtcontrol.gateway.source import START_IT
from rtcontrol.loop.confidence_monitor import ConfidenceGate, never_taught
from rtcontrol.models.call import Decision
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.run.api import why_held
from rtcontrol.run.model_compatibility import learnt_of, model_for


class CheckpointGate:
    """The gate of one set of tools. Without `learnt` (a checkpoint that does not know them, or no checkpoint) it holds
    nothing back. `allow_null`: whether the request itself lets the model call nothing."""

    def __init__(self, learnt: TrainingMetadata | None = None, allow_null: bool = False) -> None:
        self._learnt = learnt
        gate = None if learnt is None else learnt.gate
        # A null function that was learnt with a gate says that the instruction is not understood.
        doubt = learnt is not None and gate is not None and learnt.allow_null and not allow_null
        self.allow_null = allow_null or doubt
        self._gate = ConfidenceGate({} if gate is None else {"function": gate}, (), doubt)

    @classmethod
    def of(cls, model: str | None, tools: Sequence[ToolSchema], allow_null: bool) -> CheckpointGate:
        """Return the gate of a model (None: the bundled one that knows the tools). UserError if it must not decide."""
        learnt = learnt_of(model_for(tools, model, START_IT)) if tools else None
        return cls(learnt if learnt is not None and learnt.knows(tools) else None, allow_null)

    def held(self, decision: Decision) -> str | None:
        """Return why the decision's call must not act; None if it may."""
        if (doubt := self._gate.doubt(decision)) is None:
            return None
        strange = f"; {never_taught(decision.unknown)}" if decision.unknown else ""
        return f"Nothing is called: {why_held(doubt, doubt.head, decision.call)}{strange}."

    def instruction(self, orders: str, said: str) -> str:
        """Return what the model is told: the orders of a system message only if it was not trained on these tools, for
        the sentences of its training have none."""
        return said if self._learnt is not None else "\n".join(filter(None, (orders, said)))
