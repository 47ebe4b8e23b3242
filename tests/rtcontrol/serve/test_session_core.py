"""The sessions' core by a fake clock: which clients are welcomed, parked, resumed, refused and stopped."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.serve import session_events as ev
from rtcontrol.serve.paused import PausedRobots
from rtcontrol.serve.session_core import MAX_IDLE_CONNECTIONS, MAX_WELCOMES
from rtcontrol.serve.sessions import KEY_REVOKED, MAX_ENDING, SERVER_LEAVING, DecoderNeed, Peer, Session
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.messages import (
    Bye,
    CallMessage,
    ControlMessage,
    ErrorMessage,
    Instruct,
    Join,
    Picture,
    Ping,
    Pong,
    Reset,
    Welcome,
)
from tests.rtcontrol.serve.bench import Bench, S, Wire, bye, call, observe

UNKNOWN = "x" * 32
CONTROL: dict[str, Any] = {"capabilities": ["control"]}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def control(session: Session, word: Any, **more: Any) -> ControlMessage:
    return ControlMessage(session=session.token, say=word, **more)


def ping(number: int = 1) -> Ping:
    return Ping(id=number, t_ns=1)


def picture(token: str) -> Picture:
    return Picture.model_construct(type="picture", session=token, t_ns=1)


# -- hello ------------------------------------------------------------------------------------------------------------


def test_welcome_comes_once_the_loop_is_warm(bench: Bench) -> None:
    wire = Wire()
    bench.slow = True
    hello = bench.hello(wire)
    assert wire.sent == [] and bench.states_of() == {"opening": 1}
    bench.now += S
    bench.opens()
    welcome = wire.only(Welcome)
    assert (welcome.t_client_ns, welcome.t_server_ns, welcome.resumed) == (hello.t_client_ns, bench.now, False)
    assert welcome.instruction == "go" and bench.lines == ["session-0001: a peer, terms"]


def test_repeated_hello_is_welcomed_and_changed_hello_refused(bench: Bench) -> None:
    wire, session = bench.enter()
    bench.now += S
    hello = bench.hello(wire)
    welcome = wire.only(Welcome)
    assert (welcome.session, welcome.t_client_ns) == (session.token, hello.t_client_ns)
    bench.hello(wire, resume=session.token)
    assert wire.only(Welcome).session == session.token
    bench.hello(wire, hz=5.0)
    error = wire.only(ErrorMessage)
    assert (error.code, error.fatal, error.t_client_ns) == ("state", False, bench.now)
    bench.hello(wire, resume=UNKNOWN)
    assert wire.code() == "state"
    assert bench.states_of() == {"live": 1}


def test_unread_welcomes_are_not_repeated_without_end(bench: Bench) -> None:
    wire, _ = bench.enter()
    for _ in range(30):
        bench.now += S
        bench.hello(wire)
    assert len([message for message in wire.sent if isinstance(message, Welcome)]) == MAX_WELCOMES
    assert bench.core.refused["rate"] == 30 - MAX_WELCOMES


def test_refused_hello_leaves_connection_free(bench: Bench) -> None:
    wire = Wire()
    bench.refusal = WireError(Code.AGENT, "There is none.", fatal=True)
    bench.hello(wire)
    error = wire.only(ErrorMessage)
    assert (error.code, error.fatal, error.t_client_ns) == ("agent", True, bench.now)
    assert bench.lines == ["a peer: refused: There is none."] and bench.states_of() == {}
    bench.refusal = None
    bench.enter(wire)


def test_full_server_is_busy_except_for_parked_sessions() -> None:
    bench = Bench(limit=2)
    wires = [bench.enter()[0] for _ in range(2)]
    bench.hello(other := Wire())
    assert other.error() == ("busy", True, True)
    parked = []
    for wire in [*wires, Wire()]:  # who waits for its client takes no place
        if wire not in wires:
            bench.enter(wire)
        parked += [peer.session for peer in bench.core.peers.values() if peer.connection is wire]
        bench.lose(wire)
        bench.now += S
    assert bench.states_of() == {"parked": 2} and parked[0] and parked[0].life.state == "over"
    bench.lingers = True
    for _ in range(2 + MAX_ENDING):
        wire, session = bench.enter()
        bench.send(wire, bye(session))
    bench.hello(last := Wire())
    assert last.code() == "busy"


def test_robot_is_exclusive_unless_its_session_is_parked(bench: Bench) -> None:
    first, second = Wire(), Wire()
    _, session = bench.enter(first, robot="arm")
    bench.hello(second, robot="arm")
    error = second.only(ErrorMessage)
    assert (error.code, error.field, error.retryable, error.fatal) == ("busy", "robot", True, True)
    bench.lose(first)
    bench.enter(second, robot="arm")
    bench.hello(first := Wire(), resume=session.token)
    assert first.code() == "session", "the first one lost it"


@pytest.mark.parametrize("decoder_needs", [{"session-0001": 0.5, "session-0002": 0.5}, {"session-0002": 0.9}])
def test_session_that_would_delay_others_is_refused(bench: Bench, decoder_needs: dict[str, float]) -> None:
    bench.need_of = {name: DecoderNeed(10.0, share / 10) for name, share in decoder_needs.items()}
    bench.enter()
    bench.hello(other := Wire())
    if len(decoder_needs) == 1:  # alone it is late anyway
        other.only(Welcome)
        return
    error = other.only(ErrorMessage)
    assert (error.code, error.retryable, error.fatal) == ("busy", True, True) and "ms a decision" in error.message
    assert bench.states_of() == {"live": 1}


def test_sessions_of_nothing_leave_threads_for_others(bench: Bench) -> None:
    bench.enter(hz=20.0)
    codes = []
    for _ in range(60):
        bench.hello(wire := Wire(), hz=100.0)
        codes.append(wire.sent[-1].code if isinstance(wire.sent[-1], ErrorMessage) else "welcome")
    assert codes == ["welcome"] * 4 + ["busy"] * 56
    bench.hello(wire := Wire(), hz=80.0)
    wire.only(Welcome)
    assert not bench.has_room()


def test_missing_thread_refuses_only_that_hello(bench: Bench) -> None:
    bench.no_thread = True
    bench.hello(wire := Wire())
    assert wire.error() == ("busy", True, True)
    assert bench.states_of() == {}
    bench.no_thread = False
    session = bench.parked()
    bench.no_thread = True
    bench.hello(wire, resume=session.token)
    assert wire.code() == "busy" and bench.states_of() == {"parked": 1}
    bench.no_thread = False
    bench.hello(wire, resume=session.token)
    assert wire.only(Welcome).resumed


def test_hellos_are_rate_limited(bench: Bench) -> None:
    wire = Wire()
    for _ in range(500):
        bench.hello(wire)
        bench.send(wire, Bye())
    assert bench.core.refused["rate"] >= 400 and bench.core.count <= 20
    assert {message.code for message in wire.take(ErrorMessage)} == {"rate"}
    bench.wait(5)
    bench.hello(wire)
    wire.only(Welcome)


# -- resuming ---------------------------------------------------------------------------------------------------------


def test_lost_client_is_parked_and_resumes_by_token(bench: Bench) -> None:
    session = bench.parked()
    assert bench.lines[-1] == "session-0001: client lost; kept for 30 s"
    bench.now += 29 * S
    bench.hello(wire := Wire(), resume=session.token)
    welcome = wire.only(Welcome)
    assert (welcome.session, welcome.resumed, session.life.runs) == (session.token, True, 2)
    assert bench.states_of() == {"live": 1} and bench.lines[-1].endswith("terms, resumed")


def test_parked_session_ends_after_its_grace(bench: Bench) -> None:
    session = bench.parked()
    assert bench.core.wake_ns == bench.now + 30 * S + 1
    bench.wait(30)
    assert bench.states_of() == {"parked": 1}
    bench.wait(0.1)
    assert bench.states_of() == {} and bench.lines[-1] == "session-0001: over (the client did not return)"
    bench.hello(wire := Wire(), resume=session.token)
    error = wire.only(ErrorMessage)
    assert (error.code, error.field, error.retryable, error.fatal) == ("session", "resume", True, False)


def test_resuming_takes_over_from_old_connection(bench: Bench) -> None:
    first, session = bench.enter()
    second = Wire()
    bench.hello(second, resume=session.token)
    assert second.only(Welcome).resumed and bench.states_of() == {"live": 1}
    bench.send(first, observe(session.token))
    assert first.code() == "state"
    bench.handle(ev.LoopMessage(session, call(session)))
    assert not first.sent and second.only(CallMessage)
    bench.lose(first)  # nothing comes of it
    assert bench.states_of() == {"live": 1}


def test_key_of_another_client_cannot_resume(bench: Bench) -> None:
    wire, session = bench.enter(Wire(key="mine"))
    bench.lose(wire)
    for key in (None, "another"):
        bench.hello(wire := Wire(key=key), resume=session.token)
        assert wire.code() == "session"
    bench.hello(wire := Wire(key="mine"), resume=session.token)
    wire.only(Welcome)


def test_temporary_failure_parks_session_and_other_ends_it(bench: Bench) -> None:
    session = bench.parked()
    bench.refusal = None
    passing = WireError(Code.DECODER, "It is away.", retryable=True)
    bench.hello(wire := Wire(), resume=session.token)
    wire.sent.clear()
    bench.end(session, passing)
    error = wire.only(ErrorMessage)
    assert (error.code, error.retryable, error.fatal) == ("decoder", True, False)
    assert bench.states_of() == {"parked": 1} and bench.lines[-1] == "session-0001: It is away.; kept for 30 s"
    bench.hello(wire, resume=session.token)
    wire.sent.clear()
    bench.end(session, WireError(Code.INTERNAL, "It broke.", fatal=True))
    assert wire.only(ErrorMessage).fatal and bench.states_of() == {}


def test_client_lost_while_opening_leaves_no_session(bench: Bench) -> None:
    bench.slow = True
    bench.hello(wire := Wire())
    bench.lose(wire)
    bench.opens()
    assert bench.states_of() == {} and not bench.running


def test_outliving_session_continues_and_returns_by_token() -> None:
    bench = Bench(limit=1, outlives_client=True)
    wire, session = bench.enter()
    bench.lose(wire)
    assert bench.states_of() == {"live": 1}, "it continues while its client is away"
    bench.hello(other := Wire())
    error = other.only(ErrorMessage)
    assert (error.code, error.fatal, error.retryable) == ("state", True, False)
    assert "waits for its client" in error.message
    bench.hello(wire := Wire(), resume=session.token)
    assert wire.only(Welcome).resumed and session.life.runs == 1
    bench.hello(other := Wire())
    assert other.code() == "busy"


def test_client_that_restarts_before_its_welcome_is_admitted() -> None:
    bench = Bench(limit=1, outlives_client=True)
    bench.slow = True
    bench.hello(first := Wire())
    bench.lose(first)
    bench.hello(other := Wire(), instruction="another one")
    assert other.code() == "state"
    bench.hello(again := Wire())
    bench.opens()
    assert again.only(Welcome) and bench.states_of() == {"live": 1}


# -- messages ---------------------------------------------------------------------------------------------------------

Say = Callable[[Session], Message]


@pytest.mark.parametrize(
    ("message", "code", "remedy"),
    [
        (lambda s: observe(UNKNOWN), "session", "welcome"),
        (lambda s: observe("ü" * 20), "session", "welcome"),
        (lambda s: Instruct(session=UNKNOWN, instruction="x"), "session", "welcome"),
        (lambda s: bye(s).model_copy(update={"session": UNKNOWN}), "session", "welcome"),
        (lambda s: control(s, "pause"), "state", "control"),
        (lambda s: picture(s.token), "state", "pictures"),
        (lambda s: Join(session=s.token, members=[]), "state", "crowd"),
        (lambda s: Welcome.model_construct(type="welcome"), "state", "Do not send"),
        (lambda s: call(s), "state", "Do not send"),
    ],
)
def test_message_is_refused_and_the_session_continues(bench: Bench, message: Say, code: str, remedy: str) -> None:
    wire, session = bench.enter()
    bench.send(wire, message(session))
    error = wire.only(ErrorMessage)
    assert (error.code, error.fatal) == (code, False) and remedy in error.remedy
    assert error.seq == (1 if code == "session" and "observe" in str(message(session).type) else None)
    assert session.refused == {code: 1} and bench.core.refused[code] == 1
    assert bench.states_of() == {"live": 1}


def test_only_ping_is_answered_before_hello(bench: Bench) -> None:
    wire = Wire()
    bench.send(wire, ping(7))
    pong = wire.only(Pong)
    assert (pong.id, pong.t_ping_ns, pong.t_received_ns, pong.t_sent_ns) == (7, 1, bench.now, bench.now)
    for message in (observe(UNKNOWN), Reset(session=UNKNOWN, epoch=1), Instruct(session=UNKNOWN, instruction="x")):
        bench.send(wire, message)
        error = wire.only(ErrorMessage)
        assert (error.code, error.retryable) == ("state", True) and "hello" in error.remedy
    for nothing in (Bye(), Pong(id=1, t_ping_ns=1, t_received_ns=1, t_sent_ns=1), ErrorMessage(code="x", message="y")):
        bench.send(wire, nothing)
        assert wire.sent == []


def test_observations_reach_world_of_live_session(bench: Bench) -> None:
    wire = Wire()
    bench.slow = True
    bench.hello(wire)
    session = bench.states["session-0001"]
    bench.send(wire, observe(session.token))
    assert wire.code() == "state"
    bench.opens()
    wire.sent.clear()
    bench.slow = False
    many, crowd = bench.enter(crowd=True)
    bench.send(many, observe(crowd.token))
    assert many.code() == "state"
    bench.send(many, Join(session=crowd.token, members=[]))
    assert bench.done[-1][:2] == (crowd.id, "take")
    message = observe(session.token, 2)
    bench.send(wire, message)
    assert bench.done[-1] == (session.id, "take", message) and not wire.sent
    bench.world_error = WireError(Code.SEQUENCE, "It does not grow.")
    bench.send(wire, message)
    assert wire.only(ErrorMessage).seq == 2


def test_picture_needs_key_and_token(bench: Bench) -> None:
    _, session = bench.enter(Wire(key="mine"), capabilities=["pictures"])
    other = Wire(key="mine")
    bench.send(other, picture(session.token))
    assert bench.done[-1] == (session.id, "take", picture(session.token))
    for wire, token in ((Wire(), session.token), (other, UNKNOWN), (Wire(key="another"), session.token)):
        bench.send(wire, picture(token))
        assert wire.code() == "session"


def test_messages_beyond_rate_are_ignored_undecoded() -> None:
    bench = Bench(messages_per_s=50.0, errors_per_s=1.0)
    wire, _ = bench.enter()
    taken = sum(bool(bench.handle(ev.MessageArrived(wire))) for _ in range(300))
    assert taken == 50 and bench.core.refused["rate"] == 250
    assert [message.dropped for message in wire.take(ErrorMessage)] == [0, 0]
    bench.now += S
    assert bench.handle(ev.MessageArrived(wire))


def read(bench: Bench, wire: Wire, cost_ms: float, count: int) -> int:
    """Let messages arrive that each cost so much processor time. Return how many are read."""
    taken = 0
    for _ in range(count):
        if bench.handle(ev.MessageArrived(wire)):
            bench.handle(ev.TimeSpent(wire, round(cost_ms * 1e6)))
            taken += 1
    return taken


def test_dear_messages_leave_time_for_other_sessions(bench: Bench) -> None:
    robot, hostile, outside = bench.enter()[0], bench.enter()[0], [Wire() for _ in range(40)]
    spent_ms = 0.0
    for _ in range(100):
        bench.now += S // 20
        assert read(bench, robot, 0.5, 5) == 5
        spent_ms += 20 * read(bench, hostile, 20, 10) + 20 * sum(read(bench, wire, 20, 1) for wire in outside)
    assert spent_ms < 0.55 * 5_000  # of five seconds
    assert bench.core.refused["rate"] > 1000


def test_time_budget_in_debt_recovers(bench: Bench) -> None:
    wire, _ = bench.enter()
    assert read(bench, wire, 3_000, 3) == 2  # its session's budget, and the common one
    bench.now += 3 * S
    assert read(bench, wire, 1, 1) == 0
    bench.now += 4 * S
    assert read(bench, wire, 1, 1) == 1


def test_client_that_floods_is_disconnected(bench: Bench) -> None:
    robot, _ = bench.enter()
    for size, needed in ((1 << 20, 110), (0, 5_600)):  # with a session: first its share and its rate are used up
        wire, session = bench.enter()
        assert sent_until_closed(bench, wire, size) < needed and session.life.state == "parked"
        sent_until_closed(bench, Wire(), 1 << 20)  # uses up the time for all others
        assert sent_until_closed(bench, Wire(), 1 << 20) == 2
        bench.now += 10 * S
    assert not robot.closed and "send more than the server reads" in bench.lines[-1]


def test_client_over_its_rate_at_times_stays_connected(bench: Bench) -> None:
    wire, _ = bench.enter()
    for _ in range(50):
        for _ in range(5_100):
            bench.handle(ev.MessageArrived(wire, 200))
        bench.now += S
    assert not wire.closed and bench.core.refused["rate"] > 4_000


def sent_until_closed(bench: Bench, wire: Wire, size: int) -> int:
    """Let messages arrive at once until the server closes the connection. Return their number."""
    count = 0
    while not wire.closed and count < 10_000:
        bench.handle(ev.MessageArrived(wire, size))
        count += 1
    return count


def run_paced(bench: Bench, sessions: list[Session], cost_us: int, seconds: int) -> list[int]:
    """Let sessions whose clients set the pace decide one after another as often as they may, at `cost_us` a call.
    Return how many calls each had."""
    cpu, free, counts, end = (
        [0] * len(sessions),
        [bench.now] * len(sessions),
        [0] * len(sessions),
        bench.now + seconds * S,
    )
    while bench.now < end:
        n = min(range(len(sessions)), key=lambda n: free[n])
        bench.now = max(bench.now, free[n]) + 1000 * cost_us
        cpu[n] += 1000 * cost_us
        counts[n] += 1
        pause_s = bench.handle(ev.ThreadTime(sessions[n], cpu[n]))
        free[n] = bench.now + round((pause_s or 0) * 1e9)
    return counts


def test_clients_that_set_the_pace_keep_to_their_part(bench: Bench) -> None:
    paced = [bench.enter(pacing="client")[1] for _ in range(2)]
    assert run_paced(bench, paced[:1], 125, 2)[0] > 2_000  # the others are idle
    run_paced(bench, paced, 125, 2)
    counts = run_paced(bench, paced, 125, 10)
    assert [count / 10 for count in counts] == [pytest.approx(500, rel=0.1)] * 2  # of half a tick
    assert 450 < bench.core.ticks_per_s() < 550 and "slowed down to 250 ticks a second" in "".join(bench.lines)
    bench.hello(wire := Wire(), hz=60.0)
    assert wire.code() == "busy"


def test_crowd_is_measured_by_its_processor_time(bench: Bench) -> None:
    bench.enter(hz=20.0)
    session = bench.enter(crowd=True, hz=1.0)[1]
    run_paced(bench, [session], 250, 4)
    assert session.ticks_per_s == pytest.approx(480, abs=10)  # all but the other session's 20
    bench.handle(ev.ThreadTime(session, 1_000_000))  # a new thread, after a resume
    assert session.ticks_per_s == pytest.approx(480, abs=10)


def test_errors_are_rate_limited_and_unsent_ones_counted(bench: Bench) -> None:
    wire, _ = bench.enter()
    garbage = WireError(Code.MALFORMED, "No message.")
    for _ in range(100):
        bench.handle(ev.MessageRefused(wire, garbage))
    result = wire.take(ErrorMessage)
    assert len(result) == 20 and bench.core.refused["malformed"] == 100
    bench.now += S
    bench.handle(ev.MessageRefused(wire, garbage))
    assert wire.only(ErrorMessage).dropped == 80


# -- silence ----------------------------------------------------------------------------------------------------------


def test_quiet_client_is_pinged_and_silent_one_lost(bench: Bench) -> None:
    wire, _ = bench.enter()
    for n in range(1, 6):
        bench.wait(1)
        assert wire.only(Ping).id == n
        bench.send(wire, Pong(id=n, t_ping_ns=1, t_received_ns=1, t_sent_ns=1))
    bench.wait(3)
    assert bench.states_of() == {"live": 1}
    bench.wait(0.1)
    assert bench.states_of() == {"parked": 1} and wire.closed


def test_connection_without_session_ends_after_two_minutes(bench: Bench) -> None:
    wire = Wire()
    bench.send(wire, ping())
    wire.sent.clear()
    bench.wait(120)
    assert not wire.closed and not wire.sent
    bench.wait(0.1)
    assert wire.closed and not bench.core.peers


def test_excess_connections_drop_the_longest_silent(bench: Bench) -> None:
    wires = [Wire() for _ in range(MAX_IDLE_CONNECTIONS + 1)]
    for wire in wires:
        bench.now += 1
        bench.send(wire, ping())
    assert [wire.closed for wire in wires] == [True] + [False] * MAX_IDLE_CONNECTIONS


def test_late_message_does_not_revive_dropped_connection(bench: Bench) -> None:
    wire, session = bench.enter()
    bench.handle(ev.ConnectionLost(wire, KEY_REVOKED))
    assert wire.closed and bench.lines[1] == "a peer: the client's key was revoked" and session.life.state == "parked"
    assert not bench.handle(ev.MessageArrived(wire))
    bench.send(wire, observe(session.token))
    assert not bench.core.peers and not wire.sent


# -- instructions -----------------------------------------------------------------------------------------------------


def test_refused_instruction_is_reported_after_call_of_tick(bench: Bench) -> None:
    wire, session = bench.enter()
    bench.send(wire, Instruct(session=session.token, instruction="bad"))
    bench.handle(ev.InstructionRejected(session, "it does not fit"))
    assert not wire.sent
    refusal = WireError(Code.TOO_LARGE, "it does not fit", seq=7)
    bench.handle(ev.LoopMessage(session, call(session)))
    bench.handle(ev.LoopError(session, refusal, "it does not fit"))
    result = wire.sent
    assert [type(message) for message in result] == [CallMessage, ErrorMessage]
    assert isinstance(result[1], ErrorMessage) and (result[1].code, result[1].seq) == ("instruction", 7)


def test_undecided_observation_is_refused_once(bench: Bench) -> None:
    wire, session = bench.enter()
    for seq, what, sent in ((3, "KeyError", 1), (3, "KeyError", 0), (4, "KeyError", 1), (4, "other", 1), (4, None, 1)):
        bench.handle(ev.LoopError(session, WireError(Code.INVALID, "x", seq=seq), what))
        assert len(wire.take(ErrorMessage)) == sent, (seq, what)


WISHES = [
    # what happened before the client was lost -> what the next run starts with
    ([], "go"),
    ([("wire", "left")], "left"),
    ([("wire", "left"), ("page", "right")], "right"),
    ([("wire", "bad"), ("refused", "bad")], "go"),
]


@pytest.mark.parametrize(("happened", "first"), WISHES)
def test_next_run_starts_with_newest_accepted_instruction(
    bench: Bench, happened: list[tuple[str, str]], first: str
) -> None:
    wire, session = bench.enter()
    for source, text in happened:
        if source == "wire":
            bench.send(wire, Instruct(session=session.token, instruction=text))
        elif source == "page":
            bench.handle(ev.InstructionReceived(session, text))
        else:  # the loop continues with the one before
            bench.running[session.id] = "go"
            bench.handle(ev.InstructionRejected(session, "it does not fit"))
    bench.lose(wire)
    bench.hello(Wire(), resume=session.token)
    assert bench.running[session.id] == first


def test_instruction_without_loop_starts_next_run(bench: Bench) -> None:
    session = bench.parked()
    bench.handle(ev.InstructionReceived(session, "right"))
    bench.hello(wire := Wire(), resume=session.token)
    assert bench.running[session.id] == "right"
    bench.lose(wire)
    bench.slow = True
    bench.hello(Wire(), resume=session.token)
    bench.waiting.clear()
    bench.handle(ev.SettingsNegotiated(session))
    bench.handle(ev.InstructionReceived(session, "left"))
    bench.handle(ev.LoopCreated(session))
    assert bench.done[-1] == (session.id, "instruct", "left")


def test_instruction_after_end_of_loop_starts_next_run(bench: Bench) -> None:
    wire, session = bench.enter()
    bench.lingers = True
    bench.lose(wire)
    del bench.running[session.id]  # it is over, and its thread has not reported it yet
    bench.handle(ev.InstructionReceived(session, "left"))
    bench.handle(ev.SessionEnded(session, run_instructions=("go", "go")))
    bench.hello(Wire(), resume=session.token)
    assert bench.running[session.id] == "left"


def unfit() -> WireError:
    return WireError(Code.INSTRUCTION, "It does not fit.", "Shorten it.", field="instruction", fatal=True)


def test_rejected_instruction_falls_back_to_previous(bench: Bench) -> None:
    session = bench.parked()
    bench.handle(ev.InstructionReceived(session, "bad"))
    bench.hello(back := Wire(), resume=session.token)
    back.sent.clear()
    del bench.running[session.id]
    bench.handle(ev.SessionEnded(session, unfit()))
    assert back.error() == ("instruction", False, True)
    bench.hello(back, resume=session.token)
    assert bench.running[session.id] == "go"
    back.sent.clear()
    bench.handle(ev.SessionEnded(session, unfit()))
    assert back.error() == ("instruction", True, False), "there is none before that"


def test_resumed_client_gets_no_call_before_its_welcome(bench: Bench) -> None:
    wire, session = bench.enter()
    bench.lingers = True
    bench.lose(wire)
    del bench.running[session.id]  # its loop is over, and its last safe call comes
    bench.hello(back := Wire(), resume=session.token)
    bench.handle(ev.LoopMessage(session, call(session)))
    assert not back.sent
    bench.handle(ev.SessionEnded(session))
    bench.handle(ev.LoopMessage(session, call(session)))
    assert [type(message) for message in back.sent] == [Welcome, CallMessage]


# -- people -----------------------------------------------------------------------------------------------------------


def words(bench: Bench) -> list[tuple[str, str]]:
    return [(action[2], action[3]) for action in bench.done if action[1] == "say"]


def test_clients_command_reaches_its_loop_at_once(bench: Bench) -> None:
    wire, session = bench.enter(**CONTROL)
    bench.send(wire, control(session, "pause"))
    assert bench.done[-1] == (session.id, "say", "pause", "wire", None)
    bench.send(wire, control(session, "confirm", id=3))
    assert bench.done[-1] == (session.id, "say", "confirm", "wire", 3)
    paused = ControlMessage(session=session.token, state="paused")
    bench.handle(ev.LoopMessage(session, paused))
    assert wire.only(ControlMessage).state == "paused"
    incapable, other = bench.enter()
    bench.handle(ev.LoopMessage(other, paused))
    assert not incapable.sent


@pytest.mark.parametrize("more", [{}, {"say": "confirm", "instruction": "land"}])
def test_control_without_command_is_refused(bench: Bench, more: dict[str, Any]) -> None:
    wire, session = bench.enter(**CONTROL)
    bench.send(wire, ControlMessage(session=session.token, **more))
    assert wire.code() == "invalid" and not words(bench)


def test_pause_without_loop_reaches_next_loop(bench: Bench) -> None:
    bench.slow = True
    bench.hello(wire := Wire())
    session = bench.states["session-0001"]
    assert bench.command(session, "pause") == "pause (page)"
    bench.opens()
    assert words(bench) == [("pause", "before")]
    bench.lose(wire)
    bench.hello(wire := Wire(), resume=session.token)
    bench.opens()
    assert words(bench) == [("pause", "before")] * 2, "it stays so, whatever becomes of its client"
    bench.lose(wire)
    bench.command(session, "resume")
    bench.hello(wire := Wire(), resume=session.token)
    bench.opens()
    assert len(words(bench)) == 2


@pytest.mark.parametrize("capable", [True, False])
def test_client_with_control_gets_state_after_welcome(bench: Bench, capable: bool) -> None:
    bench.control = ControlMessage(session=UNKNOWN, state="paused")
    bench.hello(wire := Wire(), **(CONTROL if capable else {}))
    assert [type(message) for message in wire.sent] == [Welcome, ControlMessage][: 1 + capable]


def test_stop_by_person_is_final_and_reported(bench: Bench) -> None:
    wire, session = bench.enter(**CONTROL)
    bench.send(wire, control(session, "stop"))
    error, last = wire.sent
    assert isinstance(error, ErrorMessage) and (error.code, error.fatal, error.retryable) == ("state", True, False)
    assert isinstance(last, Bye) and (last.reason, last.reconnect) == ("a person stopped it", None)
    bench.hello(back := Wire(), resume=session.token)
    again = back.only(ErrorMessage)
    assert (again.code, again.fatal, again.retryable) == ("state", True, False) and "final" in again.message


@pytest.mark.parametrize("when", ["opening", "parked"])
def test_stop_without_loop_is_final(bench: Bench, when: str) -> None:
    if when == "parked":
        session = bench.parked()
    else:
        bench.slow = True
        bench.hello(wire := Wire())
        session = bench.states["session-0001"]
    bench.command(session, "stop")
    bench.opens()
    assert bench.states_of() == {} and not bench.running
    if when == "opening":
        assert [type(message) for message in wire.sent] == [ErrorMessage, Bye]
    bench.hello(back := Wire(), resume=session.token)
    assert back.code() == "state"


@pytest.mark.parametrize("word", ["pause", "stop"])
def test_robot_stays_paused_when_its_program_restarts(bench: Bench, word: str) -> None:
    wire, session = bench.enter(robot="arm")
    bench.command(session, word)
    bench.lose(wire)
    before = len(words(bench))
    wire, session = bench.enter(robot="arm")
    bench.enter(robot="leg")
    assert words(bench)[before:] == [("pause", "before")] and session.life.paused
    line = f"{session.id} starts paused, until a person resumes it: arm: {word} (page) at"
    assert [each.startswith(line) for each in bench.lines].count(True) == 1
    bench.command(session, "resume")
    bench.lose(wire)
    _, session = bench.enter(robot="arm")
    assert not session.life.paused


def test_paused_robots_outlast_the_server(tmp_path: Path) -> None:
    lines: list[str] = []
    names = ("arm", "../../x/y", "机" * 64)
    first = PausedRobots(tmp_path / "paused", lines.append)
    for name in names:
        first.change(name, "stop", "page")
    assert all(first.reason(name) for name in names) and not any(tmp_path.iterdir())
    first.save()
    second = PausedRobots(tmp_path / "paused", lines.append)
    assert second.reason("arm").startswith("arm: stop (page) at 20") and not second.reason("Arm")
    second.change("arm", "resume", "page")
    second.save()
    assert not first.reason("arm") and all(first.reason(name) for name in names[1:])
    assert {path.parent for path in tmp_path.rglob("*") if path.is_file()} == {tmp_path / "paused"} and not lines


def test_pause_that_cannot_be_saved_counts_and_is_reported_once(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "paused").write_text("no folder")
    robots = PausedRobots(tmp_path / "paused", lines.append)
    robots.change("arm", "pause", "wire")
    for _ in range(2):
        robots.save()
    assert robots.reason("arm") and len(lines) == 1 and "lost at a restart" in lines[0]


# -- bye, draining, and the end ---------------------------------------------------------------------------------------


def test_bye_is_answered_and_frees_the_connection(bench: Bench) -> None:
    wire, session = bench.enter()
    bench.lingers = True
    bench.end(session)
    assert wire.only(Welcome).resumed and session.life.runs == 2, "a loop that ends by itself is started again"
    bench.send(wire, bye(session))
    assert wire.only(Bye).reason == "client said bye"
    bench.handle(ev.LoopMessage(session, call(session)))
    assert not wire.sent, "nothing is sent after a bye"
    _, other = bench.enter(wire, robot="arm")
    bench.end(session)
    assert not wire.sent and bench.states_of() == {"live": 1}
    assert bench.lines[-1] == "session-0001: over (client said bye)"
    bench.hello(back := Wire(), resume=session.token)
    assert back.code() == "session" and other.peer is not None


def test_bye_of_closed_connection_ends_session(bench: Bench) -> None:
    parked = bench.parked()
    wire, ending = bench.enter()
    bench.lingers = True
    bench.lose(wire)
    other = Wire()
    for session in (parked, ending):
        bench.send(other, bye(session))
        assert other.only(Bye).session == session.token
    bench.end(ending)
    assert bench.states_of() == {}
    outsider = Wire(key="another")
    bench.lingers = False
    waits = bench.parked()
    bench.send(outsider, bye(waits))
    assert not outsider.sent and bench.states_of() == {"parked": 1}


def kept() -> int:
    """Return the number of sessions and connections in memory."""
    gc.collect()
    return sum(isinstance(thing, Session | Peer | Wire) for thing in gc.get_objects())


def test_ten_thousand_clients_leak_nothing(bench: Bench) -> None:
    before = kept()
    for n in range(10_000):
        bench.hello(wire := Wire())
        _, session = bench.states.popitem()
        if n % 3:
            bench.send(wire, bye(session))
        if n % 3 != 1:
            bench.lose(wire)  # without a bye it is parked
        bench.wait(30 if n % 10 == 0 else 0)
        bench.done.clear()
        bench.lines.clear()
    bench.wait(300)
    del wire, session
    bench.done.clear()
    assert kept() <= before and bench.states_of() == {} and not bench.core.peers


def drained(count: int, grace_s: float = 1.0, **rules: Any) -> tuple[Bench, list[tuple[Wire, Session]]]:
    """Return a draining server, and its clients in the order of their arrival."""
    bench = Bench(**rules)
    clients = [bench.enter() for _ in range(count)]
    bench.handle(ev.DrainStarted(round(grace_s * S)))
    return bench, clients


def test_draining_server_resumes_sessions_and_ends_them_after_call() -> None:
    bench, ((wire, session),) = drained(1)
    bench.hello(new := Wire())
    assert new.error() == ("busy", True, True)
    bench.lose(wire)
    bench.hello(wire := Wire(), resume=session.token)
    assert bench.states_of() == {"live": 1} and not bench.has_room()
    bench.wait(1.05)
    bench.handle(ev.LoopMessage(session, call(session, more=True)))
    assert not wire.take(Bye)
    bench.handle(ev.LoopMessage(session, call(session)))
    assert wire.take(Bye)[0].reconnect
    bench.hello(wire)
    assert wire.code() == "busy", "a connection that was sent away gets no new session"


@pytest.mark.parametrize("count", [3, 64])
def test_drained_clients_leave_in_sequence_after_calls(count: int) -> None:
    bench, clients = drained(count)
    bench.wait(0.99)
    assert not any(wire.sent for wire, _ in clients)
    left: list[int] = []
    for _ in range(300):
        bench.wait(0.01)
        for n, (wire, session) in enumerate(clients):
            wire.sent = [message for message in wire.sent if not isinstance(message, Ping)]
            if session.peer is not None:
                bench.handle(ev.LoopMessage(session, call(session)))
                if session.peer is None:
                    left.append(n)
    assert left == list(range(count)) and bench.states_of() == {}
    for wire, session in clients:
        *calls, last = wire.sent
        assert calls and all(isinstance(message, CallMessage) for message in calls)
        assert (
            isinstance(last, Bye) and last.reconnect and (last.session, last.reason) == (session.token, SERVER_LEAVING)
        )


@pytest.mark.parametrize("what", ["silent", "opening", "parked", "stopped"])
def test_draining_session_without_call_ends_with_bye(what: str) -> None:
    bench, ((wire, session),) = drained(1)
    if what == "opening":
        bench.slow = True
        bench.end(session)
    elif what == "parked":
        bench.lose(wire)
    elif what == "stopped":
        bench.command(session, "stop")
    wire.sent.clear()
    bench.wait(1.6)
    bench.opens()
    assert bench.states_of() == {}
    assert [m.reconnect for m in wire.take(Bye)] == ([] if what in ("parked", "stopped") else [True])


def test_ending_server_says_bye_and_refuses_clients(bench: Bench) -> None:
    wire, session = bench.enter()
    bench.parked()
    bench.handle(ev.CloseStarted())
    assert (result := wire.only(Bye)).reason == "server stopped" and result.reconnect is None
    assert bench.states_of() == {}
    for fields in ({}, {"resume": session.token}):
        bench.hello(new := Wire(), **fields)
        assert new.code() == "busy"


def test_room_depends_on_places_and_decoder_time() -> None:
    bench = Bench(limit=2)
    assert bench.has_room()
    _, session = bench.enter()
    bench.need_of = {session.id: DecoderNeed(10.0, 0.09)}
    assert bench.core.decoder_load(bench.decoder_needs()) == pytest.approx(0.9) and not bench.has_room()
    bench.need_of = {}
    assert bench.has_room()
    bench.enter()
    assert not bench.has_room()
