"""Carries out a call: in the environment, or by the tool's own function where the environment has none."""

from __future__ import annotations

from rtcontrol.agents import Tools
from rtcontrol.envs.base import Environment
from rtcontrol.models.call import Call


def act(tools: Tools, env: Environment, call: Call, epoch: int) -> bool:
    """Validate and execute `call`, its arguments converted to the annotated types. False when `epoch` is over.

    Raises InvalidCall, or what the executor raises.
    """
    call = tools.validate(call)
    if call.name in env.bindings:
        return env.execute(Call(call.name, tools.convert(call)), epoch)
    seen = env.latest()
    if env.finished or (seen is not None and seen.epoch != epoch):
        return False
    tools.execute(call)
    return True
