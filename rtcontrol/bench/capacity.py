"""What a deployment can carry, by measured costs: of a decoder's batches, of a door's ticks, of memory and of the wire.

A door is one `rtcontrol serve`; its decoders are processes of their own, of one thread each. Nothing here measures, and
nothing here has a clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rtcontrol.models.checkpoint import hub
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.crowd import SEQUENCES
from rtcontrol.models.errors import UserError
from rtcontrol.serve.crowd.turns import PHASES

SHIPPED = "capacity.json"
MEASURE = "rtcontrol bench capacity {model} --json capacity.json"
MS, MBIT = 1e3, 8e-6
CROWD = SEQUENCES  # characters: of a larger crowd a decoder remembers nobody from one tick to the next


@dataclass(frozen=True)
class BatchCost:
    """Milliseconds of a core that decisions together take: `pass_ms` for each forward pass of `most` decisions at most,
    and `each_ms` for each decision in it."""

    pass_ms: float
    each_ms: float
    most: int

    def ms(self, count: int) -> float:
        """Of so many together."""
        return math.ceil(count / self.most) * self.pass_ms + count * self.each_ms


@dataclass(frozen=True)
class ModelCost:
    """Of a model with the tools of its own agent. MiB: of a decoder's process with the model, of each session in it,
    and in each session of a token of the prefix, the tools' text."""

    agent: str
    batch: BatchCost
    model_mib: float
    session_mib: float
    token_mib: float
    prefix_tokens: int

    @property
    def sequence_mib(self) -> float:
        """Of one session with the agent's own prefix."""
        return self.session_mib + self.prefix_tokens * self.token_mib


@dataclass(frozen=True)
class DoorCost:
    """Of the parts that know no model. Milliseconds of a core: of a door with sessions for each tick (two looks
    before each) and each second; of a door with crowds for each member's call (the same), each period of a crowd and
    each second; of a decoder for each second. What a decision takes in a server is `session_factor` or `crowd_factor`
    times what it takes in a process that does nothing else. Bytes of a session's tick, a
    member's call and a crowd's period on the wire, both ways. MiB of a door and of each session there, of what a
    decoder and each session in it have beside the model's own, and of Ray on a machine, which has `ray_ms` of each
    second for itself."""

    tick_ms: float
    idle_ms: float
    call_ms: float
    crowd_ms: float
    crowd_idle_ms: float
    decoder_idle_ms: float
    session_factor: float
    crowd_factor: float
    tick_bytes: float
    call_bytes: float
    crowd_bytes: float
    door_mib: float
    door_session_mib: float
    decoder_mib: float
    decoder_session_mib: float
    ray_mib: float
    ray_ms: float

    @classmethod
    def nothing(cls) -> DoorCost:
        """What decisions cost without it."""
        return cls(**{one.name: float(one.name.endswith("_factor")) for one in fields(cls)})


@lru_cache(maxsize=4096)
def session_share_ms(batch: BatchCost, sessions: int, hz: float) -> float:
    """Milliseconds of a core of one decision, where so many sessions ask one decoder at instants that know nothing of
    one another: whatever came while a batch was decided is the next batch. The mean over the chain of such batches."""
    most = min(sessions, batch.most)
    took = np.array([batch.ms(n) for n in range(1, most + 1)])
    steps = _next_batches(sessions - 1, hz * took / MS, most)
    stays = np.full(most, 1.0 / most)
    for _ in range(200):
        after = stays @ steps
        if np.abs(after - stays).max() < 1e-12:
            break
        stays = after
    return float(stays @ took / (stays @ np.arange(1, most + 1)))


def _next_batches(others: int, chances: Any, most: int) -> Any:
    """How likely the next batch has 1 to `most` decisions, in a row for each chance that one of the others has come:
    where nobody has, the next one is waited for; who is too many waits."""
    chance = np.clip(chances, 1e-12, 1.0 - 1e-12)[:, None]
    count = np.arange(1, min(most, others) + 1)
    ways = np.cumsum(np.log((others - count + 1) / count))
    none = others * np.log1p(-chance)
    some = np.exp(none + ways + count * (np.log(chance) - np.log1p(-chance)))
    steps = np.zeros((len(chance), most))
    steps[:, : len(count)] = some
    steps[:, 0] += np.exp(none[:, 0])
    steps[:, -1] += np.maximum(0.0, 1.0 - steps.sum(axis=1))
    return steps


@dataclass(frozen=True)
class Capacity:
    """One model and the machine's parts together."""

    model: str
    cost: ModelCost
    door: DoorCost

    def alone_ms(self, crowd: bool = False) -> float:
        """One decision alone."""
        return self.batch_ms(1, crowd)

    def batch_ms(self, count: int, crowd: bool = False) -> float:
        """Of so many together in a server."""
        return self.cost.batch.ms(count) * (self.door.crowd_factor if crowd else self.door.session_factor)

    def sessions_busy(self, sessions: int, hz: float) -> float:
        """The part of a core that a decoder needs for so many sessions."""
        if not sessions:
            return self.door.decoder_idle_ms / MS
        each = session_share_ms(self.cost.batch, sessions, hz) * self.door.session_factor
        return (sessions * hz * each + self.door.decoder_idle_ms) / MS

    def crowd_busy(self, characters: int, hz: float) -> float:
        """The same for characters in as few crowds as `CROWD` allows, each decided in `PHASES` batches of a period."""
        period_ms = 0.0
        for size, crowds in _shares(characters, math.ceil(characters / CROWD) or 1):
            for count, batches in _shares(size, PHASES):
                period_ms += crowds * batches * self.batch_ms(count, crowd=True)
        return (hz * period_ms + self.door.decoder_idle_ms) / MS

    def door_busy(self, ticks_per_s: float) -> float:
        """The part of a core that a door needs for so many ticks of sessions a second."""
        return (ticks_per_s * self.door.tick_ms + self.door.idle_ms) / MS

    def crowd_door_busy(self, calls_per_s: float, periods_per_s: float) -> float:
        """The same for so many calls of crowds' members, and periods of crowds, a second."""
        door = self.door
        return (calls_per_s * door.call_ms + periods_per_s * door.crowd_ms + door.crowd_idle_ms) / MS

    def link_mbit(self, ticks_per_s: float, calls_per_s: float = 0.0, periods_per_s: float = 0.0) -> float:
        """Megabits a second between a door and its clients, both ways together."""
        door = self.door
        sizes = ticks_per_s * door.tick_bytes + calls_per_s * door.call_bytes + periods_per_s * door.crowd_bytes
        return sizes * MBIT

    def decoder_mib(self, sessions: int, characters: int = 0) -> float:
        """A decoder's process that so many sessions are in, or characters of crowds."""
        each = self.cost.sequence_mib + self.door.decoder_session_mib
        return self.cost.model_mib + self.door.decoder_mib + sessions * each + characters * self.cost.sequence_mib

    def door_mib(self, sessions: int) -> float:
        return self.door.door_mib + sessions * self.door.door_session_mib


def _shares(count: int, parts: int) -> tuple[tuple[int, int], ...]:
    """So many in so many parts that are as equal as can be: (size, how many parts)."""
    small, more = divmod(count, parts)
    return ((small + 1, more), (small, parts - more)) if more else ((small, parts),)


T = TypeVar("T")


def fitted(
    rows: Sequence[Sequence[float]], values: Sequence[float], sizes: Sequence[float] | None = None
) -> list[float]:
    """The factors of the columns, none below 0, by which the rows come closest to the values, where a miss counts as
    the part that it is of the value, or of its row's size."""
    scale = 1.0 / np.maximum(np.abs(np.array(values if sizes is None else sizes, float)), 1e-9)
    columns = list(range(len(rows[0])))
    found = np.zeros(len(columns))
    while columns:
        part = np.array(rows, float)[:, columns] * scale[:, None]
        best = np.linalg.lstsq(part, np.array(values, float) * scale, rcond=None)[0]
        if (best >= 0).all():
            found[columns] = best
            break
        columns.pop(int(np.argmin(best)))
    return [float(one) for one in found]


@dataclass(frozen=True)
class Measured:
    """A file of costs: of which models, and on which machine and day."""

    door: DoorCost
    models: Mapping[str, ModelCost]
    document: Mapping[str, Any]
    path: str = ""

    def of(self, model: str) -> Capacity:
        """UserError for a model that is not measured there, or that is none."""
        if model not in self.models:
            if not hub.is_id(model):  # whose files are not fetched for this
                Checkpoint.open(model)
            raise UserError(
                f"{self.path} holds no costs of the model {model!r}, but of {', '.join(self.models)}.",
                f"Measure it here, in 4 minutes: `{MEASURE.format(model=model)}`; then add --measured capacity.json.",
            )
        return Capacity(model, self.models[model], self.door)

    @property
    def where(self) -> str:
        """Where and when, in one line."""
        machine = self.document["machine"]
        return f"{machine['cores']} cores of {machine['cpu']}, {self.document['measured']}"


def read(path: Path | None) -> Measured:
    """What `rtcontrol bench capacity --json` wrote; without a path, what is bundled. Raises UserError."""
    name = "The bundled file" if path is None else str(path)
    remedy = f"Write it anew: `{MEASURE.format(model='NAME')}`."
    try:
        file = resources.files("rtcontrol.bench").joinpath(SHIPPED) if path is None else path
        document = json.loads(file.read_text("utf-8"))
        costs = document["costs"]
        models = {
            model: _made(ModelCost, {**cost, "batch": _made(BatchCost, cost["batch"])})
            for model, cost in costs["models"].items()
        }
        return Measured(_made(DoorCost, costs["door"]), models, document, name)
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}).", remedy) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{name} holds no costs ({type(error).__name__}: {error}).", remedy) from None


def _made(kind: type[T], given: Mapping[str, Any]) -> T:
    """Of a mapping with all fields, each of which is a cost, a name or what is made already."""
    values = {}
    for one in fields(kind):  # type: ignore[arg-type]
        value = values[one.name] = given[one.name]
        number = isinstance(value, float | int) and math.isfinite(value) and value >= 0
        if one.type in ("float", "int") and not number:
            raise ValueError(f"{one.name} is {value!r}")
    return kind(**values)


def as_document(door: DoorCost, models: Mapping[str, ModelCost]) -> dict[str, Any]:
    """For the file, to four digits after the point."""
    return {"door": _rounded(asdict(door)), "models": {name: _rounded(asdict(one)) for name, one in models.items()}}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return round(value, 5) if isinstance(value, float) else value
