"""`rtcontrol run --env carla-bridge`: a run whose world is CARLA, joined by a bridge in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rtcontrol.hosts.processes import Guardian
from rtcontrol.models.errors import UserError
from rtcontrol.run.carla_bridge import BridgeProcess, StandIn
from rtcontrol.run.options import CARLA, STANDIN, RunOptions
from rtcontrol.run.run import INTERNAL
from rtcontrol_client.shutdown import Interrupted, Shutdown

AGENT = "driver"
# In CARLA, and in the stand-in.
TRAFFIC = (20, 12)


def run_carla(
    options: RunOptions, ending: Shutdown, run: Callable[[RunOptions, Shutdown, str, BridgeProcess], int]
) -> int:
    """Check CARLA, then `run` with the bridge as the client at an endpoint. Gives the exit status: as a run's, 1 where
    the bridge gave up.

    UserError before anything is run where there is no CARLA server, or not one that the bridge can drive in.
    """
    if importlib.util.find_spec("carla") is None:
        raise UserError(
            "--env carla-bridge needs CARLA's client.",
            "Install it: pip install 'rtcontrol[carla]' (there are wheels for Python 3.11 and 3.12).",
        )
    options = replace(options, env=STANDIN if options.carla_standin else CARLA, agent=options.agent or AGENT)
    with contextlib.ExitStack() as stack:
        guardian = Guardian()  # it removes its folder, however we end
        stack.callback(guardian.end)
        folder = Path(guardian.folder)
        traffic = options.traffic if options.traffic is not None else TRAFFIC[options.carla_standin]
        host, port = options.carla_host, options.carla_port
        if options.carla_standin:
            state = folder / "standin.json"
            stack.callback(_keep, state, options.out)
            port = stack.enter_context(StandIn(state=state)).port
            print(f"driving in the CARLA stand-in, not CARLA (port {port})", file=sys.stderr)
        endpoint = f"ipc://{folder}/wire"
        bridged = stack.enter_context(BridgeProcess(_command(options, host, port, traffic, endpoint), options.out))
        bridged.await_ready()
        try:
            status = run(options, ending, endpoint, bridged)
        except Interrupted as interrupted:
            status = interrupted.status
        bridged.close()
        if (why := bridged.gave_up) is not None:
            print(why, file=sys.stderr)
            return status or INTERNAL
        return status
    raise AssertionError("an exit stack passes errors on")


def _command(config: RunOptions, host: str, port: int, traffic: int, endpoint: str) -> list[str]:
    """The bridge's command line."""
    command = [sys.executable, "-m", "rtcontrol_client.carla", "--supervised", "--connect", endpoint]
    command += [f"--carla-host={host}", "--carla-port", str(port), "--traffic", str(traffic)]
    # The server has one agent: whichever it is.
    command += ["--agent", "", "--connect-timeout", "0", "--hz", f"{config.hz:g}", "--clock", config.clock]
    command += ["--seed", str(config.seed)]
    command += ["--report", str(config.out / "bridge.json")]
    if config.town is not None:
        command.append(f"--town={config.town}")
    if config.carla_standin:
        command.append("--standin")
        if config.clock == "lockstep":
            # Its lights change since it was started: from their beginning again.
            command.append("--reload")
    return command


def _keep(state: Path, out: Path) -> None:
    """The stand-in's last words about itself go to the run's folder."""
    if state.exists() and out.is_dir():
        shutil.copy(state, out / "standin.json")
