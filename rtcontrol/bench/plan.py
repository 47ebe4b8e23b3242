"""How many doors, decoders and machines so many sessions or characters need, by measured costs: `rtcontrol plan`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from rtcontrol.bench.capacity import CROWD, MS, Capacity
from rtcontrol.loop.config import MAX_HZ, MIN_HZ
from rtcontrol.models.errors import UserError
from rtcontrol.serve.crowd.turns import PHASES
from rtcontrol.serve.options import MOST_DECODERS, ServeOptions

# Of a door: as many sessions as `rtcontrol bench load` was ever let try, and a link as most machines have one.
DOOR_SESSIONS, LINK_MBIT = 500, 1_000.0
MOST_BUSY = 0.95  # nearer to all of a core, what waits grows without bound
MOST = 1_000_000_000  # sessions or characters
# Of a core, up to which so much is to be expected of the slowest calls.
CLASSES = (
    (0.5, "short: nearly every decision begins at once"),
    (0.7, "moderate: most wait for the batch under way"),
    (1.0, "long: nearly every one waits, and what makes the machine slower makes calls late"),
)


@dataclass(frozen=True)
class Limit:
    """What a part has of what it may have: 1 is all of it."""

    name: str
    share: float


@dataclass(frozen=True)
class DoorGroup:
    """So many doors alike: the decoders of each, and how many sessions, or characters, come to it."""

    doors: int
    decoders: int
    count: int


def _cores(groups: tuple[DoorGroup, ...]) -> int:
    return sum(one.doors * (1 + one.decoders) for one in groups)


@dataclass(frozen=True)
class Sizing:
    """Of a capacity, for `count` sessions, or characters of crowds, at `hz`. UserError where there is none."""

    capacity: Capacity
    count: int
    hz: float
    crowd: bool = False
    cores_per_node: int = 16
    busy_max: float = 0.8

    def __post_init__(self) -> None:
        option = "--characters" if self.crowd else "--sessions"
        if not 1 <= self.count <= MOST:
            raise UserError(f"{option} {self.count} cannot be planned for.", f"Give 1 to {MOST:,}.")
        if not MIN_HZ <= self.hz <= MAX_HZ:
            raise UserError(f"--hz {self.hz:g} is no rate.", f"Give {MIN_HZ:g} to {MAX_HZ:g}, such as 5.")
        if not 0.05 <= self.busy_max <= MOST_BUSY:
            raise UserError(
                f"--busy-max {self.busy_max:g} cannot be planned for: near all of a core, waits grow without bound.",
                f"Give 0.05 to {MOST_BUSY:g}.",
            )
        if not 1 <= self.cores_per_node <= 4096:
            raise UserError(f"--cores-per-node {self.cores_per_node} is no machine.", "Give 1 to 4096.")
        if not self.per_decoder:
            raise self._impossible(f"One decision of {self.capacity.model}", *self._costs_ms[0])
        if not self.per_door:
            raise self._impossible("One tick at the door", *self._costs_ms[1])

    @property
    def _costs_ms(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Of one alone at a decoder, and at a door: of each tick, and of each second."""
        door = self.capacity.door
        decoder = self.capacity.alone_ms(self.crowd), door.decoder_idle_ms
        if self.crowd:
            return decoder, (door.call_ms + door.crowd_ms, door.crowd_idle_ms)
        return decoder, (door.tick_ms, door.idle_ms)

    def _impossible(self, what: str, took_ms: float, idle_ms: float) -> UserError:
        period_ms, given_ms = MS / self.hz, self.busy_max * MS / self.hz
        left = f"--hz {self.hz:g} leaves {period_ms:.3g} ms"
        left += "" if took_ms >= period_ms else f", of which --busy-max gives away {given_ms:.3g}"
        highest = min((self.busy_max * MS - idle) / took for took, idle in self._costs_ms if took > 0)
        highest = math.floor(100 * highest) / 100
        lower = f"Ask for at most {highest:g} Hz, or take" if highest >= MIN_HZ else "Take"
        return UserError(
            f"{what} takes {took_ms:.3g} ms of a core, and {left}.",
            f"{lower} a smaller model or a faster machine (`rtcontrol bench capacity` measures both).",
        )

    # -- what one of each carries --------------------------------------------------------------------------------------

    @cached_property
    def per_decoder(self) -> int:
        """As many as one decoder decides for within `busy_max` of its core; above a crowd's size, whole crowds."""
        most = largest(lambda count: self.decoder_busy(count) <= self.busy_max)
        return most // CROWD * CROWD if self.crowd and most > CROWD else most

    @cached_property
    def per_door(self) -> int:
        """As many as one door takes within `busy_max` of its core and its link, and of what was ever tried."""
        return largest(self._door_takes)

    def _door_takes(self, count: int) -> bool:
        link = self.link_mbit(count) <= self.busy_max * LINK_MBIT
        return self.crowds(count) <= DOOR_SESSIONS and link and self.door_busy(count) <= self.busy_max

    @property
    def per_crowd(self) -> int:
        """Characters of a crowd, all of whom one decoder decides for."""
        return min(CROWD, max(self.per_decoder, 1))

    def crowds(self, count: int) -> int:
        """Sessions of a door with so many sessions, or characters."""
        return math.ceil(count / self.per_crowd) if self.crowd else count

    def decoder_busy(self, count: int) -> float:
        """The part of a decoder's core."""
        return (self.capacity.crowd_busy if self.crowd else self.capacity.sessions_busy)(count, self.hz)

    def door_busy(self, count: int) -> float:
        """The part of a door's core."""
        if self.crowd:
            return self.capacity.crowd_door_busy(count * self.hz, self.crowds(count) * self.hz)
        return self.capacity.door_busy(count * self.hz)

    def link_mbit(self, count: int) -> float:
        """Between a door with so many and its clients."""
        if self.crowd:
            return self.capacity.link_mbit(0.0, count * self.hz, self.crowds(count) * self.hz)
        return self.capacity.link_mbit(count * self.hz)

    # -- how many of each ----------------------------------------------------------------------------------------------

    @cached_property
    def layout(self) -> tuple[DoorGroup, ...]:
        """The doors that need the fewest cores: all alike, and a last one with what is left. Servers share no decoders,
        so it depends on the decoders of each."""
        most = min(math.ceil(self.per_door / self.per_decoder), MOST_DECODERS)
        layouts = (self._layout(decoders) for decoders in range(1, most + 1))
        return min(layouts, key=lambda groups: (_cores(groups), len(groups), sum(one.doors for one in groups)))

    def _layout(self, decoders: int) -> tuple[DoorGroup, ...]:
        each = min(self.per_door, decoders * self.per_decoder)
        doors, rest = divmod(self.count, each)
        last = DoorGroup(1, math.ceil(rest / self.per_decoder), rest)
        groups = (DoorGroup(doors, decoders, each), last)
        return tuple(one for one in groups if one.doors and one.count)

    @property
    def doors(self) -> int:
        return sum(one.doors for one in self.layout)

    @property
    def decoders(self) -> int:
        return sum(one.doors * one.decoders for one in self.layout)

    @property
    def cores(self) -> int:
        """One for each door and each decoder."""
        return _cores(self.layout)

    @property
    def nodes(self) -> int:
        return math.ceil(self.cores / self.cores_per_node)

    @property
    def at_a_door(self) -> int:
        """So many at the fullest door."""
        return max(one.count for one in self.layout)

    @property
    def on_a_decoder(self) -> int:
        """So many on the fullest decoder: of characters as many as it carries, as crowds stay whole."""
        if self.crowd:
            return min(self.per_decoder, self.at_a_door)
        return max(math.ceil(one.count / one.decoders) for one in self.layout)

    # -- what comes of it ----------------------------------------------------------------------------------------------

    @property
    def decoder_mib(self) -> float:
        """Of one, with all that it has."""
        on = self.on_a_decoder
        return self.capacity.decoder_mib(0, on) if self.crowd else self.capacity.decoder_mib(on)

    @property
    def door_mib(self) -> float:
        return self.capacity.door_mib(self.crowds(self.at_a_door))

    @property
    def mib(self) -> float:
        """Of all together, Ray's on each machine too."""
        ray = self.nodes * self.capacity.door.ray_mib
        return self.doors * self.door_mib + self.decoders * self.decoder_mib + ray

    @property
    def node_mib(self) -> float:
        """Of a machine, with a process for each of its cores."""
        each = min(self.cores, self.cores_per_node) * max(self.decoder_mib, self.door_mib)
        return each + self.capacity.door.ray_mib

    @property
    def busiest(self) -> float:
        """The largest part of a core that a process needs."""
        return max(self.decoder_busy(self.on_a_decoder), self.door_busy(self.at_a_door))

    @property
    def together_ms(self) -> float:
        """Of a decoder's core, until the last call where all of its ticks fall together; of a crowd, those of one of
        its `PHASES`."""
        on = math.ceil(self.on_a_decoder / PHASES) if self.crowd else self.on_a_decoder
        return self.capacity.batch_ms(on, self.crowd)

    @property
    def waits(self) -> str:
        """What is to be expected of the slowest calls."""
        return next(text for most, text in CLASSES if self.busiest <= most)

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What breaks first, and what next."""
        sessions = self.crowds(self.at_a_door)
        found = (
            Limit("a decoder's core", self.decoder_busy(self.on_a_decoder) / self.busy_max),
            Limit("a door's core", self.door_busy(self.at_a_door) / self.busy_max),
            Limit("a door's link", self.link_mbit(self.at_a_door) / (self.busy_max * LINK_MBIT)),
            Limit("connections of a door", sessions / DOOR_SESSIONS),
            Limit("decoders of a door", max(one.decoders for one in self.layout) / MOST_DECODERS),
        )
        return tuple(sorted(found, key=lambda one: one.share, reverse=True))

    def commands(self) -> list[tuple[int, str]]:
        """How often each line is to be started."""
        line = (
            f"rtcontrol serve --model {self.capacity.model} --threads 1 --hz {self.hz:g} --busy-max {self.busy_max:g}"
        )
        line += f" --hz-max {self.hz:g}" if self.hz > ServeOptions().hz_max else ""
        line += " --bind tcp://0.0.0.0:5555 --keys keys"
        return [
            (one.doors, f"{line} --max-sessions {self.crowds(one.count)} --decoders {one.decoders}")
            for one in self.layout
        ]

    def document(self, price: float | None = None) -> dict[str, Any]:
        """All figures."""
        given = {"model": self.capacity.model, "count": self.count, "kind": "characters" if self.crowd else "sessions"}
        given |= {"hz": self.hz, "cores_per_node": self.cores_per_node, "busy_max": self.busy_max}
        found = {"doors": self.doors, "decoders": self.decoders, "cores": self.cores, "nodes": self.nodes}
        one: dict[str, int | None] = {
            "per_decoder": self.per_decoder,
            "per_door": self.per_door,
            "at_a_door": self.at_a_door,
        }
        one |= {"on_a_decoder": self.on_a_decoder, "per_crowd": self.per_crowd if self.crowd else None}
        busy = {"decoder": self.decoder_busy(self.on_a_decoder), "door": self.door_busy(self.at_a_door)}
        memory = {"all": self.mib, "node": self.node_mib, "decoder": self.decoder_mib, "door": self.door_mib}
        mbit = {"all": self.link_mbit(self.count), "door": self.link_mbit(self.at_a_door)}
        rest = {"together_ms": self.together_ms, "waits": self.waits, "limits": [asdict(one) for one in self.limits]}
        commands = [{"times": times, "command": line} for times, line in self.commands()]
        cost = None if price is None else {"node_hour": price, "hour": price * self.nodes}
        parts = {"busy": busy, "mib": memory, "mbit": mbit, **rest}
        return {**given, **found, **one, **parts, "cost": cost, "gpu": None, "commands": commands}


def largest(fits: Callable[[int], bool], most: int = MOST) -> int:
    """The largest number up to `most` that fits, where all below one that fits do; 0: none."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def carried(nodes: int, capacity: Capacity, hz: float, crowd: bool, cores_per_node: int, busy_max: float) -> Sizing:
    """The largest plan that so many machines carry. UserError where they carry nobody."""
    if not 1 <= nodes <= MOST:
        raise UserError(f"--nodes {nodes} cannot be planned for.", f"Give 1 to {MOST:,}.")

    def sizing(count: int) -> Sizing:
        return Sizing(capacity, count, hz, crowd, cores_per_node, busy_max)

    count = largest(lambda count: sizing(count).nodes <= nodes)
    if not count:
        raise UserError(
            "One machine of one core is too small: a door and a decoder need one each.",
            "Give more --cores-per-node, or more --nodes.",
        )
    return sizing(count)
