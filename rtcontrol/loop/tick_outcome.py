"""Finish ticks: attribute misses, run the fallback, acknowledge remote clients, emit one record per tick, and an event
for whatever else happens to a run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol.agents import Agent
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.base import Acknowledgement, Emission, Emitting, Environment, Episode, WorldError
from rtcontrol.hosts.protocol import DecisionReply, Host, HostEvent
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.call_in_force import Action, FallbackPolicy
from rtcontrol.loop.clock import LoopClock
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.errors import Errors
from rtcontrol.loop.evidence import EvidenceCollector, PauseWatch
from rtcontrol.models.call import Call
from rtcontrol.records import SPANS, Command, Completion, Fault, InFlightCall, KnownCause, SafeAttempt, Tick
from rtcontrol.telemetry.causes import Cause


@dataclass(frozen=True, slots=True)
class RunContext:
    """`emit` takes an event for the record, `notify` a line for people, `stop` why the run ends; `retake` takes back
    signals that user code has taken. `goals`: what the agent can be told, where it has goals. `take_reports` records
    what the host reported."""

    config: RunConfig
    agent: Agent
    env: Environment
    host: Host
    clock: LoopClock
    watch: PauseWatch
    emit: Callable[[dict[str, Any]], None]
    notify: Callable[[str], None]
    stop: Callable[[str], None]
    retake: Callable[[], None] = lambda: None
    goals: GoalTools | None = None
    take_reports: Callable[[], None] = lambda: None


class RunEvents:
    """Emits an event for each; `t0_ns` is the first release."""

    def __init__(self, context: RunContext, evidence: EvidenceCollector) -> None:
        self._env, self._emit, self.evidence = context.env, context.emit, evidence
        self._errors = Errors(context.notify)
        self.t0_ns = 0
        self.safe_k = -1  # for whose sake the safe call took over last
        self.noted_episodes = self.noted_events = 0

    def t_s(self, t_ns: int) -> float:
        """Seconds since the first release."""
        return round((t_ns - self.t0_ns) / 1e9, 6)

    def note(self, episodes: Sequence[Episode], events: Sequence[HostEvent]) -> None:
        """Record the episodes that ended and what befell the host since the last time."""
        for episode in episodes[self.noted_episodes :]:
            line = {"seed": episode.seed, "return": round(episode.ret, 4), "success": episode.success}
            self._emit({"episode": {**line, "seconds": round(episode.seconds, 3), "detail": episode.detail}})
            self.noted_episodes += 1
        for event in events[self.noted_events :]:
            what: dict[str, Any] = {"t_s": self.t_s(event.t_ns), "event": event.event}
            what |= {"seconds": round(event.seconds, 3)} | ({"decider": event.decider} if event.decider else {})
            self._emit({"host_event": what})
            self.noted_events += 1
            self.evidence.follow()  # other threads decide after a restart

    def attempted(self, attempt: SafeAttempt) -> None:
        """One try of the safe call: counted as safe only when all of them are in force."""
        call, text = attempt.call, None if attempt.call is None else attempt.call.text()
        if call is not None and attempt.acted and attempt.error is None:
            told = {"called": call.name, "arguments": call.arguments, "k": self.safe_k, "why": "safe"}
            self._emit({**told, "t_s": self.t_s(attempt.ended_ns)})
        line: dict[str, Any] = {"safe": text, "why": attempt.why, "t_s": self.t_s(attempt.ended_ns)}
        line["attempt"], line["in_force"] = attempt.attempt, attempt.in_force
        if attempt.over:
            line["world"] = "over"
        if attempt.error is not None:
            self._errors.put(line, attempt.error, f"safe call {text}, tried again until it is in force: ")
        self._emit(line)

    def acknowledged(self, said: Acknowledgement) -> None:
        """The world's own word of what became of a call that it was told."""
        line: dict[str, Any] = {"ack": said.tick, "status": said.status, "why": said.why, "t_s": self.t_s(said.t_ns)}
        line |= {name: value for name, value in (("result", said.result), ("n", said.n or None)) if value is not None}
        self._errors.put(line, said.error, f"tick {said.tick}: {said.status}: ")
        self._emit(line)

    def fault(self, fault: Fault) -> None:
        """The world raised over what it was told."""
        line: dict[str, Any] = {"fault": fault.doing, "t_s": self.t_s(time.monotonic_ns())}
        self._errors.put(line, fault.error, f"{fault.doing}: ")
        self._emit(line)

    def broke_down(self, error: WorldError, started: bool) -> str:
        """The world's own code raised: gives what people are told, in one sentence."""
        cause = error.__cause__ or error
        line: dict[str, Any] = {"fault": "world", "t_s": self.t_s(time.monotonic_ns()) if self.t0_ns else 0.0}
        what = self._errors.put(line, cause)
        self._emit(line)
        return f"The environment {self._env.name} broke down: {what.rstrip('.')}. " + (
            "The run ends with the safe call; mend it there." if started else "It never began; mend it there."
        )


Status = Literal["fresh", "held", "safe"]


def _ms(ns: int) -> float:
    return round(ns / 1e6, 4)


def _spans(tick: Tick, reply: DecisionReply | None, done: Completion | None) -> dict[str, float]:
    """When each step was done, in ms from the release on, as far as it is known."""
    release_ns = tick.release_ns
    stamps = [tick.capture_ns, tick.woke_ns, tick.text_ns, tick.submitted_ns]
    if reply is not None:
        decided_ns = reply.begun_ns and reply.begun_ns + reply.decide_ns
        stamps += (reply.received_ns, reply.begun_ns, decided_ns, tick.replied_ns)
    if done is not None:
        stamps += (done.began_ns, done.ended_ns)
    spans = {}
    for name, t_ns in zip(SPANS, stamps, strict=False):
        if t_ns:
            spans[name] = round((t_ns - release_ns) / 1e6, 4)
    return spans


class TickOutcomes(RunEvents):
    """Ends ticks, each with one event; `emit` takes it.

    `epoch` is the world's, as of the last observation; `acted_k`, `acted_ns` are the last fresh call's tick and the
    instant of its effect. `cleared` is told of a call that gave way to the safe call before it was begun.
    """

    def __init__(self, context: RunContext, actuator: Actuator, cleared: Callable[[Command], None]) -> None:
        config, fallback = context.config, context.agent.fallback
        super().__init__(context, EvidenceCollector(context.watch, context.host, actuator, context.clock.enforced))
        self._config, self._clock, self._actuator = config, context.clock, actuator
        self._stop, self._cleared = context.stop, cleared
        self._safe_calls = fallback.safe_calls
        hold_ms = config.hold_ms if config.hold_ms is not None else fallback.hold_ms
        self.policy = FallbackPolicy(config.on_miss, round(hold_ms * 1e6))
        self.emits = isinstance(context.env, Emitting)
        self._last: Tick | None = None
        self._period_ns = config.period_ns
        self.epoch, self.acted_k, self.acted_ns = -1, -1, 0
        self.newest_k = -1  # of the last release
        self.ordered = False  # a call since then: it may act, or have acted and raised

    def begin(self, t0_ns: int, world_ns: int) -> None:
        """The first release is at `t0_ns`, by the world's time at `world_ns`."""
        self.t0_ns = t0_ns
        self._emit({"origin_ns": t0_ns})
        self.policy.epoch(world_ns)

    # -- ticks --------------------------------------------------------------------------------------------------------

    def settle(
        self,
        tick: Tick,
        reply: DecisionReply,
        kind: str,
        call: str | None = None,
        done: Completion | None = None,
        why: str | None = None,
    ) -> None:
        """The tick has its decision, and `done` its call. It is on time unless its effect came after the deadline.
        `why` a call was held."""
        now = done.ended_ns if done is not None else time.monotonic_ns()
        line = self._line(tick, kind, call, reply, done)
        line |= {} if why is None else {"why": why}
        line["latency_ms"] = round((now - tick.release_ns) / 1e6, 4)
        line["decide_ms"] = round(reply.decide_ns / 1e6, 4)
        line["age_ms"] = round((now - tick.capture_ns) / 1e6, 4)
        if done is not None:
            line["execute_ms"] = round((now - done.began_ns) / 1e6, 4)
            if not tick.calls:
                if kind == "call" and self.acted_k == tick.k - 1 and self.acted_ns and self._clock.enforced:
                    line["jitter_ms"] = round(abs(now - self.acted_ns - self._period_ns) / 1e6, 4)
                self.acted_k, self.acted_ns = tick.k, now
        if (decision := reply.decision) is not None:
            line["passes"], line["tokens"] = decision.forward_passes, decision.tokens
            line["reused"] = decision.reused_tokens
            line["confidence"] = round(min(decision.confidence.values(), default=1.0), 4)
        if now > tick.deadline_ns:
            spans = line["spans_ms"]
            line |= {"over": True} if tick.calls else self.evidence.attribute(tick, spans, now, None, reply, over=True)
            if self._config.on_miss == "stop":
                self._stop("miss")
        elif not tick.calls:
            self.evidence.usual.append(line["spans_ms"])
        self._emit(line)

    def hold_back(self, tick: Tick, reply: DecisionReply, call: Call | None, why: str) -> None:
        """The tick has a call that must not act (yet), or an unsure null: what is in force goes on, not renewed."""
        action = "hold" if tick.calls else self.policy.unsure(self._clock.effective_ns())
        self.settle(tick, reply, "held", None if call is None else call.text(), why=why)
        self.fall_back(action, tick, reply=reply)

    def miss(
        self,
        tick: Tick,
        fault: KnownCause | None,
        reply: DecisionReply | None = None,
        error: str | BaseException | None = None,
        call: str | None = None,
        doing: str = "",
        done: Completion | None = None,
    ) -> None:
        """The tick has no call: count it, name the cause, fall back. `doing` says what raised the `error`. Where it has
        one, and no further one, that goes on; but one that was begun and failed may have acted in part."""
        line = self._line(tick, "miss", call, reply, done)
        now, execute = time.monotonic_ns(), fault is not None and fault[0] is Cause.EXECUTE
        line |= _cut(fault) if tick.calls else self.evidence.attribute(tick, line["spans_ms"], now, fault, reply)
        cause = line.get("cause")  # none of what is cut
        falls = not tick.calls or (execute and cause is not None)
        action: Action = self.policy.miss(self._clock.effective_ns()) if falls else "hold"
        self._errors.put(line, cause and error, f"tick {tick.k}: {cause}: ", doing)
        # A remote world executes nothing: that its call waited is our business.
        told = None if execute or tick.calls else line.get("error")
        line["action"] = self.fall_back(action, tick, cause, reply, told)
        if reply is not None and fault is not None:
            line["decide_ms"] = _ms(reply.decide_ns)
        self._emit(line)

    def _line(
        self, tick: Tick, kind: str, call: str | None, reply: DecisionReply | None, done: Completion | None
    ) -> dict[str, Any]:
        t_s = round((tick.release_ns - self.t0_ns) / 1e9, 6)
        line: dict[str, Any] = {"k": tick.k, "t_s": t_s, "kind": kind}
        if tick.calls:
            line = _further(tick, kind, t_s)
        else:
            line["wake_ms"] = round((tick.woke_ns - tick.release_ns) / 1e6, 4)
        line["spans_ms"] = _spans(tick, reply, done)
        if call is not None:
            line["call"] = call
        if reply is not None and reply.by and reply.decision is not None:
            line["decided_by"] = reply.by
        if reply is not None and reply.decision is not None:
            line |= {} if reply.answers is None else {"answers": reply.answers.tick}
            line |= {} if reply.steps is None else {"step": reply.steps[0], "steps": reply.steps[1]}
            line |= {"kept": dict(reply.decision.kept)} if reply.decision.kept else {}
        if tick.calls:
            return line
        line["epoch"], line["seq"], line["superseded"] = tick.epoch, tick.seq, tick.superseded
        return line | tick.skip

    def late(self, tick: Tick | None, reply: DecisionReply, done: Completion | None, now_ns: int) -> None:
        """A decision that came after its tick was over, or whose call waited for a yes, and what became of the call."""
        used = done is not None and done.effect == "acted"
        waited_ns = 0 if tick is None else tick.waited_ns  # a person's time: none of the loop's figures
        line: dict[str, Any] = {"late": reply.tick, "used": used}
        line |= {"waited_ms": _ms(waited_ns)} if waited_ns else {"decide_ms": _ms(reply.decide_ns)}
        if tick is not None and not waited_ns:
            line["latency_ms"] = _ms(now_ns - tick.release_ns)
            line["spans_ms"] = _spans(tick, reply, done)
            line |= self.evidence.reattribute(tick, line["spans_ms"], now_ns, reply)
        if done is not None:
            if used:
                self.acted_k, self.acted_ns = reply.tick, done.ended_ns
            line["t_s"] = self.t_s(done.ended_ns)
        if done is not None and done.error is not None:
            self._errors.put(line, done.error, "late call: ")
        elif waited_ns and not used:  # whoever said yes believes that it acts
            why = "it gave way" if done is None else done.effect
            self._errors.put(line, f"the call of tick {reply.tick} was confirmed, but did not act: {why}", "")
        self._emit(line)

    def hear(self, reply: DecisionReply) -> None:
        """What the decoder's heartbeat tells of ticks that missed."""
        for k, fields in self.evidence.hear(reply):
            self._emit({"revised": k, "t_s": self.t_s(time.monotonic_ns()), **fields})

    def overran(self, tick: Tick, reply: DecisionReply, call: str, done: Completion) -> None:
        """The end of a call that was under way at its deadline: its tick was settled then."""
        line = {"overran": tick.k, "call": call, "effect": done.effect, "t_s": self.t_s(done.ended_ns)}
        line["spans_ms"] = spans = _spans(tick, reply, done)
        line |= self.evidence.reattribute(tick, spans, done.ended_ns, reply)
        if done.effect == "acted" and not tick.calls:
            line["latency_ms"] = _ms(done.ended_ns - tick.release_ns)
            line["execute_ms"] = _ms(done.ended_ns - done.began_ns)
            self.acted_k, self.acted_ns = tick.k, done.ended_ns
        self._errors.put(line, done.error, "execute: ")
        self._emit(line)

    # -- what the world is told, and the fallback ---------------------------------------------------------------------

    def fall_back(
        self,
        action: Action,
        tick: Tick,
        cause: str | None = None,
        reply: DecisionReply | None = None,
        error: str | None = None,
    ) -> str:
        """Do what the fallback policy says of this tick, and tell it. Gives what the record says of it: `none` where
        the safe call is in force since an earlier tick, `pending` where it was demanded and is not in force yet."""
        if action == "stop":
            self._stop("miss")
        status: Status = "held" if action == "hold" else "safe"
        emission = self.emission(tick, status, None, reply, cause, error)
        if action == "safe" or (action == "none" and self.ordered):
            self._demand("miss", emission, tick.k)
        elif emission is not None:
            self._actuator.tell(emission)
        return "pending" if action == "none" and self._actuator.pending else action

    def expire(self) -> None:
        """The end of a hold between two ticks, if it is reached: the safe call acts, and is told."""
        if self.policy.expire(self._clock.effective_ns(), self.ordered) == "safe":
            self._demand("miss", self.parting(), self.newest_k)

    def leave(self) -> None:
        """The run is over: the safe call acts, and is told."""
        self._demand("exit", self.parting(), self.newest_k)

    def parting(self, tick: Tick | None = None) -> Emission | None:
        """Return what the world is told with a safe call between two ticks: of its last tick, else of this one."""
        last = self._last or tick
        return None if last is None else self.emission(last, "safe")

    def _demand(self, why: str, emission: Emission | None, k: int) -> None:
        self.safe_k, self.ordered = k, False
        # What waits when the run ends is no release.
        if (cleared := self._actuator.safe(why, emission)) is not None and why != "exit":
            self._cleared(cleared)

    def tell(self, tick: Tick, status: Status, reply: DecisionReply) -> None:
        """Tell the world, if it wants to know, of a tick that brought no call."""
        if (emission := self.emission(tick, status, reply=reply)) is not None:
            self._actuator.tell(emission)

    def stay_safe(self, tick: Tick, reply: DecisionReply) -> None:
        """The tick brought a call that people hold back: the safe call stays, and acts anew in a new episode."""
        if self.policy.safe:
            self.tell(tick, "safe", reply)
        else:
            self.suspend(tick.k)
            self._demand("pause", self.emission(tick, "safe", reply=reply), tick.k)

    def suspend(self, k: int) -> None:
        """People hold the calls back: the safe call was demanded, at tick `k`."""
        self.policy.suspend(self._clock.effective_ns(), self._actuator.shut is not None)
        self.safe_k = k

    def emission(
        self,
        tick: Tick,
        status: Status,
        call: Call | None = None,
        reply: DecisionReply | None = None,
        cause: str | None = None,
        error: str | None = None,
        more: bool = False,
    ) -> Emission | None:
        """What the world is told became of the tick; None where it does not want to know. `more`: it may go on."""
        self._last = tick
        if not self.emits:
            return None
        decision = None if reply is None else reply.decision
        safe_calls = self._safe_calls if status == "safe" else ()
        return Emission(
            tick.k,
            tick.epoch,
            tick.seq,
            tick.deadline_ns,
            status,
            next(iter(safe_calls), call),
            min(decision.confidence.values(), default=None) if decision is not None else None,
            None if reply is None else reply.decide_ns,
            cause,
            error,
            safe_calls,
            None if reply is None else reply.mistake,
            tick.waited_ns + (0 if reply is None else reply.ahead_ns),
            len(tick.calls),
            more,
        )


def _further(tick: Tick, kind: str, t_s: float) -> dict[str, Any]:
    """What the event of a further call begins with."""
    return {"further": tick.k, "n": len(tick.calls), "t_s": t_s, "outcome": "acted" if kind == "call" else kind}


def _cut(fault: KnownCause | None) -> dict[str, Any]:
    """Why there is no further call: it is cut where it was not there, or not begun, by the deadline."""
    if fault is None or fault == (Cause.EXECUTE, "busy"):
        return {"outcome": "cut"}
    cause, subcause = fault
    return {"outcome": "failed", "cause": cause.value} | ({} if subcause is None else {"subcause": subcause})


def replaced(outcomes: TickOutcomes, ordered: InFlightCall, period_ns: int) -> None:
    """A call that waited for the world gave way to a newer one: overtaken, or kept waiting by a world that is busy."""
    if ordered.late:
        outcomes.late(ordered.tick, ordered.reply, None, time.monotonic_ns())
    elif time.monotonic_ns() - ordered.given_ns >= max(period_ns // 4, 1_000_000):
        overrun(outcomes, ordered, "the call could not begin, and gave way to a newer one")
    else:
        outcomes.tell(ordered.tick, "held", ordered.reply)
        outcomes.settle(ordered.tick, ordered.reply, "overtaken", ordered.text)


def cleared(outcomes: TickOutcomes, ordered: InFlightCall) -> None:
    """A call that waited for the world gave way to the safe call."""
    if ordered.late:
        outcomes.late(ordered.tick, ordered.reply, None, time.monotonic_ns())
    else:
        overrun(outcomes, ordered, "the call could not begin, and gave way to the safe call")


def overrun(outcomes: TickOutcomes, ordered: InFlightCall, what: str, which: str = "busy") -> None:
    """The call did not act in time: the world was `busy`, or the call is under way and `slow`."""
    outcomes.miss(ordered.tick, (Cause.EXECUTE, which), ordered.reply, error=what, call=ordered.text)


def withhold(outcomes: TickOutcomes, ordered: InFlightCall, withdrawn: bool) -> bool:
    """The deadline is here, and the call has not ended: it is dropped if it was `withdrawn` before it began. Whether
    its tick is settled by that; the word of a world that does not block is on the way."""
    if withdrawn:
        overrun(outcomes, ordered, "the call could not begin by its deadline, and is dropped")
        return True
    if outcomes.emits:
        return False
    overrun(outcomes, ordered, "the call has not ended by its deadline", "slow")
    return True


def lost(host: Host, tick: Tick) -> bool:
    """Whether the decoder that was asked is not there any more."""
    return not host.alive() or host.incarnation != tick.incarnation


def was_late(outcomes: TickOutcomes, tick: Tick, skipped: int, period_ns: int) -> None:
    """Releases before this tick's were skipped: name why."""
    why = outcomes.evidence.why_skipped(tick, tick.release_ns - skipped * period_ns)
    tick.skip = {"skipped": skipped, **{f"skip_{name}": value for name, value in why.items()}}


def overdue(outcomes: TickOutcomes, clock: LoopClock, deadline_ns: int, period_ns: int, now_ns: int) -> None:
    """The loop was away when the run ended: what was due meanwhile, and was never begun, is missed all the same. The
    safe call is demanded by then."""
    if outcomes.t0_ns and clock.enforced and clock.due(now_ns - period_ns):
        outcomes.suspend(outcomes.newest_k)
        k, release_ns, skipped = clock.take(now_ns)
        tick = Tick(k, release_ns, release_ns + deadline_ns, now_ns)
        was_late(outcomes, tick, skipped, period_ns)
        outcomes.miss(tick, None)


def acknowledge(outcomes: TickOutcomes, heard: deque[Acknowledgement], under_way: Container[int] = ()) -> None:
    """What the world says became of calls, but of those whose tick is not over."""
    for _ in range(len(heard)):
        said = heard.popleft()
        if said.tick in under_way:
            heard.append(said)
        else:
            outcomes.acknowledged(said)
