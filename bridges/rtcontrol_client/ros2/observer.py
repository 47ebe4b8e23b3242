"""What is observed of the robot: the newest of each topic, and why there is nothing to say while there is not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol_client import Client, ClientError
from rtcontrol_client.ros2 import Unmappable
from rtcontrol_client.ros2.clock import CLOCK, STILL_MS, RobotClock
from rtcontrol_client.ros2.config import Scalar
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.ros2.parts import Source, Topic
from rtcontrol_client.wire.pictures import PICTURES

SILENT_S = 10.0  # a camera that says nothing for so long is told of


def clock_of(mapper: Mapper, read: Callable[[Topic], Any]) -> RobotClock:
    """The clock that the file asks for; a simulator's is heard by `read`."""
    least_ms = min((source.max_age_ms for source in mapper.sources if source.required), default=STILL_MS)
    return RobotClock() if mapper.clock is None else RobotClock(read(mapper.clock), least_ms)


@dataclass(frozen=True)
class Snapshot:
    """An observation: `t_ns` is when the newest required message was made."""

    text: str | None
    data: dict[str, Scalar | None]
    t_ns: int


@dataclass
class _State:
    source: Source
    input: Any
    t_ns: int | None = None
    read_ns: int = 0  # the simulator's time when it was read
    values: Mapping[str, Scalar | None] | None = None
    error: str | None = None


class Observer:
    """Ages are told by `clock`. Not thread-safe."""

    def __init__(self, mapper: Mapper, inputs: Mapping[str, Any], clock: RobotClock | None = None) -> None:
        self._mapper, self._clock = mapper, clock or RobotClock()
        self._states = [_State(source, inputs[source.topic.name]) for source in mapper.sources]
        self.waiting: dict[str, str] = {}  # topic -> why it holds the observation back

    def look(self) -> Snapshot | None:
        """Poll all topics. None while a required one has no news; `waiting` says why."""
        values: dict[str, Scalar | None] = {}
        newest_ns = 0
        waiting: dict[str, str] = {}
        for state in self._states:
            self._poll(state)
            reason = self._why_not(state)
            if reason is None:
                assert state.values is not None and state.t_ns is not None
                values |= state.values
                if state.source.required or not newest_ns:
                    newest_ns = max(newest_ns, state.t_ns)
                continue
            values |= dict.fromkeys(state.source.readers)
            if state.source.required:
                waiting[state.source.topic.name] = reason
        if (trouble := self._clock.trouble()) is not None:
            waiting[CLOCK] = trouble
        if not waiting and not newest_ns:
            waiting = {state.source.topic.name: self._why_not(state) or "no news" for state in self._states}
        self.waiting = waiting
        if waiting:
            return None
        return Snapshot(self._mapper.text(values), values, min(newest_ns, time.monotonic_ns()))

    def forget(self) -> None:
        """All that was read, and what waits to be."""
        for state in self._states:
            with contextlib.suppress(Unmappable):
                state.input.poll()
            state.t_ns = state.values = state.error = None

    def _poll(self, state: _State) -> None:
        try:
            polled = state.input.poll()
        except Unmappable as error:
            state.t_ns, state.values, state.error = time.monotonic_ns(), None, str(error)
            return
        if polled is None:
            return
        message, t_ns = polled
        if self._clock.outdated(message):
            return
        state.t_ns, state.read_ns = t_ns, self._clock.stamp_ns()
        try:
            state.values, state.error = state.source.read(message), None
        except Unmappable as error:
            state.values, state.error = None, str(error)

    def _why_not(self, state: _State) -> str | None:
        if state.t_ns is None:
            return "no message yet"
        if (age_ms := self._clock.age_ms(state.t_ns, state.read_ns)) > state.source.max_age_ms:
            return f"the last message is older than {state.source.max_age_ms:g} ms ({_age(age_ms)})"
        return state.error


def _age(age_ms: float) -> str:
    return f"{age_ms:.0f} ms" if age_ms < 10_000 else f"{age_ms / 1000:.0f} s"


# A camera for people to see: compressed images, forwarded as they are. No model reads them.


def feed_of(mapper: Mapper, read: Callable[[Topic], Any]) -> PictureFeed | None:
    """Of the camera that the file names, if it names one."""
    spec, topic = mapper.config.picture, mapper.picture
    return None if spec is None or topic is None else PictureFeed(read(topic), topic.name, spec.hz)


class PictureFeed:
    """Hands the newest picture of a topic to a client, `hz` times a second at most. `trouble`: why the last one was not
    sent, or that none comes; `count`: how many were handed over."""

    def __init__(self, source: Any, name: str, hz: float) -> None:
        self.trouble: str | None = None
        self.count = 0
        self._source, self._name, self._every_s, self._due_s = source, name, 1.0 / hz, 0.0
        self._heard_s = time.monotonic()

    def forward(self, client: Client | None) -> None:
        """Where one is due, and the server takes any. Never blocks."""
        now = time.monotonic()
        if now < self._due_s or client is None or not client.connected:
            return
        self._due_s = now + self._every_s
        if PICTURES not in client.welcome.capabilities:
            self.trouble = f"{self._name}: pictures are not sent: the server is of before, and takes none."
            return
        try:
            polled = self._source.poll()
            if polled is None:
                if now > self._heard_s + SILENT_S:
                    self.trouble = f"{self._name}: no picture has come for {SILENT_S:g} s. Look at the camera's node."
                return
            self._heard_s = now
            message, t_ns = polled
            self.count += client.send_picture(bytes(message.data), t_ns=t_ns)
            self.trouble = None
        except Unmappable as error:
            self.trouble = f"{self._name}: pictures are not sent: {error}."
        except ClientError as error:
            what = error.what.rstrip(".")
            self.trouble = f"{self._name}: pictures of the format {message.format!r:.60} are not sent: {what}."
