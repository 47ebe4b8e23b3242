"""One client's session: its terms, its world, and one thread that runs its loop; it may outlive connections."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from rtcontrol.envs.base import Emission, Observation
from rtcontrol.envs.remote import RemoteData, RemoteEnvironment
from rtcontrol.hosts.protocol import DecoderPool, Host
from rtcontrol.loop.clock import WallClock
from rtcontrol.loop.config import RunConfig, instruction_text, size
from rtcontrol.loop.evidence import PauseWatch
from rtcontrol.loop.interpreter import Understood
from rtcontrol.loop.loop import ControlLoop, LoopOptions
from rtcontrol.loop.realtime import NoCollector
from rtcontrol.loop.warmup import DecisionFailed
from rtcontrol.models.errors import UserError
from rtcontrol.run.interpreting import Interpreters, goal_tools
from rtcontrol.serve import errors
from rtcontrol.serve.negotiate import CONTROL, Terms, negotiate
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.peer import Peer, TokenBucket
from rtcontrol.serve.pools import open_host
from rtcontrol.serve.stats import Run, write_report
from rtcontrol.telemetry.pictures import received
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.messages import Bye, CallMessage, ControlMessage, Hello

log = logging.getLogger("rtcontrol.serve")

State = Literal["opening", "live", "parked", "over"]
LOST, BYE, STOPPED, BY_HAND = "client lost", "client said bye", "server stopped", "a person stopped it"
LEAVING = "the server goes away: connect again"


@dataclass(frozen=True)
class Need:
    """A session's rate, and the seconds of the decoder that one of its decisions takes; those that are decided together
    share theirs."""

    hz: float
    share_s: float

    @property
    def busy(self) -> float:
        """The part of the decoder's time that it takes."""
        return self.hz * self.share_s


def undisturbed(shares: Sequence[float]) -> float:
    """Of what decisions took: what one of four stayed under, as others on the machine make some of them longer."""
    return sorted(shares)[len(shares) // 4]


def need_of(host: Host, hz: float) -> Need | None:
    """What a session needs that decides there so often; None before its first decision."""
    shares = list(host.shares)
    return Need(hz, undisturbed(shares) / 1e9) if shares else None


class SessionOwner(Protocol):
    """What a session asks of the server that it belongs to; from any thread."""

    options: ServeOptions
    pool: DecoderPool
    watch: PauseWatch
    say: Callable[[str], None]
    interpreters: Interpreters
    opening: threading.Semaphore
    resuming: threading.Semaphore

    def refused(self, peer: Peer[Session], error: WireError) -> None: ...

    def counted(self, session: Session) -> None:
        """Its run is over: what it came to stays in the server's totals."""

    def welcome(self, session: Session) -> None:
        """It is warm. Raises DecoderUnavailable where there is no room for its ticks."""

    def ended(self, session: Session, error: WireError | None) -> None: ...


class Session:
    """`state`: opening until the welcome, live while the loop runs, parked while the client is away, over.

    `peer` is the connection, None while there is none. Methods are for any thread but `_work`, the session's own.
    """

    def __init__(self, number: int, peer: Peer[Session], hello: Hello, owner: SessionOwner) -> None:
        self.id = f"session-{number:04d}"
        self.token = secrets.token_urlsafe(24)
        self.key = peer.connection.key
        self.hello = hello
        self.peer: Peer[Session] | None = peer
        self.state: State = "opening"
        self.welcomed = False
        self.why: str | None = None  # it ends, and cannot be resumed
        self.parked_s = 0.0
        self.refused: Counter[str] = Counter()
        self.terms: Terms | None = None
        self.env: RemoteEnvironment | None = None
        self.loop: ControlLoop | None = None
        self.counting = False  # the loop's account is not in the server's totals yet
        self.paused = False  # by a person: it stays so, whatever becomes of its client
        self._people = threading.Lock()  # what they say is for the loop there is, or for the next one
        self.runs = 0
        self.thread: threading.Thread | None = None
        self._owner = owner
        self._needed: Need | None = None
        self._lost = False
        self.leaving = False  # its client goes to another server after its next call
        self._instruction: str | None = None  # the newest asked for that was not refused
        self._newest: str | None = None  # the client's own
        self._began: str | None = None  # the one of these that the run began with
        self._proven: str | None = None  # the one that the run before ended with
        self._refusal: str | None = None  # why an instruction was refused, until its client is told
        self._said: str | None = None  # the same, until its tick's trouble is to be told
        self._troubled: tuple[int | None, str] = (None, "")  # what was told last
        self._lines = TokenBucket(1.0, 5.0)

    @property
    def shown_name(self) -> str:
        return self.hello.client.name

    @property
    def running(self) -> bool:
        return self.loop is not None and self.loop.ended_by is None

    # -- from the admission -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open it (again), and run its loop on a thread of its own."""
        self._lost = False
        self.thread = threading.Thread(target=self._work, name=self.id, daemon=True)
        self.thread.start()

    def stop(self, why: str, final: bool = True) -> None:
        """End the loop soon, with the safe call. `final`: the session cannot be resumed."""
        if final:
            self.why = self.why or why
        self._lost = True
        if self.loop is not None:
            self.loop.stop(why)

    def may_succeed(self, hello: Hello) -> bool:
        """Whether a client that knows no token may take the place of one that is gone."""
        return False

    def succeed(self, peer: Peer[Session], hello: Hello) -> None:
        """It does: for it the session is a new one, in a new epoch."""
        self.peer, self.hello, peer.session = peer, hello, self
        if self.env is not None:
            self.env.succeed()
        if self.state == "live":
            peer.in_ns = time.monotonic_ns()
            self.welcome()

    def instruct(self, text: str, by_client: bool = False) -> None:
        """Raises UserError for one that is too long."""
        text, loop = instruction_text(text), self.loop
        if by_client:
            self._newest = text
        heard = loop is not None and loop.instruct(text)
        if not heard or loop is None or loop.interpretation is None:
            self._instruction = text  # where nobody understands it now, the next loop begins with it

    def say(self, said: str, by: str, k: int | None = None) -> str:
        """What a person says (`Override.say`), in force also in a session that opens or waits for its client. A stop
        ends it for good."""
        with self._people:
            if said in ("pause", "resume", "stop"):
                self.paused = said != "resume"
            if said == "stop":
                self.why = self.why or BY_HAND
            return f"{said} ({by})" if self.loop is None else self.loop.operator.say(said, by, k)

    def control(self, message: ControlMessage) -> None:
        """The client's message. Raises WireError."""
        said = errors.saying_of(message, self.hello.capabilities)
        if message.instruction is not None and said in ("confirm", "deny"):
            raise errors.unknown_question(message.instruction)
        self._note(self.say(said, "wire", message.id))

    def _controlled(self) -> None:
        """Tell the client, if it wants to know, what people did, or what waits for their yes."""
        if self.loop is None or CONTROL not in self.hello.capabilities:
            return
        self.send(errors.control_of(self.loop.operator, self.token))

    def _understood(self, found: Understood) -> None:
        """Tell the client what came of what somebody said, but for its own that it has overtaken itself."""
        loop, peer = self.loop, self.peer
        if loop is None or loop.interpretation is None or peer is None or self.state != "live":
            return  # its welcome will tell what is in force
        if found.why == "overtaken" and found.said != self._newest:
            return
        if found.text is None:
            self._owner.refused(peer, errors.not_understood(found, loop.interpretation.interpreter))
        else:
            self.send(errors.understood_as(found, self.token))

    def welcome(self) -> None:
        """Tell the client what is in force."""
        terms, env, loop, peer = self.terms, self.env, self.loop, self.peer
        if terms is None or env is None or loop is None or peer is None:
            return
        slow = loop.warmup.warning(terms.config)
        peer.send(
            terms.welcome(
                self._owner.options,
                self.token,
                loop.instruction,
                resumed=self.runs > 1 or self.hello.resume is not None,
                epoch=env.epoch,
                t_client_ns=self.hello.t_client_ns,
                release_ns=env.next_release_ns(terms.config.period_ns, time.monotonic_ns()),
                more=() if slow is None else (slow,),
            )
        )
        if loop.operator.state != "running" or loop.operator.asking is not None:
            self._controlled()

    def bye(self, why: str) -> None:
        self.send(Bye(session=self.token, reason=why))

    def send(self, message: Message) -> None:
        if (peer := self.peer) is None:
            return
        peer.send(message)
        if self._refusal is not None and isinstance(message, CallMessage):
            # After its tick's call: a client that waits for one must not take it for the refusal of the observation.
            error, self._refusal = errors.refused_instruction(self._refusal, message.seq_obs), None
            self._owner.refused(peer, error)
        if self.leaving and isinstance(message, CallMessage) and not message.more and self.why in (None, LEAVING):
            # Now the client acts by what is as new as can be. Without the owner's lock: the actuator may hold its own.
            self.stop(LEAVING)
            peer.send(Bye(session=self.token, reason=LEAVING, reconnect=True))
            peer.session = self.peer = None

    def need(self) -> Need | None:
        """What it needs of the decoder, or needed last: whoever waits for its client keeps its part. None before its
        first decision, and when it cannot be resumed."""
        if (loop := self.loop) is not None:
            self._needed = need_of(loop.host, loop.config.hz * loop.config.calls_per_tick) or self._needed
        return self._needed if self.why is None else None

    def attach(self, loop: ControlLoop) -> None:
        """This loop will run."""
        loop.instructions.refused = self._refuse
        loop.operator.changed = self._controlled
        loop.operator.understanding.doubted = self._doubt
        if loop.interpretation is not None:
            loop.interpretation.answered = self._understood
        if self.env is not None:
            loop.instructions.accepted = self.env.accepted
        self.need()  # of the loop before
        with self._people:
            self.loop, self.counting = loop, True
            if self.paused:
                loop.operator.say("pause", "before")
            if self.why is not None:
                loop.stop(self.why)

    # -- on the session's own thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        error: WireError | None = None
        try:
            with self._owner.opening if self.terms is None else self._owner.resuming:
                # Whoever waits here for long may have gone meanwhile.
                run = None if self._gone() else self._open()
            if run is not None:
                self._run(run)
        except WireError as refusal:
            error = refusal
        except BaseException as fault:  # also SystemExit of a user's agent
            log.exception("%s failed", self.id)
            error = errors.failure(fault)
        finally:
            self._owner.ended(self, error)

    def _gone(self) -> bool:
        return self.why is not None or (self._lost and not self.welcomed)

    def _open(self) -> Run[ControlLoop]:
        owner = self._owner
        self.runs += 1
        out = owner.options.out / self.id
        if self.terms is None:
            self.terms = negotiate(self.hello, owner.options, out)
        terms = self.terms
        env = self.make_env(terms)
        told, interpreter = self._instruction, None
        self._began = told
        if terms.config.interpreter is not None:  # what waits for a yes is not in force after a pause either
            interpreter = owner.interpreters.of(terms.agent)
            told, self._instruction = told or self._proven, None
        config = replace(terms.config, instruction=told or terms.config.instruction)
        host = self._host(terms)
        record = record_path(out, self.runs)
        try:
            recorder = open_record(record, terms, config, self._note)
            recorder.pictures = received(env, config.record_pictures, recorder.header)
        except WireError:
            host.close()
            raise
        clock = terms.arrivals(env) or WallClock(config.period_ns, spin_ns=0)
        sample = Observation(0, 0, time.monotonic_ns(), RemoteData.of(None, "warm-up")) if config.warmup else None
        # The housekeeper collects, for all sessions.
        collector, goals = NoCollector(), goal_tools(terms.agent)
        options = LoopOptions(sample, self._note, clock, owner.watch, collector, interpreter, goals=goals)
        loop = ControlLoop(config, terms.agent, env, host, recorder, options)
        self.attach(loop)
        if self._lost:
            loop.stop(LOST)
        return Run(loop, recorder, record)

    def make_env(self, terms: Terms) -> RemoteEnvironment:
        """The client's world, the same for all runs of the session."""
        if self.env is None:
            remote = terms.remote(self.token, self._owner.options.queue)
            self.env = RemoteEnvironment("remote", remote, self.send, self._started, self._trouble)
        return self.env

    def _host(self, terms: Terms) -> Host:
        with errors.no_host(terms), errors.placed(self.welcomed):
            return open_host(self._owner.pool, self.id, terms)

    def _run(self, run: Run[ControlLoop]) -> None:
        try:
            with errors.placed(self.welcomed):
                run.loop.run()
        except DecisionFailed as error:
            assert self.terms is not None, "a loop has terms"
            raise errors.undecodable(error, self.terms.agent.tools) from None
        except UserError as error:
            # One that was asked for while the client was going: it comes back to the one before.
            others = {self._began, self._instruction} - {None, self._proven}
            again = self.welcomed and self._proven is not None and bool(others)
            if again:
                self._instruction = self._proven
            raise errors.lost_instruction(error, again) from None
        finally:
            if run.loop.launched:
                self._ended(run.loop)
            run.recorder.discard()
            run.recorder.close()
            self._owner.counted(self)
            if failed := write_report(run, self._wire):
                self._owner.say(f"{self.id}: {failed}")

    def _ended(self, loop: ControlLoop) -> None:
        """What the next run begins with: also what was understood, and nothing was decided by yet."""
        told = loop.instructions
        self._proven = told.proven
        newest = told.waiting[-1] if told.waiting else told.now
        if loop.interpretation is not None and self._instruction is None and newest != told.proven:
            self._instruction = newest

    def _started(self) -> None:
        """The loop is warm: the client may observe. Raises DecoderUnavailable where there is no room for its ticks."""
        self._owner.welcome(self)
        if (peer := self.peer) is not None:
            # Until now the client had nothing to say.
            peer.in_ns = time.monotonic_ns()
        self.welcome()
        if (terms := self.terms) is not None and peer is not None:
            self._owner.say(f"{self.id}: {peer.name}, {terms.described()}{', resumed' if self.runs > 1 else ''}")

    def _trouble(self, emission: Emission, seq: int | None) -> None:
        said, self._said = self._said, None
        error = emission.error or ""
        # One observation may be looked at in many ticks: it is refused once.
        if (peer := self.peer) is None or error == said or (seq, error) == self._troubled:
            return
        self._troubled = (seq, error)
        self._owner.refused(peer, errors.refusal(emission, seq))

    def _refuse(self, text: str, error: str) -> None:
        """The decider cannot take this instruction: the one before is in force again."""
        if self._instruction == text and self.loop is not None:
            self._instruction = self.loop.instruction
        self._refusal = self._said = error

    def _doubt(self, text: str, what: str) -> None:
        """It is not understood: it stays in force, and what is called by it is held back."""
        if (peer := self.peer) is not None:
            self._owner.refused(peer, WireError(Code.UNSURE, what, "Say it in other words.", field="instruction"))

    def _note(self, line: str) -> None:
        # What a client does wrong in every tick must not fill the log; how a run ended (its safe call!) is said always.
        if self._lines.take() or (self.loop is not None and self.loop.phase == "ending"):
            self._owner.say(f"{self.id}: {line}")

    def _wire(self) -> dict[str, Any]:
        traffic, client = {} if self.env is None else self.env.traffic.to_dict(), self.hello.client.model_dump()
        return {"client": client, "session": self.id, "refused": dict(self.refused), **traffic}


def open_record(path: Path, terms: Terms, config: RunConfig, tell: Callable[[str], None], **more: Any) -> Recorder:
    """Return the record of one life of a loop, of the terms as `config` has them now. `more` is for its header.

    Raises WireError where it cannot be written.
    """
    try:
        header = config.header(terms.hold_ms, terms.agent) | more
        return Recorder(path, header, provisional=True, tell=tell, most=size(config.record_max))
    except UserError as error:
        raise WireError(Code.INTERNAL, error.what, error.remedy, fatal=True) from None


def record_path(out: Path, run: int) -> Path:
    """Return where the record of a session's `run` is written, which is counted from 1."""
    return out / ("record.mcap" if run == 1 else f"record-{run}.mcap")
