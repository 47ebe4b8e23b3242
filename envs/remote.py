"""The world behind a wire: a client of the protocol observes and acts, the loop sees an environment."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, Queue
from typing import Any, Literal

from rtcontrol.envs.base import Acknowledgement, Barrier, ClockKind, Effect, Emission, Episode, Observation
from rtcontrol.envs.remote_parts import (
    MessageCounts,
    RemoteData,
    RemoteObservation,
    RemotePictures,
    RemoteTerms,
    Sent,
    look_of,
    wire_call,
    wire_calls,
)
from rtcontrol.models.call import Call
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.messages import CallMessage, Executed, Instruct, Observe, Reset, Timing

__all__ = ["REMEMBERED", "MessageCounts", "RemoteData", "RemoteEnvironment", "RemoteTerms"]

# Calls that may still be acknowledged, and observations that may still be answered.
REMEMBERED = 1024
# How long one wait for the client lasts, so that whoever waits looks now and then whether it shall stop.
WAIT_S = 0.05
# Characters of a client's words that are logged and recorded; the protocol allows 65,536.
MAX_ERROR, MAX_RESULT = 1_000, 8_192


class RemoteEnvironment:
    """Implements `Environment`, `Emitting` and `Acknowledging` over a session of the wire.

    `observe`, `executed` and `reset` take the client's messages, from the transport's thread, and raise WireError for
    what is refused; the rest is the loop's. `send` gives a message to the client and never blocks; `started` is called
    when the loop is warm and waits for the first observation, `trouble` (with the client's seq) when a tick
    failed for a reason that the client should know. An observation is captured when it arrives: how old it
    was by then is the client's to judge, by the call's time-to-live. It outlives a loop: a session that is resumed
    starts a new one on it.
    """

    def __init__(
        self,
        name: str,
        terms: RemoteTerms,
        send: Callable[[Message], None],
        started: Callable[[], None] = lambda: None,
        trouble: Callable[[Emission, int | None], None] = lambda emission, seq: None,
    ) -> None:
        self.name, self.terms, self.traffic = name, terms, MessageCounts()
        self.bindings: Mapping[str, Callable[..., Any]] = dict.fromkeys(terms.tools, _elsewhere)
        self.episodes: list[Episode] = []
        self.pictures = RemotePictures(self.traffic.pictures)
        self.epoch = 0
        self._send, self._started, self._trouble = send, started, trouble
        self._seq = -1  # of the client's last observation
        self._count = 0  # of observations: what the loop sees as their seq
        self._latest: RemoteObservation | None = None
        self._answering: RemoteObservation | None = None
        self._seen: dict[int, RemoteObservation] = {}
        self._queue: Queue[RemoteObservation] = Queue()
        self._waiting = False  # whether `_answering` was only looked at so far
        self._arrived = threading.Event()
        self._lock = threading.Lock()
        self._sent: dict[int, Sent] = {}
        self._released = -1  # the last tick of this run
        self._released_ns: int | None = None  # and when that was
        self._done: deque[Call] = deque(maxlen=REMEMBERED)
        self.heard: deque[Acknowledgement] = deque(maxlen=REMEMBERED)
        self._tick = 0
        self._first_tick = 0
        self._instruction = ""  # what the loop decides by
        self._told = ""  # what the client knows of that
        self._wanted: int | None = None

    @property
    def finished(self) -> bool:
        """As many episodes as were asked for have ended, as the client's resets tell."""
        return self._wanted is not None and len(self.episodes) >= self._wanted

    # -- the client's messages, on the transport's thread -------------------------------------------------------------

    def observe(self, message: Observe) -> None:
        """Raises WireError (sequence, epoch, rate, invalid)."""
        now = time.monotonic_ns()
        if message.seq <= self._seq:
            raise WireError(
                Code.SEQUENCE,
                f"observe.seq {message.seq} does not grow: the last was {self._seq}.",
                "Count up by one with every observation of the session, resumed or not.",
                field="seq",
                seq=message.seq,
            )
        if message.epoch != self.epoch:
            raise WireError(
                Code.EPOCH,
                f"observe.epoch {message.epoch}: the session is in epoch {self.epoch}.",
                "Send `reset` with the next epoch first, or drop what belongs to an old one.",
                field="epoch",
                seq=message.seq,
            )
        if self.terms.paced_by_client and self._queue.qsize() >= self.terms.queue:
            raise WireError(
                Code.RATE,
                f"{self.terms.queue} observations wait for their call.",
                "Wait for the call before the next observation.",
                seq=message.seq,
                retryable=True,
            )
        data = look_of(message, self.terms)
        self._seq = message.seq
        self._count += 1
        self.traffic.observations += 1
        self.pictures.observed(message.t_ns, now)
        seen = RemoteObservation(Observation(self._count, message.epoch, now, data), message.seq, message.t_ns)
        if self.terms.paced_by_client:
            self._queue.put(seen)
        else:
            self._latest = seen
        self._arrived.set()

    def executed(self, message: Executed) -> None:
        """Raises WireError (state, sequence, epoch) for what is no call's first acknowledgement."""
        if not self.terms.acknowledges:
            raise WireError(
                Code.STATE, "hello did not announce acknowledgements.", 'Give hello `capabilities: ["executed"]`.'
            )
        with self._lock:
            sent = self._sent.get(message.tick)
            again = sent is not None and sent.told
            if sent is not None and sent.epoch == message.epoch:
                sent.told = True
            forgotten = message.tick < next(iter(self._sent), self._first_tick)
        if forgotten:
            return
        if sent is None or again:
            what = "its call was acknowledged already" if again else "no call of this tick was sent"
            remedy = "Acknowledge each call once, by the tick that it carries."
            raise WireError(Code.SEQUENCE, f"executed.tick {message.tick}: {what}.", remedy, field="tick")
        if sent.epoch != message.epoch:
            what = f"executed.epoch {message.epoch}: the call of tick {message.tick} is of epoch {sent.epoch}."
            raise WireError(Code.EPOCH, what, "Give the epoch that the call carries.", field="epoch")
        outcomes = self.traffic.acknowledged
        outcomes[message.outcome] = outcomes.get(message.outcome, 0) + 1
        if message.tick >= self._first_tick:  # else of a run that is over
            why: Literal["fresh", "safe"] = "safe" if sent.call is None else "fresh"
            now = time.monotonic_ns()
            error, result = _brief(message.error, MAX_ERROR), _brief(message.result, MAX_RESULT)
            said = Acknowledgement(sent.k, message.outcome, now, why, error, result, sent.n)
            self.heard.append(said)
        if sent.call is not None and message.outcome == "executed" and sent.epoch == self.epoch:
            self._done.append(sent.call)

    def reset(self, message: Reset) -> None:
        """Raises WireError for an epoch that is not the next."""
        if message.epoch != self.epoch + 1:
            raise WireError(
                Code.EPOCH,
                f"reset.epoch {message.epoch}: the next one is {self.epoch + 1}.",
                "Count epochs up by one.",
                field="epoch",
            )
        self.traffic.resets += 1
        if (ended := message.ended) is not None:
            self.episodes.append(Episode(ended.seed, ended.ret, ended.success, ended.seconds))
        self._latest = None
        self._done.clear()
        self.epoch = message.epoch

    def succeed(self) -> None:
        """Another client takes the place of one that is gone: its numbers begin anew, in a new epoch."""
        self._seq = -1
        self._latest = None
        while not self._queue.empty():
            self._queue.get()
        self._done.clear()
        self.pictures.forget()
        self.epoch += 1

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def start(self, clock: ClockKind, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None:
        self._first_tick, self._released, self._released_ns = self._tick, -1, None
        self.heard.clear()
        self.pictures.start()
        self._told = self._instruction  # by the welcome
        self.episodes, self._wanted = [], episodes
        self._started()

    def await_first(self) -> None:
        """Wait a little for the first observation."""
        if self._arrived.wait(WAIT_S) and self.latest() is None:
            self._arrived.clear()

    def latest(self) -> Observation | None:
        if self.terms.paced_by_client and self._answering is None:
            self._waiting = self._next(0) is not None
        seen = self._answering if self.terms.paced_by_client else self._latest
        if seen is None:
            return None
        if seen.observation.seq not in self._seen:
            self._seen[seen.observation.seq] = seen
            if len(self._seen) > REMEMBERED:
                del self._seen[next(iter(self._seen))]
        return seen.observation

    def arrival(self, timeout_ns: int) -> int | None:
        """Client-paced: wait for the next observation to answer; gives its arrival (CLOCK_MONOTONIC)."""
        if self._waiting and self._answering is not None:
            self._waiting = False
            return self._answering.observation.t_capture_ns
        return self._next(timeout_ns)

    def execute(
        self, call: Call, epoch: int | None, not_after_ns: int | None = None, barrier: Barrier | None = None
    ) -> Effect:
        """Nothing is done here: `emit` tells the client, which acts."""
        if epoch not in (None, self.epoch):
            return "epoch_over"
        if barrier is not None and barrier.shut is not None:
            return "refused"
        return "too_late" if not_after_ns is not None and time.monotonic_ns() > not_after_ns else "acted"

    def emit(self, emission: Emission) -> None:
        several = emission.safe_calls if emission.status == "safe" else ()
        if self.terms.minor >= 1 or not several:
            self._emit(emission, emission.call, several)
        else:
            for call in several:
                self._emit(emission, call, ())
        if emission.error is not None:
            seen = self._seen.get(emission.seq)
            self._trouble(emission, None if seen is None else seen.seq)

    def _emit(self, emission: Emission, call: Call | None, several: Sequence[Call]) -> None:
        now = time.monotonic_ns()
        status = emission.status
        epoch = self.epoch if status == "safe" or emission.epoch < 0 else emission.epoch
        # Ticks grow on the wire: a safe call between two ticks takes the next number, and is of no release.
        on_grid = emission.tick > self._released and not self.terms.paced_by_client
        tick = max(self._first_tick + emission.tick, self._tick)
        self._tick = tick + 1
        release_ns = emission.deadline_ns - self.terms.deadline_ns if on_grid else None
        if on_grid:
            self._released, self._released_ns = emission.tick, release_ns
        seen = self._seen.get(emission.seq)
        if (call is not None or status == "safe") and self.terms.acknowledges:
            with self._lock:
                self._sent[tick] = Sent(epoch, call if status == "fresh" else None, emission.tick, emission.n)
                if len(self._sent) > REMEMBERED:
                    del self._sent[next(iter(self._sent))]
        self.traffic.calls[status] = self.traffic.calls.get(status, 0) + 1
        self._send(
            CallMessage(
                session=self.terms.session,
                tick=tick,
                epoch=epoch,
                seq_obs=None if seen is None else seen.seq,
                t_obs_ns=None if seen is None else seen.t_ns,
                status=status,
                call=wire_call(call),
                calls=wire_calls(several),
                more=emission.more or None,
                # What a person was asked about is older by that; without a limit it stays without.
                ttl_ms=self.terms.ttl_ms and min(self.terms.ttl_ms + emission.waited_ns / 1e6, 1e9),
                release_ns=release_ns,
                deadline_ns=emission.deadline_ns,
                t_server_ns=now,
                confidence=None if emission.confidence is None else min(emission.confidence, 1.0),
                cause=emission.cause,
                timing=Timing(
                    age_ms=None if seen is None else (now - seen.observation.t_capture_ns) / 1e6,
                    decide_ms=None if emission.decide_ns is None else emission.decide_ns / 1e6,
                    late_ms=max(0, now - emission.deadline_ns) / 1e6,
                ),
            )
        )

    def next_release_ns(self, period_ns: int, now_ns: int) -> int | None:
        """When the next tick is released (CLOCK_MONOTONIC); None before the first one, and where the client paces."""
        last = self._released_ns
        return None if last is None else last + max(0, -(-(now_ns - last) // period_ns)) * period_ns

    def acknowledged(self) -> Sequence[Call] | None:
        if not self.terms.acknowledges:
            return None
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def advance(self, dt_ns: int) -> None:
        """Nothing to do: the world is the client's."""

    def conclude(self) -> None:
        """The client begins its episodes."""

    def instruct(self, text: str) -> None:
        """The client is told by the welcome, or once it is `accepted`."""
        self._instruction = text

    def accepted(self, text: str) -> None:
        """Something was decided by this instruction: the client is told that it is in force."""
        if text != self._told:
            self._told = text
            self._send(Instruct(session=self.terms.session, instruction=text))

    def close(self) -> None:
        """The loop is over; another one may start."""
        self._latest = self._answering = self._released_ns = None
        self._waiting = False
        self.pictures.close()
        while not self._queue.empty():
            self._queue.get()
        self._arrived.clear()

    def _next(self, timeout_ns: int) -> int | None:
        try:
            if timeout_ns <= 0:
                self._answering = self._queue.get_nowait()
            else:
                self._answering = self._queue.get(timeout=timeout_ns / 1e9)
        except Empty:
            return None
        return self._answering.observation.t_capture_ns


def _elsewhere(**arguments: Any) -> None:
    """Stands for the client's own function."""


def _brief(said: str | None, most: int) -> str | None:
    return said if said is None or len(said) <= most else f"{said[:most]}... ({len(said):,} characters)"
