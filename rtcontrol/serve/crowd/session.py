"""The session of a crowd: one client with many agents (members), whose ticks run in one loop."""

from __future__ import annotations

import time
from typing import Any

from rtcontrol import records as ev
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.loop.rules import rules_of, settings_of
from rtcontrol.serve import session_events
from rtcontrol.serve.crowd.core import CrowdCore, SendCalls, SendError
from rtcontrol.serve.crowd.loop import CrowdLoop
from rtcontrol.serve.crowd.members import Members, crowd_terms
from rtcontrol.serve.negotiate import SessionTerms
from rtcontrol.serve.runs import open_recorder
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.sessions import PERSON_STOPPED, DecoderNeed
from rtcontrol_client.wire import Message, WireError
from rtcontrol_client.wire import messages as wire

WARMUP_DECISIONS = 3
STATES: dict[str, Any] = {"pause": "paused", "resume": "running", "stop": "stopped"}


class CrowdSession(SessionThread):
    """A crowd's session. Members are kept while the client is disconnected; each resumes at its next observation."""

    crowd: CrowdLoop | None = None

    def negotiate(self) -> SessionTerms:
        return crowd_terms(super().negotiate())

    def create_loop(self, instruction: str | None) -> CrowdLoop:
        owner, terms, life = self.owner, self.terms, self.session.life
        with terms.decider_errors():
            host = owner.pool.open(self.id, terms.source)
        try:
            members, last_tick = self._previous_members()
            config, limit = terms.config, members.limit
            recorder, self.record = open_recorder(self.id, life.runs, terms, config, self.log_line, crowd=limit)
        except WireError:
            host.close()
            raise
        settings, rules = settings_of(terms.config, terms.agent), rules_of(terms.config, terms.agent)
        core = CrowdCore(members, settings, rules, last_tick)
        self.crowd = CrowdLoop(core, host, recorder, self._send_action)
        owner.stats.add_running(self.crowd)
        owner.handle(session_events.LoopCreated(self.session))
        return self.crowd

    def _previous_members(self) -> tuple[Members, int]:
        """Return the members and the highest tick number of the previous run (for a new crowd: no members, -1)."""
        if self.crowd is None:
            return Members(self.terms), -1
        core = self.crowd.core
        for member in core.members:
            member.forget_observations()
        return core.members, core.k

    def run(self) -> None:
        crowd = self.crowd
        assert crowd is not None, "the session is open"
        try:
            crowd.start(WARMUP_DECISIONS if self.terms.config.warmup else 0)
            self.report_warmed_up()
            crowd.run()
            if crowd.host.gave_up is not None:
                raise DecoderUnavailable(crowd.host.gave_up, "Start the server again.")
        finally:
            crowd.stop("over")
            crowd.host.close()

    def _send_action(self, action: ev.Action) -> None:
        if isinstance(action, SendCalls):
            for calls in wire.split_into_batches(action.calls):
                self.send(wire.CallMany(session=self.session.token, t_server_ns=time.monotonic_ns(), calls=calls))
            self.slow_down()
        elif isinstance(action, SendError):
            self.owner.handle(session_events.LoopError(self.session, action.error))
        elif isinstance(action, ev.Instruct):
            self.send(wire.Instruct(session=self.session.token, instruction=action.text))

    def deliver(self, message: Message) -> None:
        assert self.crowd is not None, "the session is live"
        self.crowd.enqueue_message(message)

    def instruct_loop(self, text: str) -> bool:
        if self.crowd is not None:
            self.crowd.enqueue_event(ev.NewInstruction(text))
        return False  # False makes `SessionCore` store the instruction also for the next run

    def command_loop(self, command: str, by: str, k: int | None) -> str:
        assert self.crowd is not None, "the loop exists"
        if command in ("confirm", "deny"):
            return "A crowd cannot confirm calls: calls that need a confirmation are withheld."
        if self.crowd.ended_by is not None:
            return "The crowd was stopped. A stop is final."
        self.crowd.enqueue_event(ev.OperatorCommand(command, by, time.monotonic_ns()))
        if command == "stop":
            self.crowd.stop(PERSON_STOPPED)
        self.send(wire.ControlMessage(session=self.session.token, state=STATES[command]))
        return f"{command} ({by})"

    def stop_loop(self, reason: str) -> None:
        if self.crowd is not None:
            self.crowd.stop(reason)

    def decoder_need(self) -> DecoderNeed | None:
        if self.crowd is not None and (hz := sum(1e9 / member.period_ns for member in self.crowd.core.members)):
            self.last_need = DecoderNeed.from_durations(list(self.crowd.core.queue.durations_ns), hz) or self.last_need
        return self.last_need

    def welcome_messages(self, resumed: bool) -> list[Message]:
        crowd, session = self.crowd, self.session
        if crowd is None or crowd.ended_by is not None:
            return []
        welcome = self.terms.welcome(
            session=session.token,
            resumed=resumed,
            instruction=crowd.core.members.goal,
            epoch=0,
            t_client_ns=session.hello.t_client_ns,
            t_server_ns=time.monotonic_ns(),
        )
        paused = wire.ControlMessage(session=session.token, state="paused")
        return [welcome, paused] if session.life.paused else [welcome]

    def message_counts(self) -> dict[str, Any]:
        if self.crowd is None:
            return {}
        members, queue = self.crowd.core.members, self.crowd.core.queue
        return {"observations": members.observations, "batches": queue.count, "late_dropped": queue.late_dropped}
