"""`rtcontrol run --env carla-bridge`: a run whose world is CARLA, joined by a bridge in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from rtcontrol.bridged import Bridged
from rtcontrol.config import RunConfig
from rtcontrol.models.errors import UserError
from rtcontrol.standin import StandIn

AGENT = "driver"
ENV, STANDIN_ENV = "carla-bridge", "carla-standin"
TRAFFIC, STANDIN_TRAFFIC = 20, 12
SIGTERM_STATUS = 143


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveOptions:
    """`traffic`: vehicles beside ours (None: 20, of the stand-in 12); `reconnect_s`: how long a lost CARLA server is
    waited for; `trace`: the bridge writes a line a step to trace.jsonl in the run's folder."""

    host: str = "127.0.0.1"
    port: int = 2000
    town: str | None = None
    traffic: int | None = None
    standin: bool = False
    reconnect_s: float = 30.0
    trace: bool = False


def drive(
    config: RunConfig, options: DriveOptions, live: bool = True, stdin: bool = False, overwrite: bool = False
) -> int:
    """Check CARLA, then run as `fly_remote` does; gives the exit status: as a run's, 1 where the bridge gave up.

    UserError before anything is flown where there is no CARLA server, or not one that the bridge can drive in.
    """
    if importlib.util.find_spec("carla") is None:
        raise UserError("--env carla-bridge needs CARLA's client.", "Install it: pip install 'rtcontrol[carla]'.")
    if (config.out / "record.jsonl").exists() and not overwrite:
        raise UserError(f"{config.out} holds the record of a run already.", "Give another --out, or --overwrite.")
    config = replace(
        config,
        env=STANDIN_ENV if options.standin else config.env,
        agent=config.agent or AGENT,
        # CARLA has no episodes.
        episodes=None,
    )
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rtcontrol-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # A SystemExit unwinds the stack as any error does.
        stack.enter_context(_terminable())
        if options.standin:
            state = folder / "standin.json"
            stack.callback(_keep, state, config.out)
            standin = stack.enter_context(StandIn(_traffic(options), config.seed, state))
            options = replace(options, host="127.0.0.1", port=standin.port, traffic=0)
        endpoint = f"ipc://{folder}/wire"
        bridged = stack.enter_context(Bridged(_command(config, options, endpoint), config.out))
        bridged.await_ready()
        # What decides takes longer to import than to find out that there is no CARLA.
        from rtcontrol.fly import Interrupted
        from rtcontrol.serve.solo import fly_remote

        try:
            status = fly_remote(config, endpoint, None, None, live, stdin, overwrite, bridged)
        except Interrupted as interrupted:
            status = interrupted.status
        bridged.close()
        if (why := bridged.gave_up) is not None:
            print(why, file=sys.stderr)
            return status or 1
        return status
    raise AssertionError("an exit stack passes errors on")


def _traffic(options: DriveOptions) -> int:
    default = STANDIN_TRAFFIC if options.standin else TRAFFIC
    return default if options.traffic is None else options.traffic


def _command(config: RunConfig, options: DriveOptions, endpoint: str) -> list[str]:
    """The bridge's command line."""
    command = [sys.executable, "-m", "rtcontrol.bridges.carla", "--supervised", "--connect", endpoint]
    command += [f"--carla-host={options.host}", "--carla-port", str(options.port), "--traffic", str(_traffic(options))]
    # The server has one agent: whichever it is.
    command += ["--agent", "", "--connect-timeout", "0", "--hz", f"{config.hz:g}", "--clock", config.clock]
    command += ["--seed", str(config.seed), "--reconnect-s", f"{options.reconnect_s:g}"]
    command += ["--report", str(config.out / "bridge.json")]
    if config.rt_priority:
        command += ["--rt-priority", str(config.rt_priority)]
    if options.town is not None:
        command.append(f"--town={options.town}")
    if options.trace:
        command += ["--trace", str(config.out / "trace.jsonl")]
    if options.standin:
        command.append("--standin")
        if config.clock == "lockstep":
            # Its traffic drives since it was started: from its beginning again.
            command.append("--reload")
    return command


def _keep(state: Path, out: Path) -> None:
    """The stand-in's last words about itself go to the run's folder."""
    if state.exists() and out.is_dir():
        shutil.copy(state, out / "standin.json")


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends what is being waited for as Ctrl-C does, with its own exit status."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(SIGTERM_STATUS)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
