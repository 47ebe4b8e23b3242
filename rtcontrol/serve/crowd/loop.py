"""Run a `CrowdCore`, the state machine of a crowd's ticks: wait for the decoder, and execute the core's actions."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from rtcontrol import records as ev
from rtcontrol.envs.remote_core import memory_bytes
from rtcontrol.hosts.deciders import crowd_request
from rtcontrol.hosts.protocol import DecisionRequest, Host
from rtcontrol.loop.warmup import Warmup
from rtcontrol.serve.crowd.core import CrowdCore
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol_client.wire import Code, Message, WireError

MAX_INBOX, MAX_INBOX_BYTES = 256, 8 << 20  # maximum number and bytes of the client's queued messages
MAX_WAIT_NS = 250_000_000


class CrowdLoop:
    """The loop that runs a crowd's core until `stop` is called. `send` executes the actions that concern the client,
    such as `SendCalls`. Any thread may call `enqueue_message`, `enqueue_event` and `stop`."""

    def __init__(self, core: CrowdCore, host: Host, recorder: Recorder, send: Callable[[ev.Action], None]) -> None:
        self.core, self.host, self.recorder, self._send = core, host, recorder, send
        self.ended_by: str | None = None
        self._inbox: deque[tuple[Message | ev.Event, int]] = deque()
        self._state: tuple[bool, int, str | None, int] = (True, 0, None, 0)

    @property
    def account(self) -> Account:
        return self.recorder.live_state.account

    def enqueue_message(self, message: Message) -> None:
        """Enqueue a client's message for the core. Raises WireError (rate) if the queue is full."""
        sizes = [size for _, size in list(self._inbox)]
        if len(sizes) >= MAX_INBOX or sum(sizes) >= MAX_INBOX_BYTES:
            problem, hint = f"{len(sizes)} messages of this crowd are queued.", "Send fewer messages."
            raise WireError(Code.RATE, problem, hint, retryable=True)
        self.enqueue_event(message, memory_bytes(message))

    def enqueue_event(self, event: Message | ev.Event, size: int = 0) -> None:
        """Enqueue a message or an event for the core. `size`: its memory in bytes."""
        self._inbox.append((event, size))
        self.host.wake()

    def stop(self, reason: str) -> None:
        """Make the loop send the safe calls of all members, and end."""
        self.ended_by = self.ended_by or reason
        self.host.wake()

    def start(self, warmup_rounds: int) -> None:
        """Start the decoder host, and make `warmup_rounds` decisions to measure their duration. Raises UserError if the
        decider cannot decide with these tools."""
        info, goal, warmup = self.host.start(), self.core.members.goal, Warmup()
        warmup.decide(self.host, lambda k: crowd_request(k, [DecisionRequest(k, 0, "warm-up", goal)], 0), warmup_rounds)
        for took_ms in warmup.round_trip_ms[1:]:  # ignore the first round, which is slow
            self.core.queue.record_time(1, round(took_ms * 1e6), late=False)
        self.recorder.file.start_writing()
        self.recorder.write({"start": {"host_info": info}})

    def run(self) -> None:
        """Run the crowd until `stop` is called, or until the decoder cannot be restarted."""
        try:
            while self.ended_by is None and self.host.gave_up is None:
                self._process_inbox()
                self._process_event(ev.TimerFired())
                if (reply := self.host.wait(self._wait_ns())) is not None:
                    self._process_event(reply)
            self._process_inbox()
        finally:
            self._process_event(ev.StopRequested(self.ended_by or self.host.gave_up or "failed"))

    def _wait_ns(self) -> int:
        wake_ns = self.core.wake_ns
        if self._inbox:
            return 0
        return MAX_WAIT_NS if wake_ns is None else min(MAX_WAIT_NS, max(0, wake_ns - time.monotonic_ns()))

    def _process_inbox(self) -> None:
        """Pass all queued events to the core, and the decoder host's state if it has changed."""
        host = self.host
        state = (host.alive(), host.incarnation, host.gave_up, len(host.events))
        if state != self._state:
            self._state = state
            self._process_event(ev.HostChanged(*state[:3], tuple(host.events)))
        events = [self._inbox.popleft()[0] for _ in range(len(self._inbox))]
        newest = next((event for event in reversed(events) if isinstance(event, ev.NewInstruction)), None)
        for event in events:
            # Apply only the newest instruction, because applying an instruction to all members takes long.
            if not isinstance(event, ev.NewInstruction) or event is newest:
                self._process_event(event)

    def _process_event(self, event: Message | ev.Event) -> None:
        """Pass an event to the core, execute the core's actions, and pass their results to the core as events."""
        events: deque[Message | ev.Event] = deque([event])
        while events:
            for action in self.core.advance(events.popleft(), time.monotonic_ns()):
                if isinstance(action, ev.RecordLine):
                    self.recorder.write(action.line)
                elif isinstance(action, DecisionRequest):
                    events.append(self._submit_request(action))
                elif isinstance(action, ev.CancelRequest):
                    self.host.cancel(action.k)
                else:
                    self._send(action)

    def _submit_request(self, request: DecisionRequest) -> ev.SendResult:
        try:
            self.host.submit(request)
            return ev.SendResult()
        except Exception as error:
            return ev.SendResult(error)
