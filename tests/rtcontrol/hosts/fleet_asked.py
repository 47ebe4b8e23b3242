"""What the tests of fleets share: sources that have a model by name, and a session that asks on and on."""

from __future__ import annotations

import threading
from typing import Any, Self

from pooled import request

from rtcontrol.hosts.fleet_host import FleetHost
from rtcontrol.hosts.protocol import DecisionReply
from tests.helpers.processes import until


def modelled(name: str) -> Any:
    """A source by the model `name`, which its calls are named for. `bad` fails at each decision, `broken` cannot be
    built. Made of local classes, which Ray carries by value."""
    import time
    from dataclasses import dataclass, field

    from rtcontrol.models.call import Call, Decision
    from rtcontrol.models.errors import UserError

    @dataclass(frozen=True)
    class Spec:
        model: str
        tools: tuple[Any, ...] = ()

    @dataclass(frozen=True)
    class Modelled:
        spec: Spec
        parts: list[int] = field(default_factory=list, compare=False)

        def build(self) -> Modelled:
            if self.spec.model == "broken":
                raise UserError("No such checkpoint.", "Give another.")
            return self

        def decide(self, asked: Any) -> Decision:
            if self.spec.model == "bad":
                raise ValueError("no scores")
            if asked.instruction.startswith("sleep"):
                time.sleep(float(asked.instruction.split()[1]))
            return Decision(Call(self.spec.model, {"at": asked.observation}))

        def info(self) -> dict[str, Any]:
            return {"model": self.spec.model}

    return Modelled(Spec(name))


class Asking:
    """A session's loop: it asks, waits for the answer until its decoder is lost, and asks again. `answers` has of each
    tick its reply, None where there was none."""

    def __init__(self, host: FleetHost, instruction: str = "go", pause_s: float = 0.005) -> None:
        self.host, self._instruction, self._pause_s = host, instruction, pause_s
        self.answers: list[DecisionReply | None] = []
        self.stray: list[int] = []  # answers to a tick that was over
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._over.wait(self._pause_s):
            if not self.host.alive():
                self.answers.append(None)
                continue
            tick, incarnation = len(self.answers), self.host.incarnation
            self.host.submit(request(tick, self._instruction))
            reply: DecisionReply | None = None
            while reply is None and self.host.alive() and self.host.incarnation == incarnation:
                reply = self.host.wait(20_000_000)
                if reply is not None and reply.tick != tick:
                    self.stray.append(reply.tick)
                    reply = None
                if self._over.is_set() and reply is None:
                    return
            self.answers.append(reply)

    def called(self, since: int = 0) -> list[str | None]:
        """By which model, or None."""
        return [None if r is None or r.decision is None else r.decision.call.name for r in self.answers[since:]]  # type: ignore[union-attr]

    def go_on(self, count: int = 10) -> None:
        mark = len(self.answers)
        until(lambda: sum(name is not None for name in self.called(mark)) >= count, "no more answers", 60.0)
