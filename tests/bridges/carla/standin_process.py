"""The stand-in as a process of its own, which a test makes go wrong and asks what happened in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rtcontrol.run import carla_bridge


class StandIn(carla_bridge.StandIn):
    """Listens when it is made. Ends with the block, or with the process that made it."""

    def __init__(self, *options: str, state: Path | None = None) -> None:
        super().__init__(*options, state=state)
        self.state_path = state

    def command(self, line: str) -> None:
        """Makes something go wrong, and returns once it does (see `__main__`)."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        assert said == f"done: {line}\n", f"the CARLA stand-in answered {said!r} to {line!r}"

    def state(self) -> dict[str, Any]:
        """Its state now."""
        assert self.state_path
        self.command("state")
        found: dict[str, Any] = json.loads(self.state_path.read_text())
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
