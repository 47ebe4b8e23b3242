"""The control loop: one thread, one event at a time; at a fixed rate it observes, has decided, executes and records."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from rtcontrol.act import act
from rtcontrol.agents import Agent, InvalidCall
from rtcontrol.clock import LockstepClock, LoopClock, WallClock
from rtcontrol.config import RunConfig
from rtcontrol.deadline import Cause, Tick, pause_share_ns
from rtcontrol.envs.base import Environment, Observation
from rtcontrol.fallback import FallbackPolicy
from rtcontrol.hosts.base import DecisionReply, DecisionRequest, Host
from rtcontrol.instructions import Instructions
from rtcontrol.look import Look
from rtcontrol.models.call import Call
from rtcontrol.pause import PauseWatch
from rtcontrol.realtime import Collector, SlackCollector, favours, lock_memory
from rtcontrol.record import Recorder
from rtcontrol.settle import Settlement
from rtcontrol.warmup import Warmup, first_look, warm_up

# How long the safe call may take once the run was interrupted for good.
HURRY_S = 1.0


class ControlLoop:
    """Runs one agent in one environment. `host` and `env` are started and closed by `run`.

    The next event is the earliest of: the next release, a deadline in flight, the end of a hold, a reply. Everything
    happens on the thread that calls `run`, but `instruct` and `stop`, which any thread (or signal handler) may call.
    `sample` is an observation to warm up with before the environment starts; `notify` takes plain lines for people.
    `watch` and `collector` are for the whole process: whoever runs many loops in one gives them, already entered.
    """

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        env: Environment,
        host: Host,
        recorder: Recorder,
        *,
        sample: Observation | None = None,
        notify: Callable[[str], None] = lambda line: None,
        clock: LoopClock | None = None,
        watch: PauseWatch | None = None,
        collector: Collector | None = None,
    ) -> None:
        self.config, self.agent, self.env, self.host = config, agent, env, host
        self._recorder, self._sample, self._notify = recorder, sample, notify
        self.warmup = Warmup(config.pipeline)
        self.host_info: dict[str, Any] = {}
        self.ended_by: str | None = None
        self.phase = "not started"
        self.t_end_ns = 0
        self._clock: LoopClock = clock or (
            WallClock(config.period_ns) if config.clock == "wall" else LockstepClock(config.period_ns, env.advance)
        )
        hold_ms = config.hold_ms if config.hold_ms is not None else agent.fallback.hold_ms
        self._fallback = FallbackPolicy(config.on_miss, round(hold_ms * 1e6))
        self._watch = watch or PauseWatch(config.period_ns)
        self._watching = self._watch if watch is None else nullcontext()
        self._collecting = SlackCollector() if collector is None else nullcontext(collector)
        self.book = Settlement(
            config, agent, env, host, recorder, self._fallback, self._watch, self._clock, notify, self.stop
        )
        self.ledger = self.book.ledger
        told = config.instruction if config.instruction is not None else agent.instruction
        self.instructions = Instructions(told, env, recorder, notify, self.book.t_s)
        self._look = Look(agent, env)
        self._pending: dict[int, Tick] = {}
        self._late: dict[int, Tick] = {}
        self._busy: tuple[int, int, Cause] = (0, 0, Cause.WAKE)
        self._world_started = False
        self._hurried = False

    def instruct(self, text: str) -> None:
        """From the next release on, decide (and judge) by `text`."""
        self.instructions.put(text)

    @property
    def instruction(self) -> str:
        """What is decided by now."""
        return self.instructions.now

    def stop(self, why: str) -> None:
        """End the run soon, with the safe call and the report; the first reason stays."""
        self.ended_by = self.ended_by or why

    @property
    def launched(self) -> bool:
        """Whether the world was started."""
        return self._world_started

    def run(self) -> None:
        """The whole run. On every way out the safe call is executed; exceptions of the environment pass through."""
        try:
            self._prepare()
            if self.ended_by is None:
                # Their threads come before `favours`, which is for this thread alone.
                with self._watching, self._collecting as collector:
                    self._launch()
                    self._fly(collector)
        except KeyboardInterrupt:
            self.ended_by = self.ended_by or "SIGINT"
            self._hurried = True
            raise
        except BaseException:
            self.ended_by = "error"
            raise
        finally:
            self.phase = "ending"
            self.t_end_ns = time.monotonic_ns()
            self._finish()

    # -- before and after ---------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self.phase = f"starting the decoder (host {self.host.name})"
        self.host_info = self.host.start(self._stopped)
        if note := self.host_info.get("prefix_note"):
            self._notify(f"{str(note).rstrip('.')}; it was computed anew")
        if not self._stopped():
            self.phase = "warming up"
            self.warmup = warm_up(self.config, self.host, self._sample, self._request, self._notify)

    def _launch(self) -> None:
        """Start the world. It runs on from here, so all that takes time and can be done before is done."""
        config = self.config
        if config.mlock and (refused := lock_memory()):
            self._notify(f"--mlock refused ({refused}). Raise `ulimit -l`, or grant CAP_IPC_LOCK.")
        self._recorder.keep()
        self.env.instruct(self.instruction)
        self.env.start(config.clock, config.seed, config.episodes)  # type: ignore[arg-type]
        self._world_started = True
        first = first_look(config, self.env, self._stopped, self._notify)
        if self._sample is None:
            self.warmup = warm_up(config, self.host, first, self._request, self._notify)
        for warning in favours(config.rt_priority, config.affinity):
            self._notify(warning)
        self._recorder.write({"start": {"host_info": self.host_info, "warmup": self.warmup.to_dict()}})

    def _stopped(self) -> bool:
        return self.ended_by is not None

    def _finish(self) -> None:
        try:
            if self._world_started and self._hurried:
                # The world may be what hangs: it gets its safe call if it takes it at once.
                last = threading.Thread(target=self.book.leave, name="safe-call", daemon=True)
                last.start()
                last.join(HURRY_S)
            elif self._world_started:
                self.book.leave()
                self.book.note(self.env.episodes, self.host.events)
            # What is still in flight is no release: nobody waited for it until its deadline.
            t_s = self.book.t_s(self.t_end_ns) if self.book.t0_ns else 0.0
            self._recorder.write({"end": self.ended_by, "t_s": t_s, "open": len(self._pending)})
        finally:
            try:
                self.host.close()
            finally:
                self.env.close()

    # -- the events ---------------------------------------------------------------------------------------------------

    def _fly(self, collector: Collector) -> None:
        clock, host, config = self._clock, self.host, self.config
        self.phase = "running"
        self.book.t0_ns, began_ns = clock.start()
        self._fallback.epoch(began_ns)
        end_ns = None if config.duration_s is None else round(config.duration_s * 1e9)
        while self.ended_by is None:
            reply = clock.wait(self._next_event_ns(), host, bool(self._pending)) or host.wait(0)
            if reply is not None:
                self._on_reply(reply)
            else:
                if self.host.gave_up is not None:
                    self._notify(f"no more decisions: {self.host.gave_up}")
                    self.stop("host")
                self._expire()
                if clock.due(time.monotonic_ns()) and (clock.enforced or not self._pending):
                    if self.env.finished:
                        self.stop("episodes")
                    elif end_ns is not None and clock.effective_ns() - began_ns >= end_ns:
                        self.stop("duration")
                    else:
                        self._release()
            # With a decision always in flight there is never slack, but garbage must not grow without bounds.
            collector.collect(0 if self._pending else clock.slack_ns())

    def _next_event_ns(self) -> int | None:
        if not self._clock.enforced:
            return None
        times = [tick.deadline_ns for tick in self._pending.values()]
        if (expires := self._fallback.expires_ns) is not None:
            times.append(expires)
        return min(times, default=None)

    def _release(self) -> None:
        now = time.monotonic_ns()
        period = self.config.period_ns
        k, release_ns, skipped = self._clock.take(now)
        begin, end, busy = self._busy
        first_ns = release_ns - skipped * period
        tick = Tick(k, release_ns, release_ns + self.config.deadline_ns, now)
        tick.late_start = busy if begin <= first_ns <= end else Cause.WAKE
        if skipped:
            paused = self._watch.paused_ns(first_ns, now) >= pause_share_ns(tick)
            tick.skipped, tick.skip_cause = skipped, Cause.PAUSE if paused else tick.late_start
            self.ledger.skip(skipped, tick.skip_cause)
        tick.incarnation = self.host.incarnation
        if len(self.host.events) != self.book.noted_events:
            self.book.note((), self.host.events)
        self.instructions.change()
        seen = self.env.latest()
        if seen is None:
            self.book.miss(tick, Cause.NO_OBSERVATION)
            return
        enforced = self._clock.enforced
        self._see(tick, seen)
        if enforced and now - seen.t_capture_ns > self.config.max_age_ns:
            self.book.miss(tick, Cause.STALE_OBSERVATION)
        elif not self.host.alive() or (enforced and time.monotonic_ns() > tick.deadline_ns):
            self.book.miss(tick, None)
        else:
            try:
                request = self._request(k, seen)
            except Exception as error:  # the agent's own code: an observation that cannot be read is none
                self.book.miss(tick, Cause.NO_OBSERVATION, error=f"observe: {type(error).__name__}: {error}")
                return
            tick.instruction = request.instruction
            tick.submitted_ns = time.monotonic_ns()
            if tick.submitted_ns - now > period // 8:
                self._busy = (now, tick.submitted_ns, Cause.DECIDE)
            tick.queued = len(self._pending) + len(self._late) >= self.config.pipeline
            try:
                self.host.submit(request)
            except Exception as error:  # a request that cannot be sent costs its tick, not the run
                self.book.miss(tick, Cause.DECIDE, error=f"submit: {type(error).__name__}: {error}")
                return
            self._pending[k] = tick

    def _see(self, tick: Tick, seen: Observation) -> None:
        # Where the world stands still, what was seen before the first release is as fresh as at that release.
        self._look.at(tick, seen, 0 if self._clock.enforced else self.book.t0_ns)
        self.ledger.superseded += tick.superseded
        if seen.epoch != self.book.epoch:
            self.book.epoch = seen.epoch
            self._look.new_epoch()
            self.book.note(self.env.episodes, ())
            self._fallback.epoch(self._clock.effective_ns())

    def _request(self, k: int, seen: Observation) -> DecisionRequest:
        return self._look.request(k, seen, self.instruction)

    def _expire(self) -> None:
        """What is over by now: deadlines, holds; in lockstep only decisions of a decoder that died."""
        now = time.monotonic_ns()
        for tick in tuple(self._pending.values()):
            if self._clock.enforced:
                over = now >= tick.deadline_ns
            else:
                over = not self.host.alive() or self.host.incarnation != tick.incarnation
            if over:
                del self._pending[tick.k]
                self._wait_late(tick)
                self.book.miss(tick, None)
        if self._clock.enforced or not self._pending:
            self.book.expire()

    def _wait_late(self, tick: Tick) -> None:
        if self.config.late == "drop":
            self.host.cancel(tick.k)
        self._late[tick.k] = tick
        while len(self._late) > 2 * self.config.pipeline:
            del self._late[min(self._late)]

    def _on_reply(self, reply: DecisionReply) -> None:
        now = time.monotonic_ns()
        for k in [k for k in self._late if k <= reply.tick - self.config.pipeline]:
            del self._late[k]  # cancelled before it was begun, or lost with its decoder
        tick = self._pending.pop(reply.tick, None)
        if (asked := tick or self._late.get(reply.tick)) is not None:
            self.instructions.judge(asked, reply)
        if tick is None:
            self._on_late(self._late.pop(reply.tick, None), reply, now)
        elif now > tick.deadline_ns and self._clock.enforced:
            self.book.miss(tick, None, reply)
            self._on_late(tick, reply, now)
        else:
            self._on_decision(tick, reply)

    def _on_decision(self, tick: Tick, reply: DecisionReply) -> None:
        decision = reply.decision
        if decision is None:
            self.book.miss(tick, Cause.DECIDE, reply, error=reply.error)
        elif decision.call is None:
            self._fallback.renew(self._clock.effective_ns())
            self.book.emit(tick, "fresh", reply=reply)
            self.book.settle(tick, reply, "null")
        elif min(decision.confidence.values(), default=1.0) < self.config.min_confidence:
            action = self._fallback.unsure(self._clock.effective_ns())
            self.book.settle(tick, reply, "held", call=decision.call)
            self.book.fall_back(action, tick, reply=reply)
        elif tick.k < self.book.emitted_k:
            self.book.emit(tick, "held", reply=reply)
            self.book.settle(tick, reply, "overtaken", call=decision.call)
        else:
            self._execute(tick, reply, decision.call)

    def _execute(self, tick: Tick, reply: DecisionReply, call: Call, late: bool = False) -> bool:
        """Validate and execute, then settle the tick unless it is late and settled already. True when it acted."""
        began = time.monotonic_ns()
        try:
            acted = act(self.agent.tools, self.env, call, tick.epoch)
        except InvalidCall as error:
            if not late:
                self.book.miss(tick, Cause.INVALID, reply, error=str(error), call=call)
            return False
        except Exception as error:  # an executor's mistake costs its tick, not the run
            ended = time.monotonic_ns()
            self._busy = (began, ended, Cause.EXECUTE)
            if not late:
                self.book.miss(tick, Cause.EXECUTE, reply, error=f"{type(error).__name__}: {error}", call=call)
            return False
        if acted or not late:
            self.book.emit(tick, "fresh" if acted else "held", call if acted else None, reply)
        ended = time.monotonic_ns()
        self._busy = (began, ended, Cause.EXECUTE)
        if acted:
            self._fallback.fresh_call(self._clock.effective_ns())
            self._look.sent(call)
            self.book.recent_calls.append(call.text())
        if not late:
            self.book.settle(tick, reply, "call" if acted else "epoch_over", call=call, began=began, ended=ended)
        self.book.emitted_k, self.book.emitted_ns = tick.k, ended
        return acted

    def _on_late(self, tick: Tick | None, reply: DecisionReply, now: int) -> None:
        """A decision that came after its deadline: dropped, or used if nothing newer acts in this epoch."""
        usable = tick is not None and self.config.late == "use" and tick.k > self.book.emitted_k
        call = reply.decision.call if reply.decision is not None else None
        used = False
        if usable and tick is not None and call is not None and tick.epoch == self.book.epoch:
            used = self._execute(tick, reply, call, late=True)
        self.book.late(tick, reply, used, now)
