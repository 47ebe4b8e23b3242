"""A client's crowd, as a session: its terms, its members, and one thread that runs their loop."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from rtcontrol.hosts.crowd import CharacterAsk, crowd_request, crowd_source, unpack
from rtcontrol.hosts.policy_api import PolicySource
from rtcontrol.hosts.protocol import DecisionReply, DecoderUnavailable, Host
from rtcontrol.hosts.remote_api import EndpointSource
from rtcontrol.models.errors import UserError
from rtcontrol.serve import errors
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.crowd.accounts import CrowdEvents
from rtcontrol.serve.crowd.loop import CrowdLoop
from rtcontrol.serve.crowd.member import CrowdDefaults, Roster
from rtcontrol.serve.negotiate import EXECUTED, Terms
from rtcontrol.serve.runs import open_record
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.session_state import LoopStanding, Need
from rtcontrol.serve.sessions import BY_HAND
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.crowd import (
    MEMBERS,
    PARTS,
    CallMany,
    CrowdTerms,
    Join,
    Leave,
    MemberCall,
    ObserveMany,
    in_messages,
)
from rtcontrol_client.wire.messages import ControlMessage, Hello, Instruct
from rtcontrol_client.wire.pictures import PICTURES

WARM_S, ROUNDS = 120.0, 3


class CrowdSession(SessionThread):
    """Members are kept while the client is away; they are decided for again once they are seen."""

    crowd: CrowdLoop | None = None
    roster: Roster | None = None

    # -- from any thread ----------------------------------------------------------------------------------------------

    def take(self, message: Message) -> None:
        assert self.crowd is not None and isinstance(message, Join | Leave | ObserveMany), "it is live"
        self.crowd.post(message)

    def stop_loop(self, why: str) -> None:
        if self.crowd is not None:
            self.crowd.stop(why)

    def hear(self, text: str) -> bool:
        if (crowd := self.crowd) is not None:
            crowd.call_soon(lambda: self._instructed(crowd, text))
        return False  # what it begins with when it is resumed

    def _instructed(self, crowd: CrowdLoop, text: str) -> None:
        crowd.tell_all(text)
        crowd.events.emit({"instruction": text, "t_s": crowd.events.t_s(time.monotonic_ns())})
        self.send(Instruct(session=self.facts.token, instruction=text))

    def say_to_loop(self, action: ev.SayToLoop) -> str:
        crowd, word, by = self.crowd, action.word, action.by
        assert crowd is not None, "it is attached"
        crowd.call_soon(crowd.release_all if word == "resume" else crowd.hold_all)
        if by != "before":
            crowd.events.emit({"people": word, "by": by, "t_s": crowd.events.t_s(time.monotonic_ns())})
        if word == "stop":
            crowd.stop(BY_HAND)
        return f"{word} ({by})"

    def need(self) -> Need | None:
        crowd, roster = self.crowd, self.roster
        if crowd is not None and roster is not None and roster.members:
            hz = sum(1e9 / member.period_ns for member in list(roster.members.values()))
            self.needed = Need.of(list(crowd.shares), hz) or self.needed
        return self.needed

    def look(self) -> LoopStanding | None:
        if self.roster is None or self.crowd is None or self.crowd.ended_by is not None:
            return None
        told = ControlMessage(session=self.facts.token, state="paused" if self.facts.life.paused else "running")
        return LoopStanding(self.roster.defaults.instruction, control=told)

    # -- on the session's own thread ----------------------------------------------------------------------------------

    def negotiate(self) -> Terms:
        _check(self.facts.hello)
        return _agreed(super().negotiate())

    def open(self, instruction: str | None) -> CrowdLoop:
        owner, terms, hello = self.owner, self.terms, self.facts.hello
        assert terms.crowd is not None, "it was agreed upon"
        if self.roster is None:
            told = terms.config.instruction or terms.agent.instruction
            given = terms.agent, terms.config, hello.ttl_ms, told, owner.options.hz_max
            self.roster = Roster(CrowdDefaults(*given), terms.crowd.members)
        for member in self.roster.members.values():
            member.blind()
        with errors.no_host(terms), errors.placed(self.facts.life.welcomed):
            host = owner.pool.open(self.id, terms.source)
        try:
            more = {"tell": self.note, "crowd": self.roster.limit}
            recorder, self.record = open_record(self.id, self.facts.life.runs, terms, terms.config, **more)
        except WireError:
            host.close()
            raise
        events = CrowdEvents(recorder, terms.config.record_observations != "no")
        before = -1 if self.crowd is None else self.crowd.replies.k  # its client takes no tick twice
        self.crowd = crowd = CrowdLoop(self.roster, host, events, self._tell_calls, self._refused_parts)
        crowd.replies.k = before
        owner.stats.begin(crowd)
        for action in owner.tell(ev.LoopAttached(self.facts)):
            self.answer(action)
        return crowd

    def run(self) -> None:
        crowd = self.crowd
        assert crowd is not None, "it is open"
        try:
            info = self._warm_up(crowd)
            crowd.recorder.keep()
            crowd.recorder.write({"start": {"host_info": info}})
            self.warm()
            crowd.run()
            if crowd.host.gave_up is not None:
                raise DecoderUnavailable(crowd.host.gave_up, "Start the server again.")
        except DecoderUnavailable as error:
            fatal = not self.facts.life.welcomed
            raise WireError(Code.DECODER, error.what, error.remedy, retryable=True, fatal=fatal) from None
        finally:
            crowd.stop("over")
            crowd.host.close()

    def _warm_up(self, crowd: CrowdLoop) -> dict[str, Any]:
        """A few decisions of one, so that the first batch is expected to take what it will. Raises WireError where the
        decider cannot decide for these tools."""
        config, host = crowd.roster.defaults.config, crowd.host
        info = host.start()
        for i in range(ROUNDS if config.warmup else 0):
            began = time.monotonic_ns()
            asked = [CharacterAsk("0", -1 - i, "warm-up", crowd.roster.defaults.instruction)]
            host.submit(crowd_request(-1 - i, asked, 0))
            (found,) = unpack(_reply(host, -1 - i, lambda: crowd.ended_by is not None), 1)
            if found.error is not None and crowd.ended_by is None:
                mistake = found.mistake or (found.error, "Choose another model.")
                raise errors.undecodable(UserError(*mistake), crowd.roster.defaults.agent.tools)
            if i:  # the first one makes everything warm
                crowd.times.took(1, time.monotonic_ns() - began, late=False)
        return info

    def _tell_calls(self, calls: list[MemberCall]) -> None:
        for some in in_messages(calls):
            self.send(CallMany(session=self.facts.token, t_server_ns=time.monotonic_ns(), calls=some))

    def _refused_parts(self, error: WireError) -> None:
        self.owner.tell(ev.ErrorReported(self.facts, error))

    def traffic(self) -> dict[str, Any]:
        crowd = self.crowd
        if crowd is None:
            return {}
        return {"observations": crowd.roster.looks, "batches": crowd.batches, "late_dropped": crowd.late_dropped}


def _reply(host: Host, number: int, over: Any) -> DecisionReply:
    give_up = time.monotonic() + WARM_S
    while time.monotonic() < give_up and not over():
        reply = host.wait(50_000_000)
        if reply is not None and reply.tick == number:
            return reply
    if over():
        return DecisionReply(number, None, "it was not waited for", 0)
    raise DecoderUnavailable(f"The decider gave no answer in {WARM_S:g} s of warm-up.", "Use a smaller model.")


def _check(hello: Hello) -> None:
    """Raises WireError for what a crowd cannot have."""
    for name, had in (("pacing", hello.pacing == "client"), ("calls_per_tick", hello.calls_per_tick)):
        if had:
            what, remedy = f"A crowd has no {name} {getattr(hello, name)!r}.", "Leave it out: the server sets the pace."
            raise WireError(Code.INVALID, what, remedy, field=name, fatal=True)


def _agreed(terms: Terms) -> Terms:
    """What of them is a crowd's. Raises WireError."""
    if isinstance(terms.source, EndpointSource | PolicySource):
        remedy = "Name a model that this server has."
        raise WireError(Code.MODEL, "A crowd is not decided elsewhere.", remedy, field="model", fatal=True)
    hello, warnings = terms.hello, list(terms.warnings)
    if unused := sorted({EXECUTED, PICTURES} & {*hello.capabilities}):
        warnings.append(f"A crowd has no {', '.join(unused)}: its history is of calls that were sent.")
    if terms.config.interpreter is not None:
        warnings.append("Instructions of a crowd are taken as they are said.")
    if terms.config.hysteresis is not None:
        warnings.append("A crowd has no hysteresis: each value follows its decision.")
    if named := sorted({*terms.config.confirm, *terms.agent.confirm}):
        warnings.append(f"Nobody is asked for a crowd: calls of {', '.join(named)} are held back.")
    config = replace(terms.config, hysteresis=None, interpreter=None)
    crowd = CrowdTerms(members=min(MEMBERS, (hello.crowd and hello.crowd.members) or MEMBERS), parts=PARTS)
    source = crowd_source(terms.source)
    return replace(terms, config=config, source=source, warnings=tuple(warnings), crowd=crowd)
