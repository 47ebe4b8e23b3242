"""The bridge's life: look at the robot at a fixed rate, tell the server, carry out what is active, report problems."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rtcontrol_client import ClientError, Declined, Standing
from rtcontrol_client.ros2 import Unmappable, Unserved
from rtcontrol_client.ros2.actuate import Ros2Actuator
from rtcontrol_client.ros2.goals import channels
from rtcontrol_client.ros2.guard import Guard
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.ros2.observer import Observer
from rtcontrol_client.sessions import BridgeSessions
from rtcontrol_client.shutdown import rest

TROUBLE_S = 1.0  # how often problems of the network are looked for
# The longest silence of a topic that is written each tick, as promised to DDS: a late tick or two are not the end.
PROMISE_PERIODS, PROMISE_MS = 3, 100.0
DECLINED_S = 10.0  # how often the same refusal of calls is logged
SETTLE_S = 3.0  # discovery takes about a second: nothing is wrong before
ARRIVE_S = 0.3  # how long the safe call may take to arrive before the process ends or stops
ALIKE = 0.1  # a server's rate that differs by less from the bridge's own gives the bridge its phase
log = logging.getLogger("rtcontrol.ros2")


class Ros2Bridge:
    """One robot, one session at a time. `run` blocks; `stop` may be called from anywhere."""

    def __init__(self, mapper: Mapper, bus: Any) -> None:
        self._mapper, self._bus, self._config = mapper, bus, mapper.config
        self._guard: Guard | None = None
        hz = self._config.hz
        read = [source.topic for source in mapper.sources if source.topic.name not in mapper.links]
        inputs: dict[str, Any] = {topic.name: bus.input(topic) for topic in read}
        self.promise_ms = promise_ms = max(PROMISE_PERIODS * 1e3 / hz, PROMISE_MS)
        steady = mapper.steady()
        self._outputs = {
            name: bus.output(topic, promise_ms if name in steady else None) for name, topic in mapper.topics.items()
        }
        self._channels = channels(mapper, bus)
        self._observer = Observer(mapper, {**inputs, **self._channels})
        self._actuator = Ros2Actuator(mapper, {**self._outputs, **self._channels}, hz, bus.stamp_ns)
        self._instruct = bus.input(mapper.instructions) if mapper.instructions is not None else None
        # Set by handlers that interrupt the main thread: no lock.
        self._over = False
        self._halt: Callable[[], None] | None = None
        self._suspended = False
        self._sessions = BridgeSessions(
            self._config.connect, self._options, self._config.instruction, self._config.connect_timeout_s or None
        )
        self._declined, self._declined_s = "", 0.0  # why a call was refused, and when that was logged
        self._unsent: str | None = None  # why the last observation was not sent
        self._problems: dict[str, str] = {}
        self._seen: Counter[str] = Counter()  # failed writes of a topic, and the server's errors, when last looked at

    def protect(self, guard: Guard) -> None:
        """Use a guard: nothing drives before it is ready, for no observation is sent. `run` ends with its farewell."""
        self._guard, self._actuator.heartbeat = guard, guard.beat

    def stop(self) -> None:
        """End the run: the safe call is published, the session closed."""
        self._over = True

    def suspend(self, halt: Callable[[], None]) -> None:
        """Publish the safe call, then call `halt`, which stops the process; for a signal handler of `run`'s thread."""
        self._halt = halt

    def _suspend(self, halt: Callable[[], None]) -> None:
        self._suspended = True  # `_standing` says so from here on, on the client's thread too
        try:
            self._repeat()
            self._bus.flush(ARRIVE_S)
            halt()
        finally:
            self._halt, self._suspended = None, False

    def instruct(self, text: str) -> None:
        """Set the goal; it survives reconnects. One that no server takes is logged, and changes nothing."""
        self._sessions.instruct(text)

    def run(self, retake: Callable[[], object] = lambda: None) -> None:
        """Run until `stop`, or for the duration. `retake` is called each tick: `Shutdown.retake`.

        Raises ClientError where the server refuses, or is not there at first, Unserved where the duration is over
        before a server is.
        """
        started = release = time.monotonic()
        period_s = 1.0 / self._config.hz
        problems_at = started + SETTLE_S
        try:
            while not self._over:
                if self._halt is not None:
                    self._suspend(self._halt)
                now = time.monotonic()
                self._sessions.keep()
                if self._config.duration_s is not None and now - started >= self._config.duration_s:
                    self._check_served(self._config.duration_s)
                    break
                self._tick()
                # It takes milliseconds: after the tick's work, never before it.
                if now >= problems_at:
                    self._report_problems()
                    problems_at = now + TROUBLE_S
                release += period_s
                if (late := time.monotonic() - release) > 0:
                    release += period_s * int(late / period_s)  # whole periods are skipped, the phase is kept
                release = self._in_phase(release, period_s)
                rest(lambda: self._over or self._halt is not None, release)
                retake()
        finally:
            self._close()

    def _in_phase(self, release_s: float, period_s: float) -> float:
        """Look next just in time for the server's tick, where it ticks as often as the bridge."""
        client = self._sessions.client
        if client is None or not client.connected or not client.timed:
            return release_s
        if abs(client.welcome.period_ms / 1e3 - period_s) > ALIKE * period_s:
            return release_s
        return client.next_observation_ns() / 1e9

    def _tick(self) -> None:
        if self._bus.jumped:
            self._start_episode()
        for channel in self._channels.values():
            channel.advance()
        look = self._observer.look()
        client = self._sessions.client
        guarded = self._guard is None or self._guard.ready
        if look is not None and guarded and client is not None and client.error is None:
            try:
                # Text where the file has a template, else the server writes it.
                client.observe(look.text, None if look.text is not None else look.data, t_ns=look.t_ns)
                self._unsent = None
            except ClientError as error:
                # A robot's values must not end its bridge: without an observation the server misses its ticks.
                self._unsent = f"The observation is not sent: {error.what}"
        if self._instruct is not None and (polled := self._instruct.poll()) is not None:
            self.instruct(polled[0].data)
        self._repeat()

    def _start_episode(self) -> None:
        """A simulator was set back: the safe call is active, and what was before is forgotten."""
        log.warning("The simulator's time jumped back: a new episode starts.")
        self._observer.forget()
        client = self._sessions.client
        if client is not None and client.error is None and self._sessions.served:
            client.reset()
        self._bus.jumped = False

    def _repeat(self) -> None:
        # A refusal was logged and counted when the call came.
        with contextlib.suppress(Unmappable):
            self._actuator.apply(self._standing)

    def _standing(self) -> Standing:
        if self._suspended or self._bus.jumped:
            return Standing(None, "safe", cause="suspended" if self._suspended else "reset")
        return self._sessions.standing()

    def _on_call(self, _: Standing) -> None:
        # What is active now, which may be newer than what this was called for.
        try:
            self._actuator.apply(self._standing)
        except Unmappable as error:
            now = time.monotonic()
            if str(error) != self._declined or now > self._declined_s + DECLINED_S:
                log.warning("A call was refused: %s. The safe call is active.", error)
                self._declined, self._declined_s = str(error), now
            raise Declined(str(error)) from None

    def _check_served(self, seconds: float) -> None:
        client = self._sessions.client
        if not self._sessions.served and client is not None:
            why = client.unwelcomed(seconds)
            what = f"No server was in session within the duration: only the safe call was published. {why.what}"
            raise Unserved(what, why.remedy)

    def _options(self, instruction: str | None) -> dict[str, Any]:
        return {**self._mapper.hello(instruction), "on_call": self._on_call}

    # Problems.

    def _report_problems(self) -> None:
        """Log what is wrong now and was not before, and what is in order again."""
        if self._guard is not None:
            self._guard.mend()
        optional = {source.topic.name for source in self._mapper.sources if not source.required}
        if self._mapper.instructions is not None:
            optional.add(self._mapper.instructions.name)
        problems = {topic: why for topic, why in self._bus.problems().items() if topic not in optional}
        for topic, why in self._observer.waiting.items():
            problems.setdefault(topic, f"{topic}: {why}")
        for topic, output in self._outputs.items():
            if output.failed > self._seen[topic]:
                problems.setdefault(topic, f"{topic}: a subscriber does not keep up, and messages were not written.")
            self._seen[topic] = output.failed
        served = {name: channel.trouble() for name, channel in self._channels.items()}
        problems |= {name: problem for name, problem in served.items() if problem is not None}
        if self._unsent is not None:
            problems["observation"] = self._unsent
        client, errors = self._sessions.client, self._sessions.counts(["errors"])["errors"]
        if client is not None and self._sessions.served and errors > self._seen["errors"]:
            # An instruction or an observation that it does not take; it says which.
            problems["server"] = f"{client.trouble[:1].upper()}{client.trouble[1:]}."
        self._seen["errors"] = errors
        for topic, problem in problems.items():
            if _without_numbers(problem) != _without_numbers(self._problems.get(topic, "")):
                log.warning("%s", problem)
        for topic in self._problems.keys() - problems.keys():
            log.info("%s is in order", topic)
        self._problems = problems

    def figures(self) -> dict[str, Any]:
        """Return counts since the start: the server's ticks (`fresh` in time, `held` and `safe` not), refused calls."""
        counts = self._sessions.counts(("fresh", "held", "safe", "expired", "reconnects"))
        return {"on_time_share": on_time_share(counts), **counts, "refused": self._actuator.count["refused"]}

    def _close(self) -> None:
        # One that fails must not keep the others from happening; the last one given is the first.
        with contextlib.ExitStack() as stack:
            if self._guard is not None:
                stack.callback(self._guard.close)
            stack.callback(self._sessions.close)
            stack.callback(self._bus.flush, ARRIVE_S)
            stack.callback(self._actuator.close, Standing(None, "safe", cause="closed"))


def _without_numbers(problem: str) -> str:
    """A problem that continues is logged once."""
    return "".join(c for c in problem if not c.isdigit())


def on_time_share(counts: Mapping[str, Any]) -> float | None:
    """Return the share of fresh decisions among all ticks: the server's misses arrive as `held` or `safe`."""
    ticks = counts["fresh"] + counts["held"] + counts["safe"]
    return counts["fresh"] / ticks if ticks else None
