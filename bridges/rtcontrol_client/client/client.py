"""The client of a Python program."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, Self

from rtcontrol_client.client.core import Core
from rtcontrol_client.client.errors import ClientError, Closed, checked
from rtcontrol_client.client.handler import Handler, Looker
from rtcontrol_client.client.link import Link
from rtcontrol_client.client.options import Options
from rtcontrol_client.client.pictures import PictureSender, picture
from rtcontrol_client.client.session import Standing
from rtcontrol_client.client.values import Some, plain
from rtcontrol_client.client.values import observation as message_of
from rtcontrol_client.wire.messages import Outcomes, Reset, Welcome

DECIDE_S = 30.0
COUNTS = ("observed", "superseded", "fresh", "held", "safe", "expired", "errors", "sessions", "resumed", "reconnects")
_opened: weakref.WeakSet[ClientBase] = weakref.WeakSet()  # to be closed at the interpreter's exit


class ClientBase:
    """What a client and a crowd have in common."""

    _core: Core

    def __init__(self, endpoint: str, core: Core) -> None:
        """Begin to connect, and do not wait."""
        self.endpoint, self.options, self._core = endpoint, core.options, core
        self._condition, self._seen = threading.Condition(), 0
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

    def _ready(self) -> Self:
        """Wait until the server has answered. Raises ClientError: refused, or not within `connect_timeout_s`."""
        core, limit_s = self._core, self.options.connect_timeout_s
        try:
            self._until(lambda: core.welcome is not None or core.error is not None, limit_s)
            if core.error is not None:
                raise core.error
            if core.welcome is None:
                raise self.unwelcomed(limit_s or 0)
        except BaseException:
            self.close()
            raise
        return self

    def unwelcomed(self, seconds: float) -> ClientError:
        """What to say where no welcome came within so long."""
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
        """What the server put in force; the newest, after a restart of the server. Raises Closed before the first."""
        if self._core.welcome is None:
            raise Closed("The client is closed (never welcomed).", "Connect anew.")
        return self._core.welcome

    def close(self) -> None:
        """Say bye and let go; may be called twice. Nothing is in force any more but safe calls."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def known(cls: type[Options], given: Collection[str], what: str, but: Collection[str] = ()) -> None:
    """Raises ClientError: an option that there is not."""
    names = [f.name for f in fields(cls) if f.name not in but]
    if unknown := sorted(set(given) - set(names)):
        raise ClientError(f"{unknown[0]}= is no option{what}.", f"Use some of {', '.join(names)}.")


class Client(ClientBase):
    """A session with an rtcontrol server. All methods may be called from any thread; none but `connect`, `wait`
    and `decide` ever blocks, and what they return is never older than its time-to-live.

    Example:

        with Client.connect(
            "tcp://127.0.0.1:5555", tools=TOOLS, instruction="Follow the road.", hz=10, look=look
        ) as client:
            while True:
                standing = client.wait(0.2)
                for call in standing.calls:  # several safe calls, where there are several actuators
                    act(call.name, call.arguments)
    """

    @classmethod
    def connect(cls, endpoint: str, **options: Any) -> Self:
        """Connect to a server and wait for its welcome. The options are those of `Options`. At `http://HOST:PORT/connect`
        another server is requested where a connection is lost, or a server lets nobody in.

        Raises ClientError: a mistake in the options, or no server within `connect_timeout_s`; Refused: by the server.
        """
        return cls(endpoint, options)._ready()

    def __init__(self, endpoint: str, options: Mapping[str, Any]) -> None:
        """Begin to connect, and do not wait."""
        known(Options, options, "")
        made = Options(**options)
        super().__init__(endpoint, Core(made, time.monotonic_ns()))
        self._pictures = PictureSender(self._link)
        for of_safe, handle in ((False, made.on_call), (True, made.on_safe)):
            if handle is not None:
                self._handlers.append(Handler(self._link, of_safe, handle))
        self._changed()  # something may have come before they were there
        self._looker = None if made.look is None else Looker(self, made.look)

    @property
    def trouble(self) -> str:
        """What keeps the session from being live, as far as is known: the server's words, or the connection's state."""
        return self._core.trouble

    @property
    def instruction(self) -> str | None:
        """The goal in force, as far as it was told; None before the first welcome."""
        return self._core.instruction

    @property
    def epoch(self) -> int:
        """The epoch now."""
        return self._core.epoch

    @property
    def statistics(self) -> dict[str, Any]:
        """Counts since the client was made; `latency_ms` is from the observation's stamp to the call's arrival, of the
        last 4096 fresh calls; `clock` the server's minus ours, by the fastest recent round trip; `waited_ms` how long
        the last 64 observations lay at the server before their tick.

        `pictures`: `sent`, and `dropped` for a newer one or for want of a connection.
        `superseded` observations were replaced by newer ones before they were sent; `expired` calls ran out of their
        time-to-live, in force or on the way; `ignored` ones were of another session, epoch or order.
        """
        with self._link.lock:
            core, clock = self._core, self._core.offset.now(time.monotonic_ns())
            latency, waited = quantiles(core.latency_ns), quantiles(core.phase.waits_ns)
            found = {**{name: core.count[name] for name in COUNTS}, "ignored": dict(core.ignored)}
            offset = {"offset_ms": clock.offset_ns / 1e6, "rtt_ms": clock.rtt_ns / 1e6} if clock else {}
            found["pictures"] = {name: self._pictures.counts[name] for name in ("sent", "dropped")}
            found |= {"latency_ms": latency, "waited_ms": waited, "clock": offset}
            return found | {"last_error": core.last_error}

    def call(self) -> Standing:
        """What is in force at this instant: never older than its time-to-live, else the safe call."""
        with self._link.lock:
            return self._core.force.at(time.monotonic_ns())

    def next_observation_ns(self, lead_ms: float | None = None) -> int:
        """When to look at the world next, by `time.monotonic_ns()`, so that the server's tick decides upon what is
        fresh: it learns from each call how long looking and sending take (or `lead_ms` before a tick). It is the same
        until then, and the tick after that once you have called `observe`. A period from now where the ticks are not
        known (`timed`). `look=` does all of this by itself."""
        lead_ns, now_ns = None if lead_ms is None else int(lead_ms * 1e6), time.monotonic_ns()
        with self._link.lock:
            due_ns = self._core.next_observation_ns(lead_ns, now_ns)
            return now_ns + self._core.period_ns if due_ns is None else due_ns

    @property
    def timed(self) -> bool:
        """Whether the instants of the server's ticks are known: not of one that speaks protocol 1.0, nor where the
        client paces, or before anything was decided."""
        with self._link.lock:
            return self._core.timed(time.monotonic_ns())

    # What is said.

    def observe(
        self, text: str | None = None, data: Some = None, arrays: Some = None, *, t_ns: int | None = None
    ) -> int:
        """Send one look at the world; returns its number. `t_ns` is when it was captured, by `time.monotonic_ns()`
        (default: now). While there is no connection only the newest is kept.

        Raises ClientError: nothing in it, a field that the protocol forbids, an instant of the future.
        """
        look = message_of(text, data, arrays, t_ns)
        with self._link.lock:
            core = self._core
            seq = core.observe(look).seq
            core.phase.observed(seq, core.period_ns, time.monotonic_ns())
        self._link.wake()
        return seq

    def send_picture(self, data: Any, *, t_ns: int | None = None) -> bool:
        """Send a picture of the world for people to see (the record, the live view): a JPEG or PNG file's bytes. `t_ns`
        as of `observe`. It goes beside the session: no observation waits for it. The newest one counts, 10 a second at
        most; what cannot be sent is dropped and counted (`statistics`). False: there is no session now, or its server
        takes no pictures.

        Raises ClientError: no such file, cut off, more than 768,000 bytes, an instant of the future.
        """
        return self._pictures.give(picture(data, t_ns))

    def executed(
        self,
        standing: Standing | int,
        outcome: Outcomes = "executed",
        result: str | None = None,
        error: str | None = None,
    ) -> None:
        """Tell what became of a call (its `Standing`, or tick): for clients that said `acknowledge=True` and have no
        `on_call`. What the client began itself (no tick), and what was told already, is not told. After one that
        `failed` safe is in force: what was done before would else go on."""
        if not self.options.acknowledges:
            raise ClientError("This client did not announce acknowledgements.", "Connect with acknowledge=True.")
        with checked("executed"), self._link.lock:
            words = {"result": plain(result, "result"), "error": plain(error, "error")}
            done = standing if isinstance(standing, Standing) else plain(standing, "tick")
            if isinstance(done, bool) or not isinstance(done, Standing | int):
                raise ClientError(f"{done!r:.40} is no call that was given.", "Give its Standing, or its tick.")
            self._core.acknowledge(done, outcome, time.monotonic_ns(), **words)
        self._link.wake()

    def instruct(self, instruction: str) -> None:
        """Change the goal in flight; it survives reconnects."""
        with checked("instruct"), self._link.lock:
            self._core.instruct(plain(instruction, "instruction"))
        self._link.wake()

    def reset(
        self, *, seed: int = 0, ret: float = 0.0, success: bool | None = None, seconds: float | None = None
    ) -> int:
        """A new episode begins; returns its epoch. Nothing is in force until its first call. What is given says how
        the episode before ended, for the report."""
        with checked("reset"), self._link.lock:
            ended = plain({"seed": seed, "return": ret, "success": success, "seconds": seconds}, "ended")
            given = seconds is not None or success is not None
            fields = {"session": self._core.token, "epoch": self._core.epoch, "ended": ended if given else None}
            epoch = self._core.reset(Reset.model_validate(fields).ended)
        self._link.wake()
        return epoch

    def wait(self, timeout: float | None = None) -> Standing:
        """What is in force as soon as something new has come since the last `wait`: the next tick's call, held or
        safe, or an expiry; at the latest after `timeout` seconds, or when the session has ended."""
        self._until(lambda: self._core.version != self._seen or self._core.error is not None, timeout)
        self._seen = self._core.version
        return self.call()

    def decide(
        self,
        observation: str | Some = None,
        *,
        arrays: Some = None,
        t_ns: int | None = None,
        timeout: float | None = None,
    ) -> Standing:
        """Send an observation (text, or data) and wait for its call: for `pacing="client"`.

        Returns what is in force then; safe if no call came within the time-to-live or `timeout` (default: 30 s), or
        if the observation was refused (`cause`). Raises ClientError for a mistake in the observation.
        """
        core = self._core
        if self.options.pacing != "client":
            raise ClientError('decide() is for pacing="client".', "Use observe() and wait() here.")
        text, data = (observation, None) if isinstance(observation, str) else (None, observation)
        shown, ttl_ms = message_of(text, data, arrays, t_ns), self.welcome.ttl_ms
        with self._link.lock:
            core.ask(shown)
        self._link.wake()
        limit_s = DECIDE_S if timeout is None else timeout
        if ttl_ms:  # a call that comes later would be too old
            limit_s = max(0.0, min(limit_s, (shown.t_ns - time.monotonic_ns()) / 1e9 + ttl_ms / 1e3))
        try:
            self._until(lambda: core.unanswered is None or core.error is not None, limit_s)
        finally:
            with self._link.lock:
                standing = core.decided(time.monotonic_ns())
        return standing

    def close(self) -> None:
        """Say bye and let go; may be called twice. Nothing is in force any more but the safe call, which the handler is
        given before this returns: after 1 s at most, 5 s while it runs. The interpreter's exit closes too."""
        if self._looker is not None:
            self._looker.close()
        self._link.close()
        self._pictures.close()
        if self._handlers:
            self._handlers[-1].wait()  # that of safe


def quantiles(ns: Collection[int]) -> dict[str, float]:
    """In ms, with names; empty where there is nothing."""
    ms, last = [round(each / 1e6, 3) for each in sorted(ns)], len(ns) - 1
    return {name: ms[min(last, int(s * last + s))] for name, s in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)) if ms}


@atexit.register
def _close_all() -> None:
    opened = list(_opened)
    for each in opened:
        each._link.close()  # all are safe before one is waited for
    for each in opened:
        each.close()
