"""What a world behind a wire decides, without a clock or a thread: what was agreed, which messages of its client
count, and how the loop's emissions are numbered and sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rtcontrol.envs.base import Acknowledgement, Emission, Episode, Observation
from rtcontrol.models.call import Call
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import CallMessage, Executed, FunctionCall, Observe, Reset, Timing

# Calls that may still be acknowledged, and observations that may still be answered.
REMEMBERED = 1024
# Characters of a client's words that are logged and recorded; the protocol allows 65,536.
MAX_ERROR, MAX_RESULT = 1_000, 8_192


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
    `queue` bounds the observations that wait for their call (client-paced only); `ttl_ms` 0 is no limit; `pictures_hz`
    are recorded a second; `reads_arrays`: there is an agent whose `observe` may use arrays."""

    session: str
    tools: tuple[str, ...]
    paced_by_client: bool = False
    ttl_ms: float = 0.0
    acknowledges: bool = False
    queue: int = 64
    reads_arrays: bool = True
    minor: int = 0
    deadline_ns: int = 0
    pictures_hz: float = 0.0


@dataclass(slots=True)
class MessageCounts:
    """What came and went, for the report."""

    observations: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    resets: int = 0
    pictures: dict[str, int] = field(default_factory=dict)  # taken, dropped


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


class Arrivals:
    """The client's observations: the newest, or where the client paces those that wait for their call, in order."""

    def __init__(self, terms: RemoteTerms) -> None:
        self._terms = terms
        self._seq = -1  # of the client's last one
        self._count = 0  # what the loop sees as their seq
        self._newest: RemoteObservation | None = None  # or the one that is answered, where the client paces
        self._waiting: deque[RemoteObservation] = deque()
        self._peeked = False  # the one that is answered was only looked at so far
        self._seen: dict[int, RemoteObservation] = {}

    def take(self, message: Observe, epoch: int, now_ns: int) -> None:
        """Raises WireError (sequence, epoch, rate, invalid)."""
        self._check(message, epoch)
        data = look_of(message, self._terms)
        self._seq = message.seq
        self._count += 1
        seen = RemoteObservation(Observation(self._count, message.epoch, now_ns, data), message.seq, message.t_ns)
        if self._terms.paced_by_client:
            self._waiting.append(seen)
        else:
            self._newest = seen

    def _check(self, message: Observe, epoch: int) -> None:
        if message.seq <= self._seq:
            what = f"observe.seq {message.seq} does not grow: the last was {self._seq}."
            remedy = "Count up by one with every observation of the session, resumed or not."
            raise WireError(Code.SEQUENCE, what, remedy, field="seq", seq=message.seq)
        if message.epoch != epoch:
            what = f"observe.epoch {message.epoch}: the session is in epoch {epoch}."
            remedy = "Send `reset` with the next epoch first, or drop what belongs to an old one."
            raise WireError(Code.EPOCH, what, remedy, field="epoch", seq=message.seq)
        if len(self._waiting) >= self._terms.queue:
            what = f"{self._terms.queue} observations wait for their call."
            remedy = "Wait for the call before the next observation."
            raise WireError(Code.RATE, what, remedy, seq=message.seq, retryable=True)

    def latest(self) -> Observation | None:
        """Return what is decided upon now."""
        if self._terms.paced_by_client and self._newest is None:
            self._peeked = self._next() is not None
        seen = self._newest
        if seen is None:
            return None
        if seen.observation.seq not in self._seen:
            self._seen[seen.observation.seq] = seen
            if len(self._seen) > REMEMBERED:
                del self._seen[next(iter(self._seen))]
        return seen.observation

    def arrival(self) -> int | None:
        """Return when the next observation to answer arrived (CLOCK_MONOTONIC), where the client paces."""
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
        """A new episode: nothing was seen of it yet."""
        if not self._terms.paced_by_client:
            self._newest = None

    def clear(self) -> None:
        """A loop is over: the next one waits for a new observation."""
        self._newest, self._peeked = None, False
        self._waiting.clear()


class SentCalls:
    """The calls that were sent to the client: their numbers, which grow over all loops, and what became of them."""

    def __init__(self, terms: RemoteTerms) -> None:
        self._terms = terms
        self._sent: dict[int, Sent] = {}
        self._released = -1  # the last tick of this loop
        self.released_ns: int | None = None  # and when that was
        self._tick = self._first_tick = 0
        self._done: deque[Call] = deque(maxlen=REMEMBERED)
        self.heard: deque[Acknowledgement] = deque(maxlen=REMEMBERED)

    def start(self) -> None:
        """Another loop starts."""
        self._first_tick, self._released, self.released_ns = self._tick, -1, None
        self.heard.clear()

    def messages(
        self, emission: Emission, seen: RemoteObservation | None, epoch: int, now_ns: int
    ) -> list[CallMessage]:
        """Return what the client is sent of an emission: one message, but several safe calls to one of 1.0."""
        several = emission.safe_calls if emission.status == "safe" else ()
        if self._terms.minor >= 1 or not several:
            return [self._message(emission, several, seen, epoch, now_ns)]
        return [self._message(replace(emission, call=call), (), seen, epoch, now_ns) for call in several]

    def _message(
        self, emission: Emission, several: Sequence[Call], seen: RemoteObservation | None, epoch: int, now_ns: int
    ) -> CallMessage:
        terms, status, call = self._terms, emission.status, emission.call
        epoch = epoch if status == "safe" or emission.epoch < 0 else emission.epoch
        # Ticks grow on the wire: a safe call between two ticks takes the next number, and is of no release.
        on_grid = emission.tick > self._released and not terms.paced_by_client
        tick = max(self._first_tick + emission.tick, self._tick)
        self._tick = tick + 1
        release_ns = emission.deadline_ns - terms.deadline_ns if on_grid else None
        if on_grid:
            self._released, self.released_ns = emission.tick, release_ns
        if (call is not None or status == "safe") and terms.acknowledges:
            self._sent[tick] = Sent(epoch, call if status == "fresh" else None, emission.tick, emission.n)
            if len(self._sent) > REMEMBERED:
                del self._sent[next(iter(self._sent))]
        return CallMessage(
            session=terms.session,
            tick=tick,
            epoch=epoch,
            seq_obs=None if seen is None else seen.seq,
            t_obs_ns=None if seen is None else seen.t_ns,
            status=status,
            call=wire_call(call),
            calls=wire_calls(several),
            more=emission.more or None,
            # What a person was asked about is older by that; without a limit it stays without.
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

    def acknowledge(self, message: Executed, epoch: int, counts: MessageCounts, now_ns: int) -> None:
        """Raises WireError (state, sequence, epoch) for what is no call's first acknowledgement."""
        if not self._terms.acknowledges:
            raise WireError(
                Code.STATE, "hello did not announce acknowledgements.", 'Give hello `capabilities: ["executed"]`.'
            )
        if message.tick < next(iter(self._sent), self._first_tick):
            return  # forgotten
        sent = self._sent.get(message.tick)
        if sent is None or sent.told:
            what = "no call of this tick was sent" if sent is None else "its call was acknowledged already"
            remedy = "Acknowledge each call once, by the tick that it carries."
            raise WireError(Code.SEQUENCE, f"executed.tick {message.tick}: {what}.", remedy, field="tick")
        if sent.epoch != message.epoch:
            what = f"executed.epoch {message.epoch}: the call of tick {message.tick} is of epoch {sent.epoch}."
            raise WireError(Code.EPOCH, what, "Give the epoch that the call carries.", field="epoch")
        sent.told = True
        counts.acknowledged[message.outcome] = counts.acknowledged.get(message.outcome, 0) + 1
        if message.tick >= self._first_tick:  # else of a run that is over
            why: Literal["fresh", "safe"] = "safe" if sent.call is None else "fresh"
            error, result = _brief(message.error, MAX_ERROR), _brief(message.result, MAX_RESULT)
            self.heard.append(Acknowledgement(sent.k, message.outcome, now_ns, why, error, result, sent.n))
        if sent.call is not None and message.outcome == "executed" and sent.epoch == epoch:
            self._done.append(sent.call)

    def next_release_ns(self, period_ns: int, now_ns: int) -> int | None:
        """Return when the next tick is released; None before the first one, and where the client paces."""
        last = self.released_ns
        return None if last is None else last + max(0, -(-(now_ns - last) // period_ns)) * period_ns

    def done(self) -> list[Call]:
        """Return the calls of this epoch that were executed, and forget them."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def forget(self) -> None:
        """What was executed is of another epoch."""
        self._done.clear()


class Episodes:
    """The client's epoch, and the episodes that ended in this run, as its resets tell."""

    def __init__(self) -> None:
        self.epoch = 0
        self.ended: list[Episode] = []
        self._wanted: int | None = None

    @property
    def finished(self) -> bool:
        return self._wanted is not None and len(self.ended) >= self._wanted

    def start(self, wanted: int | None) -> None:
        self.ended, self._wanted = [], wanted

    def reset(self, message: Reset) -> None:
        """Raises WireError for an epoch that is not the next."""
        if message.epoch != self.epoch + 1:
            what, remedy = f"reset.epoch {message.epoch}: the next one is {self.epoch + 1}.", "Count epochs up by one."
            raise WireError(Code.EPOCH, what, remedy, field="epoch")
        self.epoch = message.epoch
        if (ended := message.ended) is not None:
            self.ended.append(Episode(ended.seed, ended.ret, ended.success, ended.seconds))


def _brief(text: str | None, most: int) -> str | None:
    return text if text is None or len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"
