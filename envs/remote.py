"""The environment of a remote world, in which a client of the protocol observes and acts."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.envs.base import Acknowledgement, Barrier, ClockKind, Effect, Emission, Episode, Observation
from rtcontrol.envs.remote_core import Arrivals, Episodes, MessageCounts, RemoteTerms, SentCalls
from rtcontrol.models.call import Call
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.messages import Executed, Instruct, Observe, Picture, Reset
from rtcontrol_client.wire.pictures import MAX_PICTURES_HZ

# An older stamp is an error of the client, or a picture that is too old to show.
OLDEST_NS = 60_000_000_000
# The most pictures that wait for the recorder, about a second's worth. The recorder reads them every half second.
WAITING = 10
WAIT_S = 0.05  # seconds of one wait for the client, after which the loop checks whether to stop


@dataclass(frozen=True, slots=True)
class RemotePicture:
    """A received picture file, and its time (CLOCK_MONOTONIC) according to the client's stamps."""

    format: str
    data: bytes
    t_ns: int


class RemotePictures:
    """The pictures of one session. The transport's thread calls `take`; any thread may read `newest`. `counts` counts
    `taken` and `dropped` pictures, which are accepted only between `start` and `close`. `recorded` gets at most `hz`
    pictures per second for a recorder."""

    def __init__(self, counts: dict[str, int], hz: float) -> None:
        self.newest: RemotePicture | None = None
        self.recorded: deque[RemotePicture] = deque(maxlen=WAITING)
        self._every_ns, self._due_ns = round(1e9 / hz) if hz else 0, 0
        self._counts, self._lock, self._open = counts, threading.Lock(), False
        self._later_ns: int | None = None  # our clock minus the client's clock, plus the one-way latency
        self._room, self._filled_ns = MAX_PICTURES_HZ, time.monotonic_ns()

    def observed(self, t_ns: int, now_ns: int) -> None:
        """Record the arrival of an observation that the client stamped with `t_ns`."""
        self._later_ns = now_ns - t_ns

    def take(self, message: Picture) -> None:
        """Store a picture as the latest one. Raises WireError (rate) if the client sends too many."""
        with self._lock:
            now_ns = time.monotonic_ns()
            self._room = min(MAX_PICTURES_HZ, self._room + (now_ns - self._filled_ns) * MAX_PICTURES_HZ / 1e9)
            self._filled_ns = now_ns
            taken = self._open and self._room >= 1
            outcome = "taken" if taken else "dropped"
            self._counts[outcome] = self._counts.get(outcome, 0) + 1
            if taken:
                self._room -= 1
                self._keep(message, now_ns)
            elif self._open:
                problem = f"More than {MAX_PICTURES_HZ:g} pictures a second."
                raise WireError(Code.RATE, problem, "Send fewer pictures; only the newest one is used.", retryable=True)

    def _keep(self, message: Picture, now_ns: int) -> None:
        taken_ns = now_ns if self._later_ns is None else message.t_ns + self._later_ns
        image = message.image
        self.newest = RemotePicture(image.format, image.data, max(now_ns - OLDEST_NS, min(now_ns, taken_ns)))
        if self._every_ns and now_ns >= self._due_ns:
            late = now_ns - self._due_ns > self._every_ns
            self._due_ns = (now_ns if late else self._due_ns) + self._every_ns
            self.recorded.append(self.newest)

    def age_s(self) -> float | None:
        """Return the age of the latest picture; None without one."""
        newest = self.newest
        return None if newest is None else round((time.monotonic_ns() - newest.t_ns) / 1e9, 1)

    def start(self) -> None:
        """Accept pictures for a new loop."""
        with self._lock:
            self.recorded.clear()  # pictures of the previous loop
            self._open = True

    def close(self) -> None:
        """Accept no more pictures."""
        with self._lock:
            self._open = False
            self.newest = self._later_ns = None


class RemoteEnvironment:
    """An environment (`Environment`, `Emitting`, `Acknowledging`) over one session of the protocol.

    The transport's thread calls `observe`, `executed` and `reset` with messages of the client, which raise WireError to
    refuse a message; the loop calls the other methods. `send` sends a message to the client and never blocks; `started`
    is called when the loop waits for the first observation, `failed` (with the client's seq) when a tick failed for a
    reason that concerns the client. A resumed session starts a new loop on the same environment.
    """

    name = "remote"

    def __init__(
        self,
        terms: RemoteTerms,
        send: Callable[[Message], None],
        started: Callable[[], None] = lambda: None,
        failed: Callable[[Emission, int | None], None] = lambda emission, seq: None,
    ) -> None:
        self.terms, self.traffic = terms, MessageCounts()
        self.pictures = RemotePictures(self.traffic.pictures, terms.pictures_hz)
        self.arrivals, self.calls = Arrivals(terms), SentCalls(terms)
        self._episodes = Episodes()
        self._instruction = self._known = ""  # the loop's instruction, and the last one that the client was informed of
        self._send, self._started, self._failed = send, started, failed
        self._changed = threading.Condition()  # protects arrivals and calls

    @property
    def bindings(self) -> Mapping[str, Callable[..., Any]]:
        return dict.fromkeys(self.terms.tools, _elsewhere)

    @property
    def epoch(self) -> int:
        return self._episodes.epoch

    @property
    def finished(self) -> bool:
        return self._episodes.finished

    @property
    def episodes(self) -> Sequence[Episode]:
        return self._episodes.ended

    @property
    def heard(self) -> deque[Acknowledgement]:
        """Return the acknowledgements that the loop has not read yet."""
        return self.calls.heard

    # -- the client's messages, on the transport's thread -------------------------------------------------------------

    def observe(self, message: Observe) -> None:
        """Receive an observation and stamp it with the time of arrival. The client checks its age by the call's time to
        live. Raises WireError (sequence, epoch, rate, invalid)."""
        now = time.monotonic_ns()
        with self._changed:
            self.arrivals.take(message, self.epoch, now)
            self._changed.notify_all()
        self.traffic.observations += 1
        self.pictures.observed(message.t_ns, now)

    def executed(self, message: Executed) -> None:
        """Receive the acknowledgement of a call. Raises WireError (state, sequence, epoch)."""
        with self._changed:
            self.calls.acknowledge(message, self.epoch, self.traffic, time.monotonic_ns())

    def reset(self, message: Reset) -> None:
        """Start the next epoch. Raises WireError if the message names another epoch."""
        with self._changed:
            self._episodes.reset(message)
            self.traffic.resets += 1
            self.arrivals.reset()
            self.calls.forget()

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def start(self, clock: ClockKind, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None:
        self.calls.start()
        self.pictures.start()
        self._known = self._instruction
        self._episodes.start(episodes)
        self._started()

    def await_first(self) -> None:
        """Wait briefly for the first observation."""
        with self._changed:
            if self.arrivals.latest() is None:
                self._changed.wait(WAIT_S)

    def latest(self) -> Observation | None:
        with self._changed:
            return self.arrivals.latest()

    def arrival(self, timeout_ns: int) -> int | None:
        """Wait for the next observation of a client-paced session; return its time of arrival (CLOCK_MONOTONIC) or
        None."""
        with self._changed:
            arrived_ns = self.arrivals.arrival()
            if arrived_ns is None and timeout_ns > 0:
                self._changed.wait(timeout_ns / 1e9)
                arrived_ns = self.arrivals.arrival()
        return arrived_ns

    def execute(
        self, call: Call, epoch: int | None, not_after_ns: int | None = None, barrier: Barrier | None = None
    ) -> Effect:
        """Return whether the call may act. `emit` then sends the call to the client, which executes it."""
        if epoch not in (None, self.epoch):
            return "epoch_over"
        if barrier is not None and barrier.shut is not None:
            return "refused"
        return "too_late" if not_after_ns is not None and time.monotonic_ns() > not_after_ns else "acted"

    def emit(self, emission: Emission) -> None:
        seen, status = self.arrivals.seen(emission.seq), emission.status
        with self._changed:
            message = self.calls.message(emission, seen, self.epoch, time.monotonic_ns())
        self.traffic.calls[status] = self.traffic.calls.get(status, 0) + 1
        self._send(message)
        if emission.error is not None:
            self._failed(emission, None if seen is None else seen.seq)

    def next_release_ns(self, period_ns: int, now_ns: int) -> int | None:
        """Return when the next tick is released (CLOCK_MONOTONIC), or None before the first one and in client-paced
        sessions."""
        return self.calls.next_release_ns(period_ns, now_ns)

    def acknowledged(self) -> Sequence[Call] | None:
        with self._changed:
            return self.calls.done() if self.terms.acknowledges else None

    def advance(self, dt_ns: int) -> None:
        """Do nothing, since the client steps the world."""

    def conclude(self) -> None:
        """Do nothing, since the client starts its episodes."""

    def instruct(self, text: str) -> None:
        """Store an instruction, which the client receives in the server's welcome message, or by `accepted`."""
        self._instruction = text

    def accepted(self, text: str) -> None:
        """Inform the client that an instruction is active, after the first decision under this instruction."""
        if text != self._known:
            self._known = text
            self._send(Instruct(session=self.terms.session, instruction=text))

    def close(self) -> None:
        """Close the environment for this loop; another loop may start."""
        with self._changed:
            self.arrivals.clear()
            self.calls.released_ns = None
        self.pictures.close()


def _elsewhere(**arguments: Any) -> None:
    """Do nothing. This stands for a function that the client executes."""
