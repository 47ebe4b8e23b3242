"""Check the behaviours of a conforming client from the server's side, one after the other."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import msgpack
import zmq

from rtcontrol_client.wire.messages import Bye, ErrorMessage, Executed, Hello, Observe, Ping, Pong
from tests.conformance.check.stand import HEARTBEAT_MS, Failure, Finding, Skip, Stand

FOREIGN = "f" * 32


def check_any_client(
    endpoint: str, started: Callable[[str], None] = lambda endpoint: None, wait_s: float = 60.0
) -> list[Finding]:
    """Bind, wait for a client to connect, and test it for about 15 s. The client must stream observations (2 a second
    or more), execute whatever it is called to, and go on until it is told bye.

    `started` is told the address. Returns one finding a behaviour, in order; without a session the others are skipped.
    Raises OSError where the endpoint cannot be bound.
    """
    stand = Stand(endpoint)
    findings: list[Finding] = []
    try:
        started(stand.endpoint)
        for name, behaviour in BEHAVIOURS.items():
            if findings and not (stand.token or (stand.hello and len(findings) == 1)):
                findings.append(Finding(name, "skipped", "there is no session"))
                continue
            try:
                detail = greets(stand, wait_s) if behaviour is None else behaviour(stand)
                findings.append(Finding(name, "passed", detail or ""))
            except Failure as failure:
                findings.append(Finding(name, "failed", str(failure)))
                if behaviour is resumes_after_silence:
                    stand.token = ""
            except Skip as skip:
                findings.append(Finding(name, "skipped", str(skip)))
    except zmq.ZMQError as error:
        raise OSError(error.errno, error.strerror) from None
    finally:
        stand.close()
    return findings


def greets(stand: Stand, wait_s: float) -> str:
    hello = stand.expect(Hello, wait_s, "hello")
    if stand.broken or stand.heard[0] is not hello:
        raise Failure(f"hello must be the first message; before it came {(stand.broken or stand.heard)[0]!s:.100}")
    if hello.protocol[0] != 1:
        raise Failure(f"protocol {hello.protocol}, not [1, x]")
    if hello.resume is not None:
        raise Failure("the first hello has `resume`")
    return f"{hello.client.name} {hello.client.version} {hello.client.language}".strip()


def repeats_hello(stand: Stand) -> None:
    stand.expect(Hello, 3.0, "second hello, though the first was not answered")
    stand.welcome()


def observes(stand: Stand) -> None:
    seen = [stand.observation() for _ in range(3)]
    for before, after in itertools.pairwise(seen):
        if after.seq <= before.seq or after.t_ns < before.t_ns:
            raise Failure(f"seq {before.seq}, {after.seq}; t_ns {before.t_ns}, {after.t_ns}: they must grow")
    if seen[0].epoch != 0:
        raise Failure(f"epoch {seen[0].epoch}, but the welcome said 0")


def answers_ping(stand: Stand) -> None:
    stand.send(Ping(id=77, t_ns=123_456))
    pong = stand.expect(Pong, 1.0, "pong", lambda m: m.id == 77)
    if pong.t_ping_ns != 123_456:
        raise Failure(f"t_ping_ns {pong.t_ping_ns}, sent was 123456")
    if pong.t_sent_ns < pong.t_received_ns:
        raise Failure("t_sent_ns before t_received_ns")


def executes_fresh(stand: Stand) -> str:
    call = stand.call(stand.observation())
    told = _acknowledged(stand, call.tick)
    if told.outcome == "expired":
        raise Failure("a call of the newest observation was acknowledged as expired")
    return told.outcome


def refuses_expired(stand: Stand) -> None:
    observed = stand.observation()
    stand.pump(0.1)
    call = stand.call(observed, ttl_ms=20.0)
    told = _acknowledged(stand, call.tick)
    if told.outcome != "expired":
        raise Failure(f"acknowledged as {told.outcome}, 100 ms after its observation with ttl_ms 20")


def ignores_what_is_not_its_own(stand: Stand) -> None:
    observed = stand.observation()
    done = stand.call(observed).tick
    _acknowledged(stand, done)
    stand.tick += 10
    observed = stand.observation()
    wrong = {
        "of another epoch": stand.call(observed, epoch=7),
        "of another session": stand.call(observed, session=FOREIGN),
        "of an instant to come": stand.call(observed, t_obs_ns=observed.t_ns + 3_600_000_000_000),
    }
    stand.call(observed, tick=done)  # replayed
    mark = len(stand.heard)
    stand.pump(0.6)
    for message in stand.heard[mark:]:
        if isinstance(message, Executed) and message.outcome != "expired":
            for what, call in wrong.items():
                if message.tick == call.tick:
                    raise Failure(f"a call {what} was acknowledged as {message.outcome}")
            if message.tick == done:
                raise Failure(f"a replayed call was acknowledged as {message.outcome}")


def keeps_quiet_about_held(stand: Stand) -> None:
    observed = stand.observation()
    quiet = {
        stand.call(observed, status="held", cause="decide").tick: "held",
        stand.call(observed, call=None).tick: "fresh without a call",
    }
    mark = len(stand.heard)
    stand.pump(0.5)
    for message in stand.heard[mark:]:
        if isinstance(message, Executed) and message.tick in quiet:
            raise Failure(f"{quiet[message.tick]} was acknowledged as {message.outcome}")


def acts_safe(stand: Stand) -> None:
    # First something that safe can end.
    _acknowledged(stand, stand.call(stand.observation()).tick)
    call = stand.call(stand.observation(), status="safe", cause="decide", call=stand.hello.safe_call)  # type: ignore[union-attr]
    _acknowledged(stand, call.tick)


def survives_garbage(stand: Stand) -> None:
    for parts in (
        [b""],
        [os.urandom(200)],
        [msgpack.packb([1, 2])],
        [msgpack.packb({"type": "news", "x": 1})],
        [msgpack.packb({"type": "call", "session": stand.token, "tick": "one"})],
        [msgpack.packb({"type": "ping", "id": 1, "t_ns": 1}), b"stray part"],
        [b"part"] * 40,
    ):
        stand.send_raw(parts)
    stand.send_raw([msgpack.packb({"type": "ping", "id": 78, "t_ns": 1, "unknown": {"field": [1]}})])
    stand.expect(Pong, 2.0, "pong after garbage", lambda m: m.id == 78)
    stand.observation()


def resumes_after_silence(stand: Stand) -> None:
    before, token = stand.observation(), stand.token
    stand.alive = False
    try:
        hello = stand.expect(
            Hello, 12 * HEARTBEAT_MS / 1e3 + 3.0, f"hello with resume after {3 * HEARTBEAT_MS:g} ms of silence"
        )
    finally:
        stand.alive = True
    if hello.resume != token:
        raise Failure("hello after silence must have `resume` with the session's token")
    stand.welcome(resumed=True)
    after = stand.observation()
    if after.seq <= before.seq:
        raise Failure(f"seq {after.seq} after {before.seq}: it must go on")


def begins_anew_after_restart(stand: Stand) -> None:
    token = stand.token
    stand.restart()
    hello = stand.expect(Hello, 10.0, "hello after the server's restart")
    if hello.resume != token:
        raise Failure("the first hello after a restart must have `resume`")
    stand.send(ErrorMessage(code="session", message="There is no such session.", retryable=True))
    stand.expect(Hello, 5.0, "hello without resume", lambda m: m.resume is None)
    stand.welcome()
    observed = stand.observation()
    if observed.epoch != 0:
        raise Failure(f"epoch {observed.epoch} in a new session, but the welcome said 0")


def ends_on_bye(stand: Stand) -> None:
    token = stand.token
    stand.send(Bye(session=token, reason="the check is over"))
    stand.alive = False
    stand.pump(0.4)
    mark = len(stand.heard)
    stand.pump(0.6)
    if late := [m.type for m in stand.heard[mark:] if isinstance(m, (Observe, Executed)) and m.session == token]:
        raise Failure(f"{late[0]} in the session that bye had ended")


def _acknowledged(stand: Stand, tick: int) -> Executed:
    if "executed" not in stand.hello.capabilities:  # type: ignore[union-attr]
        raise Skip("the client did not announce `executed`: it cannot be seen")
    return stand.expect(Executed, 1.5, f"executed for tick {tick}", lambda m: m.tick == tick)


BEHAVIOURS: dict[str, Callable[[Stand], str | None] | None] = {
    "says hello first": None,
    "repeats hello until answered": repeats_hello,
    "streams observations, seq and stamps growing": observes,
    "answers ping": answers_ping,
    "executes and acknowledges a fresh call": executes_fresh,
    "never executes an expired call": refuses_expired,
    "ignores foreign, replayed and future calls": ignores_what_is_not_its_own,
    "acknowledges neither held nor null": keeps_quiet_about_held,
    "acts safe when told": acts_safe,
    "survives garbage and unknown messages": survives_garbage,
    "resumes its session after silence": resumes_after_silence,
    "begins anew after a server's restart": begins_anew_after_restart,
    "ends on bye": ends_on_bye,
}
