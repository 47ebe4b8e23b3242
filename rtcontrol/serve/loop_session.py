"""A session of one loop: its host, its record, and what its loop reports. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from rtcontrol.envs.base import Emission, Observation
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.remote_core import RemoteData
from rtcontrol.loop.interpreter import Understood
from rtcontrol.loop.loop import ControlLoop, Listener, LoopOptions
from rtcontrol.loop.runner import WallClock
from rtcontrol.loop.warmup import DecisionFailed
from rtcontrol.models.errors import UserError
from rtcontrol.records import LoopReport
from rtcontrol.run.interpreting import goal_tools
from rtcontrol.serve import refusals, replies
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.pools import host_for
from rtcontrol.serve.runs import open_record
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.sessions import Need
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.messages import Executed, Observe, Picture, Reset


class LoopSession(SessionThread, Listener):
    """Its world is the client's, the same for all its runs."""

    env: RemoteEnvironment | None = None

    def open(self, instruction: str | None) -> ControlLoop:
        terms, owner, life = self.terms, self.owner, self.facts.life
        env = self.make_env(terms)
        config = replace(terms.config, instruction=instruction or terms.config.instruction)
        interpreter = owner.interpreters.of(terms.agent) if terms.interprets else None
        with terms.decidable(), refusals.placed(life.welcomed):
            host = host_for(owner.pool, self.id, terms)
        try:
            recorder, self.record = open_record(self.id, life.runs, terms, config, self.note, env.pictures.recorded)
        except WireError:
            host.close()
            raise
        options = LoopOptions(
            sample=Observation(0, 0, time.monotonic_ns(), RemoteData.of(None, "warm-up")) if config.warmup else None,
            notify=self.note,
            clock=terms.arrivals(env) or WallClock(config.period_ns, spin_ns=0),
            watch=owner.watch,
            interpreter=interpreter,
            goals=goal_tools(terms.agent),
            listener=self,
        )
        loop = ControlLoop(config, terms.agent, env, host, recorder, options)
        owner.stats.start(loop)
        self.attach(loop)
        return loop

    def make_env(self, terms: Terms) -> RemoteEnvironment:
        """Return the client's world."""
        if self.env is None:
            remote = terms.remote(self.facts.token)
            self.env = RemoteEnvironment(remote, self.send, self.warm, self._undecided)
        return self.env

    def attach(self, loop: ControlLoop) -> None:
        """This loop will run."""
        self.need()  # of the loop before
        self.loop = loop
        self.owner.report(self.owner.core.attached, self.facts)

    def run(self) -> None:
        loop, owner = self.loop, self.owner
        assert loop is not None, "it is open"
        try:
            with refusals.placed(self.facts.life.welcomed):
                loop.run()
        except DecisionFailed as error:
            raise self.terms.undecodable(error) from None
        except UserError as error:
            raise owner.tell(owner.core.unfit, self.facts, error.what, error.remedy) from None
        finally:
            if loop.state.launched:
                known = loop.instructions
                owner.tell(owner.core.ran, self.facts, known.proven, [known.now, *known.waiting][-1])

    # -- what its loop and its world report ---------------------------------------------------------------------------

    def report(self, report: LoopReport) -> None:
        loop, env, facts, owner = self.loop, self.env, self.facts, self.owner
        if loop is None or env is None:
            return
        if report.kind == "accepted":
            env.accepted(report.text)
        elif report.kind == "refused":
            owner.report(owner.core.gave_way, facts, report.why)
        elif report.kind == "doubted":
            # It stays active, and what is called by it is held back.
            error = WireError(Code.UNSURE, report.why, "Say it in other words.", field="instruction")
            owner.report(owner.core.wrong, facts, error)
        else:
            self.send(replies.control_of(loop.operator, facts.token))

    def understood(self, result: Understood) -> None:
        if self.loop is not None and self.loop.interpretation is not None:
            examples = self.loop.interpretation.interpreter.examples()
            answer = replies.interpreted(result, self.facts.token, examples)
            overtaken = result.why == "overtaken"
            self.owner.report(self.owner.core.understood, self.facts, result.said, overtaken, answer)

    def _undecided(self, emission: Emission, seq: int | None) -> None:
        self.owner.report(self.owner.core.wrong, self.facts, replies.undecided(emission, seq), emission.error or "")

    # -- the runner of the core, from any thread ----------------------------------------------------------------------

    def restart(self) -> None:
        if self.env is not None:
            self.env.restart()

    def take(self, message: Message) -> None:
        assert self.env is not None, "it is live"
        TAKE[type(message)](self.env, message)

    def instruct_loop(self, text: str) -> bool:
        return self.loop is not None and self.loop.instruct(text)

    def say_to_loop(self, word: str, by: str, k: int | None) -> str:
        assert self.loop is not None, "it is attached"
        return self.loop.operator.say(word, by, k)

    def welcome(self, now_ns: int, resumed: bool) -> list[Message]:
        loop, env, facts = self.loop, self.env, self.facts
        if loop is None or env is None or loop.ended_by is not None:
            return []
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
        control = replies.control_of(loop.operator, facts.token)
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
