"""The client that a Python program uses to talk to an rtcontrol server."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

from rtcontrol_client import clock
from rtcontrol_client.client.active import Standing
from rtcontrol_client.client.core import Core
from rtcontrol_client.client.errors import ClientError, Closed, checked
from rtcontrol_client.client.handler import Handler, Looker
from rtcontrol_client.client.link import Link
from rtcontrol_client.client.options import Options
from rtcontrol_client.client.pictures import PictureSender, picture
from rtcontrol_client.client.values import Data, plain
from rtcontrol_client.client.values import observation as message_of
from rtcontrol_client.wire.messages import Outcomes, Reset, Welcome

DECIDE_S = 30.0
COUNTS = ("observed", "superseded", "fresh", "held", "safe", "expired", "errors", "sessions", "resumed", "reconnects")
_opened: weakref.WeakSet[ClientBase] = weakref.WeakSet()  # to be closed at the interpreter's exit


class ClientBase:
    """Base of the client of one session and the client of a crowd."""

    _core: Core

    def __init__(self, endpoint: str, core: Core) -> None:
        """Start to connect, and do not wait."""
        self.endpoint, self.options, self._core = endpoint, core.options, core
        self._condition, self._version = threading.Condition(), 0
        self._handlers: list[Handler] = []
        self._link = Link(endpoint, core, self._changed)
        _opened.add(self)

    def _changed(self) -> None:
        for handler in self._handlers:
            handler.wake()
        with self._condition:
            self._condition.notify_all()

    def _until(self, ready: Callable[[], bool], limit_s: float | None) -> None:
        with self._condition:
            self._condition.wait_for(ready, limit_s)

    def _until_news(self, limit_s: float | None) -> None:
        self._until(lambda: self._core.version != self._version or self._core.error is not None, limit_s)

    def _ready(self) -> Self:
        """Wait for the welcome. Raises ClientError if the server refuses, or not within `connect_timeout_s` seconds."""
        core, limit_s = self._core, self.options.connect_timeout_s
        try:
            self._until(lambda: core.session.welcome is not None or core.error is not None, limit_s)
            if core.error is not None:
                raise core.error
            if core.session.welcome is None:
                raise self.unwelcomed(limit_s or 0)
        except BaseException:
            self.close()
            raise
        return self

    def unwelcomed(self, seconds: float) -> ClientError:
        """Return the error to raise if no welcome came within `seconds`."""
        return self._core.unwelcomed(self.endpoint, seconds)

    @property
    def connected(self) -> bool:
        """Whether the session is live now."""
        return self._core.connection.open

    @property
    def address(self) -> str:
        """The server address of the newest connection."""
        return self._link.address

    @property
    def error(self) -> ClientError | None:
        """Why the session has ended for good, or None; a lost connection does not end the session."""
        return self._core.error

    @property
    def welcome(self) -> Welcome:
        """The server's newest welcome message, with the negotiated settings. Raises Closed before the first one."""
        if self._core.session.welcome is None:
            raise Closed("The client was closed before the server's welcome.", "Connect again.")
        return self._core.session.welcome

    def _statistics(self) -> dict[str, Any]:
        tally = self._core.tally
        counts = {name: tally.count[name] for name in COUNTS}
        return {**counts, "ignored": dict(tally.ignored), "latency_ms": quantiles(tally.latency_ns)}

    def close(self) -> None:
        """Say goodbye and close the connection; only safe calls stay active. May be called twice."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Client(ClientBase):
    """A session with an rtcontrol server. All methods may be called from any thread; none but `connect`, `wait`
    and `decide` ever blocks, and what they return is never older than its time-to-live. docs/clients.md has an example.
    """

    @classmethod
    def connect(cls, endpoint: str, **options: Any) -> Self:
        """Connect to a server and wait for the welcome. The options are those of `Options`.

        With `http://HOST:PORT/connect` the client asks there for another server if a connection is lost, or if a server
        accepts no client. Raises ClientError for an error in the options or if no server answers within
        `connect_timeout_s`, and Refused if the server refuses.
        """
        return cls(endpoint, options)._ready()

    def __init__(self, endpoint: str, options: Mapping[str, Any]) -> None:
        """Start to connect, and do not wait."""
        checked_options = Options.of(options)
        super().__init__(endpoint, Core(checked_options, clock.now_ns()))
        self._pictures = PictureSender(self._link)
        for of_safe, handle in ((False, self.options.on_call), (True, self.options.on_safe)):
            if handle is not None:
                self._handlers.append(Handler(self._link, of_safe, handle))
        self._changed()  # a call may have come before there were handlers
        self._looker = None if self.options.look is None else Looker(self, self.options.look)

    @property
    def trouble(self) -> str:
        """Why the session is not live, as far as is known: the server's error text, or the connection's state."""
        return self._core.trouble

    @property
    def instruction(self) -> str | None:
        """The active goal according to the server's last message; None before the first welcome."""
        return self._core.goal.active

    @property
    def epoch(self) -> int:
        """The number of the current episode."""
        return self._core.epoch

    @property
    def statistics(self) -> dict[str, Any]:
        """Counts since the client was created; `latency_ms` is from the observation's stamp to the call's arrival, for
        the last 4096 fresh calls; `waited_ms` is how long the last 64 observations waited at the server for a tick.

        `pictures`: those `sent`, and those `dropped` for lack of room or a connection. `superseded` observations were
        replaced by newer ones before they were sent; `expired` calls exceeded their time-to-live while active or on the
        way; `ignored` messages were of another session or epoch, or out of order.
        """
        with self._link.lock:
            pictures = {name: self._pictures.counts[name] for name in ("sent", "dropped")}
            waited_ms = quantiles(self._core.ticks.phase.waits_ns)
            return {**self._statistics(), "pictures": pictures, "waited_ms": waited_ms}

    def call(self) -> Standing:
        """Return what is active now: a call within its time-to-live, else the safe call."""
        with self._link.lock:
            return self._core.active.at(clock.now_ns())

    def next_observation_ns(self) -> int:
        """Return when to capture the next observation, by `time.monotonic_ns()`, so that it is fresh at the server's
        tick: the client learns from each call how long capturing and sending take.

        The instant stays the same until it is over; after `observe` it is that for the next tick. If the ticks are not
        known (`timed`), it is one period from now. `look=` does all of this by itself.
        """
        now_ns = clock.now_ns()
        with self._link.lock:
            due_ns = self._core.next_observation_ns(now_ns)
            return clock.to_monotonic(now_ns + self._core.period_ns if due_ns is None else due_ns)

    @property
    def timed(self) -> bool:
        """Whether the instants of the server's ticks are known: not if the client paces, nor before the first
        decision."""
        with self._link.lock:
            return self._core.timed(clock.now_ns())

    # What is sent.

    def observe(
        self, text: str | None = None, data: Data = None, arrays: Data = None, *, t_ns: int | None = None
    ) -> int:
        """Send an observation of the world; return the observation's number. `t_ns` is the instant of capture by
        `time.monotonic_ns()` (default: now). Without a connection only the newest observation is kept.

        Raises ClientError for an empty observation, a field that the protocol forbids, or an instant in the future.
        """
        look = message_of(text, data, arrays, t_ns)
        with self._link.lock:
            core = self._core
            seq = core.observe(look).seq
            core.ticks.phase.observed(seq, core.period_ns, clock.now_ns())
        self._link.wake()
        return seq

    def send_picture(self, data: Any, *, t_ns: int | None = None) -> bool:
        """Send a picture of the world for people to see (the record, the live view): a JPEG or PNG file's bytes.

        `t_ns` as for `observe`. Pictures never delay observations: at most 10 a second are sent, and a picture that
        cannot be sent at once is dropped and counted (`statistics`). Return whether the picture was sent, which needs a
        session, a server that accepts pictures, and room. Raises ClientError if the file is not a JPEG or PNG, is cut
        off or has more than 768,000 bytes, or if the instant is in the future.
        """
        return self._pictures.send(picture(data, t_ns))

    def executed(
        self,
        standing: Standing,
        outcome: Outcomes = "executed",
        result: str | None = None,
        error: str | None = None,
    ) -> None:
        """Report the outcome of a call, for clients with `acknowledge=True` and without an `on_call`. Calls that the
        client started itself (no tick), and calls reported already, are not sent. After a `failed` call the safe call
        is active, since otherwise the previous action would continue."""
        if not self.options.acknowledges:
            raise ClientError("This client did not announce acknowledgements.", "Connect with acknowledge=True.")
        with checked("executed"), self._link.lock:
            words = {"result": plain(result, "result"), "error": plain(error, "error")}
            self._core.acknowledge(standing, outcome, clock.now_ns(), **words)
        self._link.wake()

    def instruct(self, instruction: str) -> None:
        """Change the goal, which survives reconnects."""
        with checked("instruct"), self._link.lock:
            self._core.instruct(plain(instruction, "instruction"))
        self._link.wake()

    def reset(
        self, *, seed: int = 0, ret: float = 0.0, success: bool | None = None, seconds: float | None = None
    ) -> int:
        """Start a new episode; return the new epoch. No call is active until the first one of the episode. The
        arguments tell the report how the previous episode ended."""
        with checked("reset"), self._link.lock:
            ended = plain({"seed": seed, "return": ret, "success": success, "seconds": seconds}, "ended")
            if seconds is None and success is None:
                ended = None
            fields = {"session": self._core.session.token, "epoch": self._core.epoch, "ended": ended}
            epoch = self._core.reset(Reset.model_validate(fields).ended)
        self._link.wake()
        return epoch

    def wait(self, timeout: float | None = None) -> Standing:
        """Wait for news since the last `wait` (the next tick's call, held or safe, or an expiry); return what is active
        then. Returns at the latest after `timeout` seconds, or when the session has ended."""
        self._until_news(timeout)
        self._version = self._core.version
        return self.call()

    def decide(
        self,
        observation: str | Data = None,
        *,
        arrays: Data = None,
        t_ns: int | None = None,
        timeout: float | None = None,
    ) -> Standing:
        """Send an observation (text or data) and wait for the call that answers it, for `pacing="client"`.

        Return what is active then: safe if no call came within the time-to-live or `timeout` (default: 30 s), or if the
        observation was refused (`cause`). Raises ClientError for an error in the observation.
        """
        core = self._core
        if self.options.pacing != "client":
            raise ClientError('decide() is for pacing="client".', "Use observe() and wait() here.")
        text, data = (observation, None) if isinstance(observation, str) else (None, observation)
        look, ttl_ms = message_of(text, data, arrays, t_ns), self.welcome.ttl_ms
        with self._link.lock:
            core.request(look)
        self._link.wake()
        limit_s = DECIDE_S if timeout is None else timeout
        if ttl_ms:  # a call that comes later would be too old
            limit_s = max(0.0, min(limit_s, (look.t_ns - clock.now_ns()) / 1e9 + ttl_ms / 1e3))
        try:
            self._until(lambda: core.looks.unanswered is None or core.error is not None, limit_s)
        finally:
            with self._link.lock:
                standing = core.decided(clock.now_ns())
        return standing

    def close(self) -> None:
        """Say goodbye and close the connection; only the safe call is active from now on. May be called twice.

        Waits until the handler has carried out the safe call: 1 s at most for the start, 5 s in all. The interpreter's
        exit closes all clients, too."""
        if self._looker is not None:
            self._looker.close()
        self._link.close()
        self._pictures.close()
        if self._handlers:
            self._handlers[-1].wait()  # the handler of safe calls


def quantiles(ns: Collection[int]) -> dict[str, float]:
    """Return `p50`, `p99` and `max` in ms of durations in ns; empty if there are none."""
    ms, last = [round(each / 1e6, 3) for each in sorted(ns)], len(ns) - 1
    return {name: ms[min(last, int(s * last + s))] for name, s in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)) if ms}


@atexit.register
def _close_all() -> None:
    opened = list(_opened)
    for client in opened:
        client._link.close()  # all are safe before one is waited for
    for client in opened:
        client.close()
