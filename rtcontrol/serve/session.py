"""One client's session: its terms, its world, and one thread that runs its loop; it may outlive connections."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from rtcontrol import report
from rtcontrol.bridges.wire import PROTOCOL, Code, Message, WireError
from rtcontrol.bridges.wire.messages import Bye, Hello, Program, Welcome
from rtcontrol.clock import ArrivalClock, WallClock
from rtcontrol.envs.base import Observation
from rtcontrol.envs.remote import Look, RemoteEnvironment
from rtcontrol.hosts.base import Host
from rtcontrol.hosts.pool import DecoderPool
from rtcontrol.loop import ControlLoop
from rtcontrol.machine import version
from rtcontrol.models.errors import UserError
from rtcontrol.pause import PauseWatch
from rtcontrol.record import Recorder, run_header
from rtcontrol.serve.bucket import TokenBucket
from rtcontrol.serve.negotiate import CAPABILITIES, Terms, negotiate, told
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.peer import Peer

log = logging.getLogger("rtcontrol.serve")

State = Literal["opening", "live", "parked", "over"]
LOST, BYE, STOPPED = "client lost", "client said bye", "server stopped"
# Schemas are compiled and decoders opened for so many sessions at once.
OPENING_AT_ONCE = 2


class Owner(Protocol):
    """What a session needs of the lobby."""

    options: ServeOptions
    pool: DecoderPool
    watch: PauseWatch
    opening: threading.Semaphore

    def say(self, line: str) -> None: ...

    def refused(self, peer: Peer, error: WireError) -> None: ...

    def ended(self, session: Session, error: WireError | None) -> None: ...


class _Leave:
    """Garbage is the housekeeper's, for all sessions."""

    def collect(self, slack_ns: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Run:
    """One life of the loop."""

    loop: ControlLoop
    recorder: Recorder
    record: Path


class Session:
    """`state`: opening until the welcome, live while the loop runs, parked while the client is away, over.

    `peer` is the connection, None while there is none. Methods are for any thread but `_work`, the session's own.
    """

    def __init__(self, number: int, peer: Peer, hello: Hello, owner: Owner) -> None:
        self.id = f"session-{number:04d}"
        self.token = secrets.token_urlsafe(24)
        self.key = peer.connection.key
        self.hello = hello
        self.peer: Peer | None = peer
        self.state: State = "opening"
        self.welcomed = False
        self.why: str | None = None  # it ends, and cannot be resumed
        self.parked_s = 0.0
        self.refused: Counter[str] = Counter()
        self.terms: Terms | None = None
        self.env: RemoteEnvironment | None = None
        self.loop: ControlLoop | None = None
        self.runs = 0
        self.thread: threading.Thread | None = None
        self._owner = owner
        self._lost = False
        self._instruction: str | None = None
        self._lines = TokenBucket(1.0, 5.0)

    # -- from the lobby -----------------------------------------------------------------------------------------------

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

    def instruct(self, text: str) -> None:
        self._instruction = text
        if self.loop is not None:
            self.loop.instruct(text)

    def welcome(self) -> None:
        """Tell the client what is in force."""
        terms, env, loop, peer = self.terms, self.env, self.loop, self.peer
        if terms is None or env is None or loop is None or peer is None:
            return
        options, config = self._owner.options, terms.config
        peer.send(
            Welcome(
                protocol=list(PROTOCOL),
                server=Program(name="rtcontrol", version=version("rtcontrol") or "", language="python"),
                session=self.token,
                resumed=self.runs > 1 or self.hello.resume is not None,
                epoch=env.epoch,
                t_client_ns=self.hello.t_client_ns,
                t_server_ns=time.monotonic_ns(),
                capabilities=CAPABILITIES,
                agent=terms.named,
                tools=terms.agent.tools.openai(),
                instruction=loop.instruction,
                model=Path(terms.model).name,
                model_trained_on_tools=terms.trained_on_tools,
                safe_call=told(terms.agent.fallback.safe_call),
                pacing=terms.hello.pacing,
                hz=config.hz,
                period_ms=config.period_ns / 1e6,
                deadline_ms=config.deadline_ns / 1e6,
                ttl_ms=terms.ttl_ms,
                max_age_ms=config.max_age_ns / 1e6,
                on_miss="safe" if config.on_miss == "safe" else "hold",
                hold_ms=terms.hold_ms,
                heartbeat_ms=options.heartbeat_s * 1e3,
                session_grace_s=options.session_grace_s,
                limits=options.limits.to_dict(),
                warnings=list(terms.warnings),
            )
        )

    def bye(self, why: str) -> None:
        self.send(Bye(session=self.token, reason=why))

    def send(self, message: Message) -> None:
        if (peer := self.peer) is not None:
            peer.send(message)

    def figures(self) -> dict[str, Any]:
        """What there is to see of it from outside; no secret."""
        shown: dict[str, Any] = {"id": self.id, "state": self.state, "client": self.hello.client.name}
        peer = self.peer
        shown |= {"peer": None if peer is None else peer.name, "refused": dict(self.refused)}
        if (terms := self.terms) is not None:
            shown |= {"agent": terms.named, "model": Path(terms.model).name, "pacing": terms.hello.pacing}
            shown |= {"hz": terms.config.hz}
        if (loop := self.loop) is not None:
            ledger = loop.ledger
            shown |= {
                name: getattr(ledger, name) for name in ("releases", "ticks", "on_time", "misses", "null", "held")
            }
            shown |= {"skipped_releases": ledger.skipped_releases, "miss_rate": ledger.miss_rate}
            shown |= {"misses_by_cause": dict(ledger.misses_by_cause)}
            shown["latency_ms"] = report.percentiles(tuple(loop.book.recent_ms))
        if self.env is not None:
            shown |= self.env.traffic.to_dict()
        return shown

    # -- on the session's own thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        error: WireError | None = None
        try:
            with self._owner.opening:
                # Whoever waits here for long may have gone meanwhile.
                run = None if self.why is not None or (self._lost and not self.welcomed) else self._open()
            if run is not None:
                self._fly(run)
        except WireError as refusal:
            error = refusal
        except Exception as fault:
            log.exception("%s failed", self.id)
            what = " ".join(f"{type(fault).__name__}: {fault}".split())[:200]
            error = WireError(Code.INTERNAL, f"The session failed ({what}).", "Say hello again.", fatal=True)
        finally:
            self._owner.ended(self, error)

    def _open(self) -> _Run:
        owner = self._owner
        self.runs += 1
        out = owner.options.out / self.id
        if self.terms is None:
            self.terms = negotiate(self.hello, owner.options, out)
        terms = self.terms
        env = self.make_env(terms)
        config = replace(terms.config, instruction=self._instruction or terms.config.instruction)
        host = self._host(terms)
        record = out / ("record.jsonl" if self.runs == 1 else f"record-{self.runs}.jsonl")
        try:
            recorder = Recorder(record, run_header(config, terms.hold_ms), provisional=True)
        except UserError as error:
            host.close()
            raise WireError(Code.INTERNAL, error.what, error.remedy, fatal=True) from None
        clock = arrivals(terms, env) or WallClock(config.period_ns, spin_ns=0)
        sample = Observation(0, 0, time.monotonic_ns(), Look.of(None, "warm-up")) if config.warmup else None
        loop = ControlLoop(
            config,
            terms.agent,
            env,
            host,
            recorder,
            sample=sample,
            notify=self._note,
            clock=clock,
            watch=owner.watch,
            collector=_Leave(),
        )
        self.loop = loop
        if self._lost:
            loop.stop(LOST)
        return _Run(loop, recorder, record)

    def make_env(self, terms: Terms) -> RemoteEnvironment:
        """The client's world, the same for all runs of the session."""
        if self.env is None:
            remote = terms.remote(self.token, self._owner.options.queue)
            self.env = RemoteEnvironment("remote", remote, self.send, self._started, self._trouble)
        return self.env

    def _host(self, terms: Terms) -> Host:
        try:
            return self._owner.pool.open(self.id, terms.source)
        except UserError as error:
            code = Code.TOOLS if terms.named is None else Code.MODEL
            raise WireError(code, error.what, error.remedy, field="tools", fatal=True) from None

    def _fly(self, run: _Run) -> None:
        try:
            run.loop.run()
        except UserError as error:
            raise WireError(Code.INSTRUCTION, error.what, error.remedy, fatal=True) from None
        finally:
            run.recorder.discard()
            run.recorder.close()
            self._report(run)

    def _started(self) -> None:
        """The loop is warm: the client may observe."""
        self.state, self.welcomed = "live", True
        if (peer := self.peer) is not None:
            # Until now the client had nothing to say.
            peer.in_ns = time.monotonic_ns()
        self.welcome()
        terms = self.terms
        if terms is not None and peer is not None:
            what = f"agent {terms.named}" if terms.named else f"{len(terms.agent.tools.schemas)} tools of its own"
            pace = "client-paced" if terms.hello.pacing == "client" else f"{terms.config.hz:g} Hz"
            again = ", resumed" if self.runs > 1 else ""
            self._owner.say(f"{self.id}: {peer.name}, {what}, model {Path(terms.model).name}, {pace}{again}")

    def _trouble(self, cause: str, error: str, seq: int | None) -> None:
        peer, loop, asked = self.peer, self.loop, self._instruction
        if peer is None:
            return
        if asked is not None and loop is not None and loop.instruction != asked and not error.startswith("observe:"):
            self._instruction = None
            what = f"The instruction was refused: {error}"
            self._owner.refused(peer, WireError(Code.INSTRUCTION, what, field="instruction", seq=seq))
            return
        # The cause may be another: on a busy machine a pause goes first.
        if error.startswith("observe:"):
            remedy = "Send the fields of `data` that the agent reads, or `text`."
            self._owner.refused(peer, WireError(Code.INVALID, f"{error}.", remedy, field="data", seq=seq))
        else:
            self._owner.refused(peer, WireError(Code.DECODER, f"{cause}: {error}", seq=seq, retryable=True))

    def _note(self, line: str) -> None:
        # What a client does wrong in every tick must not fill the log.
        if self._lines.take():
            self._owner.say(f"{self.id}: {line}")

    def _report(self, run: _Run) -> None:
        """Write the run's report; a run without a release leaves nothing."""
        ledger = run.loop.ledger
        try:
            if not ledger.releases:
                run.record.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    run.record.parent.rmdir()
                return
            ledger.check()
            told = report.build(run.record, ledger, run.recorder.lost)
            told["wire"] = self._wire()
            path = run.record.with_name(run.record.name.replace("record", "report").replace(".jsonl", ".json"))
            if refused := report.write(told, path):
                self._owner.say(f"{self.id}: the report could not be written ({refused})")
        except Exception as error:  # a report that fails must not keep the session from ending in order
            self._owner.say(f"{self.id}: no report ({type(error).__name__}: {error})")

    def _wire(self) -> dict[str, Any]:
        client = self.hello.client
        traffic = {} if self.env is None else self.env.traffic.to_dict()
        return {"client": client.model_dump(), "session": self.id, "refused": dict(self.refused), **traffic}


def arrivals(terms: Terms, env: RemoteEnvironment) -> ArrivalClock | None:
    """The clock of a client-paced session."""
    return ArrivalClock(terms.config.period_ns, env.arrival) if terms.hello.pacing == "client" else None
