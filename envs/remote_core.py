"""Validate the messages of a remote client, and create the call messages to the client, without clock or threads.

A resumed session has a new control loop, but its tick numbers on the wire continue. Messages use the client's numbers
of observations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from rtcontrol.envs.base import Acknowledgement, Emission, Episode, Observation
from rtcontrol.models.call import Call
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import CallMessage, Executed, FunctionCall, Observe, Reset, Timing

# The newest 1,024 sent calls, received observations and finished episodes are stored. Older ones are dropped.
MAX_KEPT = 1024
MAX_WAITING_BYTES = 4 << 20  # maximum bytes of observations that wait for a call; further ones are refused


class RemoteData(dict[str, Any]):
    """The `data` of an observation, including its arrays by name (NumPy, read-only); `text` is the text for the model
    if the client sent one, else None."""

    text: str | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any] | None, text: str | None) -> RemoteData:
        remote_data = cls(data or {})
        remote_data.text = text
        return remote_data


@dataclass(frozen=True, slots=True)
class RemoteTerms:
    """The negotiated settings of a session. In a client-paced session (`paced_by_client`), each observation starts a
    tick, and at most `queue` observations wait for a call. `ttl_ms` is the time-to-live of calls (0: no limit),
    `acknowledges` whether the client reports executed calls, `reads_arrays` whether the agent's `observe` may use
    arrays, `deadline_ns` the time from a tick's scheduled start to its deadline, `pictures_hz` the pictures recorded
    per second."""

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
    """How many messages of each type and outcome a session had, for the report."""

    observations: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    resets: int = 0
    pictures: dict[str, int] = field(default_factory=dict)  # `taken` and `dropped` pictures


# -- observations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoteObservation:
    """The client's number (`seq`) and capture time (`t_ns`) of an observation, and its time of arrival. These are kept
    longer than the observation's data, which may be large."""

    seq: int
    t_ns: int
    arrived_ns: int


def memory_bytes(*values: Any) -> int:
    """Return the approximate memory in bytes of decoded values and messages."""
    total, stack = 0, [*values]
    while stack:
        value = stack.pop()
        total += getsizeof(value)
        if isinstance(value, np.ndarray):
            total += value.nbytes
        elif isinstance(value, dict):
            stack += value
            stack += value.values()
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, BaseModel):
            stack += vars(value).values()
    return total


def decode_data(message: Observe, terms: RemoteTerms) -> RemoteData:
    """Return the agent's input from an observe message. Raises WireError (invalid) if the message has only arrays and
    the agent cannot read arrays, or if an array has the name of another array or value."""
    data = RemoteData.of(message.data, message.text)
    if not message.arrays:
        return data
    if message.text is None and not message.data and not terms.reads_arrays:
        hint = "Send `text` or `data` as well, or use an agent that reads arrays."
        raise _invalid(
            message, "arrays", "observe has only arrays, and no agent on this server turns arrays into text.", hint
        )
    for i, array in enumerate(message.arrays):
        if array.name in data:
            problem = f"arrays[{i}].name {array.name!r} is the name of another array, or of a value of `data`."
            raise _invalid(message, f"arrays[{i}].name", problem, "Give each array a different name.")
        kind = np.dtype("?" if array.dtype == "b1" else f"<{array.dtype}")
        data[array.name] = np.frombuffer(array.data, kind).reshape(array.shape)
    return data


def _invalid(message: Observe, field: str, problem: str, hint: str) -> WireError:
    return WireError(Code.INVALID, problem, hint, field=field, seq=message.seq)


class ReceivedObservations:
    """The received observations of a client: the latest one, or in a client-paced session a queue of all observations
    that wait for a call."""

    def __init__(self, terms: RemoteTerms) -> None:
        self._terms = terms
        self._client_seq = -1  # the client's number of the last received observation
        self._count = 0  # the loop's number of the last received observation
        # The latest observation. In a client-paced session: the observation whose call is being decided.
        self._newest: tuple[Observation, RemoteObservation] | None = None
        self._waiting: deque[tuple[Observation, RemoteObservation, int]] = deque()  # the int is the size in bytes
        self._waiting_bytes = 0
        self._peeked = False  # whether `latest` has returned `_newest` before `arrival` reports it
        self._by_loop_seq: dict[int, RemoteObservation] = {}

    def add(self, message: Observe, epoch: int, now_ns: int) -> None:
        """Validate and store an observation. Raises WireError (sequence, epoch, rate, invalid)."""
        self._check_observation(message, epoch)
        data = decode_data(message, self._terms)
        self._client_seq = message.seq
        self._count += 1
        arrived = RemoteObservation(message.seq, message.t_ns, now_ns)
        observation = Observation(self._count, message.epoch, now_ns, data)
        if self._terms.paced_by_client:
            size = memory_bytes(data, data.text)
            self._waiting.append((observation, arrived, size))
            self._waiting_bytes += size
        else:
            self._newest = observation, arrived

    def _check_observation(self, message: Observe, epoch: int) -> None:
        if message.seq <= self._client_seq:
            problem = f"observe.seq is {message.seq}, but must be greater than the previous one, {self._client_seq}."
            hint = "Increase it by one with every observation of the session, also after the session was resumed."
            raise WireError(Code.SEQUENCE, problem, hint, field="seq", seq=message.seq)
        if message.epoch != epoch:
            problem = f"observe.epoch is {message.epoch}, but the session is in epoch {epoch}."
            hint = "Send `reset` before observations of the next epoch, and drop observations of earlier epochs."
            raise WireError(Code.EPOCH, problem, hint, field="epoch", seq=message.seq)
        if len(self._waiting) >= self._terms.queue or self._waiting_bytes >= MAX_WAITING_BYTES:
            problem = f"The queue is full: {len(self._waiting)} observations wait for a call."
            hint = "Wait for a call before you send the next observation."
            raise WireError(Code.RATE, problem, hint, seq=message.seq, retryable=True)

    def latest(self) -> Observation | None:
        """Return the observation for the next decision, or None if there is none."""
        if self._terms.paced_by_client and self._newest is None:
            self._peeked = self._pop_waiting() is not None
        if self._newest is None:
            return None
        observation, arrived = self._newest
        _store(self._by_loop_seq, observation.seq, arrived)
        return observation

    def arrival(self) -> int | None:
        """Pop the next observation from the queue of a client-paced session; return when it arrived, or None."""
        if self._peeked and self._newest is not None:
            self._peeked = False
            return self._newest[0].t_capture_ns
        return self._pop_waiting()

    def _pop_waiting(self) -> int | None:
        if not self._waiting:
            return None
        observation, arrived, size = self._waiting.popleft()
        self._newest = observation, arrived
        self._waiting_bytes -= size
        return observation.t_capture_ns

    def find_by_loop_seq(self, seq: int) -> RemoteObservation | None:
        """Return the client's number and times of the observation with the loop's number `seq`; None if unknown."""
        return self._by_loop_seq.get(seq)

    def reset(self) -> None:
        """Drop the latest observation when an episode starts, unless the session is client-paced."""
        if not self._terms.paced_by_client:
            self._newest = None

    def clear(self) -> None:
        """Delete all observations, so that the next loop waits for a new observation."""
        self._newest, self._peeked = None, False
        self._waiting.clear()
        self._waiting_bytes = 0


# -- calls ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SentCall:
    """A sent call that the client may acknowledge once. `call` is None for a safe call, since safe calls are not part
    of the model's history. `k` is the loop's number of the tick, `n` the number of earlier calls of the tick."""

    epoch: int
    call: Call | None
    k: int
    n: int = 0
    acknowledged: bool = False


def to_wire_call(call: Call | None) -> FunctionCall | None:
    """Convert a call to its wire form."""
    return None if call is None else FunctionCall(name=call.name, arguments=dict(call.arguments))


def to_wire_calls(calls: Iterable[Call]) -> list[FunctionCall] | None:
    """Convert calls to their wire form; return None if there are none."""
    return [FunctionCall(name=call.name, arguments=dict(call.arguments)) for call in calls] or None


class SentCalls:
    """The calls that were sent to the client in a session, and their acknowledgements."""

    def __init__(self, terms: RemoteTerms) -> None:
        self._terms = terms
        self._sent: dict[int, SentCall] = {}
        self._last_loop_tick = -1  # the number of the last tick in this loop
        self.released_ns: int | None = None  # the release time (scheduled start) of the last tick
        self._tick = self._first_tick = 0  # tick numbers on the wire: the next, and the first of this loop
        self._executed_calls: deque[Call] = deque(maxlen=MAX_KEPT)
        self.acknowledgements: deque[Acknowledgement] = deque(maxlen=MAX_KEPT)

    def start(self) -> None:
        """Prepare for another loop, whose tick numbers on the wire continue those of the previous loop."""
        self._first_tick, self._last_loop_tick, self.released_ns = self._tick, -1, None
        self.acknowledgements.clear()

    def message(
        self, emission: Emission, observation: RemoteObservation | None, epoch: int, now_ns: int
    ) -> CallMessage:
        """Return the call message for an emission, and store its call if the client will acknowledge it."""
        terms, status, call = self._terms, emission.status, emission.call
        epoch = epoch if status == "safe" or emission.epoch < 0 else emission.epoch
        tick, release_ns = self._number_tick(emission)
        if (call is not None or status == "safe") and terms.acknowledges:
            _store(self._sent, tick, SentCall(epoch, call if status == "fresh" else None, emission.tick, emission.n))
        return CallMessage(
            session=terms.session,
            tick=tick,
            epoch=epoch,
            seq_obs=None if observation is None else observation.seq,
            t_obs_ns=None if observation is None else observation.t_ns,
            status=status,
            call=to_wire_call(call),
            calls=to_wire_calls(emission.safe_calls if status == "safe" else ()),
            more=emission.more or None,
            # Extend the time-to-live by the time until the operator's approval; 0 means no limit and stays 0.
            ttl_ms=terms.ttl_ms and min(terms.ttl_ms + emission.waited_ns / 1e6, 1e9),
            release_ns=release_ns,
            deadline_ns=emission.deadline_ns,
            t_server_ns=now_ns,
            confidence=None if emission.confidence is None else min(emission.confidence, 1.0),
            cause=emission.cause,
            timing=Timing(
                age_ms=None if observation is None else (now_ns - observation.arrived_ns) / 1e6,
                decide_ms=None if emission.decide_ns is None else emission.decide_ns / 1e6,
                late_ms=max(0, now_ns - emission.deadline_ns) / 1e6,
            ),
        )

    def _number_tick(self, emission: Emission) -> tuple[int, int | None]:
        """Return the tick's number on the wire and its release time. A safe call between two ticks gets the next
        number, and None as its release time."""
        tick = max(self._first_tick + emission.tick, self._tick)
        self._tick = tick + 1
        if emission.tick <= self._last_loop_tick or self._terms.paced_by_client:
            return tick, None
        self._last_loop_tick, self.released_ns = emission.tick, emission.deadline_ns - self._terms.deadline_ns
        return tick, self.released_ns

    def acknowledge(self, message: Executed, epoch: int, counts: MessageCounts, now_ns: int) -> None:
        """Store a client's report on a call. Raises WireError (state, sequence, epoch) if no such call was sent, or if
        the call was reported before."""
        if not self._terms.acknowledges:
            hint = 'Add `capabilities: ["executed"]` to the hello message.'
            raise WireError(Code.STATE, "The hello message did not announce acknowledgements.", hint)
        if message.tick < next(iter(self._sent), self._first_tick):
            return  # an old call, which is no longer stored
        sent = self._sent.get(message.tick)
        if sent is None or sent.acknowledged:
            problem = (
                "no call was sent for this tick" if sent is None else "the call of this tick is acknowledged already"
            )
            hint = "Acknowledge each call once, with the tick of the call message."
            raise WireError(Code.SEQUENCE, f"executed.tick {message.tick}: {problem}.", hint, field="tick")
        if sent.epoch != message.epoch:
            problem = f"executed.epoch is {message.epoch}, but the call of tick {message.tick} has epoch {sent.epoch}."
            raise WireError(Code.EPOCH, problem, "Use the epoch of the call message.", field="epoch")
        sent.acknowledged = True
        counts.acknowledged[message.outcome] = counts.acknowledged.get(message.outcome, 0) + 1
        if message.tick >= self._first_tick:  # calls of earlier loops are not reported
            why: Literal["fresh", "safe"] = "safe" if sent.call is None else "fresh"
            self.acknowledgements.append(
                Acknowledgement(sent.k, message.outcome, now_ns, why, message.error, message.result, sent.n)
            )
        if sent.call is not None and message.outcome == "executed" and sent.epoch == epoch:
            self._executed_calls.append(sent.call)

    def next_release_ns(self, period_ns: int, now_ns: int) -> int | None:
        """Return when the next tick starts (CLOCK_MONOTONIC); None before the first tick or if it is client-paced."""
        last = self.released_ns
        return None if last is None else last + max(0, -(-(now_ns - last) // period_ns)) * period_ns

    def pop_executed(self) -> list[Call]:
        """Return the executed calls of this epoch since the previous call of this method."""
        return [self._executed_calls.popleft() for _ in range(len(self._executed_calls))]

    def clear_executed(self) -> None:
        """Remove all executed calls; called when a new epoch starts."""
        self._executed_calls.clear()


# -- episodes ---------------------------------------------------------------------------------------------------------


class FinishedEpisodes(Sequence[Episode]):
    """A sequence of finished episodes that stores only the newest MAX_KEPT episodes; `len` counts all episodes."""

    def __init__(self) -> None:
        self._newest: deque[Episode] = deque(maxlen=MAX_KEPT)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: Any) -> Any:
        """Return an episode, or the episodes of a slice that are still stored."""
        dropped = self._count - len(self._newest)
        if isinstance(at, slice):
            return [self._newest[i - dropped] for i in range(self._count)[at] if i >= dropped]
        return self._newest[range(self._count)[at] - dropped]

    def append(self, episode: Episode) -> None:
        """Add a finished episode; drop the oldest one if MAX_KEPT are stored."""
        self._newest.append(episode)
        self._count += 1


class EpisodeTracker:
    """The current epoch of a client, and the finished episodes of this run. A client's reset ends an episode."""

    def __init__(self) -> None:
        self.epoch = 0
        self.ended = FinishedEpisodes()
        self._requested_count: int | None = None

    @property
    def finished(self) -> bool:
        return self._requested_count is not None and len(self.ended) >= self._requested_count

    def start(self, requested: int | None) -> None:
        """Start a run of `requested` episodes (None: endless)."""
        self.ended, self._requested_count = FinishedEpisodes(), requested

    def reset(self, message: Reset) -> None:
        """Start the next epoch. Raises WireError if the message's epoch is not the next one."""
        if message.epoch != self.epoch + 1:
            problem = f"reset.epoch is {message.epoch}, but the next epoch is {self.epoch + 1}."
            raise WireError(Code.EPOCH, problem, "Increase the epoch by one with each reset.", field="epoch")
        self.epoch = message.epoch
        if (ended := message.ended) is not None:
            self.ended.append(Episode(ended.seed, ended.ret, ended.success, ended.seconds))


def _store(memory: dict[int, Any], number: int, item: Any) -> None:
    """Store an item by its number, and delete the oldest item if there are more than MAX_KEPT."""
    if number not in memory:
        memory[number] = item
        if len(memory) > MAX_KEPT:
            del memory[next(iter(memory))]
