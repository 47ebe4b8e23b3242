"""What `RemoteEnvironment` is made of: its terms, what it sees, what it counts, its client's newest picture."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rtcontrol.envs.base import Observation
from rtcontrol.models.call import Call
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import FunctionCall, Observe, Picture
from rtcontrol_client.wire.pictures import MAX_PICTURES_HZ

# A stamp that lies further back is a client's mistake, or a picture for nobody.
OLDEST_NS = 60_000_000_000


class RemoteData(dict[str, Any]):
    """An observation's `data`, and its arrays under their names (NumPy, read-only); `text` where the client wrote
    itself what the model reads."""

    text: str | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any] | None, text: str | None) -> RemoteData:
        look = cls(data or {})
        look.text = text
        return look


@dataclass(frozen=True, slots=True)
class RemoteTerms:
    """What was agreed with the client. `minor`: the version that both speak; `deadline_ns`: from release to deadline;
    `queue` bounds the observations that wait for their call (client-paced only);
    `ttl_ms` 0 is no limit; `reads_arrays`: there is an agent whose `observe` may use arrays."""

    session: str
    tools: tuple[str, ...]
    paced_by_client: bool = False
    ttl_ms: float = 0.0
    acknowledges: bool = False
    queue: int = 64
    reads_arrays: bool = True
    minor: int = 0
    deadline_ns: int = 0


@dataclass(slots=True)
class MessageCounts:
    """What came and went, for the report."""

    observations: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    resets: int = 0
    pictures: dict[str, int] = field(default_factory=dict)  # taken, dropped

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RemoteObservation:
    """An observation with the client's own numbers."""

    observation: Observation
    seq: int
    t_ns: int


@dataclass(slots=True)
class Sent:
    """A call that the client may acknowledge, once; `call` is None for a safe one, which is no history. `k` is the
    loop's number of the tick, `n` how many calls of it came before."""

    epoch: int
    call: Call | None
    k: int
    n: int = 0
    told: bool = False


def wire_call(call: Call | None) -> FunctionCall | None:
    """A call as the wire tells it."""
    return None if call is None else FunctionCall(name=call.name, arguments=dict(call.arguments))


def wire_calls(calls: Iterable[Call]) -> list[FunctionCall] | None:
    """The same of several; None where there are none."""
    return [FunctionCall(name=c.name, arguments=dict(c.arguments)) for c in calls] or None


def look_of(message: Observe, terms: RemoteTerms) -> RemoteData:
    """What the agent gets to see. Raises WireError (invalid) for arrays that nobody can make a text of, or whose names
    are taken."""
    look = RemoteData.of(message.data, message.text)
    if not message.arrays:
        return look
    if message.text is None and not message.data and not terms.reads_arrays:
        what = "observe has arrays alone, and no agent here makes a text of them."
        remedy = "Send `text` or `data` beside them, or name an agent that reads arrays."
        raise WireError(Code.INVALID, what, remedy, field="arrays", seq=message.seq)
    for i, array in enumerate(message.arrays):
        if array.name in look:
            what = f"arrays[{i}].name {array.name!r} is the name of another array, or of a value of `data`."
            remedy = "Give each a name of its own."
            raise WireError(Code.INVALID, what, remedy, field=f"arrays[{i}].name", seq=message.seq)
        kind = np.dtype("?" if array.dtype == "b1" else f"<{array.dtype}")
        look[array.name] = np.frombuffer(array.data, kind).reshape(array.shape)
    return look


@dataclass(frozen=True, slots=True)
class RemotePicture:
    """A file as it came, and when it was taken (CLOCK_MONOTONIC), as far as the client's stamps tell."""

    format: str
    data: bytes
    t_ns: int


class RemotePictures:
    """Of one session. `take` is for the transport's thread, `newest` for any; `counts` has what was `taken` and
    `dropped`. None is taken but from `start` to `close`, the loop's."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.newest: RemotePicture | None = None
        self.taken: Callable[[RemotePicture, int], None] = lambda one, now_ns: None  # told of each, on that thread
        self._counts, self._lock, self._open = counts, threading.Lock(), False
        self._later_ns: int | None = None  # our clock minus the client's, and what a message takes
        self._room, self._filled_ns = MAX_PICTURES_HZ, time.monotonic_ns()

    def observed(self, t_ns: int, now_ns: int) -> None:
        """An observation of `t_ns` by the client's clock arrived."""
        self._later_ns = now_ns - t_ns

    def take(self, message: Picture) -> None:
        """Keep it instead of the one before. Raises WireError (rate)."""
        with self._lock:
            now_ns = time.monotonic_ns()
            self._room = min(MAX_PICTURES_HZ, self._room + (now_ns - self._filled_ns) * MAX_PICTURES_HZ / 1e9)
            self._filled_ns = now_ns
            taken = self._open and self._room >= 1
            what = "taken" if taken else "dropped"
            self._counts[what] = self._counts.get(what, 0) + 1
            if taken:
                self._room -= 1
                self._keep(message, now_ns)
            elif self._open:
                what = f"More than {MAX_PICTURES_HZ:g} pictures a second."
                raise WireError(Code.RATE, what, "Send fewer: the newest one counts.", retryable=True)

    def _keep(self, message: Picture, now_ns: int) -> None:
        taken_ns = now_ns if self._later_ns is None else message.t_ns + self._later_ns
        image = message.image
        self.newest = RemotePicture(image.format, image.data, max(now_ns - OLDEST_NS, min(now_ns, taken_ns)))
        self.taken(self.newest, now_ns)

    def age_s(self) -> float | None:
        """Of the newest; None where there is none."""
        newest = self.newest
        return None if newest is None else round((time.monotonic_ns() - newest.t_ns) / 1e9, 1)

    def start(self) -> None:
        """A loop begins."""
        with self._lock:
            self._open = True

    def close(self) -> None:
        """It is over: what comes before its client is known to be gone is nobody's."""
        with self._lock:
            self._open = False
            self.forget()

    def forget(self) -> None:
        """Nobody is told of what was before."""
        self.newest = self._later_ns = None
