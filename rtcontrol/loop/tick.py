"""The ticks of a run, one event at a time: at a fixed rate it is observed, decided, ordered and recorded."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat

from rtcontrol.agents import InvalidCall
from rtcontrol.envs.base import Observation
from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.loop import tick_outcome
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.call_in_force import CallInForce
from rtcontrol.loop.evidence import SIZE
from rtcontrol.loop.legal import LegalCalls
from rtcontrol.loop.operator import OperatorControl
from rtcontrol.loop.realtime import Collector, SlackCollector
from rtcontrol.loop.requests import Instructions, Requests, row
from rtcontrol.loop.tick_outcome import RunContext, TickOutcomes
from rtcontrol.models.call import Call
from rtcontrol.records import Command, Completion, Fault, InFlightCall, OperatorCommand, Tick
from rtcontrol.telemetry.causes import Cause

# A safe call that is not in force is tried again every period, but at slow rates too as often as this.
RETRY_NS = 1_000_000_000
# The handlers of signals are looked at before a tick's end, but no more often than this.
RETAKE_NS = 10_000_000
# A process is stopped when the safe call is active, and what tells a world elsewhere of it has left.
HALT_WAIT_S, HALT_SETTLE_S = 2.0, 0.05
NOT_HALTED = (
    "Not stopped: the safe call is not active within {:g} s. The run is paused and tries on; press Ctrl-Z again, or "
    "end it with Ctrl-C."
)
SIZES, STARTS = repeat(SIZE), repeat(0)


class Ticks:
    """The next event is the earliest of: the next release, a deadline in flight, the end of a hold, a reply, the end of
    a call. Everything happens on the thread that calls `run`; it calls nothing of the environment that can block,
    except that it moves a lockstep world on: the rest is the actuator's."""

    def __init__(self, context: RunContext) -> None:
        config, agent, env, host, clock = context.config, context.agent, context.env, context.host, context.clock
        self.config, self.agent, self.env, self.host = config, agent, env, host
        self._clock, self._notify, self._stop = clock, context.notify, context.stop
        self._emit, self._records = context.emit, config.record_observations == "yes"
        self.actuator = Actuator(agent, env, min(config.period_ns, RETRY_NS) if clock.enforced else None, host.wake)
        self.outcomes = outcomes = TickOutcomes(context, self.actuator, self._cleared)
        self.operator = OperatorControl(context, outcomes, self.actuator, self._order)
        self._policy, self._threads = outcomes.policy, outcomes.evidence.threads
        told = config.instruction if config.instruction is not None else agent.instruction
        self.instructions = Instructions(
            told, self.actuator.instruct, context.emit, context.notify, outcomes.t_s, context.goals
        )
        self._period_ns, self._deadline_ns, self._max_age_ns = config.period_ns, config.deadline_ns, config.max_age_ns
        # The next release is due in a period: where it does not come, a call is held no longer than it may be.
        self._guard_ns = 2 * config.period_ns + (self._policy.hold_ns if config.on_miss == "hold" else 0)
        self._steady = None if config.hysteresis is None else CallInForce(self._policy)
        self.requests = Requests(agent, env, self.instructions, self._steady)
        self._legal = LegalCalls(agent.tools)
        self._seq: int | None = None
        self.over = False
        self.halt: Callable[[], None] | None = None  # a signal handler sets it: the process is to be stopped
        self._retake, self._retake_ns, self._take_reports = context.retake, 0, context.take_reports
        self._pending, self._late = dict[int, Tick](), dict[int, Tick]()
        self._ordered: dict[int, InFlightCall] = {}
        self._ordered_k, self._heard_ns, self._most = -1, 0, config.calls_per_tick  # heard: the decoder's heartbeat
        self._runs: tuple[bytes, ...] = ()

    def _cleared(self, command: Command) -> None:
        tick_outcome.cleared(self.outcomes, self._ordered.pop(command.tick))

    @property
    def open(self) -> int:
        """Ticks that are not over."""
        ordered = (o.tick for o in self._ordered.values() if not (o.settled or o.late))
        return sum(not tick.calls for tick in (*self._pending.values(), *ordered))

    def run(self, collector: Collector) -> None:
        """Until they are `over`."""
        clock, host, config, actuator = self._clock, self.host, self.config, self.actuator
        enforced, effects = clock.enforced, actuator.effects
        self.outcomes.evidence.follow()
        t0_ns, began_ns = clock.start()
        self.outcomes.begin(t0_ns, began_ns)
        end_ns = None if config.duration_s is None else round(config.duration_s * 1e9)
        retried = False
        while not self.over:
            if self.halt is not None:
                self._suspend(self.halt)
            in_flight = bool(self._pending or self._ordered or (actuator.attempting and not enforced))
            reply = clock.wait(self._next_event_ns() if enforced else None, host, in_flight) or host.wait(0)
            self._take_reports()
            if effects:
                self.collect_effects()
            if reply is not None:
                self._on_reply(reply)
                continue
            if host.gave_up is not None:
                self._notify(f"no more decisions: {host.gave_up}")
                self._stop("host")
            self._expire()
            waiting = self._pending or self._ordered or actuator.attempting
            now = time.monotonic_ns()
            if clock.due(now) and (enforced or not waiting):
                if self.env.finished:
                    self._stop("episodes")
                elif end_ns is not None and (now if enforced else clock.effective_ns()) - began_ns >= end_ns:
                    self._stop("duration")
                elif not (retried := not (enforced or retried) and actuator.retry()):  # first what is not in force yet
                    self._release()
            # With a decision always in flight there is never slack, but garbage must not grow without bounds.
            if gc.get_count()[0] >= SlackCollector.THRESHOLD:
                collector.collect(0 if self._pending or self._ordered else clock.slack_ns())

    def _suspend(self, halt: Callable[[], None]) -> None:
        """Pause, stop the process once the safe call is active, and resume when it is continued."""
        self.halt, actuator = None, self.actuator
        pauses = self.operator.state == "running"
        if pauses:
            self.operator.say("pause", "SIGTSTP")
        actuator.disarm()  # the next release arms it again
        # A world in lockstep is idle while it waits for us, so its step with the safe call is not waited for.
        active = actuator.wait_safe(HALT_WAIT_S if self._clock.enforced else HALT_SETTLE_S) or not self._clock.enforced
        self.collect_effects()
        if not active:
            self._notify(NOT_HALTED.format(HALT_WAIT_S))
            return
        time.sleep(HALT_SETTLE_S)
        halt()
        if pauses:
            self.operator.say("resume", "SIGCONT")

    def _next_event_ns(self) -> int | None:
        """The earliest deadline or end of a hold."""
        first = self._policy.expires_ns
        for tick in self._pending.values():
            if first is None or tick.deadline_ns < first:
                first = tick.deadline_ns
        for ordered in self._ordered.values():
            if not (ordered.settled or ordered.late) and (first is None or ordered.tick.deadline_ns < first):
                first = ordered.tick.deadline_ns
        return first

    def _release(self) -> None:
        now = time.monotonic_ns()
        outcomes, enforced = self.outcomes, self._clock.enforced
        k, release_ns, skipped = self._clock.take(now)
        tick = Tick(k, release_ns, release_ns + self._deadline_ns, now)
        outcomes.newest_k = k
        self.actuator.arm(now + self._guard_ns if enforced else None, outcomes.parting(tick))
        tick.incarnation = self.host.incarnation
        if len(self.host.events) != outcomes.noted_events:
            outcomes.note((), self.host.events)
            self._late = {late.k: late for late in self._late.values() if late.incarnation == tick.incarnation}
        tick.runs_before = self._runs
        try:
            self._runs = tuple(map(os.pread, self._threads.fds, SIZES, STARTS))
        except OSError:  # one of the threads is gone
            self._runs = ()
        tick.runs = self._runs
        if now >= self._retake_ns:
            self._retake()
            self._retake_ns = now + RETAKE_NS
        if skipped:
            tick_outcome.was_late(outcomes, tick, skipped, self._period_ns)
        if self.instructions.waiting:
            self.instructions.change()
        if (world := self.requests.world) is not None and world.heard:
            if self._steady is not None:
                self._steady.carried_out(world.heard)
            tick_outcome.acknowledge(outcomes, world.heard, self._ordered)
        if self.operator.asking is not None:
            self.operator.expire(now)
        seen = self.env.latest()
        if seen is None:
            outcomes.miss(tick, (Cause.NO_OBSERVATION, "none_yet"))
            return
        # Where the world stands still, what was seen before the first release is as fresh as at that release.
        captured_ns = seen.t_capture_ns if enforced else max(seen.t_capture_ns, outcomes.t0_ns)
        tick.seq, tick.epoch, tick.capture_ns = seen.seq, seen.epoch, captured_ns
        if self._seq is not None:
            tick.superseded, tick.fresh = max(seen.seq - self._seq - 1, 0), seen.seq != self._seq
        self._seq = seen.seq
        if seen.epoch != outcomes.epoch:
            outcomes.epoch = seen.epoch
            self.requests.history.clear()
            outcomes.note(self.env.episodes, ())
            self._policy.epoch(self._clock.effective_ns())
        if enforced and now - seen.t_capture_ns > self._max_age_ns:
            outcomes.miss(tick, (Cause.STALE_OBSERVATION, "late" if tick.fresh else "frozen"))
        elif not self.host.alive() or (enforced and time.monotonic_ns() > tick.deadline_ns):
            outcomes.miss(tick, None)
        else:
            self._submit(tick, seen, now)

    def _submit(self, tick: Tick, seen: Observation | None, began_ns: int) -> None:
        """Ask for the tick's call; where nothing was `seen`, for a further one, of which all is known."""
        if seen is not None:
            try:
                tick.request = self.requests.make(tick.k, seen, tick.deadline_ns - began_ns)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # the agent's own code, SystemExit too: it is no observation
                self.outcomes.miss(tick, (Cause.NO_OBSERVATION, "unreadable"), error=error, doing="observe: ")
                return
            tick.text_ns = time.monotonic_ns()
            if tick.text_ns - began_ns > self._period_ns // 8:
                self.outcomes.evidence.texts.append((began_ns, tick.text_ns))
            tick.behind = len(self._pending) + len(self._late) >= self.config.pipeline
        try:
            self.host.submit(tick.request)
        except Exception as error:  # a request that cannot be sent costs its tick, not the run
            self.outcomes.miss(tick, (Cause.DECIDE, "send"), error=error, doing="submit: ")
            return
        tick.submitted_ns = time.monotonic_ns()
        self._pending[tick.k] = tick
        if self._records and seen is not None:
            self._emit(row(tick.request, seen, round((tick.capture_ns - self.outcomes.t0_ns) / 1e9, 6)))

    def _expire(self) -> None:
        """What is over by now: deadlines, holds; in lockstep only decisions of a decoder that died."""
        now, enforced = time.monotonic_ns(), self._clock.enforced
        if self._pending:
            for tick in tuple(self._pending.values()):
                if now >= tick.deadline_ns if enforced else tick_outcome.lost(self.host, tick):
                    del self._pending[tick.k]
                    self._wait_late(tick)
                    self.outcomes.miss(tick, None)
        if self._ordered and enforced:
            for ordered in tuple(self._ordered.values()):
                if now >= ordered.tick.deadline_ns and not (ordered.settled or ordered.late):
                    self._overrun(ordered)
        expires_ns = self._policy.expires_ns
        if expires_ns is not None and (now >= expires_ns if enforced else not self._pending and not self._ordered):
            self.outcomes.expire()

    def _overrun(self, ordered: InFlightCall) -> None:
        """The deadline is here, and the call has not ended: it is dropped if it has not begun."""
        withdrawn = self.actuator.withdraw(ordered.tick.k)
        if withdrawn:
            del self._ordered[ordered.tick.k]
        ordered.settled = tick_outcome.withhold(self.outcomes, ordered, withdrawn)

    def _wait_late(self, tick: Tick) -> None:
        self.host.cancel(tick.k)
        self._late[tick.k] = tick
        while len(self._late) > 2 * self.config.pipeline:
            del self._late[min(self._late)]

    def _on_reply(self, reply: DecisionReply) -> None:
        now = time.monotonic_ns()
        if self._late:
            for k in [k for k in self._late if k <= reply.tick - self.config.pipeline]:
                del self._late[k]  # cancelled before it was begun, or lost with its decoder
        tick = self._pending.pop(reply.tick, None)
        told = self.instructions
        if (asked := tick or self._late.get(reply.tick)) is not None and (reply.mistake or told.proven != told.now):
            told.judge(asked, reply, reply.decision is not None and self.operator.unsure(reply.decision))
        if asked is not None:
            asked.replied_ns = now
            if reply.answers is not None:
                asked.answer(reply.answers)
        if reply.gaps and reply.gaps[-1][1] > self._heard_ns:
            self._heard_ns = reply.gaps[-1][1]
            self.outcomes.hear(reply)
        if tick is None:
            self._on_late(self._late.pop(reply.tick, None), reply, now)
        elif now > tick.deadline_ns and self._clock.enforced:
            self.outcomes.miss(tick, None, reply)
            self._on_late(tick, reply, now)
        else:
            self._on_decision(tick, reply)

    def _on_decision(self, tick: Tick, reply: DecisionReply) -> None:
        decision, outcomes = reply.decision, self.outcomes
        if decision is None:
            outcomes.miss(tick, (Cause.DECIDE, reply.loss or "error"), reply, error=reply.error)
        elif (self.operator.careful or self.actuator.shut) and self.operator.holds(tick, reply, decision):
            pass  # people ask for more than a decision
        elif decision.call is None:
            self._policy.renew(self._clock.effective_ns())
            outcomes.tell(tick, "fresh", reply)
            outcomes.settle(tick, reply, "null")
        elif (overtaken := tick.k < self._ordered_k) or (tick.calls and decision.call.text() in tick.calls):
            outcomes.tell(tick, "held", reply)
            outcomes.settle(tick, reply, "overtaken" if overtaken else "repeated", decision.call.text())
        else:
            self._order(tick, reply, decision.call, tick.deadline_ns if self._clock.enforced else None)

    def _order(
        self, tick: Tick, reply: DecisionReply, call: Call, not_after_ns: int | None, late: bool = False
    ) -> None:
        """Validate the call and give it to the actuator, whose word settles the tick."""
        outcomes, key = self.outcomes, f"{call.name}{call.arguments}"
        try:
            ready, text = self._legal.known.get(key) or self._legal.check(key, call)
        except InvalidCall as error:
            if late:
                outcomes.late(tick, reply, None, time.monotonic_ns())
            else:
                outcomes.miss(tick, (Cause.INVALID, None), reply, error=str(error), call=call.text())
            return
        order = Command(tick.k, ready, tick.epoch, not_after_ns, asked_ns=tick.asked_ns or tick.woke_ns)
        if outcomes.emits:
            last = late or len(tick.calls) + 1 == self._most
            order.fresh = outcomes.emission(tick, "fresh", call, reply, more=not last)
            order.void = None if late else outcomes.emission(tick, "held", None, reply)
        self._ordered[tick.k] = InFlightCall(tick, reply, call, text, late, given_ns=time.monotonic_ns())
        self._ordered_k, outcomes.ordered = max(self._ordered_k, tick.k), True
        if (waited := self.actuator.execute(order)) is not None:
            tick_outcome.replaced(self.outcomes, self._ordered.pop(waited.tick), self._period_ns)

    def _on_late(self, tick: Tick | None, reply: DecisionReply, now: int) -> None:
        """Drop a decision that came after its deadline."""
        for waiting in self._pending.values():
            waiting.behind = len(self._late) >= self.config.pipeline
        if tick is None or not tick.calls:  # else it was cut
            self.outcomes.late(tick, reply, None, now)

    def collect_effects(self) -> None:
        """What came of calls, safe calls, and what the world was told."""
        effects = self.actuator.effects
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Completion):
                self._on_completion(self._ordered.pop(effect.tick), effect)
            elif isinstance(effect, Fault):
                self.outcomes.fault(effect)
            elif isinstance(effect, OperatorCommand):
                self.operator.heard(effect)
            else:
                self.outcomes.attempted(effect)

    def _following(self, ordered: InFlightCall, done: Completion) -> Tick | None:
        """The tick again, to decide the call after the one that acted (`calls_per_tick`): of the same observation, with
        those before it in its history, and by the same deadline; None where that was the last. It is cut where the
        decoder is lost, or less time is left than that call's decision took: not to begin what would be dropped keeps
        the decoder free for the next tick. After a safe call that was demanded meanwhile nothing follows."""
        last, config = ordered.tick, self.config
        request, took_ns = last.request, last.replied_ns - last.submitted_ns
        if len(last.calls) + 1 == config.calls_per_tick or not done.stands or self.actuator.shut or self.over:
            return None
        now = time.monotonic_ns()
        history = (*request.history, ordered.text)[-(self.agent.history or 1) :]
        asked = replace(request, history=history, within_ns=last.deadline_ns - now)
        tick = replace(last, calls=(*last.calls, ordered.text), replied_ns=0, request=asked)
        if not (config.clock == "wall" and now + took_ns > tick.deadline_ns) and self.host.alive():
            return tick
        self.outcomes.miss(tick, None)
        return None

    def _on_completion(self, ordered: InFlightCall, done: Completion) -> None:
        tick, reply, outcomes, policy = ordered.tick, ordered.reply, self.outcomes, self._policy
        acted = done.effect == "acted"
        if acted:
            if done.stands:  # `policy.fresh_call`, without the call
                policy.safe, policy.expires_ns = False, None
                acted_ns = done.ended_ns if self._clock.enforced else self._clock.effective_ns()
                policy.limit_ns = policy.hold_ns + acted_ns
            if not self.requests.acknowledges:
                self.requests.history.append(ordered.text)
            if self._steady is not None:
                self._steady.acted(tick, ordered.call)
            call, t_s = ordered.call, round((done.ended_ns - outcomes.t0_ns) / 1e9, 6)
            why = "late" if ordered.late else "further" if tick.calls else "fresh"
            event = {"called": call.name, "arguments": call.arguments, "k": tick.k, "epoch": tick.epoch}
            self._emit({**event, "why": why, "t_s": t_s})
        if ordered.late:
            outcomes.late(tick, reply, done, time.monotonic_ns())
        elif ordered.settled:
            outcomes.overran(tick, reply, ordered.text, done)
        elif done.effect == "refused":
            self.operator.withhold(tick, reply, ordered.call)
        elif acted or done.effect == "epoch_over":
            outcomes.settle(tick, reply, "call" if acted else "epoch_over", ordered.text, done)
            if acted and self._most > 1 and (again := self._following(ordered, done)) is not None:
                self._submit(again, None, done.ended_ns)
        else:
            what = done.error or "the call was too late when the world was free for it"
            fault = (Cause.EXECUTE, "busy" if done.error is None else "raised")
            outcomes.miss(tick, fault, reply, error=what, call=ordered.text, done=done)
