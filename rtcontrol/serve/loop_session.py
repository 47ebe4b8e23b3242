"""A session that runs one control loop with its host and its record; the decisions are in the sessions' core."""

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
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.pools import host_for
from rtcontrol.serve.replies import LoopReports, control_of
from rtcontrol.serve.runs import open_record
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.sessions import Need
from rtcontrol_client.wire import Message, WireError
from rtcontrol_client.wire.messages import Executed, Observe, Picture, Reset


class LoopSession(SessionThread):
    """A session with one loop, in the client's world, which stays the same for all runs of the session."""

    env: RemoteEnvironment | None = None

    def open(self, instruction: str | None) -> ControlLoop:
        terms, owner, life = self.terms, self.owner, self.facts.life
        env = self.make_env(terms)
        config = replace(terms.config, instruction=instruction or terms.config.instruction)
        interpreter = owner.interpreters.of(terms.agent) if terms.config.interpreter is not None else None
        with terms.decidable():
            host = host_for(owner.pool, self.id, terms)
        try:
            recorder, self.record = open_record(self.id, life.runs, terms, config, self.note, env.pictures.recorded)
        except WireError:
            host.close()
            raise
        options = LoopOptions(
            sample=Observation(0, 0, time.monotonic_ns(), RemoteData.of(None, "warm-up")) if config.warmup else None,
            notify=self.note,
            clock=terms.arrivals(env) or wall_clock(config.period_ns, spin_ns=0),
            watch=owner.watch,
            interpreter=interpreter,
            goals=goal_tools(terms.agent),
            listener=LoopReports(self),
        )
        loop = ControlLoop(config, terms.agent, env, host, recorder, options)
        owner.stats.start(loop)
        self.attach(loop)
        return loop

    def make_env(self, terms: Terms) -> RemoteEnvironment:
        """Return the client's world as an environment; create the environment at the first call."""
        if self.env is None:
            remote = terms.remote(self.facts.token)
            self.env = RemoteEnvironment(remote, self.send, self.warm, LoopReports(self).undecided)
        return self.env

    def attach(self, loop: ControlLoop) -> None:
        """Make `loop` the session's current loop and report to the core that it will run."""
        self.need()  # keep the previous loop's need
        self.loop = loop
        self.owner.tell(ev.Attached(self.facts))

    def run(self) -> None:
        loop = self.loop
        assert loop is not None, "it is open"
        try:
            loop.run()
        finally:
            if loop.state.launched:
                known = loop.instructions
                self.ran = known.proven, [known.now, *known.waiting][-1]

    # -- for the owner, from any thread -------------------------------------------------------------------------------

    def take(self, message: Message) -> None:
        assert self.env is not None, "it is live"
        TAKE[type(message)](self.env, message)

    def instruct_loop(self, text: str) -> bool:
        return self.loop is not None and self.loop.instruct(text)

    def say_to_loop(self, word: str, by: str, k: int | None) -> str:
        assert self.loop is not None, "it is attached"
        return self.loop.operator.say(word, by, k)

    def welcome(self, resumed: bool) -> list[Message]:
        loop, env, facts = self.loop, self.env, self.facts
        if loop is None or env is None or loop.ended_by is not None:
            return []
        now_ns = time.monotonic_ns()
        slow = loop.state.warmup.warning(self.terms.config)
        welcome = self.terms.welcome(
            () if slow is None else (slow,),
            session=facts.token,
            resumed=resumed,
            instruction=loop.instruction,
            epoch=env.epoch,
            release_ns=env.next_release_ns(loop.config.period_ns, now_ns),
            t_client_ns=facts.hello.t_client_ns,
            t_server_ns=now_ns,
        )
        control = control_of(loop.operator, facts.token)
        return [welcome] if control.state == "running" and control.call is None else [welcome, control]

    def stop_loop(self, why: str) -> None:
        if self.loop is not None:
            self.loop.stop(why)

    def need(self) -> Need | None:
        if (loop := self.loop) is not None:
            hz = loop.config.hz * loop.config.calls_per_tick
            self.needed = Need.of(list(loop.host.shares), hz) or self.needed
        return self.needed

    def traffic(self) -> dict[str, Any]:
        return {} if self.env is None else asdict(self.env.traffic)


TAKE: dict[type, Callable[[RemoteEnvironment, Any], None]] = {
    Observe: RemoteEnvironment.observe,
    Executed: RemoteEnvironment.executed,
    Reset: RemoteEnvironment.reset,
    Picture: lambda env, message: env.pictures.take(message),
}
