"""A decider that another process can import: it does what it is told."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from dataclasses import dataclass

from rtcontrol.hosts.protocol import Decider, DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import result


@dataclass(frozen=True)
class Talker:
    """Says which process it is in; goes on for ever where it is told so, and dies where it is told so."""

    broken: bool = False

    def build(self) -> Decider:
        if self.broken:
            raise UserError("It is broken.", "Mend it.")
        print("a line that must not stand among the messages")
        return self

    def decide(self, request: DecisionRequest) -> Decision:
        return result(self.decide_in_steps(request))

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        if request.instruction == "die":
            os._exit(1)
        while request.instruction == "for ever":
            time.sleep(0.01)
            yield
        if request.instruction == "raise":
            raise ValueError("no")
        return Decision(Call("pid", {"pid": os.getpid(), "nice": os.nice(0)}))

    def info(self) -> dict[str, object]:
        return {"engine": "talker"}
