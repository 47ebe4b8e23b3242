"""What both clients share: everything that never waits."""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pydantic import ValidationError

from rtcontrol.bridges.client.arrays import to_arrays
from rtcontrol.bridges.client.errors import ClientError, Closed
from rtcontrol.bridges.client.handler import Handler, Queue, ThreadHandler
from rtcontrol.bridges.client.link import NOBODY, Link
from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.client.standing import Standing
from rtcontrol.bridges.client.talk import What
from rtcontrol.bridges.wire import LIMITS, WireError
from rtcontrol.bridges.wire.limits import check_value
from rtcontrol.bridges.wire.messages import Instruct, Observe, Outcome, Reset, Welcome

DECIDE_S = 30.0


@dataclass(frozen=True)
class Sent:
    """An observation that waits for its call; `seq` is its first number."""

    seq: int
    t_ns: int


class Base(ABC):
    """The surface of Client and AsyncClient that never blocks."""

    _awaits = False  # whether `on_call` may be a coroutine function

    def __init__(self, endpoint: str, options: Mapping[str, Any], listens: bool) -> None:
        known = [f.name for f in fields(Options)]
        if unknown := sorted(set(options) - set(known)):
            raise ClientError(f"{unknown[0]}= is no option.", f"Use some of {', '.join(known)}.")
        self.options = Options(**options)
        for name in ("on_safe",) if self._awaits else ("on_call", "on_safe"):
            if inspect.iscoroutinefunction(getattr(self.options, name)):
                remedy = "Give a plain function" + ("." if name == "on_safe" else ", or use AsyncClient.")
                raise ClientError(f"{name}= is a coroutine function.", remedy)
        self._handlers: list[Handler] = []
        self._link = Link(endpoint, self.options, listens, self._changed)
        talk = self._link.talk
        if self.options.on_call is not None:
            self._handlers.append(self._handler(Queue(self._link, talk.handled), self.options.on_call))
        if self.options.on_safe is not None:
            self._handlers.append(ThreadHandler(Queue(self._link, talk.handled_safe), self.options.on_safe, "on-safe"))
        for handler in self._handlers:
            handler.wake()  # something may have come before it was there

    @abstractmethod
    def _notify(self) -> None:
        """What is in force, or the session, may have changed: wake whoever waits."""

    def _handler(self, queue: Queue, on_call: Callable[[Standing], Any]) -> Handler:
        return ThreadHandler(queue, on_call, "on-call")

    def _changed(self) -> None:
        for handler in self._handlers:
            handler.wake()
        self._notify()

    def unwelcomed(self, seconds: float) -> ClientError:
        """What to say where no welcome came within so long."""
        where, trouble = self._link.endpoint, self.trouble
        if trouble == NOBODY:
            return ClientError(f"No rtcontrol server answers at {where}.", f"Start one: rtcontrol serve --bind {where}")
        return ClientError(
            f"No welcome from {where} in {seconds:g} s: {trouble}.",
            "Correct that, or give another server's address (with keys where it uses --keys).",
        )

    # What is.

    @property
    def connected(self) -> bool:
        """Whether the session is live now."""
        with self._link.lock:
            return self._link.talk.open

    @property
    def error(self) -> ClientError | None:
        """Why the session has ended for good, None while it has not; a lost connection does not end it."""
        with self._link.lock:
            return self._link.talk.error

    @property
    def trouble(self) -> str:
        """What keeps the session from being live, as far as is known: the server's words, or the connection's state."""
        with self._link.lock:
            said = self._link.talk.counts.last_error
            return f"the server answered {said.removesuffix('.')}" if said else self._link.trouble

    @property
    def welcome(self) -> Welcome:
        """What the server put in force; the newest, after a restart of the server. Raises Closed before the first."""
        with self._link.lock:
            if self._link.talk.welcome is None:
                raise Closed("never welcomed")
            return self._link.talk.welcome

    @property
    def instruction(self) -> str | None:
        """The goal in force, as far as it was told; None before the first welcome."""
        with self._link.lock:
            return self._link.talk.instruction

    @property
    def epoch(self) -> int:
        """The epoch now."""
        with self._link.lock:
            return self._link.talk.epoch

    @property
    def statistics(self) -> dict[str, Any]:
        """Counts and latencies since the client was made; see `Counts.snapshot`."""
        with self._link.lock:
            return self._link.talk.counts.snapshot(self._link.talk.clock())

    def call(self) -> Standing:
        """What is in force at this instant: never older than its time-to-live, else the safe call."""
        with self._link.lock:
            return self._link.talk.rule.at(time.monotonic_ns())

    def _version(self) -> int:
        with self._link.lock:
            return self._link.talk.version

    # What is said.

    def observe(
        self,
        text: str | None = None,
        data: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Any] | None = None,
        *,
        t_ns: int | None = None,
    ) -> int:
        """Send one look at the world; returns its number. `t_ns` is when it was captured, by `time.monotonic_ns()`
        (default: now). While there is no connection only the newest is kept.

        Raises ClientError: nothing in it, a field that the protocol forbids, an instant of the future.
        """
        message = self._observation(text, data, arrays, t_ns)
        with self._link.lock:
            sent = self._queue(message)
        self._link.wake()
        return sent.seq

    def _observation(
        self, text: str | None, data: Mapping[str, Any] | None, arrays: Mapping[str, Any] | None, t_ns: int | None
    ) -> Observe:
        now_ns = time.monotonic_ns()
        if text is None and data is None and not arrays:
            raise ClientError("An observation without anything in it.", "Give text=, data= or arrays=.")
        if t_ns is not None and t_ns > now_ns:
            raise ClientError(f"t_ns={t_ns} lies in the future.", "Use time.monotonic_ns() at the capture.")
        plain = dict(data) if data is not None else None
        try:
            check_value({"data": plain, "text": text}, LIMITS)
            return Observe(
                session="-" * 16,
                seq=0,
                epoch=0,
                t_ns=now_ns if t_ns is None else t_ns,
                text=text,
                data=plain,
                arrays=to_arrays(arrays or {}),
            )
        except WireError as error:
            raise ClientError(error.message, error.remedy) from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise ClientError(f"observe.{field}: {first['msg']}.", "See `observe` in docs/protocol.md.") from None

    def _queue(self, message: Observe) -> Sent:
        """With the lock held."""
        talk = self._link.talk
        talk.seq += 1
        message = message.model_copy(update={"session": talk.token, "seq": talk.seq, "epoch": talk.epoch})
        talk.observe(message)
        return Sent(message.seq, message.t_ns)

    def executed(
        self,
        standing: Standing | int,
        outcome: What = "executed",
        *,
        result: str | None = None,
        error: str | None = None,
    ) -> None:
        """Tell what became of a call (its `Standing`, or tick): for clients that said `acknowledge=True` and have no
        `on_call`. What the client began itself (no tick) is not told."""
        tick = standing if isinstance(standing, int) else standing.tick
        if not self.options.acknowledges:
            raise ClientError("This client did not announce acknowledgements.", "Connect with acknowledge=True.")
        if tick is not None:
            try:
                check_value([result, error], LIMITS)
                with self._link.lock:
                    self._link.talk.acknowledge(tick, outcome, result, error)
            except WireError as wrong:
                raise ClientError(wrong.message, wrong.remedy) from None
            except ValidationError as wrong:
                raise ClientError(
                    f"executed({tick!r}, {outcome!r}) is none.", "See `executed` in docs/protocol.md."
                ) from wrong
            self._link.wake()

    def instruct(self, instruction: str) -> None:
        """Change the goal in flight; it survives reconnects."""
        try:
            check_value(instruction, LIMITS)
        except WireError as error:
            raise ClientError(error.message, error.remedy) from None
        with self._link.lock:
            self._link.talk.say(Instruct(session=self._link.talk.token, instruction=instruction))
        self._link.wake()

    def reset(
        self, *, seed: int = 0, ret: float = 0.0, success: bool | None = None, seconds: float | None = None
    ) -> int:
        """A new episode begins; returns its epoch. Nothing is in force until its first call. What is given says how
        the episode before ended, for the report."""
        given = seconds is not None or success is not None
        ended = Outcome(seed=seed, ret=ret, success=success, seconds=seconds or 0.0) if given else None
        with self._link.lock:
            talk = self._link.talk
            talk.reset(Reset(session=talk.token, epoch=talk.epoch + 1, ended=ended))
            epoch = talk.epoch
        self._changed()
        self._link.wake()
        return epoch

    # decide(), but for the waiting.

    def _decide(
        self, observation: str | Mapping[str, Any] | None, arrays: Mapping[str, Any] | None, t_ns: int | None
    ) -> Sent:
        if self.options.pacing != "client":
            raise ClientError('decide() is for pacing="client".', "Use observe() and wait() here.")
        text = observation if isinstance(observation, str) else None
        data = None if isinstance(observation, str) else observation
        message = self._observation(text, data, arrays, t_ns)
        with self._link.lock:
            talk = self._link.talk
            if talk.unanswered is not None:
                raise ClientError("decide() is running already.", "Wait for its return.")
            sent = self._queue(message)
            talk.refused = None
            talk.unanswered = message.model_copy(update={"session": talk.token, "seq": sent.seq, "epoch": talk.epoch})
        self._link.wake()
        return sent

    def _decide_s(self, timeout: float | None, sent: Sent) -> float:
        """How long to wait: a call that comes later would be too old."""
        limit_s = DECIDE_S if timeout is None else timeout
        ttl_ms = self.welcome.ttl_ms
        left_s = sent.t_ns / 1e9 + ttl_ms / 1e3 - time.monotonic()
        return max(0.0, min(limit_s, left_s)) if ttl_ms else limit_s

    def _answered(self) -> bool:
        with self._link.lock:
            return self._link.talk.unanswered is None or self._link.talk.error is not None

    def _decided(self) -> Standing:
        with self._link.lock:
            talk = self._link.talk
            late, talk.unanswered = talk.unanswered is not None, None
            standing = talk.rule.at(time.monotonic_ns())
            why = "no_answer" if late else talk.refused
            if why is None or talk.error is not None:
                return standing
            # The call in force was decided for another observation: in lockstep that is no answer.
            return Standing(talk.rule.safe_call, "safe", cause=why)
