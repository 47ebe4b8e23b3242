"""The bridge's main loop: step the simulation, send observations, execute the active call, and report the result."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtcontrol_client import ClientError, Standing
from rtcontrol_client.carla.control import Control
from rtcontrol_client.carla.driver import DriveCounts, Driver, observe
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.lights import set_stop_lines
from rtcontrol_client.carla.observing import Scene
from rtcontrol_client.carla.options import CarlaBridgeError, DriveOptions, ServerLost
from rtcontrol_client.carla.world import CarlaWorld
from rtcontrol_client.sessions import BridgeSessions
from rtcontrol_client.wire.messages import FunctionCall

if TYPE_CHECKING:
    from rtcontrol_client.carla.observing import Body


# At the end of a run, the vehicle must brake to a halt within this number of simulated seconds.
HALT_S = 3.0
HALTED_MPS = 0.1
BETWEEN_TRIES_S = 0.3
DECIDE_S = 30.0
MAX_SHIFT = 0.05  # maximum shift of the next step, as a share of the step interval
FULL_STOP, STOP = Control(brake=1.0), FunctionCall(name="stop")
log = logging.getLogger("rtcontrol.carla")


class Trace:
    """A trace file of JSON lines, opened for appending. After a write error, the file is closed with a warning, and the
    drive continues without a trace."""

    def __init__(self, path: Path) -> None:
        if path.is_fifo():
            path.unlink()  # opening a FIFO would block the drive
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, frame: int, own: Body, standing: Standing, control: Control) -> None:
        """Write a line about one step: `t_s` on the machine's monotonic clock, the vehicle, and the active call."""
        line = {
            "t_s": round(time.monotonic(), 4),
            "frame": frame,
            "x": round(own.x, 4),
            "y": round(own.y, 4),
            "yaw": round(own.yaw_deg, 3),
            "kmh": round(3.6 * own.speed, 2),
            "status": standing.status,
            "cause": standing.cause,
            "call": None if standing.call is None else {"name": standing.name, **standing.arguments},
            "age_ms": None if standing.age_ms is None else round(standing.age_ms, 1),
            "throttle": round(control.throttle, 4),
            "brake": round(control.brake, 4),
            "steer": round(control.steer, 5),
        }
        if not self._file.closed:
            try:
                self._file.write(json.dumps(line) + "\n")
            except OSError as error:
                log.warning("the trace %s is incomplete: it can no longer be written (%s)", self._file.name, error)
                self.close()

    def close(self) -> None:
        """Close the file; data that cannot be written is lost."""
        with contextlib.suppress(OSError):
            self._file.close()


class StepTimer:
    """A timer with a fixed interval. Missed intervals are skipped, which does not shift the later ones."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._next_s = time.monotonic()

    def delay(self, seconds: float) -> None:
        """Shift all following intervals by `seconds`, limited to the share MAX_SHIFT of an interval, so that simulated
        time does not visibly change its speed."""
        max_shift_s = MAX_SHIFT * self._step_s
        self._next_s += min(max(seconds, -max_shift_s), max_shift_s)

    def wait(self) -> int:
        """Sleep until the next interval starts; return the number of skipped intervals."""
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        skipped = int((time.monotonic() - self._next_s) / self._step_s)
        self._next_s += (skipped + 1) * self._step_s
        return skipped


class CarlaSession(BridgeSessions):
    """The session with the rtcontrol server: sends observations, receives calls, and acknowledges them."""

    def __init__(self, options: DriveOptions) -> None:
        timeout_s = options.connect_timeout_s or None
        super().__init__(options.endpoint, self._client_options, options.instruction, timeout_s, options.once)
        self._drive_options = options

    def _client_options(self, instruction: str | None) -> dict[str, Any]:
        options = self._drive_options
        lockstep = options.clock == "lockstep"
        return {
            "agent": options.agent or None,
            "instruction": instruction,
            "hz": options.hz,
            "pacing": "client" if lockstep else "server",
            "robot": f"carla-{options.host}-{options.port}"[:64],  # a server accepts one session per robot name
            "name": "rtcontrol_client.carla",
            "acknowledge": True,
            # In lockstep, the simulation waits for the decision, so a call cannot expire.
            "ttl_ms": 0.0 if lockstep else None,
            "keys": options.keys,
            "server_key": options.server_key,
        }

    def early_s(self) -> float:
        """Return by how many seconds observations are too early for the server's ticks (negative: too late). Return 0
        if this is unknown or the server has another rate."""
        client = self.client
        if client is None or not client.connected or not client.timed:
            return 0.0
        period_s = client.welcome.period_ms / 1e3
        if abs(period_s * self._drive_options.hz - 1.0) > 0.01:
            return 0.0
        left_s = client.next_observation_ns() / 1e9 - time.monotonic()
        return left_s if left_s < period_s / 2 else left_s - period_s

    def observe(self, data: Mapping[str, Any]) -> None:
        """Send an observation if a session is open."""
        if self.client is not None and self.number and self.client.error is None:
            self.client.observe(data=data)

    def decide(self, data: Mapping[str, Any]) -> Standing | None:
        """Send an observation and wait for its call; return None if the session ended. Never returns the previous call,
        because a lockstep drive must not depend on timing."""
        if (client := self.client) is None:
            return None
        try:
            standing = client.decide(data, timeout=DECIDE_S)
        except ClientError as error:
            log.warning("%s", error)
            standing = client.call()
        return standing if client.error is None else None

    def interrupt(self) -> None:
        """Interrupt a `decide` that waits in another thread."""
        self.over = True
        if (client := self.client) is not None:
            client.close()

    def executed(self, standing: Standing, refused: str | None) -> None:
        """Report to the server that a call was executed, or why the driver `refused` it."""
        if self.client is not None and self.client.error is None:
            self.client.executed(standing, "executed" if refused is None else "refused", error=refused)


def execute_safe_calls(driver: Driver, standing: Standing) -> None:
    """Execute all safe calls in order. Execute `stop` if the list is empty, or if the driver refuses a call."""
    for call in standing.calls or (STOP,):
        if driver.obey(call.name, call.arguments) is not None:
            driver.obey(STOP.name, STOP.arguments)


@dataclass(slots=True)
class DriveStatistics:
    """Statistics of a drive since a server first accepted the bridge: its duration and the number of skipped steps."""

    started_s: float = field(default_factory=time.monotonic)
    simulated_s: float = 0.0
    skipped: int = 0


class CarlaBridge:
    """Drives the ego vehicle in an open CARLA world. `run` blocks; `stop` may be called from any thread or signal
    handler."""

    def __init__(self, world: CarlaWorld) -> None:
        self._world = world
        road = TownRoad(world.map)
        set_stop_lines(road, world.lamps())
        self._driver = Driver(road, world.options.step_s)
        self._scene: Scene = world.scene()
        self._driver.look(self._scene)
        self._session = CarlaSession(self._options)
        self._drive = DriveStatistics()
        self._last_executed: tuple[int, int | None] | None = None
        self._stopped = False
        self._retake: Callable[[], object] = lambda: None
        self._suspend_process: Callable[[], None] | None = None  # stops this process (Ctrl-Z) after braking the car
        self._ended = threading.Event()
        self._trace: Trace | None = None

    @property
    def _options(self) -> DriveOptions:
        return self._world.options

    def stop(self) -> None:
        """End the run: brake the car to a halt and close the session."""
        self._stopped = True

    def suspend(self, halt: Callable[[], None]) -> None:
        """Request that `run` brakes the car fully and then calls `halt` to stop the process. For signal handlers."""
        self._suspend_process = halt

    def _brake_and_suspend(self, halt: Callable[[], None]) -> None:
        self._world.control(FULL_STOP)
        self._suspend_process = self._last_executed = None
        halt()

    def instruct(self, text: str) -> None:
        self._session.instruct(text)

    def run(self, retake: Callable[[], object] = lambda: None) -> None:
        """Run until `stop` is called, the session ends, or the duration has passed. `retake` (`Shutdown.retake`) is
        called before each step.

        Raises ClientError if the server refuses the session, CarlaBridgeError if CARLA does not respond for too long.
        """
        self._retake = retake
        watcher = threading.Thread(target=self._interrupt_on_stop, daemon=True)
        watcher.start()
        # Exempt the existing objects from garbage collection, because they live until the end.
        gc.collect()
        gc.freeze()
        drive = self._drive_lockstep if self._options.clock == "lockstep" else self._drive_paced
        try:
            while not self._is_over():
                try:
                    drive()
                except ServerLost as lost:
                    self._wait_for_server(lost)
            self._brake_to_halt()
        except Exception:
            # Never leave the car moving, whatever the error is.
            self._brake_to_halt()
            raise
        finally:
            self._ended.set()
            watcher.join(2.0)
            self._session.close()
            if self._trace is not None:
                self._trace.close()

    def summary(self) -> str:
        """Return one line with statistics of the drive."""
        calls = self._session.counts(("fresh", "held", "safe", "expired"))
        drive, driver = self._drive, self._driver.counts
        counts = ", ".join(f"{name} {count}" for name, count in calls.items())
        return (
            f"{self._world.what}, {self._world.town}: {drive.simulated_s:.1f} s driven, {driver.distance_m:.0f} m, "
            f"top {driver.top_kmh:.0f} km/h, lane changes {driver.lane_changes}, emergency brakes "
            f"{driver.emergencies}; {drive.skipped} steps passed over ({counts})"
        )

    # The methods below drive, either by the wall clock or in lockstep.

    def _drive_paced(self) -> None:
        grid, steps, k = StepTimer(self._options.step_s), self._options.steps, 0
        while not self._is_over():
            self._drive.skipped += grid.wait()
            self._keep_session()
            self._step(self._session.standing())
            if k % steps == 0:
                if (observation := self._observation()) is not None:
                    self._session.observe(observation)
                grid.delay(self._session.early_s())
            k += 1

    def _drive_lockstep(self) -> None:
        while not self._is_over():
            self._keep_session()
            if not self._session.live:
                time.sleep(0.02)
                continue
            observation = self._observation()
            if observation is None:  # no decision is possible without an observation, so brake
                self._step(Standing(None, "safe", cause="unfit"))
                continue
            standing = self._session.decide(observation)
            if standing is None or self._stopped:
                continue
            for _ in range(self._options.steps):
                self._step(standing)

    def _is_over(self) -> bool:
        self._retake()
        if self._suspend_process is not None:
            self._brake_and_suspend(self._suspend_process)
        if self._stopped or self._session.over:
            return True
        limit_s = self._options.duration_s
        lockstep = self._options.clock == "lockstep"
        spent_s = self._drive.simulated_s if lockstep else time.monotonic() - self._drive.started_s
        return limit_s is not None and self._session.number > 0 and spent_s >= limit_s

    def _keep_session(self) -> None:
        """Open or reopen the session; statistics and trace start when a server first accepts the bridge."""
        if self._session.keep() and self._session.number == 1:
            self._drive, self._driver.counts = DriveStatistics(), DriveCounts()
            if self._options.trace is not None:
                try:
                    self._trace = Trace(self._options.trace)
                except OSError as error:
                    raise CarlaBridgeError(f"The trace cannot be written ({error}).", "Give another trace.") from None

    # The methods below make one step.

    def _step(self, standing: Standing) -> None:
        """Execute the active call and advance the simulation by one step."""
        self._execute_call(standing)
        control = self._driver.step(self._scene)
        self._world.control(control)
        self._world.tick()
        self._scene = self._world.scene()
        self._drive.simulated_s += self._options.step_s
        if self._trace is not None:
            self._trace.write(self._world.frame, self._scene.own, standing, control)

    def _observation(self) -> dict[str, Any] | None:
        """Return the observation, or None if a value is NaN (the driver then brakes, and the tick is missed)."""
        try:
            return observe(self._scene, self._driver)
        except ValueError:
            return None

    def _execute_call(self, standing: Standing) -> None:
        """Execute a new call once, because its effect lasts; execute safe calls in every step."""
        call = standing.call
        if standing.status == "safe" or call is None:
            self._last_executed = None
            execute_safe_calls(self._driver, standing)
            return
        key = (self._session.number, standing.tick)
        if key == self._last_executed:
            return
        self._last_executed = key
        self._session.executed(standing, self._driver.obey(call.name, call.arguments))

    # The methods below handle faults and the end of the run.

    def _wait_for_server(self, lost: ServerLost) -> None:
        """Wait for a CARLA server that hangs. Raises CarlaBridgeError if it has exited or hangs for too long."""
        where, limit_s = self._options.server, self._options.reconnect_s
        lost_s = time.monotonic()
        log.warning("the CARLA server is lost (%s): waiting %g s for it", lost, limit_s)
        # When a hanging server continues, this braking is the first command that it executes.
        self._world.control(FULL_STOP)
        while time.monotonic() - lost_s < limit_s:
            self._keep_session()
            if self._is_over():
                return
            try:
                self._world.try_step()
                self._scene = self._world.scene()
                log.warning("the CARLA server is back after %.1f s", time.monotonic() - lost_s)
                return
            except ServerLost as again:
                log.info("still lost: %s", again)
            except CarlaBridgeError as error:
                text = f"The CARLA server at {where} was lost: {error.what}"
                raise CarlaBridgeError(text, "Read the CARLA server's output; restart it, then the bridge.") from None
            time.sleep(BETWEEN_TRIES_S)
        hint = "Read the CARLA server's output; `rtcontrol bridge carla --set reconnect_s=60` waits for longer."
        raise CarlaBridgeError(f"The CARLA server at {where} was lost and did not continue within {limit_s:g} s.", hint)

    def _brake_to_halt(self) -> None:
        """Brake the car to a halt at the end of the run."""
        grid = StepTimer(self._options.step_s)
        ended, simulated_s = Standing(None, "safe", cause="ended"), self._drive.simulated_s
        try:
            for _ in range(round(HALT_S / self._options.step_s)):
                if self._scene.own.speed < HALTED_MPS:
                    break
                if self._options.clock == "wall":
                    grid.wait()
                self._step(ended)
        except Exception as error:
            log.warning("not braked to a halt: %s (%s)", error, type(error).__name__)
        self._drive.simulated_s = simulated_s
        speed = self._scene.own.speed
        log.info("the car %s", "stands" if speed < 0.5 else f"was still at {3.6 * speed:.0f} km/h")

    def _interrupt_on_stop(self) -> None:
        while not self._ended.wait(0.05):
            if self._stopped and self._options.clock == "lockstep":
                self._session.interrupt()
                return
