"""The client of a Python program."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

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
    """What a client and a crowd have in common."""

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
        """Wait until the server has answered. Raises ClientError: refused, or not within `connect_timeout_s`."""
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
        """Return the error of no welcome within so long."""
        return self._core.unwelcomed(self.endpoint, seconds)

    @property
    def connected(self) -> bool:
        """Whether the session is live now."""
        return self._core.connection.open

    @property
    def address(self) -> str:
        """Where the newest connection goes."""
        return self._link.address

    @property
    def error(self) -> ClientError | None:
        """Why the session has ended for good, None while it has not; a lost connection does not end it."""
        return self._core.error

    @property
    def welcome(self) -> Welcome:
        """The server's terms; the newest, after a restart of the server. Raises Closed before the first."""
        if self._core.session.welcome is None:
            raise Closed("The client is closed (never welcomed).", "Connect again.")
        return self._core.session.welcome

    def _statistics(self) -> dict[str, Any]:
        tally = self._core.tally
        counts = {name: tally.count[name] for name in COUNTS}
        return {**counts, "ignored": dict(tally.ignored), "latency_ms": quantiles(tally.latency_ns)}

    def close(self) -> None:
        """Say bye and let go; may be called twice. Nothing is active any more but safe calls."""
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
        """Connect to a server and wait for its welcome. The options are those of `Options`.

        At `http://HOST:PORT/connect` another server is requested where a connection is lost, or a server takes no
        client. Raises ClientError: an error in the options, or no server within `connect_timeout_s`; Refused: by the
        server.
        """
        return cls(endpoint, options)._ready()

    def __init__(self, endpoint: str, options: Mapping[str, Any]) -> None:
        """Start to connect, and do not wait."""
        checked_options = Options.of(options)
        super().__init__(endpoint, Core(checked_options, time.monotonic_ns()))
        self._pictures = PictureSender(self._link)
        for of_safe, handle in ((False, self.options.on_call), (True, self.options.on_safe)):
            if handle is not None:
                self._handlers.append(Handler(self._link, of_safe, handle))
        self._changed()  # something may have come before they were there
        self._looker = None if self.options.look is None else Looker(self, self.options.look)

    @property
    def trouble(self) -> str:
        """What keeps the session from being live, as far as is known: the server's words, or the connection's state."""
        return self._core.trouble

    @property
    def instruction(self) -> str | None:
        """The active goal, by the server's last message; None before the first welcome."""
        return self._core.goal.active

    @property
    def epoch(self) -> int:
        """The epoch now."""
        return self._core.epoch

    @property
    def statistics(self) -> dict[str, Any]:
        """Counts since the client was created; `latency_ms` is from the observation's stamp to the call's arrival, of
        the last 4096 fresh calls; `waited_ms` how long the last 64 observations lay at the server before their tick.

        `pictures`: `sent`, and `dropped` for want of room or a connection. `superseded` observations were replaced by
        newer ones before they were sent; `expired` calls ran out of their time-to-live, active or on the way; `ignored`
        ones were of another session, epoch or order.
        """
        with self._link.lock:
            pictures = {name: self._pictures.counts[name] for name in ("sent", "dropped")}
            waited_ms = quantiles(self._core.ticks.phase.waits_ns)
            return {**self._statistics(), "pictures": pictures, "waited_ms": waited_ms}

    def call(self) -> Standing:
        """Return what is active at this instant: never older than its time-to-live, else the safe call."""
        with self._link.lock:
            return self._core.active.at(time.monotonic_ns())

    def next_observation_ns(self) -> int:
        """Return when to look at the world next, by `time.monotonic_ns()`, so that the server's tick decides upon what
        is fresh: the client learns from each call how long looking and sending take.

        It is the same until then, and the tick after that once you have called `observe`. A period from now where the
        ticks are not known (`timed`). `look=` does all of this by itself.
        """
        now_ns = time.monotonic_ns()
        with self._link.lock:
            due_ns = self._core.next_observation_ns(now_ns)
            return now_ns + self._core.period_ns if due_ns is None else due_ns

    @property
    def timed(self) -> bool:
        """Whether the instants of the server's ticks are known: not where the client paces, or before anything was
        decided."""
        with self._link.lock:
            return self._core.timed(time.monotonic_ns())

    # What is sent.

    def observe(
        self, text: str | None = None, data: Data = None, arrays: Data = None, *, t_ns: int | None = None
    ) -> int:
        """Send one look at the world; return its number. `t_ns` is when it was captured, by `time.monotonic_ns()`
        (default: now). While there is no connection only the newest is kept.

        Raises ClientError: nothing in it, a field that the protocol forbids, an instant of the future.
        """
        look = message_of(text, data, arrays, t_ns)
        with self._link.lock:
            core = self._core
            seq = core.observe(look).seq
            core.ticks.phase.observed(seq, core.period_ns, time.monotonic_ns())
        self._link.wake()
        return seq

    def send_picture(self, data: Any, *, t_ns: int | None = None) -> bool:
        """Send a picture of the world for people to see (the record, the live view): a JPEG or PNG file's bytes.

        `t_ns` as of `observe`. No observation waits for it: 10 a second at most are sent, and what cannot be sent at
        once is dropped and counted (`statistics`). Return whether it was sent: there is a session whose server takes
        pictures, and room. Raises ClientError: not such a file, cut off, more than 768,000 bytes, an instant of the
        future.
        """
        return self._pictures.send(picture(data, t_ns))

    def executed(
        self,
        standing: Standing,
        outcome: Outcomes = "executed",
        result: str | None = None,
        error: str | None = None,
    ) -> None:
        """Report the outcome of a call: for clients with `acknowledge=True` and without an `on_call`. What the client
        started itself (no tick), and what was reported already, is not sent. After one that `failed` safe is active:
        what was done before would else continue."""
        if not self.options.acknowledges:
            raise ClientError("This client did not announce acknowledgements.", "Connect with acknowledge=True.")
        with checked("executed"), self._link.lock:
            words = {"result": plain(result, "result"), "error": plain(error, "error")}
            self._core.acknowledge(standing, outcome, time.monotonic_ns(), **words)
        self._link.wake()

    def instruct(self, instruction: str) -> None:
        """Change the goal; it survives reconnects."""
        with checked("instruct"), self._link.lock:
            self._core.instruct(plain(instruction, "instruction"))
        self._link.wake()

    def reset(
        self, *, seed: int = 0, ret: float = 0.0, success: bool | None = None, seconds: float | None = None
    ) -> int:
        """Start a new episode; return its epoch. Nothing is active until its first call. The arguments say how the
        episode before ended, for the report."""
        with checked("reset"), self._link.lock:
            ended = plain({"seed": seed, "return": ret, "success": success, "seconds": seconds}, "ended")
            if seconds is None and success is None:
                ended = None
            fields = {"session": self._core.session.token, "epoch": self._core.epoch, "ended": ended}
            epoch = self._core.reset(Reset.model_validate(fields).ended)
        self._link.wake()
        return epoch

    def wait(self, timeout: float | None = None) -> Standing:
        """Return what is active as soon as something new has come since the last `wait`: the next tick's call, held or
        safe, or an expiry; at the latest after `timeout` seconds, or when the session has ended."""
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
        """Send an observation (text, or data) and wait for its call: for `pacing="client"`.

        Return what is active then; safe if no call came within the time-to-live or `timeout` (default: 30 s), or if the
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
            limit_s = max(0.0, min(limit_s, (look.t_ns - time.monotonic_ns()) / 1e9 + ttl_ms / 1e3))
        try:
            self._until(lambda: core.looks.unanswered is None or core.error is not None, limit_s)
        finally:
            with self._link.lock:
                standing = core.decided(time.monotonic_ns())
        return standing

    def close(self) -> None:
        """Say bye and let go; may be called twice. Nothing is active any more but the safe call, which the handler gets
        before this returns: after 1 s at most, 5 s while it runs. The interpreter's exit closes too."""
        if self._looker is not None:
            self._looker.close()
        self._link.close()
        self._pictures.close()
        if self._handlers:
            self._handlers[-1].wait()  # that of safe


def quantiles(ns: Collection[int]) -> dict[str, float]:
    """Return `p50`, `p99` and `max` in ms; empty where there is nothing."""
    ms, last = [round(each / 1e6, 3) for each in sorted(ns)], len(ns) - 1
    return {name: ms[min(last, int(s * last + s))] for name, s in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)) if ms}


@atexit.register
def _close_all() -> None:
    opened = list(_opened)
    for client in opened:
        client._link.close()  # all are safe before one is waited for
    for client in opened:
        client.close()
