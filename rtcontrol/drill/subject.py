"""The run that is drilled, as a program: `rtcontrol run` with its world, agent and decider wrapped."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.drill.judge import end_with_parent
from rtcontrol.drill.switches import Switches
from rtcontrol.drill.wrappers import CLOCK_JUMP_S, FaultySource, FaultyWorld, Line, faulty_agent
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
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a hangup is a fault, however the drill was started
    told: dict[str, Any] = json.loads(sys.argv[1])
    out = Path(told["options"].pop("out"))
    options = RunOptions(out=out, live=False, duration_s=1e6, **told["options"]).at(out)
    switches, line, delay_s = Switches(told["switches"]), Line(told["judge"]), DELAY * options.deadline_ns / 1e9

    def wrapped(agent: Agent, env: Environment, source: DeciderSource) -> tuple[Agent, Environment, DeciderSource]:
        world = FaultyWorld(env, switches, line, delay_s)
        faulty = faulty_agent(agent, world, switches, line, delay_s)
        return faulty, world, FaultySource(source, told["switches"], delay_s)

    _let_the_clock_jump(switches)
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


def _let_the_clock_jump(switches: Switches) -> None:
    """Python's wall clock, in this process: the machine's own is not ours to set."""
    now, now_ns = time.time, time.time_ns

    def jumped() -> float:
        return CLOCK_JUMP_S if switches.on("clock_jump") else 0.0

    time.time = lambda: now() + jumped()
    time.time_ns = lambda: now_ns() + round(jumped() * 1e9)


if __name__ == "__main__":
    main()
