"""Build the lines of a run's record, in the order of ticks. Each line becomes a RecordLine action.

A miss whose cause may still change reserves a slot. Later lines wait until the slot is filled, at most one period.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rtcontrol import records as ev
from rtcontrol.envs.base import Acknowledgement, Episode, Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, HostEvent
from rtcontrol.models.call import Call
from rtcontrol.telemetry.causes import Cause

MAX_SHOWN = 256  # at most this number of different errors is shown to the user
Line = dict[str, Any]
LineSlot = list[Line]  # a list with one line, or empty until the line is complete
# A function that returns the text of an exception, and the user's line that raised it (`file.py:12`) or None.
Describe = Callable[[BaseException], tuple[str, str | None]]


class Ledger:
    """A writer of record lines. `t0_ns`: the release (scheduled start) of the first tick (0: no release yet).
    `acted_k`, `acted_ns`: tick and instant of the last fresh call that acted. `safe_k`: the tick at which the safe
    calls were last demanded. `episodes`, `events`: numbers of recorded episodes and host events."""

    def __init__(self, out: list[ev.Action], describe: Describe) -> None:
        self.t0_ns = 0
        self.acted_k, self.acted_ns = -1, 0
        self.safe_k = -1
        self.episodes = self.events = 0
        self._out, self._describe = out, describe
        self._shown: set[tuple[str, ...]] = set()
        self._slots: deque[LineSlot] = deque()

    def t_s(self, t_ns: int) -> float:
        """Return the seconds since the first release, or 0 before that release."""
        return round((t_ns - self.t0_ns) / 1e9, 6) if self.t0_ns else 0.0

    # -- write lines in order ------------------------------------------------------------------------------------------

    def write(self, line: Line) -> None:
        """Record a line, or enqueue the line if earlier lines are still waiting."""
        if self._slots:
            self._slots.append([line])
        else:
            self._out.append(ev.RecordLine(line))

    def reserve_slot(self) -> LineSlot:
        """Return a new slot, which reserves the place of a line that will be filled in later."""
        slot: LineSlot = []
        self._slots.append(slot)
        return slot

    def fill_slot(self, slot: LineSlot, line: Line) -> None:
        """Fill a reserved slot with its line. Record this line and the lines that waited for it."""
        slot.append(line)
        while self._slots and self._slots[0]:
            self._out.append(ev.RecordLine(self._slots.popleft()[0]))

    def write_waiting_lines(self) -> None:
        """Record all waiting lines at the end of the run. Drop slots without a line."""
        self._out += [ev.RecordLine(line) for slot in self._slots for line in slot]
        self._slots.clear()

    # -- lines of ticks ------------------------------------------------------------------------------------------------

    def tick_line(self, outcome: ev.TickOutcome) -> Line:
        """Return the record's line of a tick, or of a tick's further call, without latencies and cause."""
        tick, kind, reply = outcome.tick, outcome.kind, outcome.reply
        t_s = self.t_s(tick.release_ns)
        line: Line = {"k": tick.k, "t_s": t_s, "kind": kind}
        if tick.calls:
            line = {"further": tick.k, "n": len(tick.calls), "t_s": t_s, "outcome": "acted" if kind == "call" else kind}
        else:
            line["wake_ms"] = round((tick.woke_ns - tick.release_ns) / 1e6, 4)
        line["spans_ms"] = tick_timestamps(tick, reply, outcome.done)
        if outcome.call is not None:
            line["call"] = outcome.call
        if reply is not None and reply.decision is not None:
            if reply.decided_by:
                line["decided_by"] = reply.decided_by
            if reply.older_request is not None:
                line["answers"] = reply.older_request.tick
            if reply.steps is not None:
                line["step"], line["steps"] = reply.steps
            if reply.decision.kept:
                line["kept"] = dict(reply.decision.kept)
        if tick.calls:
            return line
        line["epoch"], line["seq"], line["superseded"] = tick.epoch, tick.seq, tick.superseded
        if tick.skip:
            line |= tick.skip
        return line

    def decided_line(self, outcome: ev.TickOutcome, reply: DecisionReply, now_ns: int, period_ns: int) -> Line:
        """Return the record's line, with latencies, of a tick that has a decision and ended at `now_ns`. `period_ns`: 0
        if the run has no fixed rate, so the line has no jitter."""
        tick, done = outcome.tick, outcome.done
        line = self.tick_line(outcome)
        if outcome.why is not None:
            line["why"] = outcome.why
        line["latency_ms"] = round((now_ns - tick.release_ns) / 1e6, 4)
        line["decide_ms"] = round(reply.decide_ns / 1e6, 4)
        line["age_ms"] = round((now_ns - tick.capture_ns) / 1e6, 4)
        if done is not None:
            line["execute_ms"] = round((now_ns - done.started_ns) / 1e6, 4)
            if not tick.calls:
                if outcome.kind == "call" and period_ns and self.acted_ns and self.acted_k == tick.k - 1:
                    line["jitter_ms"] = round(abs(now_ns - self.acted_ns - period_ns) / 1e6, 4)
                self.acted_k, self.acted_ns = tick.k, now_ns
        if (decision := reply.decision) is not None:
            line["passes"], line["tokens"] = decision.forward_passes, decision.tokens
            line["reused"] = decision.reused_tokens
            line["confidence"] = round(min(decision.confidence.values(), default=1.0), 4)
            if decision.unfamiliar:
                line["unfamiliar"] = list(decision.unfamiliar)
        return line

    def write_request(self, request: DecisionRequest, observation: Observation, captured_ns: int, data: Any) -> None:
        """Record a request and its observation. `data`: a copy of the observation's data."""
        line: Line = {"k": request.tick, "t_s": self.t_s(captured_ns), "seq": observation.seq}
        line["epoch"], line["observation"] = observation.epoch, request.observation
        line["instruction"], line["history"] = request.instruction, request.history
        if request.active_call is not None:
            line["in_force"] = {"call": request.active_call.to_dict()}
        line["data"] = data
        self.write(line)

    def write_called_line(self, call: Call, k: int, epoch: int | None, why: str, t_ns: int, **more: Any) -> None:
        """Record that a call acted."""
        line: Line = {"called": call.name, "arguments": call.arguments, "k": k}
        if epoch is not None:
            line["epoch"] = epoch
        self.write({**line, "why": why, "t_s": self.t_s(t_ns), **more})

    def write_late(self, tick: ev.Tick | None, reply: DecisionReply, done: ev.Completion | None, now_ns: int) -> None:
        """Record a decision that arrived after its tick's end, or whose call waited for an operator's approval."""
        used = done is not None and done.effect == "acted"
        waited_ns = 0 if tick is None else tick.waited_ns  # exclude the time that an operator took to answer
        line: Line = {"late": reply.tick, "used": used}
        line |= {"waited_ms": to_ms(waited_ns)} if waited_ns else {"decide_ms": to_ms(reply.decide_ns)}
        if tick is not None and not waited_ns:
            line["latency_ms"] = to_ms(now_ns - tick.release_ns)
            line["spans_ms"] = tick_timestamps(tick, reply, done)
        if done is not None:
            if used:
                self.acted_k, self.acted_ns = reply.tick, done.ended_ns
            line["t_s"] = self.t_s(done.ended_ns)
        if done is not None and done.error is not None:
            self.add_error(line, done.error, "late call: ")
        elif waited_ns and not used:  # report to the operator that the approved call did not act
            why = "preempted" if done is None else done.effect
            self.add_error(line, f"the call of tick {reply.tick} was confirmed, but did not act: {why}", "")
        self.write(line)

    def write_overrun(self, order: ev.OrderedCall, done: ev.Completion) -> None:
        """Record the result of a call that ended after its deadline, and thus after its tick."""
        tick = order.tick
        line: Line = {"overran": tick.k, "call": order.text, "effect": done.effect, "t_s": self.t_s(done.ended_ns)}
        line["spans_ms"] = tick_timestamps(tick, order.reply, done)
        if done.effect == "acted" and not tick.calls:
            line["latency_ms"] = to_ms(done.ended_ns - tick.release_ns)
            line["execute_ms"] = to_ms(done.ended_ns - done.started_ns)
            self.acted_k, self.acted_ns = tick.k, done.ended_ns
        self.add_error(line, done.error, "execute: ")
        self.write(line)

    # -- lines of other events ----------------------------------------------------------------------------------------

    def write_host_events(self, events: Sequence[HostEvent]) -> None:
        """Record new losses and restarts of the decoder. `events`: all losses and restarts so far."""
        for event in events[self.events :]:
            line: Line = {"t_s": self.t_s(event.t_ns), "event": event.event, "seconds": round(event.seconds, 3)}
            if event.decider:
                line["decider"] = event.decider
            self.write({"host_event": line})
        self.events = len(events)

    def write_episodes(self, episodes: Sequence[Episode]) -> None:
        """Record new episodes. `episodes`: all episodes that have ended so far."""
        for episode in episodes[self.episodes :]:
            line: Line = {"seed": episode.seed, "return": round(episode.ret, 4), "success": episode.success}
            self.write({"episode": {**line, "seconds": round(episode.seconds, 3), "detail": episode.detail}})
        self.episodes = len(episodes)

    def write_safe_attempt(self, attempt: ev.SafeAttempt) -> None:
        """Record an attempt of a safe call. The line's field `in_force` is true only if all safe calls are active."""
        call, t_s = attempt.call, self.t_s(attempt.ended_ns)
        text = None if call is None else call.text()
        if call is not None and attempt.acted and attempt.error is None:
            self.write_called_line(call, self.safe_k, None, "safe", attempt.ended_ns)
        line: Line = {"safe": text, "why": attempt.why, "t_s": t_s, "attempt": attempt.attempt}
        line["in_force"] = attempt.active
        if attempt.world_over:
            line["world"] = "over"
        self.add_error(line, attempt.error, f"safe call {text} failed and will be retried: ")
        self.write(line)

    def write_acknowledgement(self, ack: Acknowledgement) -> None:
        """Record a client's acknowledgement of a call."""
        line: Line = {"ack": ack.tick, "status": ack.status, "why": ack.why, "t_s": self.t_s(ack.t_ns)}
        if ack.result is not None:
            line["result"] = ack.result
        if ack.n:
            line["n"] = ack.n
        self.add_error(line, ack.error, f"tick {ack.tick}: {ack.status}: ")
        self.write(line)

    def write_fault(self, fault: ev.EnvironmentFault, now_ns: int) -> None:
        """Record that the environment raised an exception when it received an emission or an instruction."""
        line: Line = {"fault": fault.doing, "t_s": self.t_s(now_ns)}
        self.add_error(line, fault.error, f"{fault.doing}: ")
        self.write(line)

    def add_error(self, line: Line, error: str | BaseException | None, about: str | None, doing: str = "") -> None:
        """Set the fields `error` (prefixed by `doing`) and `where` of `line`. Also show each different error to the
        user once, prefixed by `about` (None: do not show it)."""
        if error is None:
            return
        text, place = (error, None) if isinstance(error, str) else self._describe(error)
        line["error"] = doing + text
        if place is not None:
            line["where"] = place
        shown = line["error"] if place is None else f"{line['error']} ({place})"
        key = (type(error).__name__, place or shown)
        if about is not None and key not in self._shown and len(self._shown) < MAX_SHOWN:
            self._shown.add(key)
            self._out.append(ev.Notify(about + shown))


def tick_timestamps(tick: ev.Tick, reply: DecisionReply | None, done: ev.Completion | None) -> dict[str, float]:
    """Return the timestamps of a tick by name, in ms after the release. Omit unknown timestamps."""
    release_ns = tick.release_ns
    stamps = [tick.capture_ns, tick.woke_ns, tick.text_ns, tick.submitted_ns]
    if reply is not None:
        decided_ns = reply.started_ns and reply.started_ns + reply.decide_ns
        stamps += (reply.received_ns, reply.started_ns, decided_ns, tick.replied_ns)
    if done is not None:
        stamps += (done.started_ns, done.ended_ns)
    spans = {}
    for name, t_ns in zip(ev.SPANS, stamps, strict=False):
        if t_ns:
            spans[name] = round((t_ns - release_ns) / 1e6, 4)
    return spans


def to_ms(ns: int) -> float:
    """Return nanoseconds as milliseconds, rounded to the precision of the record."""
    return round(ns / 1e6, 4)


def cut_fields(outcome: ev.TickOutcome) -> Line:
    """Return the record fields of a further call that missed the deadline (`cut`) or failed."""
    fault = outcome.fault
    if fault is None or fault == (Cause.EXECUTE, "busy"):
        return {"outcome": "cut"}
    line: Line = {"outcome": "failed", "cause": fault[0].value}
    if fault[1] is not None:
        line["subcause"] = fault[1]
    return line
