"""A server in a thread that decides by a fixed rule, speaks the protocol at 16 Hz, and can be made silent."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

from rtcontrol_client.wire import Message
from rtcontrol_client.wire.messages import Bye, ErrorMessage, Executed, FunctionCall, Hello, Instruct, Observe, Reset
from tests.conformance.check.stand import Stand

HZ = 16.0
Policy = Callable[[str, str], FunctionCall]


def wander(text: str, instruction: str) -> FunctionCall:
    """Drive on, or turn left if something is near; stop if the instruction says so."""
    if instruction == "halt":
        return FunctionCall(name="stop")
    field = {name: float(value) for name, value in re.findall(r"(\w+) (-?[\d.]+)", text)}
    near = min(field["ahead"], field["left"], field["right"]) < 0.8
    return FunctionCall(name="drive", arguments={"speed": 0 if near else 30, "turn": "left" if near else "straight"})


class Brain:
    """A scripted server, whose `policy` returns the call for an observation's text and an instruction.

    `silent`: send nothing; `complaint`: an error to send once; `left`: the client has sent a bye.
    """

    def __init__(self, policy: Policy = wander, ttl_ms: float = 500.0) -> None:
        self.policy, self.ttl_ms = policy, ttl_ms
        self.silent = self.left = False
        self.complaint: ErrorMessage | None = None
        self.epoch = 0  # counts the episodes that the bridge has started
        self.hello: Hello | None = None
        self.instruction = ""
        self.observed: Observe | None = None
        self.outcomes: list[Executed] = []
        self._stand = Stand("tcp://127.0.0.1:*")
        self.endpoint = self._stand.endpoint
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._stand.close()

    def _run(self) -> None:
        stand, tick, due = self._stand, 0, time.monotonic()
        while not self._stop.is_set():
            message = stand.pump(max(0.001, due - time.monotonic()), lambda m: True)
            if message is not None:
                self._hear(message)
            if time.monotonic() >= due:
                due += 1 / HZ
                tick += 1
                if (seen := self.observed) is not None and not self.silent:
                    stand.call(seen, tick=tick, **self._answer(seen))
            if self.complaint is not None:
                stand.send(self.complaint)
                self.complaint = None

    def _answer(self, seen: Observe) -> dict[str, Any]:
        call = self.policy(seen.text or "", self.instruction)
        return {"seq_obs": None, "epoch": seen.epoch, "t_obs_ns": seen.t_ns, "call": call, "ttl_ms": self.ttl_ms}

    def _hear(self, message: Message) -> None:
        if isinstance(message, Hello):
            self.hello, self.instruction, self.observed = message, message.instruction or "", None
            period = dict.fromkeys(("period_ms", "deadline_ms"), 1000 / HZ)
            self._stand.welcome(hz=HZ, **period, ttl_ms=self.ttl_ms, max_age_ms=250.0, hold_ms=500.0)
        elif isinstance(message, Observe):
            self.observed = message
        elif isinstance(message, Reset):
            self.observed, self.epoch = None, message.epoch
        elif isinstance(message, Instruct):
            self.instruction = message.instruction
        elif isinstance(message, Bye):
            self.left = True
        elif isinstance(message, Executed):
            self.outcomes.append(message)
