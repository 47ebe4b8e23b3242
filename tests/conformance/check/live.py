"""What a conforming server answers, asked by a raw peer: `check_client(endpoint)`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgpack

from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.wire.messages import (
    Bye,
    CallMessage,
    ErrorMessage,
    Instruct,
    Ping,
    Pong,
    Reset,
)
from tests.conformance.check.asker import Asker
from tests.conformance.check.finding import Failure, Finding, Skip

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
    except Failure as failure:
        return Finding(name, "failed", str(failure))
    except Skip as skip:
        return Finding(name, "skipped", str(skip))
    finally:
        asker.close()


def welcomes(asker: Asker) -> str:
    welcome = asker.greet()
    if welcome.protocol[0] != 1 or welcome.resumed or welcome.epoch != 0 or welcome.pacing != "client":
        raise Failure(f"protocol {welcome.protocol}, resumed {welcome.resumed}, epoch {welcome.epoch}")
    if not welcome.tools or not welcome.limits:
        raise Failure("no tools or no limits in the welcome")
    return f"{welcome.server.name} {welcome.server.version}, model {welcome.model}"


def welcomes_again(asker: Asker) -> None:
    first = asker.greet()
    if asker.greet().session != first.session:
        raise Failure("a repeated hello made another session")


def refuses_other_version(asker: Asker) -> None:
    asker.hello(protocol=[99, 0])
    if not asker.error("version", "protocol 99.0").fatal:
        raise Failure("version must be fatal")


def wants_hello_first(asker: Asker) -> None:
    asker.observe(session="0" * 32)
    asker.expect(ErrorMessage, "error", lambda m: m.code in ("state", "session"))


def refuses_unknown_resume(asker: Asker) -> None:
    asker.hello(resume="0" * 32)
    told = asker.error("session", "hello with an unknown token")
    if not told.retryable or told.fatal:
        raise Failure("it must be retryable and not fatal")
    asker.greet()


def answers_each_observation(asker: Asker) -> None:
    asker.greet()
    last = -1
    for _ in range(5):
        sent = asker.observe()
        call = asker.expect(CallMessage, "call", lambda m, seq=sent.seq: m.seq_obs == seq)  # type: ignore[misc]
        if call.t_obs_ns != sent.t_ns or call.session != asker.token or call.epoch != 0 or call.tick <= last:
            raise Failure(f"stamp, session or epoch not the observation's, or tick {call.tick} after {last}")
        last = call.tick
    if isinstance(asker.take(0.3), CallMessage):
        raise Failure("a sixth call for five observations")


def answers_ping(asker: Asker) -> None:
    asker.greet()
    asker.send(Ping(id=5, t_ns=123))
    pong = asker.expect(Pong, "pong", lambda m: m.id == 5)
    if pong.t_ping_ns != 123 or pong.t_sent_ns < pong.t_received_ns:
        raise Failure(f"{pong}")


def refuses_replay(asker: Asker) -> None:
    asker.greet()
    asker.observe()
    asker.expect(CallMessage, "call")
    asker.observe(seq=1)
    asker.error("sequence", "a replayed seq")


def refuses_foreign_token(asker: Asker) -> None:
    asker.greet()
    asker.observe(session="0" * 32)
    asker.error("session", "a foreign token")


def refuses_other_epoch(asker: Asker) -> None:
    asker.greet()
    asker.observe(epoch=9)
    asker.error("epoch", "an epoch that has not begun")


def names_the_field(asker: Asker) -> None:
    asker.greet()
    header = {"type": "observe", "session": asker.token, "seq": "one", "epoch": 0, "t_ns": 1, "text": "x"}
    asker.raw(msgpack.packb(header))
    if "seq" not in (asker.error("invalid", "a seq that is a string").field or ""):
        raise Failure("the error does not name the field")
    asker.raw(msgpack.packb({**header, "seq": 1, "data": {"x": float("nan")}}))
    asker.error("invalid", "NaN")


def survives_garbage(asker: Asker) -> None:
    asker.greet()
    asker.raw(os.urandom(200))
    asker.error("malformed", "random bytes")
    sent = asker.observe()
    asker.expect(CallMessage, "call after garbage", lambda m: m.seq_obs == sent.seq)


def resets(asker: Asker) -> None:
    asker.greet()
    asker.send(Reset(session=asker.token, epoch=1))
    asker.epoch = 1
    sent = asker.observe()
    call = asker.expect(CallMessage, "call", lambda m: m.seq_obs == sent.seq)
    if call.epoch != 1:
        raise Failure(f"epoch {call.epoch} after the reset to 1")


def instructs(asker: Asker) -> None:
    asker.greet()
    asker.send(Instruct(session=asker.token, instruction="Turn left."))
    asker.observe()
    asker.expect(Instruct, "instruct", lambda m: m.instruction == "Turn left.")


def resumes(asker: Asker) -> None:
    asker.greet()
    asker.observe()
    asker.expect(CallMessage, "call")
    other = Asker(asker.endpoint, asker.options, asker.wait_s)
    other.seq = asker.seq
    token, asker.token = asker.token, ""
    try:
        welcome = other.greet(resume=token)
        if not welcome.resumed or welcome.session != token:
            raise Failure(
                f"resumed {welcome.resumed} with {'the same' if welcome.session == token else 'another'} token"
            )
        sent = other.observe()
        other.expect(CallMessage, "call after resuming", lambda m: m.seq_obs == sent.seq)
        asker.observe(session=token)
        asker.expect(ErrorMessage, "error at the old connection", lambda m: m.code in ("session", "state"))
    finally:
        other.close()


def ends_on_bye(asker: Asker) -> None:
    asker.greet()
    token, asker.token = asker.token, ""
    asker.send(Bye(session=token, reason="done"))
    time.sleep(0.5)
    asker.observe(session=token)
    asker.expect(ErrorMessage, "error", lambda m: m.code in ("session", "state"))


def ticks_by_itself(asker: Asker) -> str:
    asker.options = Options(**{**vars(asker.options), "pacing": "server", "hz": 10.0, "ttl_ms": 500.0})
    welcome = asker.greet()
    if welcome.pacing != "server":
        raise Failure(f"pacing {welcome.pacing}")
    statuses: list[str] = []
    while len(statuses) < 10:
        asker.observe()
        statuses.append(asker.expect(CallMessage, "call of the next tick").status)
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
    "refuses a replayed observation": refuses_replay,
    "refuses a foreign token": refuses_foreign_token,
    "refuses another epoch": refuses_other_epoch,
    "names the wrong field": names_the_field,
    "survives garbage": survives_garbage,
    "begins a new epoch": resets,
    "takes an instruction": instructs,
    "resumes a session on another connection": resumes,
    "ends on bye": ends_on_bye,
}
