"""What the C# client says when, event by event; and against a server of which each word is the test's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rtcontrol.bridges.wire.messages import ErrorMessage, Executed, FunctionCall, Hello, Observe
from tests.bridges.unity.mono import HERE, Driver, Start, compile_cs, core_sources
from tests.conformance import load
from tests.conformance.check.stand import Stand

MS = 1_000_000
VALID = {v["name"]: v["json"] for v in load("valid")}
WELCOME: dict[str, Any] = {**VALID["welcome, required fields only"], "t_server_ns": 0, "t_client_ns": 0}
CALL = {"session": WELCOME["session"], "tick": 0, "epoch": 0, "ttl_ms": 0, "deadline_ns": 0, "t_server_ns": 0}


class Conversation:
    """The pure part of the C# client, at instants of our own choice."""

    def __init__(self, core: Driver, *name: str) -> None:
        self._core, self.now_ns = core, 1000 * MS
        self._core.ask(" ".join(["talk", *name]))

    def on(self, event: str, more: str = "") -> Any:
        return self._core.ask(f"on {event} {self.now_ns} {more}".rstrip())

    def hear(self, **message: Any) -> Any:
        return self.on("hear", msgpack.packb(message).hex())

    def call(self, **changes: Any) -> Any:
        return self.hear(type="call", **{**CALL, **changes})

    def fresh(self, **changes: Any) -> Any:
        """A call that answers the first observation, of now."""
        return self.call(status="fresh", seq_obs=1, t_obs_ns=self.now_ns, **changes)

    def said(self) -> list[str]:
        return [m["type"] for m in self.on("due")]

    def begin(self, **changes: Any) -> None:
        self.on("connected")
        assert self.said() == ["hello"]
        assert self.hear(**{**WELCOME, **changes})["open"]
        self.said()


@pytest.fixture
def talk(core: Driver) -> Conversation:
    """In session."""
    one = Conversation(core)
    one.begin()
    return one


def test_reset_that_found_no_room_is_said_later_and_an_old_observation_is_not(talk: Conversation) -> None:
    talk.on("observe")
    talk.on("reset")
    talk.on("observe")
    assert talk.said() == ["reset", "observe"]
    talk.on("unsaid")
    assert talk.said() == []
    assert talk.on("look")["wait_ns"] >= 10 * MS
    talk.now_ns += 30 * MS
    assert talk.said() == ["reset"]


def test_connection_without_room_is_not_tried_in_a_hot_loop(talk: Conversation) -> None:
    talk.now_ns += 1500 * MS
    assert talk.said() == ["ping"]
    talk.on("unsaid")
    assert talk.on("look")["wait_ns"] >= 10 * MS


def test_client_whose_session_has_ended_rests(talk: Conversation) -> None:
    talk.hear(type="error", code="busy", message="", fatal=True)
    talk.now_ns += 5000 * MS
    assert talk.said() == []
    assert talk.on("look")["wait_ns"] >= 10 * MS


def test_heartbeat_of_nothing_is_no_reason_to_give_the_server_up(core: Driver) -> None:
    talk = Conversation(core)
    talk.begin(heartbeat_ms=0)
    talk.now_ns += 1 * MS
    found = talk.on("look")
    assert not found["silent"] and found["wait_ns"] >= 10 * MS


def test_clock_of_the_server_before_or_of_long_ago_is_not_believed(talk: Conversation) -> None:
    pong = {"type": "pong", "id": 1, "t_received_ns": 5, "t_sent_ns": 5, "t_ping_ns": talk.now_ns}
    assert talk.hear(**pong)["clock"] is not None
    talk.now_ns += 61_000 * MS
    assert talk.on("clock")["clock"] is None
    assert talk.hear(**{**pong, "t_ping_ns": talk.now_ns})["clock"] is not None
    # Restarted: nobody knows the session, another one begins.
    talk.on("connected")
    talk.hear(type="error", code="state", message="", retryable=True)
    talk.said()
    talk.hear(type="error", code="session", message="", retryable=True)
    talk.said()
    found = talk.hear(**{**WELCOME, "session": "f" * 16})
    assert (found["open"], found["clock"]) == (True, None)
    assert "ping" in talk.said()


def test_errors_about_what_was_said_before_delay_no_hello_and_end_nothing(talk: Conversation) -> None:
    talk.now_ns += 500 * MS
    unbound = {"type": "error", "code": "state", "message": "", "retryable": True}
    for error in (unbound, unbound, {"type": "error", "code": "invalid", "message": "", "seq": 7}):
        talk.hear(**error)
    assert talk.said() == ["hello"]


def test_refusal_of_a_hello_before_is_none_of_this_one(core: Driver) -> None:
    talk = Conversation(core)
    talk.on("connected")
    talk.now_ns += 1 * MS
    first_ns = talk.now_ns
    assert talk.said() == ["hello"]
    talk.now_ns += 1000 * MS
    assert talk.said() == ["hello", "ping"]
    refused = {"type": "error", "code": "tools", "message": "", "fatal": True}
    talk.hear(**refused, t_client_ns=first_ns - 1)
    talk.now_ns += 1000 * MS
    assert talk.said() == ["hello", "ping"]
    assert talk.hear(**WELCOME)["open"]
    assert talk.hear(**refused, t_client_ns=first_ns)["open"]
    # The same hello, said again meanwhile: its first refusal counts.
    other = Conversation(core)
    other.on("connected")
    other.said()
    other.now_ns += 1000 * MS
    other.said()
    other.hear(**refused, t_client_ns=other.now_ns - 1000 * MS)
    other.now_ns += 5000 * MS
    assert other.said() == []


def test_next_observation_is_timed_before_a_release_of_the_server(talk: Conversation) -> None:
    assert talk.on("next", "5000000") is None  # a server of 1.0
    server_ns = 7_000_000 * MS
    pong = {"type": "pong", "id": 1, "t_received_ns": server_ns, "t_sent_ns": server_ns, "t_ping_ns": talk.now_ns}
    talk.hear(**pong)
    assert talk.on("next", "5000000") is None
    begun_ns = talk.now_ns
    for release_ns in (server_ns - 30 * MS, server_ns + 70 * MS, server_ns + 570 * MS):
        talk.call(status="held", tick=release_ns // MS, release_ns=release_ns)
        talk.now_ns = begun_ns
        assert talk.on("next", str(5 * MS)) == begun_ns + 65 * MS
        talk.now_ns = begun_ns + 65 * MS
        assert talk.on("next", str(5 * MS)) == begun_ns + 165 * MS


@pytest.mark.parametrize(("ttl_ms", "then"), [(0, ["hold", "stop"]), (500, ["steer"])])
def test_call_without_a_time_to_live_ends_with_the_server(talk: Conversation, ttl_ms: int, then: list[str]) -> None:
    talk.on("observe")
    talk.fresh(call={"name": "steer"}, ttl_ms=ttl_ms)
    talk.on("lost")
    assert [c["name"] for c in talk.on("pending")] == then


@pytest.mark.parametrize("minor", [0, 1])
def test_server_of_1_0_has_all_own_safe_calls_carried_out(core: Driver, minor: int) -> None:
    talk = Conversation(core)
    talk.begin(protocol=[1, minor])
    talk.call(status="safe", call={"name": "hold"})
    assert [c["name"] for c in talk.on("pending")] == (["hold"] if minor else ["hold", "stop"])


def test_result_that_is_no_unicode_is_told_all_the_same(talk: Conversation) -> None:
    talk.on("observe")
    talk.fresh(call={"name": "stop"})
    talk.said()
    talk.on("return", "lone")
    assert [m["result"] for m in talk.on("due")] == ["�"]


@pytest.mark.parametrize(("name", "said"), [("", "com.rtcontrol.client"), ("x" * 80, "x" * 64)])
def test_any_name_of_a_product_will_do(core: Driver, name: str, said: str) -> None:
    talk = Conversation(core, name)
    talk.on("connected")
    assert talk.on("due")[0]["client"]["name"] == said


def test_what_ran_out_before_the_main_thread_came_is_not_carried_out(driver: Start) -> None:
    told = driver("frozen", msgpack.packb(WELCOME).hex()).answer()
    assert told == {"acts": ["Safe stop"], "fresh": 1}


# Against a server of the test's own.


def fly(driver: Start, stand: Stand, *more: str) -> Driver:
    return driver("run", "--endpoint", stand.endpoint, "--ttl-ms", "500", *more)


def begin(driver: Start, stand: Stand, *more: str) -> Driver:
    flying = fly(driver, stand, *more)
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    flying.event("connected")
    return flying


def test_server_that_knows_no_session_ever_is_not_flooded_with_hellos(driver: Start, stand: Stand) -> None:
    flying = fly(driver, stand)
    stand.expect(Hello, 10.0, "hello")
    heard, end_s = 0, time.monotonic() + 2.0
    while time.monotonic() < end_s:
        stand.send(ErrorMessage(code="session", message="unknown", retryable=True))
        heard += stand.pump(1.0, lambda m: isinstance(m, Hello)) is not None
    assert 2 <= heard <= 12
    assert flying.stats()["ended"] is None


def test_connection_that_holds_another_session_is_closed_and_made_anew(driver: Start, stand: Stand) -> None:
    flying = fly(driver, stand)
    stand.expect(Hello, 10.0, "hello")
    before = stand.peer
    stand.send(ErrorMessage(code="state", message="This connection has a session.", remedy="Say bye first."))
    stand.expect(Hello, 10.0, "hello on another connection", lambda m: stand.peer != before)
    stand.welcome()
    flying.event("connected")


@pytest.mark.parametrize(("more", "call", "outcome"), [((), "fly", "refused"), (("--fails", "1"), "steer", "failed")])
def test_call_that_cannot_be_carried_out_is_followed_by_safe(
    driver: Start, stand: Stand, more: tuple[str, ...], call: str, outcome: str
) -> None:
    flying = begin(driver, stand, *more)
    sent = stand.call(stand.observation(), call=FunctionCall(name=call, arguments={"angle": 10}))
    told = stand.expect(Executed, 5.0, "executed", lambda m: m.tick == sent.tick)
    assert told.outcome == outcome
    assert flying.event("safe")["cause"] == outcome


def test_safe_calls_are_all_carried_out_and_one_that_fails_until_it_does_not(driver: Start, stand: Stand) -> None:
    flying = begin(driver, stand, "--crane", "1")
    assert stand.hello is not None and stand.hello.safe_calls is not None
    assert [call.name for call in stand.hello.safe_calls] == ["hold", "stop"]
    observed = stand.observation()
    stand.call(observed, call=FunctionCall(name="steer", arguments={"angle": 10}))
    flying.event("call")
    flying.say("stuck 3")
    flying.stats()
    stop, hold = FunctionCall(name="stop"), FunctionCall(name="hold")
    sent = stand.call(observed, status="safe", call=stop, calls=[stop, hold], cause="decide")
    told = stand.expect(Executed, 5.0, "executed", lambda m: m.tick == sent.tick)
    stuck = "InvalidOperationException: It is stuck."
    assert (told.outcome, told.error) == ("failed", f"stop: {stuck}; hold: {stuck}")
    flying.event("safe", name="stop")
    acts = [(e["event"], e["name"]) for e in flying.events if e["event"] in ("stuck", "safe")]
    assert acts == [("stuck", "stop"), ("stuck", "hold"), ("stuck", "stop"), ("safe", "hold"), ("safe", "stop")]
    assert flying.stats()["in_force"] == "safe"
    # A tick is told of once.
    assert stand.pump(0.2, lambda m: isinstance(m, Executed)) is None


def test_safe_call_that_never_succeeds_is_not_in_force_and_gives_way_to_a_call(driver: Start, stand: Stand) -> None:
    flying = begin(driver, stand, "--crane", "1")
    flying.say("stuck 1000000")
    flying.stats()
    stand.call(stand.observation(), status="safe", call=None)
    flying.event("stuck", attempt=3)
    assert flying.stats()["in_force"] == "failing"
    stand.call(stand.observation(), call=FunctionCall(name="steer", arguments={"angle": 10}))
    flying.event("call")
    assert flying.stats()["in_force"] == "call"


@pytest.mark.parametrize("command", ["long 40000", "reset nan"])
def test_what_the_protocol_forbids_is_told_to_the_caller_and_the_session_goes_on(
    driver: Start, stand: Stand, command: str
) -> None:
    flying = begin(driver, stand)
    flying.say(command)
    assert flying.event("unsent")["why"].startswith(("instruction", "ended.return"))
    stand.call(stand.observation())
    flying.event("call")
    assert flying.stats()["epoch"] == 0


def test_bytes_of_an_observation_are_those_at_its_stamp(driver: Start, stand: Stand) -> None:
    # Not welcomed yet: what is observed waits.
    flying = fly(driver, stand)
    flying.say("rate 0")
    flying.say("array")
    flying.stats()
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    observed = stand.expect(Observe, 5.0, "observe")
    assert [a.data for a in observed.arrays] == [b"\x01\x02\x03\x04"]


def test_address_without_a_way_to_it_is_not_the_last_one_tried(driver: Start, stand: Stand) -> None:
    # Broadcast: refused at once, without a packet.
    told = driver("addresses", stand.endpoint, "255.255.255.255", "127.0.0.1").answer()
    assert told["state"] == "Up", told
    none = driver("addresses", stand.endpoint, "255.255.255.255").answer()
    assert none["state"] == "Lost"


def test_webgl_is_told_what_to_do(tmp_path: Path, exe: Path) -> None:
    out = tmp_path / "webgl.exe"
    said = compile_cs(out, core_sources() + list((HERE / "driver").glob("*.cs")), "-define:UNITY_WEBGL")
    assert out.exists(), said
    one = Driver(out, "run", "--endpoint", "tcp://127.0.0.1:5555")
    told = one.failure()
    assert "NotSupportedException" in told and "another platform" in told
