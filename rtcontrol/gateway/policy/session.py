"""A connected client of policy servers: the control loop, record and report of what it asked."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rtcontrol.envs.base import Emission, Observation
from rtcontrol.envs.remote import RemoteData
from rtcontrol.gateway.policy.options import PolicyOptions
from rtcontrol.gateway.policy.world import PolicyWorld
from rtcontrol.loop.clock import DemandClock
from rtcontrol.loop.config import instruction_text, size
from rtcontrol.loop.loop import ControlLoop, LoopOptions
from rtcontrol.loop.realtime import NoCollector
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.serve.limits import TokenBucket
from rtcontrol.serve.negotiate import Terms, negotiate
from rtcontrol.serve.pools import open_host
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.serve.stats import Run, write_report
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol_client.wire import PROTOCOL, WireError
from rtcontrol_client.wire.messages import Hello, Program

log = logging.getLogger("rtcontrol.gateway")
END_S = 10.0
OVER = "The session is over."
Answer = Future[dict[str, Any]]


class PolicySession:
    """`metadata` is there when the loop is warm, or the reason why it never will be. A guest of the server's (`Guest`):
    people may look on and say something."""

    def __init__(self, number: int, peer: str, admission: SessionManager, options: PolicyOptions) -> None:
        self.id = f"openpi-{number:04d}"
        self.shown_name = f"openpi client {peer}"
        self.state = "opening"
        self.loop: ControlLoop | None = None
        self.counting = False
        self.why: str | None = None  # it is over
        self.metadata: Answer = Future()
        self.statuses: Counter[str] = Counter()
        self._admission, self._options, self._mapping = admission, options, options.mapping
        self._terms: Terms | None = None
        self._lines = TokenBucket(1.0, 10.0)
        self._lock = threading.Lock()
        self._seq = 0
        self._asked: tuple[int, int, Answer] | None = None  # number, when it came, and the answer to come
        self._in_force: Call | None = None
        self._instruction: str | None = None
        self._thread = threading.Thread(target=self._work, name=self.id, daemon=True)
        self._world = PolicyWorld(options.mapping.tool, self._answered, self._ready)

    # -- for those who look on (`gateway.view`) -----------------------------------------------------------------------

    def say(self, said: str, by: str, k: int | None = None, instruction: str | None = None) -> str:
        """pause: answers are the safe call's action; stop: nothing is answered any more."""
        if self.loop is None:
            return "the session is not open yet"
        return self.loop.operator.say(said, by, k, instruction)

    def instruct(self, text: str) -> None:
        """Raises UserError for one that is too long."""
        text = instruction_text(text)
        if self.loop is not None:
            self.loop.instruct(text)

    # -- the connection's ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def ask(self, message: Mapping[str, Any]) -> Answer:
        """The answer to come, of one question at a time. Raises UnmappedObservation, and UserError for a prompt that is
        none or too long."""
        terms, mapping = self._terms, self._mapping
        assert terms is not None, "it is open"
        data = mapping.observed(message)
        prompt = None if mapping.prompt is None else message.get(mapping.prompt)
        if prompt is not None and not isinstance(prompt, str):
            raise UserError(f"{mapping.prompt!r} is a {type(prompt).__name__}, no text.", "Send the instruction.")
        if prompt is not None and prompt != self._instruction:
            self.instruct(prompt)
            self._instruction = prompt
        now = time.monotonic_ns()
        answer: Answer = Future()
        with self._lock:
            self._seq += 1
            seq = self._seq
            self._asked = seq, now, answer
        self._world.ask(seq, data, now + terms.config.deadline_ns)
        if self.state == "over":
            self._give_up()
        return answer

    def stop(self, why: str) -> None:
        """The client is gone, or the server ends; from any thread."""
        with self._lock:
            self.why = self.why or why
            loop = self.loop
        if loop is not None:
            loop.stop(why)

    def join(self, timeout_s: float) -> None:
        """Wait for the report, after `stop`."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- the loop's ---------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        terms = self._terms
        assert terms is not None, "the loop has its terms"
        self.state = "live"
        told = {"server": "rtcontrol", "session": self.id, "agent": terms.named, "model": self._model(terms)}
        times = {"deadline_ms": terms.config.deadline_ns / 1e6, "ttl_ms": terms.ttl_ms}
        with suppress(InvalidStateError):  # the client has gone meanwhile
            self.metadata.set_result({**told, **times, **self._options.metadata()})

    @staticmethod
    def _model(terms: Terms) -> str:
        return terms.model.rstrip("/").rpartition("/")[2]

    def _answered(self, emission: Emission) -> None:
        """What became of a tick; of the question that waits once. Raises UserError for a call that is no action: the
        safe call follows."""
        call, status = emission.call, emission.status
        if status != "safe" and (status == "held" or call is None):
            call, status = self._in_force, "held"
        if status == "safe" or call is None:  # also where nothing was called yet that could go on
            call, status = self._options.safe_call, "safe"
        row = self._mapping.row(call)
        self._in_force = None if status == "safe" else call
        with self._lock:
            if self._asked is None or self._asked[0] != emission.seq:
                return
            (_, since_ns, answer), self._asked = self._asked, None
        self.statuses[status] += 1
        with suppress(InvalidStateError):  # nobody waits any more
            answer.set_result(self._message(emission, status, call, row, since_ns))

    def _message(self, emission: Emission, status: str, call: Call, row: list[float], since_ns: int) -> dict[str, Any]:
        spent_ms = (time.monotonic_ns() - since_ns) / 1e6
        ttl_ms = 0.0 if self._terms is None else self._terms.ttl_ms
        timing = {"infer_ms": spent_ms if emission.decide_ns is None else emission.decide_ns / 1e6}
        sure = 1.0 if emission.confidence is None else min(emission.confidence, 1.0)
        return {
            "actions": row,
            "status": status,
            "call": call.to_dict(),
            "confidence": sure if status == "fresh" else None,
            "cause": emission.cause,
            "error": emission.error,
            "ttl_ms": ttl_ms,
            "tick": emission.tick,
            "server_timing": {**timing, "answer_ms": spent_ms},
        }

    # -- on the session's own thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        error: Exception = UserError(OVER, "Connect again.")
        try:
            with self._admission.opening:
                run = None if self.why is not None else self._open()
            if run is not None:
                self._fly(run)
        except UserError as mistake:
            error = mistake
            self._note(str(mistake))
        except WireError as refusal:
            error = UserError(refusal.message, refusal.remedy)
            self._note(str(error))
        except Exception as fault:
            error = fault
            log.exception("%s failed", self.id)
        finally:
            self.state = "over"
            if not self.metadata.done():
                self.metadata.set_exception(error)
            self._give_up()

    def _give_up(self) -> None:
        """Nothing decides any more: the question that waits is told so."""
        with self._lock:
            asked, self._asked = self._asked, None
        if asked is not None:
            with suppress(InvalidStateError):
                asked[2].set_exception(UserError(OVER, "Connect again."))

    def _open(self) -> Run[ControlLoop]:
        """Raises UserError and WireError."""
        options = self._admission.options
        out = options.out / self.id
        program = Program(name="openpi", language="python")
        hello = Hello(protocol=list(PROTOCOL), client=program, t_client_ns=0, hz=min(options.hz, options.hz_max))
        terms = self._terms = negotiate(hello, options, out)
        config = replace(terms.config, on_miss="safe", hold_ms=0.0)
        interpreter = None if config.interpreter is None else self._admission.interpreters.of(terms.agent)
        host = open_host(self._admission.pool, self.id, terms)
        record = out / "record.mcap"
        try:
            header = config.header(0.0, terms.agent) | {"clock": "demand"}  # the client's
            recorder = Recorder(record, header, provisional=True, tell=self._note, most=size(config.record_max))
        except BaseException:
            host.close()
            raise
        sample = Observation(0, 0, time.monotonic_ns(), RemoteData.of(None, "warm-up")) if config.warmup else None
        clock, watch = DemandClock(self._world.arrival), self._admission.watch
        shared = LoopOptions(sample, self._note, clock, watch, NoCollector(), interpreter, first_unasked=True)
        loop = ControlLoop(config, terms.agent, self._world, host, recorder, shared)
        for warning in terms.warnings:
            loop.tell(warning)
        with self._lock:
            self.loop, self.counting = loop, True
            if self.why is not None:
                loop.stop(self.why)
        return Run(loop, recorder, record)

    def _fly(self, run: Run[ControlLoop]) -> None:
        try:
            run.loop.run()
        finally:
            run.recorder.discard()
            run.recorder.close()
            self._admission.counted(self)
            if failed := write_report(run, self._wire):
                self._admission.say(f"{self.id}: {failed}")

    def _wire(self) -> dict[str, Any]:
        client = {"name": self.shown_name, "protocol": "openpi"}
        return {"client": client, "session": self.id, "observations": self._seq, "calls": dict(self.statuses)}

    def _note(self, line: str) -> None:
        if self._lines.take() or (self.loop is not None and self.loop.phase == "ending"):
            self._admission.say(f"{self.id}: {line}")
