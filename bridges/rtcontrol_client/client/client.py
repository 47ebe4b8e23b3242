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
from rtcontrol_client.client.errors import ClientError, Closed, wrap_errors
from rtcontrol_client.client.handler import HandlerThread, ObservationThread
from rtcontrol_client.client.link import Link
from rtcontrol_client.client.options import Options
from rtcontrol_client.client.pictures import PictureSender, picture_message
from rtcontrol_client.client.values import Data, to_plain
from rtcontrol_client.client.values import to_observe as message_of
from rtcontrol_client.wire.messages import Outcomes, Reset, Welcome

DECIDE_S = 30.0
COUNTS = ("observed", "superseded", "fresh", "held", "safe", "expired", "errors", "sessions", "resumed", "reconnects")
_open_clients: weakref.WeakSet[ClientBase] = weakref.WeakSet()  # these are closed at the interpreter's exit


class ClientBase:
    """Base class of `Client` (one session) and `Crowd` (one session that drives many members)."""

    _core: Core

    def __init__(self, endpoint: str, core: Core) -> None:
        """Start to connect without waiting for the connection."""
        self.endpoint, self.options, self._core = endpoint, core.options, core
        self._condition, self._version = threading.Condition(), 0
        self._handlers: list[HandlerThread] = []
        self._link = Link(endpoint, core, self._notify_waiters)
        _open_clients.add(self)

    def _notify_waiters(self) -> None:
        for handler in self._handlers:
            handler.wake()
        with self._condition:
            self._condition.notify_all()

    def _wait_until(self, ready: Callable[[], bool], limit_s: float | None) -> None:
        with self._condition:
            self._condition.wait_for(ready, limit_s)

    def _wait_for_change(self, limit_s: float | None) -> None:
        self._wait_until(lambda: self._core.version != self._version or self._core.error is not None, limit_s)

    def _wait_for_welcome(self) -> Self:
        """Wait for the server's welcome; return the client. Raises ClientError if refused or without a response."""
        core, limit_s = self._core, self.options.connect_timeout_s
        try:
            self._wait_until(lambda: core.session.welcome is not None or core.error is not None, limit_s)
            if core.error is not None:
                raise core.error
            if core.session.welcome is None:
                raise self.no_welcome_error(limit_s or 0)
        except BaseException:
            self.close()
            raise
        return self

    def no_welcome_error(self, seconds: float) -> ClientError:
        """Return the error to raise if no welcome message arrived within `seconds`."""
        return self._core.no_welcome_error(self.endpoint, seconds)

    @property
    def connected(self) -> bool:
        """Return whether the client has a connection and a session now."""
        return self._core.connection.is_open

    @property
    def address(self) -> str:
        """Return the server address of the newest connection."""
        return self._link.address

    @property
    def error(self) -> ClientError | None:
        """Return why the client has ended, or None while it runs. A lost connection does not end the client."""
        return self._core.error

    @property
    def welcome(self) -> Welcome:
        """Return the server's newest welcome message, with the negotiated settings. Raises Closed without a welcome."""
        if self._core.session.welcome is None:
            raise Closed("The client was closed before the server's welcome.", "Connect again.")
        return self._core.session.welcome

    def _statistics(self) -> dict[str, Any]:
        tally = self._core.tally
        counts = {name: tally.count[name] for name in COUNTS}
        return {**counts, "ignored": dict(tally.ignored), "latency_ms": quantiles(tally.latency_ns)}

    def close(self) -> None:
        """Send a bye message and close the connection; then only safe calls are active. Further calls do nothing."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Client(ClientBase):
    """A session with an rtcontrol server. Any thread may call any method. Only `connect`, `wait`, `decide` and `close`
    block. A returned call is never older than its time-to-live. docs/clients.md has an example.
    """

    @classmethod
    def connect(cls, endpoint: str, **options: Any) -> Self:
        """Connect to a server and wait for its welcome message. `options` are the fields of `Options`.

        If the endpoint is `http://HOST:PORT/connect`, the client requests a server's address there, and requests
        another address if a connection is lost or a server accepts no client. Raises ClientError for invalid options or
        if no server responds within `connect_timeout_s` seconds, and Refused if the server refuses the client.
        """
        return cls(endpoint, options)._wait_for_welcome()

    def __init__(self, endpoint: str, options: Mapping[str, Any]) -> None:
        """Start to connect, and do not wait."""
        checked_options = Options.from_values(options)
        super().__init__(endpoint, Core(checked_options, clock.now_ns()))
        self._pictures = PictureSender(self._link)
        for safe_only, handle in ((False, self.options.on_call), (True, self.options.on_safe)):
            if handle is not None:
                self._handlers.append(HandlerThread(self._link, safe_only, handle))
        self._notify_waiters()  # a call may have arrived before the handlers existed
        self._looker = None if self.options.look is None else ObservationThread(self, self.options.look)

    @property
    def trouble(self) -> str:
        """Return why the client has no session: the server's error text, or the state of the connection."""
        return self._core.trouble

    @property
    def instruction(self) -> str | None:
        """Return the active instruction by the server's last message; None before the first welcome message."""
        return self._core.goal.active

    @property
    def epoch(self) -> int:
        """Return the number of the current episode."""
        return self._core.epoch

    @property
    def statistics(self) -> dict[str, Any]:
        """Return counts since the client was created, and quantiles of two durations in milliseconds.

        `latency_ms` is the time from an observation's capture to the arrival of its call, for the last 4096 fresh
        calls; `waited_ms` the time that an observation waited at the server for a tick, for the last 64 observations.
        `superseded` observations were replaced by newer ones before they were sent. `expired` calls exceeded their
        time-to-live. `ignored` messages belonged to another session or epoch, or arrived out of order.
        """
        with self._link.lock:
            pictures = {name: self._pictures.counts[name] for name in ("sent", "dropped")}
            waited_ms = quantiles(self._core.ticks.phase.waits_ns)
            return {**self._statistics(), "pictures": pictures, "waited_ms": waited_ms}

    def call(self) -> Standing:
        """Return the active call: the last decided call within its time-to-live, else the safe call."""
        with self._link.lock:
            return self._core.active.standing_at(clock.now_ns())

    def next_observation_ns(self) -> int:
        """Return when to capture the next observation, by `time.monotonic_ns()`, so that it arrives shortly before the
        server's tick. For this, the client measures how long it takes to capture and send observations.

        The result stays the same until this time has passed; after `observe`, it is the time for the following tick. If
        the ticks' times are unknown (see `timed`), it is one period from now. The option `look` uses the same times.
        """
        now_ns = clock.now_ns()
        with self._link.lock:
            due_ns = self._core.next_observation_ns(now_ns)
            return clock.to_monotonic(now_ns + self._core.period_ns if due_ns is None else due_ns)

    @property
    def timed(self) -> bool:
        """Return whether the times of the server's ticks are known. They are unknown before the first decision, and
        always with `pacing="client"`."""
        with self._link.lock:
            return self._core.knows_ticks(clock.now_ns())

    # Messages to the server.

    def observe(
        self, text: str | None = None, data: Data = None, arrays: Data = None, *, t_ns: int | None = None
    ) -> int:
        """Send an observation of the world; return the observation's number. `t_ns` is the time of its capture by
        `time.monotonic_ns()` (default: now). Without a connection, only the newest observation is kept to be sent.

        Raises ClientError if the observation is empty, a field is not valid, or `t_ns` is in the future.
        """
        look = message_of(text, data, arrays, t_ns)
        with self._link.lock:
            core = self._core
            seq = core.observe(look).seq
            core.ticks.phase.record_observation(seq, core.period_ns, clock.now_ns())
        self._link.wake()
        return seq

    def send_picture(self, data: Any, *, t_ns: int | None = None) -> bool:
        """Send a picture of the world (bytes of a JPEG or PNG file) for people who watch the run or read its record.

        `t_ns` is the time of the picture, as for `observe`. Pictures never delay observations: at most 10 per second
        are sent, and a picture that cannot be sent immediately is dropped and counted in `statistics`. Return whether
        the picture was sent. Raises ClientError if the file is not a JPEG or PNG, is truncated or has more than 768,000
        bytes, or if `t_ns` is in the future.
        """
        return self._pictures.send(picture_message(data, t_ns))

    def executed(
        self,
        standing: Standing,
        outcome: Outcomes = "executed",
        result: str | None = None,
        error: str | None = None,
    ) -> None:
        """Report the outcome of a call to the server; for clients with `acknowledge=True` and without `on_call`.
        Nothing is sent for a call that is already reported or did not come from the server (its `tick` is None). The
        outcome `failed` activates the safe call, because otherwise the previous action would continue."""
        if not self.options.acknowledges_calls:
            raise ClientError("This client did not announce acknowledgements.", "Connect with acknowledge=True.")
        with wrap_errors("executed"), self._link.lock:
            words = {"result": to_plain(result, "result"), "error": to_plain(error, "error")}
            self._core.acknowledge(standing, outcome, clock.now_ns(), **words)
        self._link.wake()

    def instruct(self, instruction: str) -> None:
        """Set a new instruction, which stays active after a reconnect."""
        with wrap_errors("instruct"), self._link.lock:
            self._core.instruct(to_plain(instruction, "instruction"))
        self._link.wake()

    def reset(
        self, *, seed: int = 0, ret: float = 0.0, success: bool | None = None, seconds: float | None = None
    ) -> int:
        """Start a new episode; return its number (epoch). No call is active until the episode's first call arrives. The
        arguments describe the previous episode for the server's report; `ret` is the return (sum of rewards)."""
        with wrap_errors("reset"), self._link.lock:
            ended = to_plain({"seed": seed, "return": ret, "success": success, "seconds": seconds}, "ended")
            if seconds is None and success is None:
                ended = None
            fields = {"session": self._core.session.token, "epoch": self._core.epoch, "ended": ended}
            epoch = self._core.reset(Reset.model_validate(fields).ended)
        self._link.wake()
        return epoch

    def wait(self, timeout: float | None = None) -> Standing:
        """Wait until a call message arrives or the active call changes (since the previous `wait`), and return the
        active call. Also returns after `timeout` seconds, or when the client has ended."""
        self._wait_for_change(timeout)
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
        """Send an observation (text or data), wait for its call, and return the active call. Needs `pacing="client"`.

        Return the safe call, with the reason in `cause`, if the server refuses the observation or no call arrives
        within the time-to-live or `timeout` (default: 30 s). Raises ClientError if the observation is not valid.
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
        if ttl_ms:  # do not wait longer than the time-to-live: a later call would be too old
            limit_s = max(0.0, min(limit_s, (look.t_ns - clock.now_ns()) / 1e9 + ttl_ms / 1e3))
        try:
            self._wait_until(lambda: core.looks.pending is None or core.error is not None, limit_s)
        finally:
            with self._link.lock:
                standing = core.end_decision(clock.now_ns())
        return standing

    def close(self) -> None:
        """Send a bye message and close the connection; then only the safe call is active. Further calls do nothing.

        Wait until the handler has executed the safe call: at most 1 s until the handler starts, and 5 s in total. All
        clients are also closed when the interpreter exits."""
        if self._looker is not None:
            self._looker.close()
        self._link.close()
        self._pictures.close()
        if self._handlers:
            self._handlers[-1].wait_for_safe_call()  # the handler of safe calls


def quantiles(ns: Collection[int]) -> dict[str, float]:
    """Return the quantiles `p50`, `p99` and `max`, in ms, of durations in ns; return {} if there are none."""
    ms, last = [round(each / 1e6, 3) for each in sorted(ns)], len(ns) - 1
    return {name: ms[min(last, int(s * last + s))] for name, s in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)) if ms}


@atexit.register
def _close_all() -> None:
    opened = list(_open_clients)
    for client in opened:
        client._link.close()  # activate the safe calls of all clients before waiting for the first client
    for client in opened:
        client.close()
