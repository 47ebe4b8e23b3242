"""Carry out in an environment what the actuator decides: calls, safe calls, what it is told. All of it may block."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from rtcontrol.agents import Agent
from rtcontrol.agents.signatures import carry_out
from rtcontrol.envs.base import Effect, Emission, Emitting, Environment, Stepping
from rtcontrol.loop.actuator_core import Instruct
from rtcontrol.loop.safe_calls import Attempt, AttemptResult, Emit
from rtcontrol.models.call import Call
from rtcontrol.records import Command


class Acting:
    """The environment, and the agent's own functions for tools that it has no binding for."""

    def __init__(self, agent: Agent, env: Environment) -> None:
        self.functions = {tool.name: tool.function for tool in agent.tools}
        self._convert, self._env, self._bindings = agent.tools.convert, env, env.bindings
        self.emit: Callable[[Emission], None] = env.emit if isinstance(env, Emitting) else lambda emission: None
        self._stepping = env if isinstance(env, Stepping) else None

    def act(self, call: Call, command: Command | None = None) -> Effect:
        """Execute the call; without a command: a safe call, which nothing holds back. Raises what it raises."""
        if call.name in self._bindings:
            epoch, not_after_ns = (None, None) if command is None else (command.epoch, command.not_after_ns)
            return self._env.execute(call, epoch, not_after_ns, command)
        if command is not None:
            if self._env.finished or ((seen := self._env.latest()) and seen.epoch != command.epoch):
                return "epoch_over"
            if command.not_after_ns is not None and time.monotonic_ns() > command.not_after_ns:
                return "too_late"
            if command.shut is not None:
                return "refused"
        carry_out(self.functions[call.name], **call.arguments)
        return "acted"

    def perform(self, command: Command) -> tuple[Effect | Literal["failed"], BaseException | None]:
        """Execute a command. Return its effect, and what it raises."""
        try:
            return self.act(command.call, command), None
        except BaseException as error:  # also SystemExit: a tool must not end the one thread that can stop it
            return "failed", error

    def attempt(self, attempt: Attempt) -> AttemptResult:
        """Execute a safe call, and ask whether the world has stepped with it."""
        effect: Effect = "acted"
        acted_ns, call = attempt.acted_ns, attempt.safe.call
        stepped: bool | None = True
        try:
            if acted_ns is None and call is not None:
                effect = self.act(Call(call.name, self._convert(call)))
                acted_ns = time.monotonic_ns()
            if effect == "acted" and acted_ns is not None and self._stepping is not None:
                stepped = self._stepping.settle(acted_ns)
        except BaseException as error:  # it is tried again
            return AttemptResult(effect, acted_ns, stepped, error)
        return AttemptResult(effect, acted_ns, stepped)

    def tell(self, job: Emit | Instruct) -> BaseException | None:
        """Tell the world. Return what it raises."""
        try:
            self._env.instruct(job.text) if isinstance(job, Instruct) else self.emit(job.emission)
        except BaseException as error:
            return error
        return None
