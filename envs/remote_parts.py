"""What `RemoteEnvironment` is made of: its terms, what it sees, what it counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rtcontrol.envs.base import Observation
from rtcontrol.models.call import Call
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import FunctionCall, Observe


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

    def to_dict(self) -> dict[str, Any]:
        return {
            "observations": self.observations,
            "calls": dict(self.calls),
            "acknowledged": dict(self.acknowledged),
            "resets": self.resets,
        }


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
        raise WireError(
            Code.INVALID,
            "observe has arrays alone, and no agent here makes a text of them.",
            "Send `text` or `data` beside them, or name an agent that reads arrays.",
            field="arrays",
            seq=message.seq,
        )
    for i, array in enumerate(message.arrays):
        if array.name in look:
            raise WireError(
                Code.INVALID,
                f"arrays[{i}].name {array.name!r} is the name of another array, or of a value of `data`.",
                "Give each a name of its own.",
                field=f"arrays[{i}].name",
                seq=message.seq,
            )
        kind = np.dtype("?" if array.dtype == "b1" else f"<{array.dtype}")
        look[array.name] = np.frombuffer(array.data, kind).reshape(array.shape)
    return look
