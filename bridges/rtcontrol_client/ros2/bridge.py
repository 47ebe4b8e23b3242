"""Observe the robot at a fixed rate, send observations to the server, publish the active call, and log problems."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rtcontrol_client import ClientError, Declined, Standing, clock
from rtcontrol_client.ros2 import NoServerError, Ros2BridgeError, Unmappable
from rtcontrol_client.ros2.actuate import Ros2Actuator
from rtcontrol_client.ros2.goals import action_clients
from rtcontrol_client.ros2.guard import Guard
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.ros2.observer import Observer
from rtcontrol_client.sessions import BridgeSessions
from rtcontrol_client.shutdown import rest

PROBLEMS_S = 1.0  # interval between two checks for network problems
SETTLE_S = 3.0  # no network problem is reported earlier than this, because discovery takes about a second
ARRIVE_S = 0.3  # maximum wait for the delivery of the safe call before the process ends or stops
ALIKE = 0.1  # the bridge aligns its ticks with the server's if the two rates differ by less than this share
log = logging.getLogger("rtcontrol.ros2")


class ProblemLog:
    """Logs each problem once when it starts and once when it ends."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def update(self, problems: dict[str, str]) -> None:
        """Log new and ended problems (topic -> text). A text that differs only in its numbers is not a new problem."""
        for topic, problem in problems.items():
            if _without_numbers(problem) != _without_numbers(self._problems.get(topic, "")):
                log.warning("%s", problem)
        for topic in self._problems.keys() - problems.keys():
            log.info("%s works again", topic)
        self._problems = problems


def _without_numbers(problem: str) -> str:
    return "".join(c for c in problem if not c.isdigit())


class Ros2Bridge:
    """The bridge of a robot, with a single session at a time. `run` blocks; any thread may call `stop`."""

    def __init__(self, mapper: Mapper, bus: Any) -> None:
        self._mapper, self._network, config = mapper, bus, mapper.config
        self._guard: Guard | None = None
        self._actions = action_clients(mapper, bus)
        topics = [source for source in mapper.sources if source.topic.name not in mapper.actions]
        inputs = {source.topic.name: bus.input(source.topic, source.required) for source in topics}
        self._observer = Observer(mapper, {**inputs, **self._actions})
        outputs = {name: bus.output(topic, mapper.max_interval_ms(name)) for name, topic in mapper.topics.items()}
        outputs |= {name: bus.service(name, cls) for name, cls in mapper.services.items()}
        self._actuator = Ros2Actuator(mapper, {**outputs, **self._actions}, config.hz, bus.stamp_ns, self._beat)
        self._instruction_input = (
            None if mapper.instructions is None else bus.input(mapper.instructions, False, sensor=False)
        )
        # Signal handlers in the main thread set these two, so no lock is needed.
        self._over = False
        self._halt_process: Callable[[], None] | None = None
        self._sessions = BridgeSessions(config.connect, self._options, config.instruction, config.connect_timeout_s)
        self._call_problems: dict[str, str] = {}  # problems of the last observation and of the last call
        self._counts: Counter[str] = Counter()  # `refused`: refused calls, `errors`: the server's errors logged so far

    def use_guard(self, guard: Guard) -> None:
        """Use a guard process, which publishes the safe call if this process fails. `run` sends no observation before
        the guard is ready, so that no call can drive the robot earlier, and closes the guard at the end."""
        self._guard = guard

    def stop(self) -> None:
        """End the run: publish the safe call and close the session."""
        self._over = True

    def suspend(self, halt: Callable[[], None]) -> None:
        """Request that `run` publishes the safe call and then calls `halt` to stop the process. For signal handlers."""
        self._halt_process = halt

    def _publish_safe_and_halt(self, halt: Callable[[], None]) -> None:
        try:
            self._repeat_call()
            self._network.flush(ARRIVE_S)
            halt()
        finally:
            self._halt_process = None

    def run(self, retake: Callable[[], object] = lambda: None) -> None:
        """Run until `stop` is called or the configured duration has passed. `retake` (`Shutdown.retake`) is called in
        each tick. Raises ClientError if the server refuses the session or cannot be reached at the start, NoServerError
        if no server accepts the bridge within the duration, and Ros2BridgeError if the guard process has exited.
        """
        started = release = time.monotonic()
        period_s, duration_s = 1.0 / self._mapper.config.hz, self._mapper.config.duration_s
        problems, problems_at = ProblemLog(), started + SETTLE_S
        try:
            while not self._over:
                if self._halt_process is not None:
                    self._publish_safe_and_halt(self._halt_process)
                now = time.monotonic()
                self._sessions.keep()
                if duration_s is not None and now - started >= duration_s:
                    self._check_served(duration_s)
                    break
                self._tick()
                # The check takes milliseconds, so it follows the tick's work.
                if now >= problems_at:
                    problems.update(self._problems())
                    problems_at = now + PROBLEMS_S
                release += period_s
                if (late := time.monotonic() - release) > 0:
                    release += period_s * int(late / period_s)  # skip whole periods and keep the phase
                release = self._next_release_s(release, period_s)
                rest(lambda: self._over or self._halt_process is not None, release)
                retake()
        finally:
            self._close()

    def _next_release_s(self, release_s: float, period_s: float) -> float:
        """Return the next release (start of a tick); just before the server's tick if the server has the same rate."""
        client = self._sessions.client
        if client is None or not client.connected or not client.timed:
            return release_s
        if abs(client.welcome.period_ms / 1e3 - period_s) > ALIKE * period_s:
            return release_s
        return client.next_observation_ns() / 1e9

    def _tick(self) -> None:
        if self._network.jumped:
            self._start_episode()
        for action in self._actions.values():
            action.advance()
        if self._guard is not None and self._guard.ended:
            raise Ros2BridgeError(
                "The guard process has ended, so nothing would stop the robot if this bridge were killed.",
                "Start the bridge again.",
            )
        snapshot = self._observer.observe()
        client = self._sessions.client
        guarded = self._guard is None or self._guard.ready
        if snapshot is not None and guarded and client is not None and client.error is None:
            text = snapshot.text
            try:
                # Send text if robot.yaml has a template; otherwise send data, which the server turns into text.
                client.observe(
                    text, None if text is not None else snapshot.data, t_ns=clock.to_monotonic(snapshot.t_ns)
                )
                self._call_problems.pop("observation", None)
            except ClientError as error:
                # A bad sensor value must not end the bridge. Without an observation, the server's ticks are missed.
                self._call_problems["observation"] = f"The observation is not sent: {error.what}"
        if self._instruction_input is not None and (polled := self._instruction_input.poll()) is not None:
            self._sessions.instruct(polled[0].data)
        self._repeat_call()

    def _start_episode(self) -> None:
        """Start a new episode after a simulator's time jumped back: drop all messages; the safe call becomes active."""
        log.warning("The simulator's time jumped back: a new episode starts.")
        self._observer.drop_messages()
        client = self._sessions.client
        if client is not None and client.error is None and self._sessions.served:
            client.reset()
        self._network.jumped = False

    def _repeat_call(self) -> None:
        # An Unmappable call was already logged and counted by `_on_call`.
        with contextlib.suppress(Unmappable):
            self._actuator.apply(self._active_standing)

    def _active_standing(self) -> Standing:
        if self._halt_process is not None or self._network.jumped:
            return Standing(None, "safe", cause="reset" if self._halt_process is None else "suspended")
        return self._sessions.standing()

    def _beat(self, left_ms: float | None) -> None:
        if self._guard is not None:
            self._guard.send_heartbeat(left_ms)

    def _on_call(self, _: Standing) -> None:
        # Apply the currently active call, which may be newer than the call of this notification.
        try:
            self._actuator.apply(self._active_standing)
            self._call_problems.pop("call", None)
        except Unmappable as error:
            self._counts["refused"] += 1
            self._call_problems["call"] = f"A call was refused: {error}. The safe call is active."
            raise Declined(str(error)) from None

    def _check_served(self, seconds: float) -> None:
        client = self._sessions.client
        if not self._sessions.served and client is not None:
            why = client.no_welcome_error(seconds)
            what = f"No server was in session within the duration: only the safe call was published. {why.what}"
            raise NoServerError(what, why.remedy)

    def _options(self, instruction: str | None) -> dict[str, Any]:
        return {**self._mapper.client_options(instruction), "on_call": self._on_call}

    def _problems(self) -> dict[str, str]:
        """Return the current problems, by topic."""
        waiting = {topic: f"{topic}: {why}" for topic, why in self._observer.waiting.items()}
        problems: dict[str, str] = {**waiting, **self._network.problems(), **self._call_problems}
        for name, action in self._actions.items():
            if (problem := action.problem()) is not None:
                problems[name] = problem
        client, errors = self._sessions.client, self._sessions.counts(["errors"])["errors"]
        if client is not None and errors > self._counts["errors"]:
            # The server rejected an instruction or an observation, as its message explains.
            problems["server"] = f"{client.trouble[:1].upper()}{client.trouble[1:]}."
        self._counts["errors"] = errors
        return problems

    def statistics(self) -> dict[str, int]:
        """Return counts since the start: ticks by result, expired calls, reconnections and refused calls."""
        counts = self._sessions.counts(("fresh", "held", "safe", "expired", "reconnects"))
        return {**counts, "refused": self._counts["refused"]}

    def _close(self) -> None:
        # ExitStack runs the callbacks in reverse order, and runs the others even if one fails.
        with contextlib.ExitStack() as stack:
            if self._guard is not None:
                stack.callback(self._guard.close)
            stack.callback(self._sessions.close)
            stack.callback(self._network.flush, ARRIVE_S)
            stack.callback(self._actuator.close)
