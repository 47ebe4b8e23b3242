"""The rules of a remote world: which messages of the client are valid, and how emissions are numbered.

This module uses no clock or thread. Tick numbers on the wire grow over all loops of a session; observations keep the
client's numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from rtcontrol.envs.base import Acknowledgement, Emission, Episode, Observation
from rtcontrol.models.call import Call
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import CallMessage, Executed, FunctionCall, Observe, Reset, Timing

# How many calls may still be acknowledged, how many observations may still be answered, and how many episodes are kept.
REMEMBERED = 1024


class RemoteData(dict[str, Any]):
    """The `data` of an observation, including arrays by name (NumPy, read-only); `text` is set if the client wrote the
    model's text itself."""

    text: str | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any] | None, text: str | None) -> RemoteData:
        look = cls(data or {})
        look.text = text
        return look


@dataclass(frozen=True, slots=True)
class RemoteTerms:
    """The negotiated settings of a session. `deadline_ns`: from release to deadline; `queue` limits the observations
    that wait for a call (client-paced only); `ttl_ms` 0 is no limit; `pictures_hz` pictures per second are recorded;
    `reads_arrays`: an agent's `observe` may use arrays."""

    session: str
    tools: tuple[str, ...]
    paced_by_client: bool = False
    ttl_ms: float = 0.0
    acknowledges: bool = False
    queue: int = 64
    reads_arrays: bool = True
    deadline_ns: int = 0
    pictures_hz: float = 0.0


@dataclass(slots=True)
class MessageCounts:
    """Counts of messages for the report."""

    observations: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    resets: int = 0
    pictures: dict[str, int] = field(default_factory=dict)  # `taken` and `dropped` pictures


# -- observations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoteObservation:
    """An observation with the numbers that the client gave."""

    observation: Observation
    seq: int
    t_ns: int


def look_of(message: Observe, terms: RemoteTerms) -> RemoteData:
    """Return the data that the agent sees. Raises WireError (invalid) for arrays that no agent uses, or whose names are
    taken."""
    look = RemoteData.of(message.data, message.text)
    if not message.arrays:
        return look
    if message.text is None and not message.data and not terms.reads_arrays:
        hint = "Send `text` or `data` with them, or name an agent that reads arrays."
        raise _invalid(
            message, "arrays", "observe has only arrays, and no agent on this server turns arrays into text.", hint
        )
    for i, array in enumerate(message.arrays):
        if array.name in look:
            problem = f"arrays[{i}].name {array.name!r} is the name of another array, or of a value of `data`."
            raise _invalid(message, f"arrays[{i}].name", problem, "Give each array a different name.")
        kind = np.dtype("?" if array.dtype == "b1" else f"<{array.dtype}")
        look[array.name] = np.frombuffer(array.data, kind).reshape(array.shape)
    return look


def _invalid(message: Observe, field: str, problem: str, hint: str) -> WireError:
    return WireError(Code.INVALID, problem, hint, field=field, seq=message.seq)


class Arrivals:
    """The observations of a client: the latest one, or in a client-paced session those that wait for a call, in
    order."""

    def __init__(self, terms: RemoteTerms) -> None:
        self._terms = terms
        self._seq = -1  # the client's number of the last observation
        self._count = 0  # the loop's number of that observation
        self._newest: RemoteObservation | None = None  # in a client-paced session the one that is being answered
        self._waiting: deque[RemoteObservation] = deque()
        self._peeked = False  # whether that observation was only previewed so far
        self._seen: dict[int, RemoteObservation] = {}

    def take(self, message: Observe, epoch: int, now_ns: int) -> None:
        """Store an observation. Raises WireError (sequence, epoch, rate, invalid)."""
        self._check(message, epoch)
        data = look_of(message, self._terms)
        self._seq = message.seq
        self._count += 1
        arrived = RemoteObservation(Observation(self._count, message.epoch, now_ns, data), message.seq, message.t_ns)
        if self._terms.paced_by_client:
            self._waiting.append(arrived)
        else:
            self._newest = arrived

    def _check(self, message: Observe, epoch: int) -> None:
        if message.seq <= self._seq:
            problem = f"observe.seq {message.seq} does not grow: the last was {self._seq}."
            hint = "Count up by one with every observation of the session, resumed or not."
            raise WireError(Code.SEQUENCE, problem, hint, field="seq", seq=message.seq)
        if message.epoch != epoch:
            problem = f"observe.epoch {message.epoch}: the session is in epoch {epoch}."
            hint = "Send `reset` with the next epoch first, or drop what belongs to an old one."
            raise WireError(Code.EPOCH, problem, hint, field="epoch", seq=message.seq)
        if len(self._waiting) >= self._terms.queue:
            problem = f"{self._terms.queue} observations wait for their call."
            hint = "Wait for the call before the next observation."
            raise WireError(Code.RATE, problem, hint, seq=message.seq, retryable=True)

    def latest(self) -> Observation | None:
        """Return the observation for the next decision."""
        if self._terms.paced_by_client and self._newest is None:
            self._peeked = self._next() is not None
        newest = self._newest
        if newest is None:
            return None
        _remember(self._seen, newest.observation.seq, newest)
        return newest.observation

    def arrival(self) -> int | None:
        """Return the arrival (CLOCK_MONOTONIC) of the next observation to answer in a client-paced session, or None."""
        if self._peeked and self._newest is not None:
            self._peeked = False
            return self._newest.observation.t_capture_ns
        return self._next()

    def _next(self) -> int | None:
        if not self._waiting:
            return None
        self._newest = self._waiting.popleft()
        return self._newest.observation.t_capture_ns

    def seen(self, seq: int) -> RemoteObservation | None:
        """Return the observation that the loop calls `seq`, with the client's numbers."""
        return self._seen.get(seq)

    def reset(self) -> None:
        """Start a new episode without observations."""
        if not self._terms.paced_by_client:
            self._newest = None

    def clear(self) -> None:
        """Delete all observations, so that the next loop or client waits for a new one."""
        self._newest, self._peeked = None, False
        self._waiting.clear()


# -- calls ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sent:
    """A sent call that the client may acknowledge once. `call` is None for a safe call, which is not part of histories.
    `k` is the loop's number of the tick, `n` the number of earlier calls of the tick."""

    epoch: int
    call: Call | None
    k: int
    n: int = 0
    acknowledged: bool = False


def wire_call(call: Call | None) -> FunctionCall | None:
    """Return the wire form of a call."""
    return None if call is None else FunctionCall(name=call.name, arguments=dict(call.arguments))


def wire_calls(calls: Iterable[Call]) -> list[FunctionCall] | None:
    """Return the wire form of several calls, or None for an empty list."""
    return [FunctionCall(name=call.name, arguments=dict(call.arguments)) for call in calls] or None


class SentCalls:
    """The calls that were sent to the client, with their acknowledgements, and with numbers that grow over all
    loops."""

    def __init__(self, terms: RemoteTerms) -> None:
        self._terms = terms
        self._sent: dict[int, Sent] = {}
        self._released = -1  # the last tick of this loop
        self.released_ns: int | None = None  # and the time of that tick
        self._tick = self._first_tick = 0
        self._done: deque[Call] = deque(maxlen=REMEMBERED)
        self.heard: deque[Acknowledgement] = deque(maxlen=REMEMBERED)

    def start(self) -> None:
        """Start another loop, which continues the numbers."""
        self._first_tick, self._released, self.released_ns = self._tick, -1, None
        self.heard.clear()

    def message(self, emission: Emission, seen: RemoteObservation | None, epoch: int, now_ns: int) -> CallMessage:
        """Return the wire message for an emission."""
        terms, status, call = self._terms, emission.status, emission.call
        epoch = epoch if status == "safe" or emission.epoch < 0 else emission.epoch
        tick, release_ns = self._numbered(emission)
        if (call is not None or status == "safe") and terms.acknowledges:
            _remember(self._sent, tick, Sent(epoch, call if status == "fresh" else None, emission.tick, emission.n))
        return CallMessage(
            session=terms.session,
            tick=tick,
            epoch=epoch,
            seq_obs=None if seen is None else seen.seq,
            t_obs_ns=None if seen is None else seen.t_ns,
            status=status,
            call=wire_call(call),
            calls=wire_calls(emission.safe_calls if status == "safe" else ()),
            more=emission.more or None,
            # A call that waited for an operator may be older by that time; without a limit nothing changes.
            ttl_ms=terms.ttl_ms and min(terms.ttl_ms + emission.waited_ns / 1e6, 1e9),
            release_ns=release_ns,
            deadline_ns=emission.deadline_ns,
            t_server_ns=now_ns,
            confidence=None if emission.confidence is None else min(emission.confidence, 1.0),
            cause=emission.cause,
            timing=Timing(
                age_ms=None if seen is None else (now_ns - seen.observation.t_capture_ns) / 1e6,
                decide_ms=None if emission.decide_ns is None else emission.decide_ns / 1e6,
                late_ms=max(0, now_ns - emission.deadline_ns) / 1e6,
            ),
        )

    def _numbered(self, emission: Emission) -> tuple[int, int | None]:
        """Return the number of the tick on the wire and its release time. A safe call between two ticks takes the next
        number and has no release."""
        tick = max(self._first_tick + emission.tick, self._tick)
        self._tick = tick + 1
        if emission.tick <= self._released or self._terms.paced_by_client:
            return tick, None
        self._released, self.released_ns = emission.tick, emission.deadline_ns - self._terms.deadline_ns
        return tick, self.released_ns

    def acknowledge(self, message: Executed, epoch: int, counts: MessageCounts, now_ns: int) -> None:
        """Store an acknowledgement. Raises WireError (state, sequence, epoch) unless it is the first one for a sent
        call."""
        if not self._terms.acknowledges:
            hint = 'Give hello `capabilities: ["executed"]`.'
            raise WireError(Code.STATE, "hello did not announce acknowledgements.", hint)
        if message.tick < next(iter(self._sent), self._first_tick):
            return  # deleted already
        sent = self._sent.get(message.tick)
        if sent is None or sent.acknowledged:
            problem = "no call of this tick was sent" if sent is None else "its call was acknowledged already"
            hint = "Acknowledge each call once, by the tick that it carries."
            raise WireError(Code.SEQUENCE, f"executed.tick {message.tick}: {problem}.", hint, field="tick")
        if sent.epoch != message.epoch:
            problem = f"executed.epoch {message.epoch}: the call of tick {message.tick} is of epoch {sent.epoch}."
            raise WireError(Code.EPOCH, problem, "Give the epoch that the call carries.", field="epoch")
        sent.acknowledged = True
        counts.acknowledged[message.outcome] = counts.acknowledged.get(message.outcome, 0) + 1
        if message.tick >= self._first_tick:  # otherwise the call belongs to an earlier run
            why: Literal["fresh", "safe"] = "safe" if sent.call is None else "fresh"
            self.heard.append(
                Acknowledgement(sent.k, message.outcome, now_ns, why, message.error, message.result, sent.n)
            )
        if sent.call is not None and message.outcome == "executed" and sent.epoch == epoch:
            self._done.append(sent.call)

    def next_release_ns(self, period_ns: int, now_ns: int) -> int | None:
        """Return when the next tick is released, or None before the first tick and in client-paced sessions."""
        last = self.released_ns
        return None if last is None else last + max(0, -(-(now_ns - last) // period_ns)) * period_ns

    def done(self) -> list[Call]:
        """Return the executed calls of this epoch, and delete them."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def forget(self) -> None:
        """Delete the executed calls of an earlier epoch."""
        self._done.clear()


# -- episodes ---------------------------------------------------------------------------------------------------------


class EndedEpisodes(Sequence[Episode]):
    """A sequence of finished episodes, which keeps the newest REMEMBERED and only counts earlier ones."""

    def __init__(self) -> None:
        self._newest: deque[Episode] = deque(maxlen=REMEMBERED)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: Any) -> Any:
        """Return an episode, or the available ones of a slice."""
        forgotten = self._count - len(self._newest)
        if isinstance(at, slice):
            return [self._newest[i - forgotten] for i in range(self._count)[at] if i >= forgotten]
        return self._newest[range(self._count)[at] - forgotten]

    def append(self, episode: Episode) -> None:
        """Add a finished episode."""
        self._newest.append(episode)
        self._count += 1


class Episodes:
    """The current epoch of a client, and the episodes of this run that the client's resets ended."""

    def __init__(self) -> None:
        self.epoch = 0
        self.ended = EndedEpisodes()
        self._wanted: int | None = None

    @property
    def finished(self) -> bool:
        return self._wanted is not None and len(self.ended) >= self._wanted

    def start(self, wanted: int | None) -> None:
        """Start a run of `wanted` episodes."""
        self.ended, self._wanted = EndedEpisodes(), wanted

    def reset(self, message: Reset) -> None:
        """Start the next epoch. Raises WireError for another one."""
        if message.epoch != self.epoch + 1:
            problem, hint = f"reset.epoch {message.epoch}: the next one is {self.epoch + 1}.", "Count epochs up by one."
            raise WireError(Code.EPOCH, problem, hint, field="epoch")
        self.epoch = message.epoch
        if (ended := message.ended) is not None:
            self.ended.append(Episode(ended.seed, ended.ret, ended.success, ended.seconds))


def _remember(memory: dict[int, Any], number: int, item: Any) -> None:
    """Store the item, and keep the newest REMEMBERED."""
    if number not in memory:
        memory[number] = item
        if len(memory) > REMEMBERED:
            del memory[next(iter(memory))]
