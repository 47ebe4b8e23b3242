"""A session with a crowd: negotiates the settings, keeps the members, and runs their loop."""

from __future__ import annotations

import time
from typing import Any

from rtcontrol import records as ev
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.loop.rules import rules_of, settings_of
from rtcontrol.serve import session_events
from rtcontrol.serve.crowd.core import CrowdCore, Refuse, SendCalls
from rtcontrol.serve.crowd.loop import CrowdLoop
from rtcontrol.serve.crowd.members import Members, crowd_terms
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.runs import open_record
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.sessions import BY_HAND, Need
from rtcontrol_client.wire import Message, WireError
from rtcontrol_client.wire import messages as wire

ROUNDS = 3  # warm-up decisions
STATES: dict[str, Any] = {"pause": "paused", "resume": "running", "stop": "stopped"}


class CrowdSession(SessionThread):
    """A crowd's session. Members are kept while the client is away, and resume with their next observation."""

    crowd: CrowdLoop | None = None

    def negotiate(self) -> Terms:
        return crowd_terms(super().negotiate())

    def open(self, instruction: str | None) -> CrowdLoop:
        owner, terms, life = self.owner, self.terms, self.facts.life
        with terms.decidable():
            host = owner.pool.open(self.id, terms.source)
        try:
            members, k = self._members()
            recorder, self.record = open_record(self.id, life.runs, terms, terms.config, self.note, crowd=members.limit)
        except WireError:
            host.close()
            raise
        core = CrowdCore(members, settings_of(terms.config, terms.agent), rules_of(terms.config, terms.agent), k)
        self.crowd = CrowdLoop(core, host, recorder, self._send_action)
        owner.stats.start(self.crowd)
        owner.tell(session_events.Attached(self.facts))
        return self.crowd

    def _members(self) -> tuple[Members, int]:
        """Return the members and the newest tick number of the previous run, or of a new crowd."""
        if self.crowd is None:
            return Members(self.terms), -1
        core = self.crowd.core
        for member in core.members:
            member.blind()
        return core.members, core.k

    def run(self) -> None:
        crowd = self.crowd
        assert crowd is not None, "it is open"
        try:
            crowd.start(ROUNDS if self.terms.config.warmup else 0)
            self.warm()
            crowd.run()
            if crowd.host.gave_up is not None:
                raise DecoderUnavailable(crowd.host.gave_up, "Start the server again.")
        finally:
            crowd.stop("over")
            crowd.host.close()

    def _send_action(self, action: ev.Action) -> None:
        if isinstance(action, SendCalls):
            for calls in wire.in_messages(action.calls):
                self.send(wire.CallMany(session=self.facts.token, t_server_ns=time.monotonic_ns(), calls=calls))
        elif isinstance(action, Refuse):
            self.owner.tell(session_events.Wrong(self.facts, action.error))
        elif isinstance(action, ev.Instruct):
            self.send(wire.Instruct(session=self.facts.token, instruction=action.text))

    # -- for the owner, from any thread -------------------------------------------------------------------------------

    def take(self, message: Message) -> None:
        assert self.crowd is not None, "it is live"
        self.crowd.take(message)

    def instruct_loop(self, text: str) -> bool:
        if self.crowd is not None:
            self.crowd.post(ev.NewInstruction(text))
        return False  # the core also keeps the instruction for a resumed run

    def say_to_loop(self, word: str, by: str, k: int | None) -> str:
        assert self.crowd is not None, "it is attached"
        if word in ("confirm", "deny"):
            return "A crowd has no confirmation: calls that need one are held back."
        if self.crowd.ended_by is not None:
            return "The crowd is stopped: a stop is final."
        self.crowd.post(ev.OperatorCommand(word, by, time.monotonic_ns()))
        if word == "stop":
            self.crowd.stop(BY_HAND)
        self.send(wire.ControlMessage(session=self.facts.token, state=STATES[word]))
        return f"{word} ({by})"

    def stop_loop(self, why: str) -> None:
        if self.crowd is not None:
            self.crowd.stop(why)

    def need(self) -> Need | None:
        if self.crowd is not None and (hz := sum(1e9 / member.period_ns for member in self.crowd.core.members)):
            self.needed = Need.of(list(self.crowd.core.queue.shares), hz) or self.needed
        return self.needed

    def welcome(self, resumed: bool) -> list[Message]:
        crowd, facts = self.crowd, self.facts
        if crowd is None or crowd.ended_by is not None:
            return []
        welcome = self.terms.welcome(
            session=facts.token,
            resumed=resumed,
            instruction=crowd.core.members.goal,
            epoch=0,
            t_client_ns=facts.hello.t_client_ns,
            t_server_ns=time.monotonic_ns(),
        )
        paused = wire.ControlMessage(session=facts.token, state="paused")
        return [welcome, paused] if facts.life.paused else [welcome]

    def traffic(self) -> dict[str, Any]:
        if self.crowd is None:
            return {}
        members, queue = self.crowd.core.members, self.crowd.core.queue
        return {"observations": members.looks, "batches": queue.count, "late_dropped": queue.late_dropped}
