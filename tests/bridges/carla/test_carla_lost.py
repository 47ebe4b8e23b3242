"""The bridge where a CARLA server hangs or is gone, with a simulation in this process as its client."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from rtcontrol_client import Standing
from rtcontrol_client.carla import journal
from rtcontrol_client.carla.control import Control
from rtcontrol_client.carla.journal import Journal
from rtcontrol_client.carla.options import CarlaBridgeError, CarlaBridgeOptions, WorldOptions
from rtcontrol_client.carla.standin.actors import Bicycle
from rtcontrol_client.carla.standin.town import opendrive
from rtcontrol_client.wire.messages import FunctionCall
from tests.bridges.carla import drives

carla = pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

from rtcontrol_client.carla import bridge, server  # noqa: E402
from rtcontrol_client.carla.bridge import CarlaBridge  # noqa: E402
from rtcontrol_client.carla.world import CarlaWorld  # noqa: E402

START_S, TTL_S = 100.0, 0.5
HANGS_S = START_S + 3.0  # it drives by then


class Clock:
    """Goes on by what is slept and waited."""

    def __init__(self) -> None:
        self.now = START_S

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Town:
    """The stand-in's map, which of a server has places to spawn at."""

    def __init__(self, start: Any) -> None:
        self._map, self._start = carla.Map("standin", opendrive()), start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._map, name)

    def get_spawn_points(self) -> list[Any]:
        return [self._start]


class Found(list[Any]):
    """A list as carla's are."""

    def filter(self, pattern: str) -> Found:
        return Found(one for one in self if one.type_id.startswith(pattern.rstrip("*")))


class Vehicle:
    """The ego vehicle: a bicycle that executes its newest command."""

    type_id = "vehicle.tesla.model3"

    def __init__(self, owner: Simulation, number: int, at: Any) -> None:
        self.id, self.attributes, self._owner = number, {"role_name": "hero"}, owner
        self.bicycle = Bicycle(at.location.x, -at.location.y, -math.radians(at.rotation.yaw))
        self.bounding_box = SimpleNamespace(extent=carla.Vector3D(drives.HALF_LENGTH, drives.HALF_WIDTH, 0.75))

    def apply_control(self, control: Any) -> None:
        """As the client does it: sent, and not answered."""
        wanted = Control(control.throttle, control.steer, control.brake, control.hand_brake)
        self._owner.does(lambda: setattr(self.bicycle, "control", wanted))

    def get_transform(self) -> Any:
        car = self.bicycle
        yaw = -math.degrees(math.remainder(car.heading, 2 * math.pi))
        return carla.Transform(carla.Location(car.x, -car.y, 0.0), carla.Rotation(yaw=yaw))

    def get_velocity(self) -> Any:
        vx, vy = self.bicycle.velocity()
        return carla.Vector3D(vx, -vy, 0.0)

    def get_speed_limit(self) -> float:
        return 60.0


class Simulation:
    """A CARLA server with its client and its world. `hangs` are the spans in which it answers nothing; what it gets
    meanwhile it does afterwards, in order. `gone`: its port is closed."""

    id = 7

    def __init__(self, clock: Clock) -> None:
        self.clock, self.hangs, self.gone = clock, list[tuple[float, float]](), False
        at = drives.body(drives.lane_line(1), 10.0)
        self.town = Town(carla.Transform(carla.Location(at.x, at.y, 0.0), carla.Rotation(yaw=at.yaw_deg)))
        self.settings, self.vehicles, self.spawned = carla.WorldSettings(), dict[int, Vehicle](), 0
        self.steps: list[tuple[float, float]] = []  # of each: when, and the speed after it (m/s)
        self._timeout_s, self._frame, self._queue = 10.0, 0, list[Callable[[], object]]()

    # -- how it answers -----------------------------------------------------------------------------------------------

    @property
    def hung(self) -> bool:
        return any(since <= self.clock.now < until for since, until in self.hangs)

    def does(self, what: Callable[[], object]) -> None:
        """Something that is not answered."""
        self._queue.append(what)
        if not self.hung:
            for one in self._queue:
                one()
            self._queue.clear()

    def answers(self, what: Callable[[], Any], seconds: float | None = None) -> Any:
        """Raises as the client does where no answer comes in time."""
        seconds, answer = seconds or self._timeout_s, list[Any]()
        self.does(lambda: answer.append(what()))
        if not answer:
            self.clock.sleep(seconds)
            raise RuntimeError(
                f"time-out of {seconds * 1e3:.0f}ms while waiting for the simulator, make sure it is there"
            )
        return answer[0]

    def connect(self, address: Any, timeout_s: float) -> Peer:
        if self.gone:
            raise ConnectionRefusedError(111, "Connection refused")
        return Peer(self)

    # -- carla.Client -------------------------------------------------------------------------------------------------

    def set_timeout(self, seconds: float) -> None:
        self._timeout_s = seconds

    def get_server_version(self) -> str:
        return str(self.answers(lambda: "0.9.16"))

    def get_client_version(self) -> str:
        return "0.9.16"

    def get_world(self) -> Simulation:
        return self

    def apply_batch_sync(self, commands: list[Any], tick: bool) -> list[Any]:
        def destroy(number: int) -> Any:
            return SimpleNamespace(error="" if self.vehicles.pop(number, None) else "not found")

        return list(self.answers(lambda: [destroy(one.actor_id) for one in commands]))

    # -- carla.World --------------------------------------------------------------------------------------------------

    def get_map(self) -> Town:
        return self.town

    def get_settings(self) -> Any:
        return self.answers(lambda: _copy(self.settings))

    def apply_settings(self, settings: Any) -> None:
        wanted = _copy(settings)
        self.answers(lambda: setattr(self, "settings", wanted))

    def get_blueprint_library(self) -> Found:
        return Found([SimpleNamespace(id=Vehicle.type_id, type_id=Vehicle.type_id, has_attribute=lambda name: False)])

    def try_spawn_actor(self, blueprint: Any, at: Any) -> Vehicle:
        self.spawned += 1
        made = self.vehicles[self.spawned] = Vehicle(self, self.spawned, at)
        return made

    def get_actors(self, numbers: list[int] | None = None) -> Found:
        return Found(self.answers(lambda: list(self.vehicles.values())))

    def get_snapshot(self) -> list[Vehicle]:
        return list(self.vehicles.values())

    def tick(self, seconds: float) -> int:
        return int(self.answers(self._step, seconds))

    def _step(self) -> int:
        for one in self.vehicles.values():
            one.bicycle.step(self.settings.fixed_delta_seconds, 7)
            self.steps.append((self.clock.now, one.bicycle.speed))
        self._frame += 1
        return self._frame


class Peer:
    """A connection to its port."""

    def __init__(self, owner: Simulation) -> None:
        self._owner = owner

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        pass

    def recv(self, size: int) -> bytes:
        if self._owner.hung:
            self._owner.clock.sleep(server.PROBE_S)
            raise TimeoutError("timed out")
        return server.ANSWER


def _copy(settings: Any) -> Any:
    made = carla.WorldSettings()
    for name in server.FIELDS:
        setattr(made, name, getattr(settings, name))
    return made


class Session:
    """The server's side of the wire: `set_speed` for as long as its time-to-live from the last observation on. It is
    welcomed at `welcome_s`."""

    over = closed = False
    live = True

    def __init__(self, clock: Clock) -> None:
        self.number, self.welcome_s, self._clock, self._seen_s = 0, START_S, clock, -math.inf

    def keep(self) -> bool:
        before, self.number = self.number, int(self._clock.now >= self.welcome_s)
        return self.number > before

    def standing(self) -> Standing:
        age_s = self._clock.now - self._seen_s
        if age_s > TTL_S:
            return Standing(FunctionCall(name="stop"), "safe", cause="expired")
        call = FunctionCall(name="set_speed", arguments={"kmh": 50})
        return Standing(call, "fresh", tick=round(self._seen_s * 16), age_ms=1e3 * age_s)

    def observe(self, data: Any, t_ns: int) -> bool:
        self._seen_s = t_ns / 1e9
        return True

    def decide(self, data: Any, t_ns: int) -> Standing:
        self.observe(data, t_ns)
        self._clock.sleep(0.0625)
        return self.standing()

    def too_soon_s(self, send_ms: float) -> float:
        return 0.0

    def executed(self, standing: Standing, refused: str | None) -> None:
        assert refused is None

    def counts(self, names: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(names, 0)

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Drive:
    """A bridge from its first connection to the end of its clean-up."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock, self.simulation, self.session = clock, Simulation(clock), Session(clock)
        self._trace = folder / "trace.jsonl"
        self.journal = journal.place("127.0.0.1", 2000)

    def run(self, **options: Any) -> None:
        given: dict[str, Any] = {"duration_s": 20.0, "reconnect_s": 5.0, "trace": self._trace} | options
        world = CarlaWorld(WorldOptions(), Journal(self.journal, "127.0.0.1", 2000))
        try:
            world.open()
            assert self.simulation.settings.synchronous_mode and self.journal.exists()
            CarlaBridge(world, CarlaBridgeOptions(**given)).run()
        finally:
            world.close()

    def trace(self, since_s: float = 0.0) -> list[dict[str, Any]]:
        lines = map(json.loads, self._trace.read_text().splitlines())
        return [line for line in lines if line["t_s"] >= since_s]

    def speed_at(self, seconds: float) -> float:
        """Of the last step by then."""
        return next(speed for when, speed in reversed(self.simulation.steps) if when <= seconds)

    def undone(self) -> bool:
        """Whether the server is as it was found."""
        simulation, settings = self.simulation, self.simulation.settings
        as_found = not settings.synchronous_mode and settings.fixed_delta_seconds is None
        return as_found and not simulation.vehicles and not self.journal.exists()


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drive]:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path))
    made = Drive(tmp_path, Clock())
    monkeypatch.setattr(bridge, "time", made.clock)
    monkeypatch.setattr(bridge, "CarlaSession", lambda *_: made.session)
    monkeypatch.setattr(carla, "Client", lambda *_: made.simulation)
    monkeypatch.setattr("socket.create_connection", made.simulation.connect)
    yield made
    gc.unfreeze()


@pytest.mark.parametrize("clock", ["wall", "lockstep"])
def test_server_that_hangs_is_braked_in_and_driven_in_again(drive: Drive, clock: str) -> None:
    drive.simulation.hangs = [(HANGS_S, HANGS_S + 4.0)]
    drive.run(clock=clock)
    frozen, back = drive.speed_at(HANGS_S), [speed for when, speed in drive.simulation.steps if when > HANGS_S]
    # The step that was requested before the hang was noticed, then full brakes in each that was requested while it was
    # waited for.
    assert frozen > 2.0 and back[1] < back[0] <= frozen + 0.3
    after = drive.trace(HANGS_S)
    if clock == "wall":
        # No observation was made meanwhile: what is active first is the safe call.
        assert (after[0]["status"], after[0]["cause"], after[0]["throttle"]) == ("safe", "expired", 0.0)
    assert max(line["kmh"] for line in after if line["status"] == "fresh") > 40
    assert drive.simulation.spawned == 1 and drive.session.closed and drive.undone()


def test_server_that_does_not_go_on_ends_the_drive_and_is_undone_later(drive: Drive) -> None:
    drive.simulation.hangs = [(HANGS_S, math.inf)]
    with pytest.raises(CarlaBridgeError, match=r"at 127\.0\.0\.1:2000 was lost and did not go on in 5 s\.") as ended:
        drive.run()
    assert "--reconnect-s" in ended.value.remedy and drive.session.closed
    assert HANGS_S + 5.0 < drive.clock.now < HANGS_S + 20.0
    # Clean-up failed as well: what is to undo is kept, and undone in whole by the next bridge.
    assert drive.simulation.vehicles and drive.simulation.settings.synchronous_mode and drive.journal.exists()
    drive.simulation.hangs, drive.simulation._queue = [], []
    assert server.clean(drive.journal) == ["1 vehicle destroyed", "settings restored (asynchronous)"]
    assert drive.undone()


def test_server_that_hangs_in_the_clean_up_keeps_what_is_to_undo(drive: Drive) -> None:
    def hang() -> None:
        drive.simulation.hangs = [(drive.clock.now, math.inf)]

    drive.session.close = hang  # type: ignore[method-assign]
    drive.run(duration_s=2.0)
    assert drive.journal.exists()
    left = journal.read(drive.journal)
    assert left.actors == [1] and left.settings is not None and not left.settings["synchronous_mode"]


@pytest.mark.parametrize(
    ("gone", "why"),
    [
        (True, r"was lost: No CARLA server at .*connection refused"),
        (False, r"was lost: The ego vehicle on the CARLA server .* was removed"),
    ],
)
def test_server_that_is_gone_or_whose_vehicle_was_removed_ends_the_drive(drive: Drive, gone: bool, why: str) -> None:
    drive.simulation.hangs = [(HANGS_S, math.inf if gone else HANGS_S + 2.0)]

    def keep() -> bool:
        if drive.clock.now > HANGS_S:
            drive.simulation.gone = gone
            drive.simulation.vehicles.clear()
        return kept()

    kept, drive.session.keep = drive.session.keep, keep  # type: ignore[method-assign]
    with pytest.raises(CarlaBridgeError, match=why):
        drive.run()
    assert drive.session.closed and not drive.journal.exists()  # what was on the server went with it
    assert drive.clock.now < HANGS_S + 4.0
