"""The run that is drilled, as a program: `rtcontrol run` with its world, agent and decider wrapped."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.drill.judge import end_with_parent
from rtcontrol.drill.switches import Switches
from rtcontrol.drill.wrappers import FaultySource, FaultyWorld, Line, always_calling, faulty_agent
from rtcontrol.envs.base import Environment
from rtcontrol.hosts.protocol import DeciderSource
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import RunOptions
from rtcontrol.run.run import run
from rtcontrol_client.shutdown import Interrupted, Shutdown

# So much longer than the deadline what is made slow takes.
DELAY = 1.5


def main() -> None:
    end_with_parent(signal.SIGTERM)
    told: dict[str, Any] = json.loads(sys.argv[1])
    out = Path(told["options"].pop("out"))
    options = RunOptions(out=out, live=False, duration_s=1e6, **told["options"]).at(out)
    switches, line, delay_s = Switches(told["switches"]), Line(told["judge"]), DELAY * options.deadline_ns / 1e9

    def wrapped(agent: Agent, env: Environment, source: DeciderSource) -> tuple[Agent, Environment, DeciderSource]:
        world = FaultyWorld(env, switches, line, delay_s)
        faulty = faulty_agent(agent, world, switches, line, delay_s)
        return faulty, world, FaultySource(always_calling(source), told["switches"], delay_s)

    status = 1
    try:
        with Shutdown() as ending:
            status = run(options, ending, wrapped)
    except Interrupted as interrupted:
        status = interrupted.status
    except UserError as error:
        print(error, file=sys.stderr)
        status = 2
    sys.stdout.flush()
    sys.exit(status)


if __name__ == "__main__":
    main()
