"""An environment whose world is at a remote client, which sends observations and executes calls."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.envs.base import Acknowledgement, Barrier, ClockKind, Effect, Emission, Episode, Observation
from rtcontrol.envs.remote_core import EpisodeTracker, MessageCounts, ReceivedObservations, RemoteTerms, SentCalls
from rtcontrol.models.call import Call
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.messages import Executed, Instruct, Observe, Picture, Reset
from rtcontrol_client.wire.pictures import MAX_PICTURES_HZ

MAX_PICTURE_AGE_NS = 60_000_000_000  # pictures with an older timestamp count as this old
MAX_WAITING = 10  # maximum queued pictures for the recorder, which empties the queue every half second
WAIT_S = 0.05  # seconds; the wait for the client is interrupted at this interval to check whether to stop


@dataclass(frozen=True, slots=True)
class RemotePicture:
    """A received picture file. `t_ns` is when the client took the picture, in this machine's CLOCK_MONOTONIC."""

    format: str
    data: bytes
    t_ns: int


class RemotePictures:
    """The pictures of one session, which are accepted between `start` and `close`. The transport's thread calls
    `receive`; any thread may read `newest`. `counts` has the numbers of accepted (`taken`) and `dropped` pictures.
    `recorded` is the recorder's queue, which gets at most `hz` pictures per second."""

    def __init__(self, counts: dict[str, int], hz: float) -> None:
        self.newest: RemotePicture | None = None
        self.recorded: deque[RemotePicture] = deque(maxlen=MAX_WAITING)
        self._period_ns, self._due_ns = round(1e9 / hz) if hz else 0, 0
        self._counts, self._lock, self._is_open = counts, threading.Lock(), False
        self._clock_offset_ns: int | None = None  # server's clock - client's clock + one-way latency
        self._allowance, self._allowance_ns = MAX_PICTURES_HZ, time.monotonic_ns()

    def update_clock_offset(self, t_ns: int, now_ns: int) -> None:
        """Update the clock offset from an observation that the client stamped `t_ns` and that arrived at `now_ns`."""
        self._clock_offset_ns = now_ns - t_ns

    def receive(self, message: Picture) -> None:
        """Store a picture as the newest one. Raises WireError (rate) if the client sends too many pictures."""
        with self._lock:
            now_ns = time.monotonic_ns()
            refill = (now_ns - self._allowance_ns) * MAX_PICTURES_HZ / 1e9
            self._allowance, self._allowance_ns = min(MAX_PICTURES_HZ, self._allowance + refill), now_ns
            taken = self._is_open and self._allowance >= 1
            outcome = "taken" if taken else "dropped"
            self._counts[outcome] = self._counts.get(outcome, 0) + 1
            if taken:
                self._allowance -= 1
                self._store(message, now_ns)
            elif self._is_open:
                problem = f"The client sent more than {MAX_PICTURES_HZ:g} pictures a second."
                raise WireError(Code.RATE, problem, "Send fewer pictures; only the newest one is used.", retryable=True)

    def _store(self, message: Picture, now_ns: int) -> None:
        taken_ns = now_ns if self._clock_offset_ns is None else message.t_ns + self._clock_offset_ns
        image = message.image
        self.newest = RemotePicture(image.format, image.data, max(now_ns - MAX_PICTURE_AGE_NS, min(now_ns, taken_ns)))
        if self._period_ns and now_ns >= self._due_ns:
            late = now_ns - self._due_ns > self._period_ns
            self._due_ns = (now_ns if late else self._due_ns) + self._period_ns
            self.recorded.append(self.newest)

    def age_s(self) -> float | None:
        """Return the age of the newest picture in seconds, or None if there is none."""
        newest = self.newest
        return None if newest is None else round((time.monotonic_ns() - newest.t_ns) / 1e9, 1)

    def start(self) -> None:
        """Accept pictures from now on, for a new control loop."""
        with self._lock:
            self.recorded.clear()  # drop pictures of the previous loop
            self._is_open = True

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            self.newest = self._clock_offset_ns = None


class RemoteEnvironment:
    """An environment (`Environment`, `EmittingEnvironment`, `AcknowledgingEnvironment`) for one session of a client.

    The transport's thread calls `observe`, `executed` and `reset` with the client's messages; they raise WireError if a
    message is not valid. The loop calls the other methods. `send` sends a message to the client without blocking.
    `started()` is called when the loop starts to wait for observations. `failed(emission, seq)` is called after a tick
    with an error that the client should know; `seq` is the client's number of the observation. If a session is resumed,
    a new loop uses the same environment.
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
        self.arrivals, self.calls = ReceivedObservations(terms), SentCalls(terms)
        self._episodes = EpisodeTracker()
        self._instruction = self._sent_instruction = ""  # current instruction; instruction sent last
        self._send, self._started, self._failed = send, started, failed
        self._changed = threading.Condition()  # protects arrivals and calls

    @property
    def bindings(self) -> Mapping[str, Callable[..., Any]]:
        return dict.fromkeys(self.terms.tools, _client_function)

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
    def acknowledgements(self) -> deque[Acknowledgement]:
        """Return the acknowledgements that the loop has not read yet."""
        return self.calls.acknowledgements

    # -- the client's messages, on the transport's thread -------------------------------------------------------------

    def observe(self, message: Observe) -> None:
        """Store an observation with its time of arrival; the client checks whether the observation of a call is too
        old. Raises WireError (sequence, epoch, rate, invalid)."""
        now_ns = time.monotonic_ns()
        with self._changed:
            self.arrivals.add(message, self.epoch, now_ns)
            self._changed.notify_all()
        self.traffic.observations += 1
        self.pictures.update_clock_offset(message.t_ns, now_ns)

    def executed(self, message: Executed) -> None:
        """Store the client's report that it executed a call. Raises WireError (state, sequence, epoch)."""
        with self._changed:
            self.calls.acknowledge(message, self.epoch, self.traffic, time.monotonic_ns())

    def reset(self, message: Reset) -> None:
        """Start the next epoch (episode). Raises WireError if the message's epoch is not the next one."""
        with self._changed:
            self._episodes.reset(message)
            self.traffic.resets += 1
            self.arrivals.reset()
            self.calls.clear_executed()

    # -- methods for the loop -----------------------------------------------------------------------------------------

    def start(self, clock: ClockKind, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None:
        self.calls.start()
        self.pictures.start()
        self._sent_instruction = self._instruction
        self._episodes.start(episodes)
        self._started()

    def wait_for_first_observation(self) -> None:
        """Wait for the first observation, at most WAIT_S."""
        with self._changed:
            if self.arrivals.latest() is None:
                self._changed.wait(WAIT_S)

    def latest(self) -> Observation | None:
        with self._changed:
            return self.arrivals.latest()

    def arrival(self, timeout_ns: int) -> int | None:
        """Wait for the next observation of a client-paced session. Return when it arrived (CLOCK_MONOTONIC), or None
        after `timeout_ns`."""
        with self._changed:
            arrived_ns = self.arrivals.arrival()
            if arrived_ns is None and timeout_ns > 0:
                self._changed.wait(timeout_ns / 1e9)
                arrived_ns = self.arrivals.arrival()
        return arrived_ns

    def execute(
        self, call: Call, epoch: int | None, not_after_ns: int | None = None, barrier: Barrier | None = None
    ) -> Effect:
        """Return "acted" if the call may be executed now, else the reason; `emit` sends the call to the client."""
        if epoch not in (None, self.epoch):
            return "epoch_over"
        if barrier is not None and barrier.block_reason is not None:
            return "refused"
        return "too_late" if not_after_ns is not None and time.monotonic_ns() > not_after_ns else "acted"

    def emit(self, emission: Emission) -> None:
        observation, status = self.arrivals.find_by_loop_seq(emission.seq), emission.status
        with self._changed:
            message = self.calls.message(emission, observation, self.epoch, time.monotonic_ns())
        self.traffic.calls[status] = self.traffic.calls.get(status, 0) + 1
        self._send(message)
        if emission.error is not None:
            self._failed(emission, None if observation is None else observation.seq)

    def next_release_ns(self, period_ns: int, now_ns: int) -> int | None:
        """Return when the next tick starts (CLOCK_MONOTONIC); None before the first tick or if it is client-paced."""
        return self.calls.next_release_ns(period_ns, now_ns)

    def pop_acknowledged_calls(self) -> Sequence[Call] | None:
        with self._changed:
            return self.calls.pop_executed() if self.terms.acknowledges else None

    def advance(self, dt_ns: int) -> None:
        """Do nothing, because the client steps its world itself."""

    def conclude(self) -> None:
        """Do nothing, because the client starts its episodes itself."""

    def instruct(self, text: str) -> None:
        """Store an instruction; the welcome message or `send_instruction` sends it to the client."""
        self._instruction = text

    def send_instruction(self, text: str) -> None:
        """Send a newly active instruction to the client; called after the first decision with this instruction."""
        if text != self._sent_instruction:
            self._sent_instruction = text
            self._send(Instruct(session=self.terms.session, instruction=text))

    def close(self) -> None:
        """Close the environment for this loop; another loop may start it again."""
        with self._changed:
            self.arrivals.clear()
            self.calls.released_ns = None
        self.pictures.close()


def _client_function(**arguments: Any) -> None:
    """Do nothing; a placeholder for a tool's function, which only the client can execute."""
