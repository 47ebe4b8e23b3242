"""A client's crowd, as a session: its terms, its members, and one thread that runs their loop."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Literal

from rtcontrol.hosts.crowd import CharacterAsk, crowd_request, crowd_source, unpack
from rtcontrol.hosts.policy_api import PolicySource
from rtcontrol.hosts.protocol import DecisionReply, DecoderUnavailable, Host
from rtcontrol.hosts.remote_api import EndpointSource
from rtcontrol.loop.config import instruction_text
from rtcontrol.loop.operator import SAID
from rtcontrol.models.errors import UserError
from rtcontrol.serve import errors
from rtcontrol.serve.crowd.accounts import CrowdEvents
from rtcontrol.serve.crowd.loop import CrowdLoop, CrowdMessage
from rtcontrol.serve.crowd.member import CrowdDefaults, Roster
from rtcontrol.serve.negotiate import CONTROL, EXECUTED, Terms, negotiate
from rtcontrol.serve.session import BY_HAND, LOST, Need, Session, open_record, record_path, undisturbed
from rtcontrol.serve.stats import Run, write_report
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.crowd import MEMBERS, PARTS, CallMany, CrowdTerms, MemberCall, in_messages
from rtcontrol_client.wire.messages import ControlMessage, Instruct
from rtcontrol_client.wire.pictures import PICTURES

WARM_S, ROUNDS = 120.0, 3


class CrowdSession(Session):
    """Members are kept while the client is away; they are decided for again once they are seen."""

    crowd: CrowdLoop | None = None
    roster: Roster | None = None

    @property
    def running(self) -> bool:
        return self.crowd is not None and self.crowd.ended_by is None

    # -- from any thread ----------------------------------------------------------------------------------------------

    def take(self, message: CrowdMessage) -> None:
        """A message of the crowd's. Raises WireError."""
        if self.crowd is None or self.state != "live":
            raise WireError(Code.STATE, "The session is not open.", "Wait for the welcome.", retryable=True)
        self.crowd.post(message)

    def stop(self, why: str, final: bool = True) -> None:
        super().stop(why, final)
        if self.crowd is not None:
            self.crowd.stop(why)

    def instruct(self, text: str, by_client: bool = False) -> None:
        text = instruction_text(text)
        self._newest = text if by_client else self._newest
        self._instruction = text
        if (crowd := self.crowd) is not None:
            crowd.call_soon(lambda: self._instructed(crowd, text))

    def _instructed(self, crowd: CrowdLoop, text: str) -> None:
        crowd.tell_all(text)
        crowd.events.emit({"instruction": text, "t_s": crowd.events.t_s(time.monotonic_ns())})
        self.send(Instruct(session=self.token, instruction=text))

    def say(self, said: str, by: str, k: int | None = None, instruction: str | None = None) -> str:
        if said not in SAID:
            raise ValueError(f"{said!r} is none of {', '.join(SAID)}")
        if said in ("confirm", "deny"):
            return "Nobody is asked for a crowd: calls that wait for a yes are held back."
        with self._people:
            if self.why is not None:
                return "It is stopped: a stop is final."
            self.paused = said != "resume"
            if said == "stop":
                self.why = BY_HAND
        if (crowd := self.crowd) is not None:
            crowd.call_soon(crowd.hold_all if self.paused else crowd.release_all)
            crowd.events.emit({"people": said, "by": by, "t_s": crowd.events.t_s(time.monotonic_ns())})
            if said == "stop":
                crowd.stop(BY_HAND)
        self._controlled()
        return f"{said} ({by})"

    def _controlled(self) -> None:
        if CONTROL in self.hello.capabilities:
            state: Literal["stopped", "paused", "running"] = "paused" if self.paused else "running"
            self.send(ControlMessage(session=self.token, state="stopped" if self.why == BY_HAND else state))

    def need(self) -> Need | None:
        crowd, roster = self.crowd, self.roster
        if crowd is not None and roster is not None and crowd.shares and roster.members:
            hz = sum(1e9 / member.period_ns for member in list(roster.members.values()))
            self._needed = Need(hz, undisturbed(list(crowd.shares)) / 1e9)
        return self._needed if self.why is None else None

    def welcome(self) -> None:
        terms, peer, roster = self.terms, self.peer, self.roster
        if terms is None or peer is None or roster is None:
            return
        again: dict[str, Any] = {"resumed": self.runs > 1 or self.hello.resume is not None}
        again["t_client_ns"] = self.hello.t_client_ns
        made = terms.welcome(self._owner.options, self.token, roster.defaults.instruction, **again)
        peer.send(made.model_copy(update={"crowd": CrowdTerms(members=roster.limit, parts=PARTS)}))
        if self.paused:
            self._controlled()

    # -- on the session's own thread ----------------------------------------------------------------------------------

    def _open(self) -> Run[CrowdLoop]:  # type: ignore[override]
        owner = self._owner
        self.runs += 1
        out = owner.options.out / self.id
        if self.terms is None:
            self.terms = self._agreed(negotiate(_checked(self.hello), owner.options, out))
        terms = self.terms
        if self.roster is None:
            limit = min(MEMBERS, (self.hello.crowd and self.hello.crowd.members) or MEMBERS)
            told = terms.config.instruction or terms.agent.instruction
            given = terms.agent, terms.config, self.hello.ttl_ms, told, owner.options.hz_max
            self.roster = Roster(CrowdDefaults(*given), limit)
        self._forget_looks(self.roster)
        with errors.no_host(terms), errors.placed(self.welcomed):
            host = owner.pool.open(self.id, terms.source)
        try:
            record, limit = record_path(out, self.runs), self.roster.limit
            recorder = open_record(record, terms, terms.config, self._note, crowd=limit)
        except WireError:
            host.close()
            raise
        events = CrowdEvents(recorder, terms.config.record_observations != "no")
        before = -1 if self.crowd is None else self.crowd.replies.k  # its client takes no tick twice
        self.crowd, self.counting = CrowdLoop(self.roster, host, events, self._tell_calls, self._refused_parts), True
        self.crowd.replies.k = before
        if self._lost or self.why is not None:
            self.crowd.stop(self.why or LOST)
        return Run(self.crowd, recorder, record)

    def _agreed(self, terms: Terms) -> Terms:
        """What of them is a crowd's. Raises WireError."""
        if isinstance(terms.source, EndpointSource | PolicySource):
            remedy = "Name a model that this server has."
            raise WireError(Code.MODEL, "A crowd is not decided elsewhere.", remedy, field="model", fatal=True)
        warnings = list(terms.warnings)
        if unused := sorted({EXECUTED, PICTURES} & {*self.hello.capabilities}):
            warnings.append(f"A crowd has no {', '.join(unused)}: its history is of calls that were sent.")
        if terms.config.interpreter is not None:
            warnings.append("Instructions of a crowd are taken as they are said.")
        if terms.config.hysteresis is not None:
            warnings.append("A crowd has no hysteresis: each value follows its decision.")
        if named := sorted({*terms.config.confirm, *terms.agent.confirm}):
            warnings.append(f"Nobody is asked for a crowd: calls of {', '.join(named)} are held back.")
        config = replace(terms.config, hysteresis=None)
        return replace(terms, config=config, source=crowd_source(terms.source), warnings=tuple(warnings))

    def _run(self, run: Run[CrowdLoop]) -> None:  # type: ignore[override]
        crowd = run.loop
        try:
            info = self._warm_up(crowd)
            run.recorder.keep()
            run.recorder.write({"start": {"host_info": info}})
            self._started()
            if self.paused:
                crowd.call_soon(crowd.hold_all)
            crowd.run()
            if crowd.host.gave_up is not None:
                raise DecoderUnavailable(crowd.host.gave_up, "Start the server again.")
        except DecoderUnavailable as error:
            raise WireError(Code.DECODER, error.what, error.remedy, retryable=True, fatal=not self.welcomed) from None
        finally:
            crowd.stop("over")
            crowd.host.close()
            run.recorder.discard()
            run.recorder.close()
            self._owner.counted(self)
            if failed := write_report(run, self._wire):
                self._owner.say(f"{self.id}: {failed}")

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

    def _forget_looks(self, roster: Roster) -> None:
        """What was seen before the client was lost says nothing of now."""
        for member in roster.members.values():
            member.look, member.released_ns, member.tick = None, None, None
            member.standing, member.newest_decided = "none", None

    def _tell_calls(self, calls: list[MemberCall]) -> None:
        for some in in_messages(calls):
            self.send(CallMany(session=self.token, t_server_ns=time.monotonic_ns(), calls=some))

    def _refused_parts(self, error: WireError) -> None:
        if (peer := self.peer) is not None:
            self._owner.refused(peer, error)

    def _wire(self) -> dict[str, Any]:
        crowd, roster = self.crowd, self.roster
        told: dict[str, Any] = {"client": self.hello.client.model_dump(), "session": self.id}
        told["refused"] = dict(self.refused)
        if crowd is not None and roster is not None:
            told |= {"observations": roster.looks, "batches": crowd.batches, "late_dropped": crowd.late_dropped}
        return told


def _reply(host: Host, number: int, over: Any) -> DecisionReply:
    give_up = time.monotonic() + WARM_S
    while time.monotonic() < give_up and not over():
        reply = host.wait(50_000_000)
        if reply is not None and reply.tick == number:
            return reply
    if over():
        return DecisionReply(number, None, "it was not waited for", 0)
    raise DecoderUnavailable(f"The decider gave no answer in {WARM_S:g} s of warm-up.", "Use a smaller model.")


def _checked(hello: Any) -> Any:
    """Raises WireError for what a crowd cannot have."""
    wrong = next(
        (name for name, had in (("pacing", hello.pacing == "client"), ("calls_per_tick", hello.calls_per_tick)) if had),
        None,
    )
    if wrong is not None:
        what = f"A crowd has no {wrong} {getattr(hello, wrong)!r}."
        raise WireError(Code.INVALID, what, "Leave it out; a crowd is paced by the server.", field=wrong, fatal=True)
    return hello


def of_crowd(session: Session) -> CrowdSession:
    """Raises WireError where the session is none."""
    if not isinstance(session, CrowdSession):
        raise WireError(Code.STATE, "This session is no crowd.", "Give hello `crowd: {}`.")
    return session
