"""The control loop: one run of an agent in an environment, from its start to the safe call at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.base import Acknowledging, Environment, Observation, WorldError
from rtcontrol.hosts.host_events import Notify, mailbox_of
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop.clock import LockstepClock, LoopClock, WallClock
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.events import LoopReport
from rtcontrol.loop.evidence import PauseWatch
from rtcontrol.loop.interpreter import Interpretation, Interpreter, Understood
from rtcontrol.loop.realtime import Collector, SlackCollector
from rtcontrol.loop.tick import Ticks
from rtcontrol.loop.tick_outcome import RunContext, acknowledge, overdue
from rtcontrol.loop.warmup import Warmup, first_look, warm_up
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.recent import Recent
from rtcontrol.telemetry.recorder import Recorder

# How long the way out waits for the safe call to be in force.
LEAVE_S = 10.0
UNSAFE = "THE SAFE CALL IS NOT IN FORCE in the world: {}. Whatever acted last may act still: stop it by other means."
OVER = "The safe call did not act: the world's last episode had ended, and it takes no more calls."
# After the third signal: time enough for a world that is free.
LEAVE_AT_ONCE_S = 0.5


class Listener:
    """Follows a run, on the threads of what it reports: must not block."""

    def report(self, what: LoopReport) -> None:
        """The loop reports what became of an instruction, or that what the operator may see has changed."""

    def understood(self, result: Understood) -> None:
        """The interpreter's result for a sentence."""


@dataclass(frozen=True)
class LoopOptions:
    """What a loop may be given besides. `sample` is an observation to warm up with before the environment starts;
    `notify` takes plain lines for people. `watch` and `collector` are for the whole process: whoever runs many loops in
    one gives them, already entered. Without a `clock` the configuration says which. `interpreter` understands what is
    said, and is closed with the loop. `goals`: what the agent can be told, where it has goals. `retake` takes back
    signals that user code has taken, and returns the names of new ones."""

    sample: Observation | None = None
    notify: Callable[[str], None] = lambda line: None
    clock: LoopClock | None = None
    watch: PauseWatch | None = None
    collector: Collector | None = None
    interpreter: Interpreter | None = None
    retake: Callable[[], list[str]] = list
    goals: GoalTools | None = None
    listener: Listener = field(default_factory=Listener)


class ControlLoop:
    """Runs one agent in one environment. `host` and `env` are started and closed by `run`.

    Its ticks happen on the thread that calls `run` (`Ticks`), what reaches the environment on the actuator's;
    `instruct` and `stop` any thread (or signal handler) may call.
    """

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        env: Environment,
        host: Host,
        recorder: Recorder,
        options: LoopOptions = LoopOptions(),
    ) -> None:
        self.config, self.agent, self.env, self.host = config, agent, env, host
        self.recorder, self._sample, self._notify = recorder, options.sample, options.notify
        self.warmup = Warmup(config.pipeline)
        self.host_info: dict[str, Any] = {}
        self.ended_by: str | None = None
        self.failure: str | None = None  # in one sentence, where the world broke down
        self.safe_in_force = True  # False where the run was over and its safe call was not in force
        self.unsafe = False  # the same, but for a world whose last episode had ended by itself
        self.phase = "not started"
        self.t_end_ns = 0
        self._clock: LoopClock = options.clock or (
            WallClock(config.period_ns) if config.clock == "wall" else LockstepClock(config.period_ns, env.advance)
        )
        self._watch = options.watch or PauseWatch(config.period_ns)
        self._watching = self._watch if options.watch is None else nullcontext()
        self._collecting = SlackCollector() if options.collector is None else nullcontext(options.collector)
        self._retake = options.retake
        context = RunContext(
            config,
            agent,
            env,
            host,
            self._clock,
            self._watch,
            recorder.write,
            self.tell,
            self.stop,
            self._retake_signals,
            options.goals,
            self._take_reports,
        )
        self._reports = mailbox_of(host)
        self._ticks = Ticks(context)
        self._outcomes, self.instructions = self._ticks.outcomes, self._ticks.instructions
        self.operator = self._ticks.operator  # what people may say
        self.interpretation: Interpretation | None = None
        if options.interpreter is not None:
            self.interpretation = Interpretation(
                options.interpreter,
                self.instructions.put,
                recorder.write,
                self.tell,
                self._now_s,
            )
        self._report_to(options.listener)
        self.account = Account()
        self.account.add({"header": recorder.header})
        self.recent = Recent(self.account)  # for those who look on
        recorder.fold = self.recent.add
        self._world_started = self._end_written = False

    def _report_to(self, listener: Listener) -> None:
        report = listener.report
        self.instructions.accepted = lambda text: report(LoopReport("accepted", text))
        self.instructions.refused = lambda text, error: report(LoopReport("refused", text, error))
        self.operator.understanding.doubted = lambda text, what: report(LoopReport("doubted", text, what))
        self.operator.changed = lambda: report(LoopReport("changed"))
        if self.interpretation is not None:
            self.interpretation.answered = listener.understood

    def instruct(self, text: str) -> bool:
        """From the next release on, decide (and judge) by `text`; with an interpreter, by what it is understood as,
        once it is. False where nothing comes of it any more: it is over. UserError for one that is too long."""
        if self.interpretation is not None:
            return self.interpretation.hear(text) and self.ended_by is None
        self.instructions.put(text)
        return self.ended_by is None

    def tell(self, line: str) -> None:
        """Tell people, and the record."""
        self.recorder.write({"log": line, "t_s": self._now_s()})
        self._notify(line)

    def _now_s(self) -> float:
        return self._outcomes.t_s(time.monotonic_ns()) if self._outcomes.t0_ns else 0.0

    def _take_reports(self) -> None:
        """Record what the host reports: an answer of the first of two deciders, a plan, a loss for good."""
        while self._reports:
            report = self._reports.popleft()
            if isinstance(report, Notify):
                self.tell(report.text)
            else:
                self.recorder.write({**report.fields, "t_s": self._outcomes.t_s(report.t_ns)})

    @property
    def instruction(self) -> str:
        """What is decided by now."""
        return self.instructions.now

    def stop(self, why: str) -> None:
        """End the run soon, with the safe call and the report; the first reason stays."""
        self.ended_by = self.ended_by or why
        self._ticks.over = True

    def suspend(self, halt: Callable[[], None]) -> None:
        """Call `halt`, which stops the process, once the safe call is active; for a signal handler of this thread.
        Before the first tick nothing has acted; a run that ends brings its safe call anyway, and does not stop."""
        if self.phase == "running":
            self._ticks.halt = halt
        elif self.phase != "ending":
            halt()

    def _retake_signals(self) -> None:
        for name in self._retake():
            self.tell(f"{name} was taken by the world's code or a library, and is taken back: it ends the run safely.")

    @property
    def launched(self) -> bool:
        """Whether the world was started."""
        return self._world_started

    def run(self) -> None:
        """The whole run. On every way out the safe call is executed, whatever it was: `failure` says why the world
        broke down, other exceptions pass through. A KeyboardInterrupt while the run is ending leaves at once."""
        patience_s = LEAVE_S
        try:
            self._prepare()
            if self.ended_by is None:
                # Their threads come before `favour`, which is for this thread and the actuator's alone.
                with self._watching, self._collecting as collector:
                    self._launch()
                    self.phase = "running"
                    self._ticks.run(collector)
        except WorldError as error:
            self.ended_by, self.failure = "error", self._outcomes.broke_down(error, self._world_started)
            self.tell(self.failure)
        except KeyboardInterrupt:
            patience_s = LEAVE_AT_ONCE_S if self.ended_by is not None else LEAVE_S
            self.stop("SIGINT")
            raise
        except BaseException:
            self.ended_by = "error"
            raise
        finally:
            self.phase = "ending"
            self.t_end_ns = time.monotonic_ns()
            self._finish(patience_s)

    # -- before and after ---------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self.interpretation is not None:
            self._understand(self.interpretation)
            if self._stopped():
                return
        self.phase = f"starting the decoder (host {self.host.name})"
        self.host_info = self.host.start(self._stopped)
        if note := self.host_info.get("prefix_note"):
            self.tell(f"{str(note).rstrip('.')}; it was computed anew")
        if not self._stopped():
            self.phase = "warming up"
            self.warmup = warm_up(self.config, self.host, self._sample, self._ticks.requests.make, self.tell)

    def _understand(self, interpretation: Interpretation) -> None:
        """What the run begins with, in canonical words. UserError where it is not understood."""
        if self._stopped():
            return
        self.phase = f"starting the interpreter ({interpretation.interpreter.name})"
        interpretation.interpreter.start(self._stopped)
        if self._stopped():
            return
        self.phase = "understanding the instruction"
        self.instructions.begin(interpretation.first(self.instruction, self._stopped))

    def _launch(self) -> None:
        """Start the world. It runs on from here, so all that takes time and can be done before is done."""
        config = self.config
        self.recorder.keep()
        self.env.instruct(self.instruction)
        self.env.start(config.clock, config.seed, config.episodes)  # type: ignore[arg-type]
        self._world_started = True
        self._retake_signals()
        self._ticks.actuator.start()
        first = first_look(config, self.env, self._stopped, self.tell)
        if self._sample is None:
            self.warmup = warm_up(config, self.host, first, self._ticks.requests.make, self.tell)
        self.recorder.write({"start": {"host_info": self.host_info, "warmup": self.warmup.to_dict()}})

    def _stopped(self) -> bool:
        return self.ended_by is not None

    def _finish(self, patience_s: float) -> None:
        outcomes, actuator = self._outcomes, self._ticks.actuator
        try:
            if self._world_started:
                self.safe_in_force, self.unsafe = False, True
                actuator.disarm()
                self.env.conclude()
                self.operator.end()
                try:
                    outcomes.leave()
                except KeyboardInterrupt:
                    outcomes.leave()
                    raise
                ended = actuator.wait_safe(patience_s)
                self.safe_in_force = ended and not actuator.over
                self.unsafe = not ended or (actuator.over and self.failure is not None)
                if not self.safe_in_force:
                    why = "its episode had ended" if ended else f"it did not take it within {patience_s:g} s"
                    self.tell(UNSAFE.format(why) if self.unsafe else OVER)
                config = self.config
                overdue(outcomes, self._clock, config.deadline_ns, config.period_ns, self.t_end_ns)
        finally:
            try:
                actuator.close()
                if self.interpretation is not None:
                    self.interpretation.close()
                self._ticks.collect_effects()
                self._take_reports()
                if isinstance(self.env, Acknowledging):
                    acknowledge(outcomes, self.env.heard)
                outcomes.note(self.env.episodes if self._world_started else (), self.host.events)
                outcomes.evidence.close()
            finally:
                try:
                    self.write_end()
                finally:
                    try:
                        self.host.close()
                    finally:
                        self.env.close()

    def write_end(self) -> None:
        """The record's last line, unless it is written: an interrupt of `run` may have cut it short."""
        if not self._end_written:
            # What is still in flight is no release: nobody waited for it until its deadline.
            t_s = self._outcomes.t_s(self.t_end_ns) if self._outcomes.t0_ns else 0.0
            end = {"end": self.ended_by, "t_s": t_s, "open": self._ticks.open}
            self.recorder.write({**end, "safe_in_force": self.safe_in_force if self._world_started else None})
            self._end_written = True


# What a typed line says to the loop; any other line is an instruction.
TYPED = {"/pause": "pause", "/resume": "resume", "/stop": "stop", "/yes": "confirm", "/no": "deny"}
HELP, GOALS = "/help", "/goals"
SENT = "sent"


def slash_answer(text: str, instruction: str, goals: GoalTools | None) -> str | None:
    """Return the answer to `/help`, `/goals` or an unknown word; None for an instruction, and for a word of TYPED.

    `instruction`: the active one.
    """
    if not text.startswith("/") or text in TYPED:
        return None
    if text == GOALS:
        return goals_help(goals)
    if text == HELP:
        return f'Active: "{instruction}". {goals_help(goals)} Commands: {", ".join([*TYPED, HELP, GOALS])}.'
    return f"{text[:40]} is none of {', '.join([*TYPED, HELP, GOALS])}."


def slash_tell(loop: ControlLoop, text: str, by: str, instruct: Callable[[str], object]) -> str:
    """Do what a line from a page says, and return one sentence about it. UserError for an instruction too long."""
    if text in TYPED:
        return loop.operator.say(TYPED[text], by)
    if (told := slash_answer(text, loop.instruction, loop.instructions.goals)) is not None:
        return told
    instruct(text)
    return SENT


def goals_help(goals: GoalTools | None) -> str:
    """Return what the agent can be told, for people."""
    if goals is None:
        return "The agent lists no goals: it takes any text as its instruction."
    return f"You can say: {'; '.join(goals.examples(len(goals.kinds)))}."
