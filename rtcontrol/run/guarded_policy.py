"""A policy server from Python: `rtcontrol.policy`. Each decision is there by its deadline, or it is the safe call."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rtcontrol.agents import InvalidCall, Tools
from rtcontrol.hosts.policy_api import PolicySource
from rtcontrol.hosts.policy_mapping import UnmappedObservation
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import is_policy
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.run.api import MAX_DEADLINE_MS, Given, SessionDecision
from rtcontrol.run.deadline import InTime
from rtcontrol.run.session_checks import check_safe, kind_of

INVALID, TIMEOUT = "invalid", "timeout"


@dataclass(frozen=True, slots=True)
class PolicyDecision(SessionDecision):
    """Where it is `missed`, `call` is the safe call, `loss` the sub-cause that a report would have (docs/policies.md),
    and `why` says it in words."""

    loss: str | None = None
    why: str | None = None


class GuardedPolicy:
    """Asks a policy server (`openpi:ws://HOST:PORT#policy.yaml`), one decision at a time, on a connection that is kept.

    `tools` are functions, pydantic models or OpenAI-style definitions; `safe_call` is given in place of what is late,
    lost or illegal; `step_ms` is how long an action of a plan stands, where the mapping does not say it. Raises
    UserError."""

    def __init__(self, name: str, tools: Tools | Given, safe_call: Call | None = None, step_ms: float = 50.0) -> None:
        if not is_policy(name):
            raise UserError(
                f"{name[:80]!r} is no policy server.", "Give openpi:ws://HOST:PORT, or rtcontrol.load(...)."
            )
        _check_ms("step_ms", step_ms)
        self.tools = tools if isinstance(tools, Tools) else Tools(tools)
        check_safe(self.tools, safe_call)
        self.safe_call = safe_call
        self._decider = PolicySource.parse(name, self.tools.openai(), round(step_ms * 1e6)).build()
        self._in_time = InTime()
        self._asked = 0

    def decide(self, data: Mapping[str, Any], instruction: str = "", *, deadline_ms: float) -> PolicyDecision:
        """The call for what is observed (numbers and arrays by their names) and told. Raises UserError for an
        observation that is not as the mapping says, and for a policy that does not fit it."""
        called_s = time.monotonic()
        _check_ms("deadline_ms", deadline_ms)
        if not isinstance(data, Mapping) or not isinstance(instruction, str):
            what = f"What is observed is {kind_of(data)}, and what is told {kind_of(instruction)}."
            raise UserError(what, "Give decide({name: value, ...}, instruction, deadline_ms=50).")
        self._asked += 1
        told = dict(data), round(deadline_ms * 1e6)
        request = DecisionRequest(self._asked, 0, "", instruction, data=told[0], within_ns=told[1])
        by_s = called_s + deadline_ms / 1e3
        try:
            made = self._in_time.until(by_s, lambda: self._decider.decide(request), lambda: None)
        except DecisionLost as error:
            return self._missed(error.loss, str(error))
        except UnmappedObservation as error:
            raise UserError(f"{error}.", "Name its fields in a mapping file (docs/policies.md).") from None
        return self._given(made[0]) if made else self._missed(TIMEOUT, f"no answer within {deadline_ms:g} ms")

    def _given(self, decision: Decision) -> PolicyDecision:
        try:
            if decision.call is not None:
                self.tools.validate(decision.call)
        except InvalidCall as error:
            return self._missed(INVALID, str(error))
        return PolicyDecision(**{field.name: getattr(decision, field.name) for field in fields(Decision)})

    def _missed(self, loss: str, why: str) -> PolicyDecision:
        return PolicyDecision(self.safe_call, missed=True, loss=loss, why=why)

    def info(self) -> dict[str, Any]:
        """What decides: address, tool, the actions' numbers."""
        return self._decider.info()

    def close(self) -> None:
        """Cut the connection."""
        self._decider.close()


def _check_ms(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 < value <= MAX_DEADLINE_MS:
        raise UserError(
            f"{name}={str(value)[:80]!r} is no time.", f"Give milliseconds, above 0 to {MAX_DEADLINE_MS:g}."
        )
