"""A client's crowd, as a session: its terms, its members, and one thread that runs their loop. Decides nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rtcontrol import records as ev
from rtcontrol.hosts.deciders import crowd_request
from rtcontrol.hosts.protocol import DecisionRequest, DecoderUnavailable, Host
from rtcontrol.loop.rules import rules_of, settings_of
from rtcontrol.loop.warmup import Warmup
from rtcontrol.models.errors import UserError
from rtcontrol.serve import refusals
from rtcontrol.serve.crowd.core import CrowdCore, Refuse, SendCalls
from rtcontrol.serve.crowd.members import Members, crowd_terms
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.runs import open_record
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.sessions import BY_HAND, Need
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire import messages as wire

QUEUE = 256  # messages that wait for the loop
IDLE_NS = 250_000_000
ROUNDS = 3  # of warm-up


class CrowdLoop:
    """One run of a core. Any thread may call `take`, `post` and `stop`; `send` takes what is for the client."""

    def __init__(self, core: CrowdCore, host: Host, recorder: Recorder, send: Callable[[ev.Action], None]) -> None:
        self.core, self.host, self.recorder, self._send = core, host, recorder, send
        self.ended_by: str | None = None
        self._inbox: deque[Message | ev.Event] = deque()
        self._state: tuple[bool, int, str | None, int] = (True, 0, None, 0)

    @property
    def account(self) -> Account:
        return self.recorder.recent.account

    def take(self, message: Message) -> None:
        """Let the core take the client's message soon. Raises WireError (rate) where too many wait."""
        if len(self._inbox) >= QUEUE:
            raise WireError(
                Code.RATE, f"{QUEUE} messages wait for the crowd.", "Send fewer, larger ones.", retryable=True
            )
        self.post(message)

    def post(self, event: Message | ev.Event) -> None:
        """Let the core take it soon."""
        self._inbox.append(event)
        self.host.wake()

    def stop(self, why: str) -> None:
        """End soon, with all members safe."""
        self.ended_by = self.ended_by or why
        self.host.wake()

    def start(self, rounds: int) -> None:
        """Start the host, and decide so many times, so that the first batch is expected to take what it will. Raises
        UserError where the decider cannot decide for these tools."""
        info, goal, warmup = self.host.start(), self.core.members.goal, Warmup()
        warmup.decide(self.host, lambda k: crowd_request(k, [DecisionRequest(k, 0, "warm-up", goal)], 0), rounds)
        for took_ms in warmup.round_trip_ms[1:]:  # the first one makes everything warm
            self.core.queue.times.took(1, round(took_ms * 1e6), late=False)
        self.recorder.file.keep()
        self.recorder.write({"start": {"host_info": info}})

    def run(self) -> None:
        """Run until it is stopped, or the decoder gave up."""
        try:
            while self.ended_by is None and self.host.gave_up is None:
                self._collect()
                self._dispatch(ev.Woke())
                if (reply := self.host.wait(self._wait_ns())) is not None:
                    self._dispatch(ev.Replied(reply))
            self._collect()
        finally:
            self._dispatch(ev.Stopped(self.ended_by or self.host.gave_up or "failed"))

    def _wait_ns(self) -> int:
        wake_ns = self.core.wake_ns
        if self._inbox:
            return 0
        return IDLE_NS if wake_ns is None else min(IDLE_NS, max(0, wake_ns - time.monotonic_ns()))

    def _collect(self) -> None:
        """Let the core take what happened meanwhile."""
        host = self.host
        state = (host.alive(), host.incarnation, host.gave_up, len(host.events))
        if state != self._state:
            self._state = state
            self._dispatch(ev.HostChanged(*state[:3], tuple(host.events)))
        events = [self._inbox.popleft() for _ in range(len(self._inbox))]
        newest = next((event for event in reversed(events) if isinstance(event, ev.Instructed)), None)
        for event in events:
            if not isinstance(event, ev.Instructed) or event is newest:  # each costs a look at every member
                self._dispatch(event)

    def _dispatch(self, event: Message | ev.Event) -> None:
        """Let the core take the event, do what it says, and let it take the answers."""
        events: deque[Message | ev.Event] = deque([event])
        while events:
            for action in self.core.advance(events.popleft(), time.monotonic_ns()):
                if isinstance(action, ev.Record):
                    self.recorder.write(action.line)
                elif isinstance(action, ev.Ask):
                    events.append(self._ask(action))
                elif isinstance(action, ev.Cancel):
                    self.host.cancel(action.k)
                else:
                    self._send(action)

    def _ask(self, action: ev.Ask) -> ev.Sent:
        try:
            self.host.submit(action.request)
            return ev.Sent()
        except Exception as error:
            return ev.Sent(error)


class CrowdSession(SessionThread):
    """Members are kept while the client is away; they are decided for again once they are seen."""

    crowd: CrowdLoop | None = None

    def negotiate(self) -> Terms:
        return crowd_terms(super().negotiate())

    def open(self, instruction: str | None) -> CrowdLoop:
        owner, terms, life = self.owner, self.terms, self.facts.life
        with terms.decidable(), refusals.placed(life.welcomed):
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
        owner.report(owner.core.attached, self.facts)
        return self.crowd

    def _members(self) -> tuple[Members, int]:
        """Return the members, and the newest tick's number: those of the run before, as its client knows them."""
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
        except DecoderUnavailable as error:
            raise refusals.unavailable(error, self.facts.life.welcomed) from None
        except UserError as error:
            raise self.terms.undecodable(error) from None
        finally:
            crowd.stop("over")
            crowd.host.close()

    def _send_action(self, action: ev.Action) -> None:
        if isinstance(action, SendCalls):
            for calls in wire.in_messages(action.calls):
                self.send(wire.CallMany(session=self.facts.token, t_server_ns=time.monotonic_ns(), calls=calls))
        elif isinstance(action, Refuse):
            self.owner.report(self.owner.core.wrong, self.facts, action.error)
        elif isinstance(action, ev.Instruct):
            self.send(wire.Instruct(session=self.facts.token, instruction=action.text))

    # -- the runner of the core, from any thread ----------------------------------------------------------------------

    def take(self, message: Message) -> None:
        assert self.crowd is not None, "it is live"
        self.crowd.take(message)

    def instruct_loop(self, text: str) -> bool:
        if self.crowd is not None:
            self.crowd.post(ev.Instructed(text))
        return False  # what it starts with when it is resumed

    def say_to_loop(self, word: str, by: str, k: int | None) -> str:
        assert self.crowd is not None, "it is attached"
        self.crowd.post(ev.OperatorCommand(word, by, time.monotonic_ns()))
        if word == "stop":
            self.crowd.stop(BY_HAND)
        return f"{word} ({by})"

    def stop_loop(self, why: str) -> None:
        if self.crowd is not None:
            self.crowd.stop(why)

    def need(self) -> Need | None:
        if self.crowd is not None and (hz := sum(1e9 / member.period_ns for member in self.crowd.core.members)):
            self.needed = Need.of(list(self.crowd.core.queue.shares), hz) or self.needed
        return self.needed

    def welcome(self, now_ns: int, resumed: bool) -> list[Message]:
        crowd, facts = self.crowd, self.facts
        if crowd is None or crowd.ended_by is not None:
            return []
        welcome = self.terms.welcome(
            session=facts.token,
            resumed=resumed,
            instruction=crowd.core.members.goal,
            epoch=0,
            t_client_ns=facts.hello.t_client_ns,
            t_server_ns=now_ns,
        )
        paused = wire.ControlMessage(session=facts.token, state="paused")
        return [welcome, paused] if facts.life.paused else [welcome]

    def traffic(self) -> dict[str, Any]:
        if self.crowd is None:
            return {}
        members, queue = self.crowd.core.members, self.crowd.core.queue
        return {"observations": members.looks, "batches": queue.count, "late_dropped": queue.late_dropped}
