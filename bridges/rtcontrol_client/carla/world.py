"""Connect to the CARLA server, make it synchronous, spawn the ego vehicle, step, read scenes, and undo all changes."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import carla
import msgpack

from rtcontrol_client.carla import journal
from rtcontrol_client.carla.control import Control
from rtcontrol_client.carla.journal import Journal, UndoRecord
from rtcontrol_client.carla.lights import Lamp, read_lamp
from rtcontrol_client.carla.observing import Body, Light, Scene
from rtcontrol_client.carla.options import STANDIN, STANDIN_TOWN, CarlaBridgeError, DriveOptions, ServerLost

# Timeouts in seconds of the probe and of the first request. A running server answers in milliseconds.
PROBE_S, ANSWER_S = 1.5, 3.0
SLOW_S, LOAD_S = 10.0, 90.0  # timeouts of slow requests to a busy server, and of loading a town
WATCH_S = 1.0  # seconds to observe whether another client ticks a synchronous server
# The first request of CARLA's client (MessagePack-RPC), and the first byte of every answer, an array of four.
QUESTION, ANSWER = msgpack.packb([0, 0, "version", [[False]]]), b"\x94"
START = (
    "Start one (0.9.16, it needs a GPU): ./CarlaUE4.sh -RenderOffScreen -quality-level=Low, or docker run --rm "
    "--gpus all --net=host carlasim/carla:0.9.16 ./CarlaUE4.sh -RenderOffScreen -quality-level=Low; or try "
    "`rtcontrol run --env carla-bridge --set carla.standin=true`, which needs a source checkout only and is not CARLA."
)
MOST_FOREIGN = 20  # maximum number of steps that other clients may make during a drive
ONE_CLIENT = "Only one client may tick a server: end the other client first, or start a second server."
LOOK = "Read the CARLA server's output; restart the server."
FIELDS = tuple(name for name in dir(carla.WorldSettings) if not name.startswith("_"))
CARS = ("vehicle.tesla.model3", "vehicle.")
ROLE = "hero"
LIMIT_KMH = 50.0  # used if CARLA reports no speed limit
STATES: dict[str, Light] = {"Red": "red", "Yellow": "yellow", "Green": "green"}
log = logging.getLogger("rtcontrol.carla")


def connect(options: DriveOptions) -> Any:
    """Return a `carla.Client` for a server of the same release. Raises CarlaBridgeError within 5 s without one."""
    probe(options)
    client = carla.Client(options.host, options.port)
    client.set_timeout(ANSWER_S)
    at = f"{options.host}:{options.port}"
    try:
        server = client.get_server_version()
    except RuntimeError as error:
        text = f"The server at {at} does not answer as a CARLA server ({_short_reason(error)})."
        hint = "Wait if it is still loading, restart it if it hangs, or give another --carla-port."
        raise CarlaBridgeError(text, hint) from None
    mine = client.get_client_version()
    if _release_of(server) != _release_of(mine):
        text = f"The CARLA server at {at} has version {server}, but the client here {mine}; the releases must match."
        raise CarlaBridgeError(text, f"Start CARLA {_release_of(mine)}, or: pip install carla=={_release_of(server)}.")
    client.set_timeout(SLOW_S)
    return client


def probe(options: DriveOptions) -> None:
    """Raise CarlaBridgeError if no server listens at the port, or if another program listens there, whose bytes would
    crash CARLA's client library."""
    at, answer = f"{options.host}:{options.port}", b""
    try:
        with socket.create_connection((options.host, options.port), PROBE_S) as peer, contextlib.suppress(OSError):
            peer.sendall(QUESTION)
            answer = peer.recv(1)
    except UnicodeError:
        raise CarlaBridgeError(f"{options.host!r} is not a valid host name.", "Give another --carla-host.") from None
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        raise CarlaBridgeError(f"No CARLA server at {at} ({reason}).", START) from None
    if answer not in (b"", ANSWER):
        hint = "Give --carla-port the port of a CARLA server; the default is 2000."
        raise CarlaBridgeError(f"The program that listens at {at} is not a CARLA server.", hint)


def _release_of(version: str) -> str:
    """Return the release of a version: `0.9.16` for `0.9.16-dirty`."""
    match = re.match(r"\d+(\.\d+)*", version)
    return match.group() if match else version


def _short_reason(error: Exception) -> str:
    return str(error).split(",")[0].strip()


def apply_settings(world: Any, values: Mapping[str, Any]) -> None:
    """Change settings of the world. Raises RuntimeError if the server does not respond."""
    settings = world.get_settings()
    for name, value in values.items():
        # Set every field by name; carla accepts None for a step that is not fixed.
        setattr(settings, name, value)
    world.apply_settings(settings)


def has_other_client(world: Any) -> bool:
    """Observe a synchronous server for WATCH_S; return whether another client ticks it."""
    frame, end_s = 0, time.monotonic() + WATCH_S
    while time.monotonic() < end_s:
        before, frame = frame, world.get_snapshot().frame
        # Before the first snapshot the frame is 0, so a change from 0 does not prove a tick.
        if before not in (0, frame):
            return True
        time.sleep(0.05)
    return False


def undo(client: Any, world: Any, record: UndoRecord) -> list[str]:
    """Destroy our actors and restore the settings; return descriptions of the changes.

    Raises RuntimeError if the server does not respond, but tries to restore the settings before.
    """
    done: list[str] = []
    restores = record.settings is not None
    try:
        if record.episode is not None and record.episode != world.id:
            done.append("the server has loaded another world, so our vehicles are gone")
            restores = restores and world.get_settings().synchronous_mode
            if restores and has_other_client(world):
                restores = False
                done.append("another client ticks the server, so its settings are kept")
        else:
            # Destroy all actors by number, because only the server knows which of them still exist.
            answers = client.apply_batch_sync([carla.command.DestroyActor(number) for number in record.actors], False)
            if count := sum(not answer.error for answer in answers):
                done.append(f"{count} vehicle{'s' if count > 1 else ''} destroyed")
    finally:
        if restores and record.settings is not None:
            apply_settings(world, record.settings)
            mode = "synchronous" if record.settings["synchronous_mode"] else "asynchronous"
            done.append(f"settings restored ({mode})")
    return done


def undo_journal(path: Path) -> list[str]:
    """Undo the changes that a bridge recorded in this journal file, and remove it; return descriptions of the changes.

    Raises CarlaBridgeError if the file is not a journal, or if the server cannot be reached (the file is then kept).
    """
    record = journal.read_journal(path)
    client = connect(DriveOptions(host=record.host, port=record.port))
    try:
        done = [] if record.is_empty else undo(client, client.get_world(), record)
    except RuntimeError as error:
        text = f"The CARLA server at {record.host}:{record.port} failed before the changes were undone ({error})."
        hint = f"Restart it, or try again: python -m rtcontrol_client.carla --clean {path}"
        raise CarlaBridgeError(text, hint) from None
    path.unlink(missing_ok=True)
    return done or ["there was nothing to undo"]


class CarlaWorld:
    """A synchronous CARLA server that only this bridge ticks. `ego` is our vehicle, `map` the town's map, `frame` the
    number of the last step.

    Methods raise CarlaBridgeError for errors that the user can fix, and ServerLost if the server is gone.
    """

    def __init__(self, options: DriveOptions, journal: Journal) -> None:
        self.options = options
        self.map: Any = None
        self.ego: Any = None
        self.frame = 0
        self._foreign = 0  # number of steps by other clients during this drive
        self._journal = journal
        self._client: Any = None
        self._world: Any = None
        self._lights: dict[int, Any] = {}
        self._extents: dict[int, tuple[float, float] | None] = {}  # by vehicle: half its length and width

    @property
    def town(self) -> str:
        return str(self.map.name).rsplit("/", 1)[-1]

    @property
    def what(self) -> str:
        """Return the simulator's name for reports: CARLA or the stand-in (which is also recognised by its town)."""
        return STANDIN if self.options.standin or self.town.startswith(STANDIN_TOWN) else "CARLA"

    def open(self) -> None:
        """Connect, undo the changes of this user's killed bridges, set synchronous mode, and spawn the ego vehicle."""
        server = self.options.server
        self._client = connect(self.options)
        for path, left, alive in journal.other_journals(self.options.host, self.options.port):
            if alive:
                text = f"Another bridge (process {left.pid}) drives on the CARLA server at {server}."
                raise CarlaBridgeError(text, ONE_CLIENT)
            log.warning("a bridge that died (process %d): %s", left.pid, "; ".join(undo_journal(path)))
        try:
            self._world = self._client.get_world()
            self._open_town()
            self._journal.record_world(self._world.id)
            self._make_synchronous()
            if self.options.reload:
                self._replace_world(lambda: self._client.reload_world(False))
            self._spawn_ego()
            self._lights = {light.id: light for light in self._world.get_actors().filter("traffic.traffic_light*")}
            self._client.set_timeout(self.options.wait_s)
        except RuntimeError as error:
            raise CarlaBridgeError(f"The CARLA server at {server} failed at the start ({error}).", LOOK) from None

    def try_step(self) -> None:
        """Try a step on a lost server. Raises ServerLost if it still hangs, CarlaBridgeError if it has exited."""
        try:
            probe(self.options)
        except CarlaBridgeError as error:
            # A closed port means that the server has exited; an unreachable machine may be reachable again later.
            if isinstance(error.__context__, OSError) and not isinstance(error.__context__, ConnectionRefusedError):
                raise ServerLost(error.what) from None
            raise
        self.tick()

    def _open_town(self) -> None:
        self.map = self._world.get_map()
        wanted = self.options.town
        if wanted is None or wanted in (self.town, self.map.name):
            return
        towns = sorted({name.rsplit("/", 1)[-1] for name in self._client.get_available_maps()})
        if wanted not in towns:
            raise CarlaBridgeError(f"There is no town {wanted} on the server.", f"It has {', '.join(towns)}.")
        if self._world.get_settings().synchronous_mode:
            self._check_no_other_client()  # loading a town would end the other client's world
        log.info("loading %s", wanted)
        self._replace_world(lambda: self._client.load_world(wanted))

    def _replace_world(self, load: Callable[[], Any]) -> None:
        """Load another world by calling `load`, and record it in the journal."""
        self._client.set_timeout(LOAD_S)
        self._world = load()
        self._client.set_timeout(SLOW_S)
        self.map = self._world.get_map()
        self._journal.record_world_change(self._world.id)

    def _make_synchronous(self) -> None:
        settings = self._world.get_settings()
        original = {name: getattr(settings, name) for name in FIELDS}
        if original["synchronous_mode"]:
            # Another client uses the server, or has exited without resetting the synchronous mode.
            self._check_no_other_client()
            log.warning("the server was left synchronous by another client; the bridge will leave it asynchronous")
            original |= {"synchronous_mode": False, "fixed_delta_seconds": None}
        self._journal.record_settings(original)
        substeps = {"substepping": True, "max_substep_delta_time": 0.01, "max_substeps": 10}
        apply_settings(self._world, {"synchronous_mode": True, "fixed_delta_seconds": self.options.step_s, **substeps})

    def _check_no_other_client(self) -> None:
        """Raise CarlaBridgeError if another client ticks a synchronous server."""
        if has_other_client(self._world):
            raise CarlaBridgeError(f"Another client ticks the CARLA server at {self.options.server}.", ONE_CLIENT)

    def _spawn_ego(self) -> None:
        library = list(self._world.get_blueprint_library().filter("vehicle.*"))
        cars = [min((b for b in library if b.id.startswith(name)), key=lambda b: b.id, default=None) for name in CARS]
        blueprint = next(filter(None, cars), None)
        if blueprint is None:
            raise CarlaBridgeError("The server has no vehicles.", LOOK)
        if blueprint.has_attribute("role_name"):
            blueprint.set_attribute("role_name", ROLE)
        points = self.map.get_spawn_points()
        random.Random(self.options.seed).shuffle(points)
        for point in points:
            self.ego = self._world.try_spawn_actor(blueprint, point)
            if self.ego is not None:
                self._journal.record_actor(self.ego.id)
                self.frame = self._world.tick(SLOW_S)
                return
        self.close()
        text = f"None of the {len(points)} spawn points of {self.town} is free."
        raise CarlaBridgeError(text, "Remove vehicles from the server, or restart it.")

    # The methods below belong to each step.

    def tick(self) -> None:
        """Advance the simulation by one step. Raises ServerLost if the step is not confirmed in time, and
        CarlaBridgeError once if another client has ticked the server more than MOST_FOREIGN times."""
        previous, self.frame = self.frame, 0  # after a lost step, the next frame number is unknown
        try:
            self.frame = int(self._world.tick(self.options.wait_s))
        except RuntimeError as error:
            raise ServerLost(_short_reason(error)) from None
        if previous and self.frame > previous + 1:
            self._count_foreign(self.frame - previous - 1)

    def _count_foreign(self, steps: int) -> None:
        before, self._foreign = self._foreign, self._foreign + steps
        text = f"Another client ticks the CARLA server at {self.options.server}: simulated time runs too fast."
        if before <= MOST_FOREIGN < self._foreign:
            raise CarlaBridgeError(text, ONE_CLIENT)
        if not before:
            log.warning("%s %s", text, ONE_CLIENT)

    def scene(self) -> Scene:
        """Return the scene after the last step."""
        snapshot = self._world.get_snapshot()
        if new := [actor.id for actor in snapshot if actor.id not in self._extents]:
            self._read_extents(new)
        bodies: dict[int, Body] = {}
        for actor in snapshot:
            size = self._extents.get(actor.id)
            if size is not None:
                place, velocity = actor.get_transform(), actor.get_velocity()
                at = place.location
                moves = place.rotation.yaw, velocity.x, velocity.y
                bodies[actor.id] = Body(actor.id, at.x, at.y, at.z, *moves, *size)
        own = bodies.pop(self.ego.id, None)
        if own is None:
            text = f"The ego vehicle on the CARLA server at {self.options.server} was removed."
            raise CarlaBridgeError(text, "Start the bridge again.")
        lights = {number: STATES.get(str(light.get_state()), "none") for number, light in self._lights.items()}
        return Scene(own, list(bodies.values()), self.ego.get_speed_limit() or LIMIT_KMH, lights)

    def lamps(self) -> list[Lamp]:
        return [read_lamp(light, self.map) for light in self._lights.values()]

    def _read_extents(self, actor_ids: list[int]) -> None:
        """Request the sizes of new actors from the server."""
        try:
            actors = {actor.id: actor for actor in self._world.get_actors(actor_ids)}
        except RuntimeError as error:
            raise ServerLost(_short_reason(error)) from None
        for actor_id in actor_ids:
            actor = actors.get(actor_id)
            self._extents[actor_id] = None
            if actor is not None and actor.type_id.startswith("vehicle."):
                extent = actor.bounding_box.extent
                self._extents[actor_id] = extent.x, extent.y

    def control(self, control: Control) -> None:
        """Set the ego vehicle's controls, starting with the next step."""
        self.ego.apply_control(carla.VehicleControl(**asdict(control)))

    def close(self) -> None:
        """Destroy our actors and restore the settings. Changes that cannot be undone stay in the journal."""
        if self._world is None:
            return
        try:
            probe(self.options)
            self._client.set_timeout(ANSWER_S)
            done = undo(self._client, self._world, self._journal.record)
        except (CarlaBridgeError, RuntimeError) as error:
            if isinstance(error.__context__, ConnectionRefusedError):
                self._journal.close()  # the server has exited, so there is nothing to undo
            else:
                log.warning("not undone on the server (%s); the list is kept: %s", error, self._journal.path)
            return
        self._journal.close()
        self._world = None
        if done:
            log.info("%s", "; ".join(done))
