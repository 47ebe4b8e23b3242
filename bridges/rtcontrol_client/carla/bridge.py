"""The bridge's life: let the simulation step, tell what the driver sees, do what is in force, and say how it goes."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtcontrol_client import Standing
from rtcontrol_client.carla.control import Control
from rtcontrol_client.carla.driver import Driver, observe
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.lights import govern
from rtcontrol_client.carla.observing import Scene
from rtcontrol_client.carla.options import CarlaBridgeError, CarlaBridgeOptions, ServerLost
from rtcontrol_client.carla.session import CarlaSession
from rtcontrol_client.carla.stats import KEPT, Counts, Figures
from rtcontrol_client.carla.world import CarlaWorld
from rtcontrol_client.wire.messages import FunctionCall

if TYPE_CHECKING:
    from rtcontrol_client.carla.neighbours import Body


class Trace:
    """A file of JSON lines; one that is there already is gone on in: another bridge may have begun it. Where it cannot
    be written any more it ends, with a warning; the drive goes on."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, frame: int, own: Body, standing: Standing, control: Control) -> None:
        """`t_s` is on the machine's monotonic clock; `status` to `age_ms` are of the call in force in this step."""
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
                log.warning("%s ends here: it cannot be written any more (%s)", self._file.name, error)
                self.close()

    def close(self) -> None:
        """What cannot be written any more is dropped."""
        with contextlib.suppress(OSError):
            self._file.close()


LEAN = 0.05
SEND_MS = 3.0  # what is sent so long before a tick of the server's is there in time


class Grid:
    """Instants a step apart since `restart`; whole steps that were missed are passed over, the phase is kept."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self.restart()

    def restart(self) -> None:
        """The next instant is now."""
        self._next_s = time.monotonic()

    def lean(self, late_s: float) -> None:
        """The instants come so much too soon (below zero: too late): each of them from now on is moved by a part of a
        step at most, so that the simulation's time keeps its rate but for a moment."""
        most_s = LEAN * self._step_s
        self._next_s += min(max(late_s, -most_s), most_s)

    def wait(self) -> tuple[float, int]:
        """Sleep until the next instant; gives how late it began, and how many instants were passed over."""
        left = self._next_s - time.monotonic()
        if left > 0:
            time.sleep(left)
        late_s = time.monotonic() - self._next_s
        skipped = int(late_s / self._step_s)
        self._next_s += (skipped + 1) * self._step_s
        return late_s - skipped * self._step_s, skipped


# At the end the vehicle is braked to a halt, for at most so much of the simulation's time.
HALT_S = 3.0
HALTED_MPS = 0.1
BETWEEN_TRIES_S = 0.3
REPORT_EVERY_S, NEWEST = 1.0, 320
FULL_STOP, STOP = Control(brake=1.0), FunctionCall(name="stop")
log = logging.getLogger("rtcontrol.carla")


def obey_safe(driver: Driver, standing: Standing) -> None:
    """All safe calls, in order. Where there is none, and instead of one that the driver refuses: `stop`."""
    for call in standing.calls or (STOP,):
        if driver.obey(call.name, call.arguments) is not None:
            driver.obey(STOP.name, STOP.arguments)


class CarlaBridge:
    """Drives the ego vehicle of an open world. `run` blocks; `stop` may be called from anywhere, signals too."""

    def __init__(self, world: CarlaWorld, options: CarlaBridgeOptions) -> None:
        self._world, self._options = world, options
        self._meet()
        where = world.options
        self._session = CarlaSession(options, world.town, f"carla-{where.host}-{where.port}-{where.role}"[:64])
        self._figures = Figures()
        self._obeyed: tuple[int, int | None] | None = None
        self._own_s = 0.0  # of this step, what is not the server's
        self._stopped = False
        self._retake: Callable[[], object] = lambda: None
        self._suspends: Callable[[], None] | None = None  # what stops the process, once the car is braked
        self._ended = threading.Event()
        self._trace: Trace | None = None

    def _meet(self) -> None:
        """A vehicle that was just spawned, maybe in another town."""
        world, step_s = self._world, self._options.step_s
        self._road = TownRoad(world.map)
        govern(self._road, world.lamps())
        self._driver = Driver(self._road, step_s, **world.figures())
        self._traffic = None if world.fleet is None else world.fleet.drivers(self._road, step_s)
        self._scene: Scene = world.scene()
        self._driver.look(self._scene)

    def stop(self) -> None:
        """End the run: the car is braked to a halt, the session closed."""
        self._stopped = True

    def suspend(self, halt: Callable[[], None]) -> None:
        """Brake the car fully, then call `halt`, which stops the process; for a signal handler of `run`'s thread."""
        self._suspends = halt

    def _suspend(self, halt: Callable[[], None]) -> None:
        self._world.control(FULL_STOP)
        self._suspends = self._obeyed = None
        halt()

    def instruct(self, text: str) -> None:
        """The goal from now on."""
        self._session.instruct(text)

    def run(self, retake: Callable[[], object] = lambda: None) -> None:
        """Until `stop`, the session's end, or for the duration. Raises ClientError where the server refuses,
        CarlaBridgeError where CARLA is gone for too long. `retake` is called each step: `Shutdown.retake`."""
        self._retake = retake
        watchers = [threading.Thread(target=self._interrupt, daemon=True)]
        if self._options.report is not None:
            watchers.append(threading.Thread(target=self._write_now_and_then, daemon=True))
        for watcher in watchers:
            watcher.start()
        # What is there by now stays: collections need not look at it.
        gc.collect()
        gc.freeze()
        drive = self._lockstep if self._options.clock == "lockstep" else self._paced
        try:
            while not self._over():
                try:
                    drive()
                except ServerLost as lost:
                    self._recover(lost)
            self._halt()
        except Exception:
            # Whatever it is: a car that moves is not let go of.
            self._halt()
            raise
        finally:
            self._ended.set()
            for watcher in watchers:
                watcher.join(2.0)
            self._session.close()
            if self._trace is not None:
                self._trace.close()
            self.write_report()

    def figures(self, newest: int = KEPT) -> dict[str, Any]:
        """Counts since the first welcome, and times of the `newest` steps."""
        told = self._figures.to_dict(self._session.counts(), self._driver.counts.report(), newest)
        told |= {"clock": self._options.clock, "hz": self._options.hz}
        return {"world": self._world.what, "town": self._world.town, **told}

    def write_report(self, newest: int = KEPT) -> None:
        """Whole or not at all."""
        if (path := self._options.report) is not None and self._session.number:
            beside = path.with_name(path.name + ".new")
            try:
                beside.write_text(json.dumps(self.figures(newest), indent=2) + "\n", "utf-8")
                beside.replace(path)
            except OSError as error:
                log.warning("%s could not be written (%s)", path, error)

    # -- the two ways to drive ----------------------------------------------------------------------------------------

    def _paced(self) -> None:
        grid, steps, k = Grid(self._options.step_s), self._options.steps, 0
        while not self._over():
            late_s, skipped = grid.wait()
            if self._session.keep():
                self._begin()
            self._figures.released(late_s, skipped)
            self._step(self._session.standing())
            if k % steps == 0:
                self._observe()
                grid.lean(self._session.too_soon_s(SEND_MS))
            self._figures.took("overhead", self._own_s)
            k += 1

    def _lockstep(self) -> None:
        while not self._over():
            if self._session.keep():
                self._begin()
            if not self._session.live:
                time.sleep(0.02)
                continue
            try:
                seen = observe(self._road, self._scene, self._driver)
            except ValueError:
                # Figures that are no numbers: there is nothing to ask about, the driver brakes.
                self._step(Standing(None, "safe", cause="unfit"))
                continue
            self._figures.count["observations"] += 1
            standing = self._session.decide(seen, time.monotonic_ns())
            if standing is None or self._stopped:
                continue
            for _ in range(self._options.steps):
                self._step(standing)

    def _over(self) -> bool:
        self._retake()
        if self._suspends is not None:
            self._suspend(self._suspends)
        if self._stopped or self._session.over:
            return True
        limit_s = self._options.duration_s
        lockstep = self._options.clock == "lockstep"
        spent_s = self._figures.simulated_s if lockstep else self._figures.seconds
        return limit_s is not None and self._session.number > 0 and spent_s >= limit_s

    def _begin(self) -> None:
        """A session began: of the first one on it counts."""
        if self._session.number == 1:
            self._figures.begin()
            self._driver.counts = Counts()
            if self._options.trace is not None:
                try:
                    self._trace = Trace(self._options.trace)
                except OSError as error:
                    raise CarlaBridgeError(f"The trace cannot be written ({error}).", "Give another --trace.") from None

    # -- one step -----------------------------------------------------------------------------------------------------

    def _step(self, standing: Standing) -> None:
        """Do what is in force, and let the simulation go on by one step."""
        began_s = time.monotonic()
        self._obey(standing)
        control = self._driver.step(self._scene)
        self._world.control(control)
        if self._traffic is not None and self._world.fleet is not None:
            self._world.fleet.drive(self._traffic, self._scene)
        at_s = time.monotonic()
        self._world.tick()
        ticked_s = time.monotonic()
        self._scene = self._world.scene()
        looked_s = time.monotonic()
        figures = self._figures
        figures.count["steps"] += 1
        figures.simulated_s += self._options.step_s
        figures.took("control", at_s - began_s)
        figures.took("tick", ticked_s - at_s)
        figures.took("look", looked_s - ticked_s)
        if self._trace is not None:
            self._trace.write(self._world.frame, self._scene.own, standing, control)
        told = self._session.instruction
        if told is not None and (not figures.instructions or figures.instructions[-1]["text"] != told):
            figures.instruction(told)
        self._own_s = at_s - began_s + looked_s - ticked_s

    def _observe(self) -> None:
        began_s = time.monotonic()
        try:
            seen = observe(self._road, self._scene, self._driver)
        except ValueError:
            return  # figures that are no numbers: the driver brakes, the loop misses
        if self._session.observe(seen, time.monotonic_ns()):
            self._figures.count["observations"] += 1
            took_s = time.monotonic() - began_s
            self._figures.took("observe", took_s)
            self._own_s += took_s

    def _obey(self, standing: Standing) -> None:
        """Each call once, when it has come: what it set stays in force by itself. Safe calls each time."""
        call = standing.call
        if standing.status == "safe" or call is None:
            self._obeyed = None
            obey_safe(self._driver, standing)
            return
        key = (self._session.number, standing.tick)
        if key == self._obeyed:
            return
        self._obeyed = key
        if standing.left_ms is not None and standing.left_ms < 0:
            self._figures.count["too_old_executed"] += 1
        self._figures.oldest_ms = max(self._figures.oldest_ms, standing.age_ms or 0.0)
        refused = self._driver.obey(call.name, call.arguments)
        if refused is None:
            self._figures.executed[call.name] += 1
        self._session.executed(standing, refused)

    # -- when things go wrong, and the end ----------------------------------------------------------------------------

    def _recover(self, lost: ServerLost) -> None:
        """The CARLA server is gone: wait for it. Raises CarlaBridgeError where it stays away."""
        began_s = time.monotonic()
        found: dict[str, Any] = {
            "t_s": round(self._figures.seconds, 3),
            "why": str(lost),
            "speed_kmh": round(self._speed_kmh, 1),
            "clock_s": round(began_s, 3),
        }
        self._figures.lost.append(found)
        log.warning("the CARLA server is lost (%s): waiting %g s for it", lost, self._options.reconnect_s)
        # Should it only stand still: this is what it does first when it goes on.
        self._world.control(FULL_STOP)
        while time.monotonic() - began_s < self._options.reconnect_s:
            self._session.keep()
            if self._over():
                return
            if self._back():
                found["back_after_s"] = round(time.monotonic() - began_s, 2)
                what = "with a new vehicle" if self._world.fresh else "with the vehicle where it was"
                log.warning("the CARLA server is back after %.1f s, %s", found["back_after_s"], what)
                return
            time.sleep(BETWEEN_TRIES_S)
        raise CarlaBridgeError(
            f"The CARLA server at {self._world.options.server} was lost and did not come back in "
            f"{self._options.reconnect_s:g} s.",
            "Look at its own output; give --reconnect-s to wait for longer.",
        )

    def _back(self) -> bool:
        """Whether the server is there again, and we are in it."""
        if not self._world.reopen():
            return False
        counts = self._driver.counts
        try:
            if self._world.fresh:
                self._meet()
            self._scene = self._world.scene()
        except ServerLost:
            return False
        self._driver.counts = counts
        return True

    @property
    def _speed_kmh(self) -> float:
        return 3.6 * self._scene.own.speed

    def _halt(self) -> None:
        """The last thing that the car does is to stop."""
        grid = Grid(self._options.step_s)
        nobody = Standing(None, "safe", cause="ended")
        self._figures.end()
        count, simulated_s = self._figures.count.copy(), self._figures.simulated_s
        try:
            for _ in range(round(HALT_S / self._options.step_s)):
                if self._scene.own.speed < HALTED_MPS:
                    break
                if self._options.clock == "wall":
                    grid.wait()
                self._step(nobody)
        except Exception as error:
            log.warning("not braked to a halt: %s (%s)", error, type(error).__name__)
        self._figures.count, self._figures.simulated_s = count, simulated_s
        still = f"was still at {self._speed_kmh:.0f} km/h"
        log.info("the car %s", "stands" if self._scene.own.speed < 0.5 else still)

    def _interrupt(self) -> None:
        while not self._ended.wait(0.05):
            if self._stopped and self._options.clock == "lockstep":
                self._session.interrupt()
                return

    def _write_now_and_then(self) -> None:
        while not self._ended.wait(REPORT_EVERY_S):
            self.write_report(NEWEST)
