"""The session of a client with one agent: a control loop with its decoder host and its record file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from rtcontrol.envs.base import Observation
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.remote_core import RemoteData
from rtcontrol.loop.loop import ControlLoop, LoopOptions
from rtcontrol.loop.runner import wall_clock
from rtcontrol.run.interpreting import goal_tools
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.negotiate import SessionTerms
from rtcontrol.serve.pools import host_for
from rtcontrol.serve.replies import LoopListener, control_message
from rtcontrol.serve.runs import open_recorder
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.sessions import DecoderNeed
from rtcontrol_client.wire import Message, WireError
from rtcontrol_client.wire.messages import Executed, Observe, Picture, Reset


class LoopSession(SessionThread):
    """A session that runs one control loop at a time. After a resume, a new loop runs in the same environment."""

    env: RemoteEnvironment | None = None

    def create_loop(self, instruction: str | None) -> ControlLoop:
        terms, owner, life = self.terms, self.owner, self.session.life
        env = self.make_env(terms)
        config = replace(terms.config, instruction=instruction or terms.config.instruction)
        interpreter = owner.interpreters.for_agent(terms.agent) if terms.config.interpreter is not None else None
        with terms.decider_errors():
            host = host_for(owner.pool, self.id, terms)
        try:
            pictures = env.pictures.recorded
            recorder, self.record = open_recorder(self.id, life.runs, terms, config, self.log_line, pictures)
        except WireError:
            host.close()
            raise
        options = LoopOptions(
            sample=Observation(0, 0, time.monotonic_ns(), RemoteData.of(None, "warm-up")) if config.warmup else None,
            notify=self.log_line,
            clock=terms.client_clock(self._arrival) or wall_clock(config.period_ns, spin_ns=0),
            watch=owner.watch,
            interpreter=interpreter,
            goals=goal_tools(terms.agent),
            listener=LoopListener(self),
        )
        loop = ControlLoop(config, terms.agent, env, host, recorder, options)
        owner.stats.add_running(loop)
        self.attach(loop)
        return loop

    def make_env(self, terms: SessionTerms) -> RemoteEnvironment:
        """Return the environment that represents the client's world. The first call creates it."""
        if self.env is None:
            remote = terms.remote(self.session.token)
            self.env = RemoteEnvironment(remote, self.send, self.report_warmed_up, LoopListener(self).report_undecided)
        return self.env

    def _arrival(self, timeout_ns: int) -> int | None:
        """Pause if the client sets the pace and uses too much time. Then wait for its next observation."""
        assert self.env is not None, "the session is open"
        self.slow_down()
        return self.env.arrival(timeout_ns)

    def attach(self, loop: ControlLoop) -> None:
        """Make `loop` the session's current loop, and report to `SessionCore` that the loop will run."""
        self.decoder_need()  # stores what the previous loop needed, before it is replaced
        self.loop = loop
        self.owner.handle(ev.LoopCreated(self.session))

    def run(self) -> None:
        loop = self.loop
        assert loop is not None, "the session is open"
        try:
            loop.run()
        finally:
            if loop.state.launched:
                instructions = loop.instructions
                self.run_instructions = instructions.proven, [instructions.now, *instructions.waiting][-1]

    def deliver(self, message: Message) -> None:
        assert self.env is not None, "the session is live"
        WORLD_METHODS[type(message)](self.env, message)

    def instruct_loop(self, text: str) -> bool:
        return self.loop is not None and self.loop.instruct(text)

    def command_loop(self, command: str, by: str, k: int | None) -> str:
        assert self.loop is not None, "the loop exists"
        return self.loop.operator.execute_command(command, by, k)

    def welcome_messages(self, resumed: bool) -> list[Message]:
        loop, env, session = self.loop, self.env, self.session
        if loop is None or env is None or loop.ended_by is not None:
            return []
        now_ns = time.monotonic_ns()
        warning = loop.state.warmup.warning(self.terms.config)
        welcome = self.terms.welcome(
            () if warning is None else (warning,),
            session=session.token,
            resumed=resumed,
            instruction=loop.instruction,
            epoch=env.epoch,
            release_ns=env.next_release_ns(loop.config.period_ns, now_ns),
            t_client_ns=session.hello.t_client_ns,
            t_server_ns=now_ns,
        )
        control = control_message(loop.operator, session.token)
        return [welcome] if control.state == "running" and control.call is None else [welcome, control]

    def stop_loop(self, reason: str) -> None:
        if self.loop is not None:
            self.loop.stop(reason)

    def decoder_need(self) -> DecoderNeed | None:
        if (loop := self.loop) is not None:
            hz = loop.config.hz * loop.config.calls_per_tick
            self.last_need = DecoderNeed.from_durations(list(loop.host.durations_ns), hz) or self.last_need
        return self.last_need

    def message_counts(self) -> dict[str, Any]:
        return {} if self.env is None else asdict(self.env.traffic)


WORLD_METHODS: dict[type, Callable[[RemoteEnvironment, Any], None]] = {
    Observe: RemoteEnvironment.observe,
    Executed: RemoteEnvironment.executed,
    Reset: RemoteEnvironment.reset,
    Picture: lambda env, message: env.pictures.receive(message),
}
