"""The CARLA server as the bridge uses it: found and restored settings, the ego vehicle, ticks that end, snapshots."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import carla

from rtcontrol_client.carla import journal
from rtcontrol_client.carla.control import Control
from rtcontrol_client.carla.journal import Journal
from rtcontrol_client.carla.lights import Lamp, lamp_of
from rtcontrol_client.carla.neighbours import Body
from rtcontrol_client.carla.observing import Light, Scene
from rtcontrol_client.carla.options import STANDIN, STANDIN_TOWN, CarlaBridgeError, DriveOptions, ServerLost
from rtcontrol_client.carla.server import (
    ANSWER_S,
    SLOW_S,
    apply_settings,
    clean,
    connect,
    probe,
    settings_of,
    ticked,
    undo,
)

LOAD_S = 90.0
CARS = ("vehicle.tesla.model3", "vehicle.")
ROLE = "hero"
# Where CARLA tells none.
LIMIT_KMH = 50.0
STATES: dict[str, Light] = {"Red": "red", "Yellow": "yellow", "Green": "green"}
log = logging.getLogger("rtcontrol.carla")


class CarlaWorld:
    """One server, made synchronous, ticked by us alone. `ego` is our vehicle, `map` CARLA's map of the town, `frame`
    the simulation's last step.

    Methods raise CarlaBridgeError for what the user must mend, and ServerLost where the server is gone.
    """

    def __init__(self, options: DriveOptions, journal: Journal) -> None:
        self.options = options
        self.map: Any = None
        self.ego: Any = None
        self.frame = 0
        self._journal = journal
        self._client: Any = None
        self._world: Any = None
        self._lights: dict[int, Any] = {}
        self._extent: dict[int, tuple[float, float] | None] = {}  # of vehicles; None: no vehicle

    @property
    def town(self) -> str:
        return str(self.map.name).rsplit("/", 1)[-1]

    @property
    def what(self) -> str:
        """What is driven in, as every figure says it: the stand-in is known by its town, too."""
        return STANDIN if self.options.standin or self.town.startswith(STANDIN_TOWN) else "CARLA"

    def open(self) -> None:
        """Connect, make it ours, spawn the ego vehicle. What others of this user left there is undone first."""
        self._client = connect(self.options)
        for path, left, alive in journal.others(self.options.host, self.options.port):
            if alive:
                raise CarlaBridgeError(
                    f"Another bridge (process {left.pid}) drives on the CARLA server at {self.options.server}.",
                    "Only one client may tick a server: end that one first, or start a second server.",
                )
            log.warning("a bridge that died (process %d): %s", left.pid, "; ".join(clean(path)))
        self._enter()

    def back(self) -> None:
        """Let a lost server make a step. Raises ServerLost if it makes none yet, CarlaBridgeError if it is gone."""
        try:
            probe(self.options)
        except CarlaBridgeError as error:
            # Where its port is closed it is gone; a machine out of reach may come back.
            if isinstance(error.__context__, OSError) and not isinstance(error.__context__, ConnectionRefusedError):
                raise ServerLost(error.what) from None
            raise
        self.tick()

    def _enter(self) -> None:
        try:
            self._world = self._client.get_world()
            self._town()
            self._journal.begin(self._world.id)
            self._settings()
            if self.options.reload:
                self._load(lambda: self._client.reload_world(False))
            self._spawn()
            self._lights = {one.id: one for one in self._world.get_actors().filter("traffic.traffic_light*")}
            self._client.set_timeout(self.options.wait_s)
        except RuntimeError as error:
            raise CarlaBridgeError(
                f"The CARLA server at {self.options.server} broke off while it was set up ({error}).",
                "Look at its own output; start it again.",
            ) from None

    def _town(self) -> None:
        self.map = self._world.get_map()
        wanted = self.options.town
        if wanted is not None and wanted not in (self.town, self.map.name):
            towns = sorted({name.rsplit("/", 1)[-1] for name in self._client.get_available_maps()})
            if wanted not in towns:
                raise CarlaBridgeError(f"There is no town {wanted} on the server.", f"It has {', '.join(towns)}.")
            if self._world.get_settings().synchronous_mode:
                self._nobody_ticks()  # or its world would be gone
            log.info("loading %s", wanted)
            self._load(lambda: self._client.load_world(wanted))

    def _load(self, load: Callable[[], Any]) -> None:
        """Another world takes this one's place."""
        self._client.set_timeout(LOAD_S)
        self._world = load()
        self._client.set_timeout(SLOW_S)
        self.map = self._world.get_map()
        self._journal.moved(self._world.id)

    def _settings(self) -> None:
        found = settings_of(self._world)
        if found["synchronous_mode"]:
            # Somebody else's, or left so by one that died.
            self._nobody_ticks()
            log.warning("the server was left synchronous, and stood still: it will be left asynchronous")
            found |= {"synchronous_mode": False, "fixed_delta_seconds": None}
        self._journal.settings(found)
        substeps = {"substepping": True, "max_substep_delta_time": 0.01, "max_substeps": 10}
        wanted = {"synchronous_mode": True, "fixed_delta_seconds": self.options.step_s, **substeps}
        apply_settings(self._world, wanted)

    def _nobody_ticks(self) -> None:
        """CarlaBridgeError where the frames of a synchronous server go on."""
        if ticked(self._world):
            raise CarlaBridgeError(
                f"Another client ticks the CARLA server at {self.options.server}.",
                "Only one client may tick a server: end that one first, or start a second server.",
            )

    def _spawn(self) -> None:
        blueprint = self._blueprint()
        if blueprint.has_attribute("role_name"):
            blueprint.set_attribute("role_name", ROLE)
        points = self.map.get_spawn_points()
        random.Random(self.options.seed).shuffle(points)
        for point in points:
            ego = self._world.try_spawn_actor(blueprint, point)
            if ego is not None:
                self.ego = ego
                self._journal.spawned(ego.id)
                break
        else:
            self.close()
            raise CarlaBridgeError(
                f"None of the {len(points)} spawn points of {self.town} is free.",
                "Remove vehicles from the server, or restart it.",
            )
        self.frame = self._world.tick(SLOW_S)

    def _blueprint(self) -> Any:
        library = self._world.get_blueprint_library().filter("vehicle.*")
        for name in CARS:
            if matching := [one for one in library if one.id.startswith(name)]:
                return min(matching, key=lambda one: one.id)
        raise CarlaBridgeError("The server has no vehicles.", "Look at its own output; start it again.")

    # -- each step ----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let the simulation make one step. ServerLost where it does not come in time."""
        try:
            self.frame = int(self._world.tick(self.options.wait_s))
        except RuntimeError as error:
            raise ServerLost(str(error).split(",")[0]) from None

    def scene(self) -> Scene:
        """What is there now."""
        snapshot = self._world.get_snapshot()
        if new := [actor.id for actor in snapshot if actor.id not in self._extent]:
            self._learn(new)
        own: Body | None = None
        others: list[Body] = []
        for actor in snapshot:
            size = self._extent.get(actor.id)
            if size is None:
                continue
            place, velocity = actor.get_transform(), actor.get_velocity()
            at = place.location
            body = Body(actor.id, at.x, at.y, at.z, place.rotation.yaw, velocity.x, velocity.y, *size)
            if actor.id == self.ego.id:
                own = body
            else:
                others.append(body)
        if own is None:
            raise CarlaBridgeError(
                f"The ego vehicle on the CARLA server at {self.options.server} was removed.", "Start the bridge again."
            )
        lights = {number: STATES.get(str(one.get_state()), "none") for number, one in self._lights.items()}
        return Scene(own, others, self.ego.get_speed_limit() or LIMIT_KMH, lights)

    def lamps(self) -> list[Lamp]:
        """The town's traffic lights."""
        return [lamp_of(one, self.map) for one in self._lights.values()]

    def _learn(self, new: list[int]) -> None:
        try:
            found = {actor.id: actor for actor in self._world.get_actors(new)}
        except RuntimeError as error:
            raise ServerLost(str(error).split(",")[0]) from None
        for number in new:
            actor = found.get(number)
            if actor is None or not actor.type_id.startswith("vehicle."):
                self._extent[number] = None
            else:
                extent = actor.bounding_box.extent
                self._extent[number] = extent.x, extent.y

    def control(self, control: Control) -> None:
        """What the ego vehicle's pedals and wheel are from the next step on."""
        self.ego.apply_control(
            carla.VehicleControl(
                throttle=control.throttle, steer=control.steer, brake=control.brake, hand_brake=control.hand_brake
            )
        )

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Destroy what is ours, put the settings back as they were found. What cannot be undone stays in the file."""
        if self._world is None:
            return
        try:
            probe(self.options)
        except CarlaBridgeError as error:
            if isinstance(error.__context__, ConnectionRefusedError):
                # What was on the server went with it.
                self._journal.close()
            else:
                log.warning("not undone on the server (%s); the list is kept: %s", error.what, self._journal.path)
            return
        try:
            self._client.set_timeout(ANSWER_S)
            done = undo(self._client, self._world, self._journal.left)
        except RuntimeError as error:
            log.warning("not undone on the server (%s); the list is kept: %s", error, self._journal.path)
            return
        self._journal.close()
        self._world = None
        if done:
            log.info("%s", "; ".join(done))
