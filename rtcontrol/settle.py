"""Settles ticks: counts them, names the cause of a miss, lets the fallback act, and writes the record."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rtcontrol.act import act
from rtcontrol.agents import Agent
from rtcontrol.clock import LoopClock
from rtcontrol.config import RunConfig
from rtcontrol.deadline import Cause, Ledger, Tick, attribute
from rtcontrol.envs.base import Emission, Emitting, Environment, Episode
from rtcontrol.fallback import Action, FallbackPolicy
from rtcontrol.hosts.base import DecisionReply, Host, HostEvent
from rtcontrol.models.call import Call
from rtcontrol.pause import PauseWatch
from rtcontrol.record import Recorder


def _ms(ns: int) -> float:
    return round(ns / 1e6, 4)


class Settlement:
    """What is known of the ticks that are over. `recent_*` are short and for people who look on.

    `epoch` is the world's, as of the last observation; `emitted_k`, `emitted_ns` are the last fresh call's tick and
    the instant of its effect.
    """

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        env: Environment,
        host: Host,
        recorder: Recorder,
        fallback: FallbackPolicy,
        watch: PauseWatch,
        clock: LoopClock,
        notify: Callable[[str], None],
        stop: Callable[[str], None],
    ) -> None:
        self._config, self._agent, self._env, self._host = config, agent, env, host
        self._recorder, self._fallback, self._watch, self._clock = recorder, fallback, watch, clock
        self._notify, self._stop = notify, stop
        self._world = env if isinstance(env, Emitting) else None
        self._last: Tick | None = None
        self.ledger = Ledger()
        self.t0_ns = 0
        self.epoch = -1
        self.emitted_k = -1
        self.emitted_ns = 0
        self.noted_episodes = 0
        self.noted_events = 0
        self.recent_calls: deque[str] = deque(maxlen=6)
        self.recent_ms: deque[float] = deque(maxlen=256)

    def t_s(self, t_ns: int) -> float:
        """Seconds since the first release."""
        return round((t_ns - self.t0_ns) / 1e9, 6)

    def note(self, episodes: Sequence[Episode], events: Sequence[HostEvent]) -> None:
        """Record the episodes that ended and what befell the host since the last time."""
        for episode in episodes[self.noted_episodes :]:
            line = {"seed": episode.seed, "return": round(episode.ret, 4), "success": episode.success}
            self._recorder.write({"episode": {**line, "seconds": round(episode.seconds, 3), "detail": episode.detail}})
            self.noted_episodes += 1
        for event in events[self.noted_events :]:
            what = {"t_s": self.t_s(event.t_ns), "event": event.event, "seconds": round(event.seconds, 3)}
            self._recorder.write({"host_event": what})
            self.noted_events += 1

    def settle(
        self, tick: Tick, reply: DecisionReply, kind: str, call: Call | None = None, began: int = 0, ended: int = 0
    ) -> None:
        """The tick has its decision. It is on time unless its effect came after the deadline."""
        now = ended or time.monotonic_ns()
        line = self._line(tick, kind, call)
        line["latency_ms"] = _ms(now - tick.release_ns)
        line["decide_ms"] = _ms(reply.decide_ns)
        line["age_ms"] = _ms(now - tick.capture_ns)
        if ended:
            line["execute_ms"] = _ms(ended - began)
            if kind == "call" and self.emitted_k == tick.k - 1 and self.emitted_ns and self._clock.enforced:
                line["jitter_ms"] = _ms(abs(ended - self.emitted_ns - self._config.period_ns))
        if (decision := reply.decision) is not None:
            line["passes"], line["tokens"] = decision.forward_passes, decision.tokens
            line["reused"] = decision.reused_tokens
            line["confidence"] = round(min(decision.confidence.values(), default=1.0), 4)
            if decision.outside_mass is not None:
                line["outside_mass"] = round(decision.outside_mass, 6)
        self.recent_ms.append(line["latency_ms"])
        if now <= tick.deadline_ns:
            self.ledger.hit()
            if kind != "call":
                setattr(self.ledger, kind, getattr(self.ledger, kind) + 1)
        else:
            fault = Cause.EXECUTE if began and began <= tick.deadline_ns else None
            cause = attribute(tick, now, self._watch, self._host, fault, reply)
            self.ledger.miss(cause)
            line["cause"] = cause.value
            if self._config.on_miss == "stop":
                self._stop("miss")
        self._recorder.write(line)

    def miss(
        self,
        tick: Tick,
        fault: Cause | None,
        reply: DecisionReply | None = None,
        error: str | None = None,
        call: Call | None = None,
    ) -> None:
        """The tick has no call: count it, name the cause, fall back."""
        cause = attribute(tick, time.monotonic_ns(), self._watch, self._host, fault, reply)
        self.ledger.miss(cause)
        action = self._fallback.miss(self._clock.effective_ns())
        self.fall_back(action, tick, cause, reply, error)
        line = self._line(tick, "miss", call)
        line["cause"], line["action"] = cause.value, action
        if reply is not None and fault is not None:
            line["decide_ms"] = _ms(reply.decide_ns)
        if error is not None:
            line["error"] = error
            self._notify(f"tick {tick.k}: {cause.value}: {error}")
        self._recorder.write(line)

    def _line(self, tick: Tick, kind: str, call: Call | None) -> dict[str, Any]:
        line: dict[str, Any] = {"k": tick.k, "t_s": self.t_s(tick.release_ns), "kind": kind}
        line["wake_ms"] = _ms(tick.wake_ns)
        if call is not None:
            line["call"] = call.text()
        line["epoch"], line["seq"], line["superseded"] = tick.epoch, tick.seq, tick.superseded
        if tick.skip_cause is not None:
            line["skipped"], line["skip_cause"] = tick.skipped, tick.skip_cause.value
        return line

    def late(self, tick: Tick | None, reply: DecisionReply, used: bool, now_ns: int) -> None:
        """A decision that came after its tick was over."""
        self.ledger.late_used += used
        self.ledger.late_dropped += not used
        line: dict[str, Any] = {"late": reply.tick, "used": used, "decide_ms": _ms(reply.decide_ns)}
        if tick is not None:
            line["latency_ms"] = _ms(now_ns - tick.release_ns)
            self.recent_ms.append(line["latency_ms"])
        self._recorder.write(line)

    def fall_back(
        self,
        action: Action,
        tick: Tick,
        cause: Cause | None = None,
        reply: DecisionReply | None = None,
        error: str | None = None,
    ) -> None:
        """Do what the fallback policy says of this tick, and tell it."""
        if action == "stop":
            self._stop("miss")
        elif action == "safe":
            self.ledger.safe_calls += 1
            self.execute_safe("miss")
        # "none": the safe call is in force since an earlier tick.
        status: Literal["held", "safe"] = "held" if action == "hold" else "safe"
        self.emit(tick, status, reply=reply, cause=cause, error=error)

    def expire(self) -> None:
        """The end of a hold between two ticks, if it is reached: the safe call acts, and is told."""
        if self._fallback.expire(self._clock.effective_ns()) == "safe":
            self.ledger.safe_calls += 1
            self.execute_safe("miss")
            self._emit_safe()

    def leave(self) -> None:
        """The run is over: the safe call acts, and is told."""
        self.execute_safe("exit")
        self._emit_safe()

    def _emit_safe(self) -> None:
        if self._last is not None:
            self.emit(self._last, "safe")

    def emit(
        self,
        tick: Tick,
        status: Literal["fresh", "held", "safe"],
        call: Call | None = None,
        reply: DecisionReply | None = None,
        cause: Cause | None = None,
        error: str | None = None,
    ) -> None:
        """Tell the world what became of the tick, if it wants to know."""
        self._last = tick
        if self._world is None:
            return
        decision = None if reply is None else reply.decision
        self._world.emit(
            Emission(
                tick.k,
                tick.epoch,
                tick.seq,
                tick.deadline_ns,
                status,
                self._agent.fallback.safe_call if status == "safe" else call,
                min(decision.confidence.values(), default=None) if decision is not None else None,
                None if reply is None else reply.decide_ns,
                None if cause is None else cause.value,
                error,
                self._agent.fallback.safe_calls if status == "safe" else (),
                None if reply is None else reply.mistake,
            )
        )

    def execute_safe(self, why: str) -> None:
        """Execute the safe call in the epoch that is on; never raises."""
        call = self._agent.fallback.safe_call
        if call is None:
            self._recorder.write({"safe": None, "why": why, "t_s": self.t_s(time.monotonic_ns())})
            return
        try:
            tools = self._agent.tools
            if not act(tools, self._env, call, self.epoch) and (seen := self._env.latest()) is not None:
                act(tools, self._env, call, seen.epoch)
        except Exception as error:  # the last resort must not end the run
            self.ledger.fallback_errors += 1
            self._notify(f"safe call {call.text()}: {type(error).__name__}: {error}")
        self._recorder.write({"safe": call.text(), "why": why, "t_s": self.t_s(time.monotonic_ns())})
