"""What a conforming server answers, asked by a raw peer: `check_client(endpoint)`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgpack

from rtcontrol_client.client.options import Options
from rtcontrol_client.wire import WireError
from rtcontrol_client.wire.messages import Bye, CallMessage, ErrorMessage, Hello, Instruct, Ping, Pong, Reset, Welcome
from tests.conformance.check.finding import Failure, Finding, Skip
from tests.rtcontrol.serve.wire_peer import M, WirePeer

ANSWER_S = 5.0


class Asker(WirePeer):
    """Greets as `options` say."""

    def __init__(self, endpoint: str, options: Options, wait_s: float) -> None:
        super().__init__(endpoint, keys=options.key_pairs())
        self.endpoint, self.options, self.wait_s = endpoint, options, wait_s

    def close(self) -> None:
        if self.token:
            self.send(Bye(session=self.token, reason="checked"))
        self.socket.close(linger=200)

    def expect(self, kind: type[M], timeout_s: float | None = None, **fields: Any) -> M:
        if timeout_s is None:
            timeout_s = self.wait_s if kind is Welcome else min(ANSWER_S, self.wait_s)
        return super().expect(kind, timeout_s, **fields)

    def error(self, after: str, *codes: str) -> ErrorMessage:
        """The error of one of these codes, which must come after this."""
        told = self.expect(ErrorMessage)
        if told.code not in codes:
            raise Failure(f"error {told.code} after {after}, not {' or '.join(codes)}: {told.message}")
        if not told.message or not told.remedy:
            raise Failure("an error without message or remedy")
        return told

    def hello(self, **changes: Any) -> Hello:
        hello = self.options.hello(time.monotonic_ns()).model_copy(update=changes)
        self.send(hello)
        return hello


FOREIGN = "0" * 32
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "steer",
            "description": "Turn the wheel.",
            "parameters": {
                "type": "object",
                "properties": {"angle": {"type": "integer", "minimum": -30, "maximum": 30, "multipleOf": 10}},
                "required": ["angle"],
            },
        },
    }
]


def check_client(endpoint: str, *, wait_s: float = 60.0, **options: Any) -> list[Finding]:
    """Try a live server for about 10 s, and close what was opened. `options` are those of `Client.connect` (own tools
    are brought where neither `agent` nor `tools` is given); `wait_s` is how long a welcome may take, and other answers
    where it is below 5 s.

    Returns one finding a behaviour. Raises ClientError for a mistake in the options.
    """
    if not {"agent", "tools"} & set(options):
        options |= {"tools": TOOLS, "instruction": "Steer."}
    chosen = Options(**{"pacing": "client", "ttl_ms": 0, "name": "check_client", **options})
    return [_one(name, behaviour, endpoint, chosen, wait_s) for name, behaviour in BEHAVIOURS.items()]


def _one(
    name: str, behaviour: Callable[[Asker], str | None], endpoint: str, options: Options, wait_s: float
) -> Finding:
    asker = Asker(endpoint, options, wait_s)
    try:
        return Finding(name, "passed", behaviour(asker) or "")
    except (Failure, AssertionError, WireError) as failure:
        return Finding(name, "failed", str(failure))
    except Skip as skip:
        return Finding(name, "skipped", str(skip))
    finally:
        asker.close()


def welcomes(asker: Asker) -> str:
    welcome = asker.enter()
    if welcome.protocol[0] != 1 or welcome.resumed or welcome.epoch != 0 or welcome.pacing != "client":
        raise Failure(f"protocol {welcome.protocol}, resumed {welcome.resumed}, epoch {welcome.epoch}")
    if not welcome.tools or not welcome.limits:
        raise Failure("no tools or no limits in the welcome")
    return f"{welcome.server.name} {welcome.server.version}, model {welcome.model}"


def welcomes_again(asker: Asker) -> None:
    first = asker.enter()
    if asker.enter().session != first.session:
        raise Failure("a repeated hello made another session")


def refuses_other_version(asker: Asker) -> None:
    asker.hello(protocol=[99, 0])
    if not asker.error("protocol 99.0", "version").fatal:
        raise Failure("version must be fatal")


def wants_hello_first(asker: Asker) -> None:
    asker.observe(session=FOREIGN)
    asker.error("an observation before hello", "state", "session")


def refuses_unknown_resume(asker: Asker) -> None:
    asker.hello(resume=FOREIGN)
    told = asker.error("hello with an unknown token", "session")
    if not told.retryable or told.fatal:
        raise Failure("it must be retryable and not fatal")
    asker.enter()


def answers_each_observation(asker: Asker) -> None:
    asker.enter()
    last = -1
    for _ in range(5):
        t_ns = time.monotonic_ns()
        call = asker.ask(t_ns=t_ns)
        if call.t_obs_ns != t_ns or call.session != asker.token or call.epoch != 0 or call.tick <= last:
            raise Failure(f"stamp, session or epoch not the observation's, or tick {call.tick} after {last}")
        last = call.tick
    if isinstance(asker.receive(0.3), CallMessage):
        raise Failure("a sixth call for five observations")


def answers_ping(asker: Asker) -> None:
    asker.enter()
    asker.send(Ping(id=5, t_ns=123))
    pong = asker.expect(Pong, id=5)
    if pong.t_ping_ns != 123 or pong.t_sent_ns < pong.t_received_ns:
        raise Failure(f"{pong}")


def refuses(after: str, code: str, **wrong: Any) -> Callable[[Asker], None]:
    def ask(asker: Asker) -> None:
        asker.enter()
        asker.ask()
        asker.observe(**wrong)
        asker.error(after, code)

    return ask


def names_the_field(asker: Asker) -> None:
    asker.enter()
    header = {"type": "observe", "session": asker.token, "seq": "one", "epoch": 0, "t_ns": 1, "text": "x"}
    asker.socket.send(msgpack.packb(header))
    if "seq" not in (asker.error("a seq that is a string", "invalid").field or ""):
        raise Failure("the error does not name the field")
    asker.socket.send(msgpack.packb({**header, "seq": 1, "data": {"x": float("nan")}}))
    asker.error("NaN", "invalid")


def survives_garbage(asker: Asker) -> None:
    asker.enter()
    asker.socket.send(b"\xc1" + os.urandom(199))  # a first byte that msgpack never has
    asker.error("random bytes", "malformed")
    asker.ask()


def resets(asker: Asker) -> None:
    asker.enter()
    asker.send(Reset(session=asker.token, epoch=1))
    asker.epoch = 1
    if (call := asker.ask()).epoch != 1:
        raise Failure(f"epoch {call.epoch} after the reset to 1")


def instructs(asker: Asker) -> None:
    asker.enter()
    asker.send(Instruct(session=asker.token, instruction="Turn left."))
    asker.observe()
    asker.expect(Instruct, instruction="Turn left.")


def resumes(asker: Asker) -> None:
    asker.enter()
    asker.ask()
    token, asker.welcome = asker.token, None
    with Asker(asker.endpoint, asker.options, asker.wait_s) as other:
        other.seq = asker.seq
        welcome = other.enter(resume=token)
        if not welcome.resumed or welcome.session != token:
            raise Failure(f"resumed {welcome.resumed}, token {'the same' if welcome.session == token else 'another'}")
        other.ask()
        asker.observe(session=token)
        asker.error("an observation on the old connection", "session", "state")


def ends_on_bye(asker: Asker) -> None:
    asker.enter()
    token, asker.welcome = asker.token, None
    asker.send(Bye(session=token, reason="done"))
    asker.observe(session=token)
    asker.error("an observation after bye", "session", "state")


def ticks_by_itself(asker: Asker) -> str:
    asker.options = Options(**{**vars(asker.options), "pacing": "server", "hz": 10.0, "ttl_ms": 500.0})
    welcome = asker.enter()
    if welcome.pacing != "server":
        raise Failure(f"pacing {welcome.pacing}")
    statuses: list[str] = []
    while len(statuses) < 10:
        asker.observe()
        statuses.append(asker.expect(CallMessage).status)
    if "fresh" not in statuses:
        raise Failure(f"no fresh call in ten ticks with fresh observations: {', '.join(statuses)}")
    return f"{statuses.count('fresh')} of 10 ticks fresh"


BEHAVIOURS: dict[str, Callable[[Asker], str | None]] = {
    "welcomes": welcomes,
    "answers a repeated hello with the same session": welcomes_again,
    "refuses another major version": refuses_other_version,
    "wants hello first": wants_hello_first,
    "refuses to resume an unknown session": refuses_unknown_resume,
    "answers each observation once (client-paced)": answers_each_observation,
    "ticks by itself (server-paced)": ticks_by_itself,
    "answers ping": answers_ping,
    "refuses a replayed observation": refuses("a replayed seq", "sequence", seq=1),
    "refuses a foreign token": refuses("a foreign token", "session", session=FOREIGN),
    "refuses another epoch": refuses("an epoch that has not begun", "epoch", epoch=9),
    "names the wrong field": names_the_field,
    "survives garbage": survives_garbage,
    "begins a new epoch": resets,
    "takes an instruction": instructs,
    "resumes a session on another connection": resumes,
    "ends on bye": ends_on_bye,
}
