"""What `rtcontrol serve --openpi` is told: the agent's tool as actions, and its observation as arrays."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rtcontrol.agents import Agent
from rtcontrol.envs.registry import by_agent
from rtcontrol.hosts.policy_mapping import STATE, PolicyMapping, UnmappedObservation
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly

NAME_THEM = "Give --openpi-map policy.yaml with `observation: {observation/state: [x, y]}` (docs/policies.md)."


@dataclass(frozen=True)
class PolicyOptions:
    """`mapping` knows the observation's fields; `safe_call` has an action."""

    mapping: PolicyMapping
    safe_call: Call

    @classmethod
    def parse(cls, agent: Agent, file: Path | None) -> Self:
        """Raises UserError for an agent that no action can be called by."""
        if len(agent.tools.schemas) > 1:
            names = ", ".join(tool.name for tool in agent.tools)
            raise UserError(
                f"--openpi: the agent {agent.name} calls {names}, and an action is a call of one tool.",
                "Serve an agent with one tool.",
            )
        mapping = PolicyMapping.read(None if file is None else str(file), agent.tools.schemas)
        safe = agent.fallback.safe_calls
        if len(safe) != 1:
            remedy = "Give its file a `Fallback(Call(...))` of its one tool."
            raise UserError(f"--openpi: the agent {agent.name} has {len(safe)} safe calls, and no action.", remedy)
        mapping.row(safe[0])
        return cls(_fixed(mapping, agent), safe[0])

    def metadata(self) -> dict[str, Any]:
        """What a client is told of the actions and of what is looked at in an observation."""
        mapping = self.mapping
        assert mapping.observation is not None, "it is fixed"
        return {
            "tool": mapping.tool,
            "action_dim": len(mapping.dims),
            "action_horizon": 1,
            "action_names": [None if dim is None else dim.name for dim in mapping.dims],
            "safe_action": mapping.row(self.safe_call),
            "observation": {key: list(of) if isinstance(of, tuple) else of for key, of in mapping.observation.items()},
            "prompt": mapping.prompt,
        }


def _fixed(mapping: PolicyMapping, agent: Agent) -> PolicyMapping:
    """The mapping with the fields of the agent's world, where it names none. Raises UserError."""
    if mapping.observation is not None:
        return mapping
    world = by_agent().get(agent.name)
    if world is None or world.agent not in assembly.agents():
        raise UserError(f"--openpi: nobody says which fields of an observation are {STATE!r}.", NAME_THEM)
    with closing(assembly.environment(world.name, None)) as env:
        seen = env.preview(0)  # type: ignore[attr-defined]
    try:
        return mapping.fixed(seen.data)
    except UnmappedObservation as error:
        raise UserError(f"--openpi: {error}.", NAME_THEM) from None
