"""Execute `rtcontrol run` for a drill, with an environment that logs its calls and can be made to hang.

Usage: `python -m rtcontrol.drill.drilled OPTIONS FOLDER`. Each call, reset and decision is appended as a JSON
line to FOLDER/events. While the file FOLDER/hang exists, the next step of the environment does not return.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.envs.base import Environment
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.hosts.deciders import STSource
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionRequest
from rtcontrol.models.call import Decision
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import RunOptions
from rtcontrol.run.run import run
from rtcontrol_client.shutdown import Shutdown

PR_SET_PDEATHSIG = 1


class EventFile:
    """The file of logged events (JSON lines), to which several processes append. Times are CLOCK_MONOTONIC."""

    def __init__(self, folder: str) -> None:
        self._file = os.open(Path(folder, "events"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: str, t_ns: int, **fields: Any) -> None:
        os.write(self._file, json.dumps({"event": kind, "t": t_ns, **fields}).encode() + b"\n")


class LoggedSimulation:
    """A wrapper of an environment's simulation that logs each call and reset, and hangs while FOLDER/hang exists."""

    def __init__(self, world: PacedEnvironment, folder: str) -> None:
        self._world, self._inner = world, world._simulation
        self._events, self._hang = EventFile(folder), Path(folder, "hang")
        self.bindings = {name: self._with_logging(function) for name, function in self._inner.bindings.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reset(self, seed: int) -> None:
        self._inner.reset(seed)
        self._events.write("reset", time.monotonic_ns())

    def step(self) -> None:
        while self._hang.exists():
            time.sleep(0.005)
        self._inner.step()

    def _with_logging(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `function` and logs start, end, deadline and failure of the call."""

        @functools.wraps(function)
        def logged_call(**arguments: Any) -> Any:
            start_ns, not_after_ns, failed = time.monotonic_ns(), self._world.not_after_ns, True
            try:
                result = function(**arguments)
                failed = False
                return result
            finally:
                self._events.write("act", start_ns, end=time.monotonic_ns(), not_after=not_after_ns, failed=failed)

        return logged_call


@dataclass(frozen=True)
class LoggedSource:
    """A factory for a LoggedDecider, which the decoder's process calls."""

    source: DeciderSource
    folder: str

    def build(self) -> LoggedDecider:
        return LoggedDecider(self.source.build(), EventFile(self.folder))


class LoggedDecider:
    """A wrapper of a decider that logs the process id of each decision."""

    def __init__(self, inner: Decider, events: EventFile) -> None:
        self._inner, self._events = inner, events

    def decide(self, request: DecisionRequest) -> Decision:
        self._events.write("decision", time.monotonic_ns(), pid=os.getpid())
        return self._inner.decide(request)

    def info(self) -> dict[str, Any]:
        info = getattr(self._inner, "info", None)
        return {} if info is None else dict(info())


def add_logging(folder: str, agent: Agent, env: Environment, source: DeciderSource) -> tuple[Any, Any, Any]:
    """Return the run's agent, environment and decider source, with wrappers that log to `folder`. Disable null
    decisions, because the judge of the drill cannot distinguish them from missing decisions."""
    if not isinstance(env, PacedEnvironment):
        raise UserError(f"A drill cannot use the environment {env.name}.", "Use a bundled environment or a .py file.")
    env._simulation = LoggedSimulation(env, folder)  # type: ignore[assignment]
    if isinstance(source, STSource) and source.spec.allow_null:
        source = replace(source, spec=replace(source.spec, allow_null=False))
    return replace(agent, allow_null=False), env, LoggedSource(source, folder)


def main() -> None:
    # Make the kernel send SIGTERM to this process when the drill's process ends.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    settings, folder = json.loads(sys.argv[1]), sys.argv[2]
    out = Path(settings.pop("out"))
    options = RunOptions(out=out, live=False, duration_s=1e6, **settings).in_folder(out)
    try:
        with Shutdown() as ending:
            sys.exit(run(options, ending, functools.partial(add_logging, folder)))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
