"""What the benches of decisions have in common, and their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from rtcontrol.envs.registry import agent_names

if TYPE_CHECKING:
    from rtcontrol.models.decider import DeciderSpec

Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of torch (default: the model's own).")]


@dataclass(frozen=True)
class BenchOptions:
    """What is common to the benches of decisions. `quick`: a few of each, to see that it works. Raises UserError for an
    agent that is not known."""

    model: Annotated[str, typer.Option(help="Bundled name, folder or hub id.")] = "lander"
    agent: Annotated[
        str,
        typer.Option(
            help=f"Whose situations: {', '.join(agent_names())} (default: MODEL's, or lander's).", show_default=False
        ),
    ] = ""
    dtype: Annotated[str, typer.Option(help="auto, fp32, bf16 or int8 (torch, CPU).")] = "auto"
    threads: Threads = None
    quick: bool = False

    def __post_init__(self) -> None:
        from rtcontrol.bench.situations import agent_of

        object.__setattr__(self, "agent", agent_of(self.model, self.agent or None))

    def spec(self, tools: str) -> DeciderSpec:
        """A session with the agent's own tools (`bundled`) or `long`."""
        from rtcontrol.bench.situations import schemas
        from rtcontrol.models.decider import DeciderSpec

        return DeciderSpec(self.model, tuple(schemas(self.agent)[tools]), dtype=self.dtype, threads=self.threads)
