"""The shipped GDScript in the engine itself: what it says, at work, and against the conformance vectors."""

from __future__ import annotations

import json
import re
import socket as sockets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from rtcontrol_client.wire.messages import ErrorMessage, Executed, FunctionCall, Hello, Instruct
from tests.bridges.client.worlds import free_port, until
from tests.bridges.godot.engine import MISSING, REASON, Engine, Relay, Served, Start, quantiles
from tests.bridges.program import garbage, starting
from tests.conformance import expand, load
from tests.conformance.check import check_any_client
from tests.conformance.check.stand import TTL_MS as STAND_TTL_MS
from tests.conformance.check.stand import Stand


@pytest.fixture
def godot(tmp_path: Path) -> Iterator[Start]:
    """Starts the shipped scene under the driver: `godot(url, option...)`."""
    if MISSING:
        pytest.skip(REASON)
    yield from starting(lambda url, *options: Engine(tmp_path, "driver.gd", f"--url={url}", *options))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all tests that leave it as it is."""
    one = Served(tmp_path_factory.mktemp("served"))
    one.start()
    yield one
    one.stop()


@pytest.fixture
def own_served(tmp_path: Path) -> Iterator[Served]:
    """One to be stopped and killed."""
    one = Served(tmp_path)
    one.start()
    yield one
    one.stop()


# The shipped GDScript in the engine itself: what it says, at work, and against the conformance vectors.


TTL_MS = 500.0
IDLE, LIVE = 0, 3


def test_free_words_that_were_answered_are_not_said_again(stubborn: Engine, stand: Stand) -> None:
    stand.welcome()
    stubborn.say("instruct home with you")
    stand.expect(Instruct, 5.0, "instruct")
    stand.send(Instruct(session=stand.token, instruction="Go home.", said="home with you", by="chat"))
    stubborn.event("instructed", text="Go home.")
    stand.send(ErrorMessage(code="state", message="No session.", retryable=True))
    assert stand.expect(Hello, 5.0, "hello").resume == stand.token
    stand.welcome(resumed=True, instruction="Go home.")
    assert stand.pump(1.0, lambda m: isinstance(m, Instruct)) is None


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ('--set=safe_tool:"go"', "the safe tool go must do without arguments"),
        ('--tool=observe:{"from": {"type": "string"}}', "the tool observe has 1 parameters, its method takes 0."),
    ],
    ids=["safe tool", "parameters"],
)
def test_mistaken_tool_is_told_before_anything_is_connected(godot: Start, option: str, told: str) -> None:
    engine = godot("ws://127.0.0.1:9/ws", option)
    engine.event("ready")
    assert engine.stats()["state"] == IDLE
    assert told in engine.errors()


@pytest.fixture
def stubborn(godot: Start, stand: Stand) -> Iterator[Engine]:
    """Drives what has two safe tools, connected to the stand."""
    relay = Relay(stand.endpoint)
    engine = godot(relay.url, "--stubborn", "--tool=hold:{}", '--set=safe_tools:["hold", "stop"]')
    stand.expect(Hello, 20.0, "hello")
    yield engine
    assert engine.faults() == []
    relay.close()


def acts(engine: Engine, *begin: str) -> list[tuple[str, str]]:
    """What was tried and done since an event of that kind and cause."""
    told = [e for e in engine.events if e["event"] in ("stuck", "acted")]
    names = [(e["event"], e.get("name") or e["call"]["name"]) for e in told]
    return names[len(names) - names[::-1].index(begin) :]


GO = FunctionCall(name="go", arguments={"direction": "up"})


def test_safe_tools_that_would_not_are_tried_each_frame_until_the_server_is_dead_and_after(
    stubborn: Engine, stand: Stand
) -> None:
    assert stand.hello is not None and stand.hello.safe_calls is not None
    assert [call.name for call in stand.hello.safe_calls] == ["hold", "stop"]
    stand.welcome()
    observed = stand.observation()
    stand.call(observed, call=GO)
    stubborn.event("acted", cause="call")
    stubborn.say("stuck 3")
    stop, hold = FunctionCall(name="stop"), FunctionCall(name="hold")
    stubborn.stats()
    sent = stand.call(observed, status="safe", call=stop, calls=[stop, hold], cause="decide")
    told = stand.expect(Executed, 5.0, "executed", lambda m: m.tick == sent.tick)
    assert (told.outcome, told.error) == ("failed", "stop would not; hold would not")
    stubborn.until(lambda e: e["event"] == "acted" and e["call"]["name"] == "stop", "stop is tried again")
    three = [("stuck", "stop"), ("stuck", "hold"), ("stuck", "stop")]
    assert acts(stubborn, "acted", "go") == [*three, ("acted", "hold"), ("acted", "stop")]
    assert stubborn.stats()["owed"] == []
    # The same when nobody is there any more, with its own safe tools in their order.
    stand.call(stand.observation(), call=GO)
    stubborn.event("acted", cause="call")
    stubborn.say("stuck 3")
    stand.alive = False
    assert stubborn.event("acted", cause="expired")["age_ms"] > STAND_TTL_MS
    stubborn.until(lambda e: e["event"] == "acted" and e["call"]["name"] == "hold", "hold is tried again")
    assert acts(stubborn, "acted", "go")[:3] == [("stuck", "hold"), ("stuck", "stop"), ("stuck", "hold")]


def test_call_without_a_time_to_live_ends_with_the_server(stubborn: Engine, stand: Stand) -> None:
    stand.welcome()
    stand.call(stand.observation(), call=GO, ttl_ms=0)
    stubborn.event("acted", cause="call")
    stand.alive = False
    assert stubborn.event("acted", cause="lost")["call"]["name"] == "hold"


def test_call_that_grew_too_old_before_it_could_act_is_not_executed(stubborn: Engine, stand: Stand) -> None:
    stand.welcome()
    stubborn.say(f"slow {STAND_TTL_MS + 50:.0f}")
    stubborn.stats()
    sent = stand.call(stand.observation(), call=GO)
    assert stand.expect(Executed, 5.0, "executed", lambda m: m.tick == sent.tick).outcome == "expired"
    assert stubborn.event("acted")["cause"] == "expired"


def test_safe_tool_that_would_not_is_tried_again_after_the_end(stubborn: Engine, stand: Stand) -> None:
    stand.welcome()
    stand.call(stand.observation(), call=GO)
    stubborn.event("acted", cause="call")
    stubborn.say("stuck 3")
    stubborn.say("stop")
    stubborn.event("ended")
    stubborn.until(lambda e: e["event"] == "acted" and e["call"]["name"] == "hold", "hold is tried again")
    assert acts(stubborn, "acted", "go")[3:] == [("acted", "stop"), ("acted", "hold")]


def test_server_of_1_0_has_all_own_safe_tools_carried_out(stubborn: Engine, stand: Stand) -> None:
    stand.minor = 0
    stand.welcome()
    observed = stand.observation()
    stand.call(observed, call=GO)
    stubborn.event("acted", cause="call")
    stand.call(observed, status="safe", call=FunctionCall(name="hold"), cause="decide")
    stubborn.until(lambda e: e["event"] == "acted" and e["call"]["name"] == "stop", "all safe tools")
    assert acts(stubborn, "acted", "go") == [("acted", "hold"), ("acted", "stop")]
    stubborn.say("next 0")
    assert stubborn.event("next")["release_ns"] == -1


def test_observation_is_timed_before_the_next_release_and_refusals_of_other_hellos_end_nothing(
    stubborn: Engine, stand: Stand
) -> None:
    stand.welcome()
    stand.send(ErrorMessage(code="busy", message="Another has it.", t_client_ns=0, fatal=True))
    release_ns = time.monotonic_ns() - 10**9
    stand.call(stand.observation(), status="held", release_ns=release_ns)
    stand.observation()
    stubborn.say("next 20000000")
    told = stubborn.event("next")
    assert 0 < told["in_ns"] <= 100e6
    offset_ns = min(told["clock"])[1]
    beside_ns = (told["now_ns"] + told["in_ns"] + 20e6 + offset_ns - release_ns + 50e6) % 100e6 - 50e6
    assert abs(beside_ns) < 1e6  # the engine's writer of JSON rounds to six digits
    assert stubborn.stats()["state"] == LIVE


def test_error_about_an_observation_of_before_does_not_end_a_greeting(stubborn: Engine, stand: Stand) -> None:
    stand.welcome()
    stand.observation()
    stand.send(ErrorMessage(code="state", message="No session.", retryable=True))
    assert stand.expect(Hello, 5.0, "hello").resume == stand.token
    stand.send(ErrorMessage(code="invalid", message="No.", seq=1))
    stand.welcome(resumed=True)
    stand.observation()
    assert stubborn.stats()["state"] == LIVE


def test_what_is_driven_may_be_gone_before_its_client(godot: Start, own_served: Served) -> None:
    engine = godot(own_served.url)
    engine.event("acted", cause="call")
    engine.say("lose")
    assert engine.event("ended")["why"] == "what is driven is gone"
    until(lambda: "bye" in own_served.logs(), "the server heard no bye")
    assert engine.faults() == []


def test_killed_server_means_safe_within_its_time_to_live_and_a_new_session(godot: Start, own_served: Served) -> None:
    engine = godot(own_served.url)
    engine.event("acted", cause="call")
    engine.say("instruct Go home.")
    engine.event("instructed")
    engine.say("next 0")
    assert 0 < engine.event("next")["in_ns"] <= 1e9 / 16  # the real server tells its ticks' phase
    engine.event("acted", cause="call")
    own_served.kill()
    safe = engine.event("acted", cause="expired")
    assert safe["call"]["name"] == "stop"
    print(f"\nsafe {safe['age_ms']:.0f} ms after the last call's observation (ttl {TTL_MS:.0f})")
    # In the first frame after the end of its time-to-live: that was not over yet in the frame before.
    assert TTL_MS < safe["age_ms"] <= TTL_MS + safe["frames_ms"]
    own_served.start()
    up = time.monotonic()
    assert engine.event("welcomed")["instruction"] == "Go home."
    engine.event("acted", cause="call")
    print(f"back {time.monotonic() - up:.2f} s after the server listened")
    stats = engine.stats()
    assert (stats["counts"]["sessions"], stats["too_old"]) == (2, 0)
    assert engine.faults() == []
    # What the engine's RegEx prints at each use, in a console that people read.
    assert "free_static" not in engine.errors()


# The shipped Godot project in a real engine (headless), against real servers: at work, killed, restarted, stopped, and
# against what is no server. Run with `-m slow`.


def show(title: str, stats: dict[str, Any]) -> None:
    print(f"\n{title}: {stats['counts']}, executed too old: {stats['too_old']}, parcels {stats['parcels']}")
    print(f"  ms p50 / p99 / max: to the call's arrival {quantiles(stats['latency_ms'])}, to its execution ", end="")
    print(f"{quantiles(stats['age_ms'])}; {stats['frames']} frames, {stats['memory_kb']:.0f} kB")


def fly(godot: Start, served: Served, seconds: float, *options: str) -> dict[str, Any]:
    engine = godot(served.url, *options)
    engine.event("acted", cause="call")
    time.sleep(seconds)
    stats = engine.stats()
    engine.say("quit")
    assert engine.process.wait(20) == 0
    assert engine.faults() == []
    return stats


@pytest.mark.slow
def test_conforms_as_the_checker_of_clients_sees_it(godot: Start) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    relay = Relay(endpoint)
    try:
        engine = godot(relay.url)
        findings = check_any_client(endpoint)
        assert [f.name for f in findings if f.status != "passed"] == [], findings
        assert relay.refused == []
        assert engine.process.poll() is None and engine.faults() == []
    finally:
        relay.close()


@pytest.mark.slow
def test_flies_a_minute_at_16_hz_and_never_executes_what_is_too_old(godot: Start, served: Served) -> None:
    for options in ((), ("--set=observe_hz:60.0",)):
        stats = fly(godot, served, 60, *options)
        show(f"a minute at 16 Hz {options}", stats)
        counts = stats["counts"]
        assert counts["executed"] > 500
        assert (stats["too_old"], counts["errors"], counts["refused"], counts["sessions"]) == (0, 0, 0, 1)


@pytest.mark.slow
def test_scene_that_ends_says_bye_and_is_safe(godot: Start, served: Served) -> None:
    engine = godot(served.url)
    engine.event("acted", cause="call")
    before = served.logs().count("bye")
    engine.say("leave")
    safe = engine.event("acted", cause="left")
    assert safe["call"]["name"] == "stop"
    until(lambda: served.logs().count("bye") > before, "the server heard no bye")
    assert engine.faults() == []


@pytest.fixture
def welcomed(godot: Start, stand: Stand) -> Iterator[tuple[Engine, Stand]]:
    """An engine in session with a server whose calls are the test's."""
    relay = Relay(stand.endpoint)
    engine = godot(relay.url)
    stand.expect(Hello, 20.0, "hello")
    stand.welcome()
    yield engine, stand
    relay.close()


@pytest.mark.slow
def test_character_is_steered_to_its_parcels_by_a_rule(welcomed: tuple[Engine, Stand]) -> None:
    engine, stand = welcomed
    end_s = time.monotonic() + 60
    places: set[str] = set()
    while engine.stats()["parcels"] < 2:
        assert time.monotonic() < end_s, "it fetched nothing"
        for _ in range(16):
            seen = stand.observation()
            _, side, across, up_or_down, along = str(seen.text).split()
            direction = side if float(across) > float(along) else up_or_down
            stand.call(seen, call=FunctionCall(name="go", arguments={"direction": direction, "speed": 4}))
            places.add(str(seen.text))
    assert len(places) > 20
    assert engine.stats()["counts"]["refused"] == 0


@pytest.mark.slow
def test_calls_outside_the_tools_are_refused_and_it_stops(welcomed: tuple[Engine, Stand]) -> None:
    engine, stand = welcomed
    for name, arguments in (
        ("fly", {}),
        ("go", {}),
        ("go", {"direction": "north"}),
        ("go", {"direction": 1}),
        ("go", {"direction": "left", "speed": 5}),
        ("go", {"direction": "left", "speed": 1.5}),
        ("go", {"direction": "left", "speed": "2"}),
    ):
        good = FunctionCall(name="go", arguments={"direction": "up"})
        tick = stand.call(stand.observation(), call=good).tick
        stand.expect(Executed, 3.0, "executed", lambda m, tick=tick: m.tick == tick and m.outcome == "executed")
        tick = stand.call(stand.observation(), call=FunctionCall(name=name, arguments=arguments)).tick
        stand.expect(Executed, 3.0, "refused", lambda m, tick=tick: m.tick == tick and m.outcome == "refused")
        assert engine.event("acted", cause="refused")["call"] == {"name": "stop", "arguments": {}}
    assert engine.faults() == []


@pytest.mark.slow
def test_instruction_and_reset_reach_the_server(godot: Start, served: Served) -> None:
    engine = godot(served.url)
    engine.event("acted", cause="call")
    engine.say("instruct Go home. 左へ 🚀")
    engine.event("instructed", text="Go home. 左へ 🚀")
    engine.say("reset")
    engine.event("acted", cause="call")
    stats = engine.stats()
    assert (stats["epoch"], stats["counts"]["errors"]) == (1, 0)


@pytest.mark.slow
def test_refusal_for_good_ends_the_attempt_in_words(godot: Start, served: Served) -> None:
    engine = godot(served.url, '--set=settings:{"model": "no such model"}')
    why = engine.event("ended")["why"]
    assert "model" in why
    assert engine.stats()["in_force"] == "safe"


@pytest.mark.slow
def test_access_token_opens_a_server_that_wants_one(godot: Start, tmp_path: Path) -> None:
    addresses = [a.address for many in psutil.net_if_addrs().values() for a in many if a.family == sockets.AF_INET]
    outer = next((a for a in addresses if not a.startswith("127.")), None)
    if outer is None:
        pytest.skip("this machine has no address beyond loopback")
    token = "k3" * 16
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    served = Served(tmp_path, "--token-file", str(tmp_path / "token"), host=outer)
    served.start()
    try:
        stranger, guest = godot(served.url), godot(served.url, f'--set=token:"{token}"')
        guest.event("acted", cause="call")
        stranger.event("lost")
        assert stranger.stats()["counts"]["sessions"] == 0
    finally:
        served.stop()


# What it answers to the WebSocket's handshake, and goes on with; None: it closes.
GARBAGE: dict[str, list[bytes | None]] = {
    "silence": [],
    "a web server that has no such page": [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"],
    "closed at once": [None],
    "random bytes": [bytes(range(1, 256)) * 40],
    "an answer without end": [b"HTTP/1.1 101 Switching Protocols\r\n", b"X-A: " + b"x" * 1_000_000],
}


@pytest.fixture(scope="module")
def met_garbage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Engine, list[int]]]]:
    """An engine for each kind, all at the same time."""
    if MISSING:
        pytest.skip(REASON)
    with ExitStack() as stack:
        flying: dict[str, tuple[Engine, list[int]]] = {}
        for kind, parts in GARBAGE.items():
            address, met = stack.enter_context(garbage(parts))
            engine = Engine(tmp_path_factory.mktemp("godot"), "driver.gd", f"--url=ws://{address}/ws")
            stack.callback(engine.end)
            flying[kind] = engine, met
        yield flying


@pytest.mark.slow
@pytest.mark.parametrize("kind", GARBAGE)
def test_peer_that_is_no_server_is_survived(met_garbage: dict[str, tuple[Engine, list[int]]], kind: str) -> None:
    engine, met = met_garbage[kind]
    engine.event("lost")
    until(lambda: len(met) > 1, "it did not try again")
    stats = engine.stats()
    engine.say("quit")
    assert engine.process.wait(20) == 0
    assert stats["counts"]["sessions"] == stats["counts"]["executed"] == 0
    assert engine.faults() == []


@pytest.mark.slow
def test_without_a_server_the_game_plays_on(godot: Start) -> None:
    engine = godot(f"ws://127.0.0.1:{free_port()}/ws")
    for _ in range(3):
        engine.event("lost")
    stats = engine.stats()
    assert stats["frames"] > 10 and stats["in_force"] == "none"
    assert engine.faults() == []


# The Godot client's files against the conformance vectors, in the engine; Python compares.


# What the client is told; it is not asked to read its own. Nor vectors whose names begin with "big": the engine reads
# numbers as doubles, in which instants beyond 2^53 ns are inexact.
HEARD = {"welcome", "call", "instruct", "error", "ping", "pong", "bye", "call_many"}
# The vectors' own number beyond doubles is in a ping.
CALL = '{"type":"call","session":"q7Jr0c2yT5mX9vKd_f3A","tick":9,"epoch":2,"status":"fresh","t_obs_ns":1,"ttl_ms":0,'
CALL += '"deadline_ns":0,"t_server_ns":0,"call":{"name":"go","arguments":%s}}'
OWN = [
    {"name": f"beyond doubles: {arguments}", "json": CALL % arguments}
    for arguments in ('{"way":"left","more":1e999}', '{"way":"left","more":[{"x":-1e999}]}')
]
# Of a crowd of anna and bert: one part is wrong, or nobody's.
FRESH = '"tick":%d,"epoch":%d,"status":"fresh","t_obs_ns":1,"ttl_ms":0,"call":{"name":"go","arguments":{"way":"left"}}}'
MANY = (
    '{"type":"call_many","session":"q7Jr0c2yT5mX9vKd","t_server_ns":1,"calls":[%s,{"id":"bert",' + FRESH % (2, 1) + "]}"
)
PARTS = [
    {"name": f"part: {part}", "json": MANY % part}
    for part in (
        "7",
        "null",
        '{"id":"anna"}',
        '{"id":"",' + FRESH % (1, 0),
        '{"id":"anna",' + FRESH.replace('"fresh"', '"done"') % (1, 0),
        '{"id":"carl",' + FRESH % (1, 0),
        '{"id":"anna",' + FRESH % (1, 7),
        '{"id":"anna",' + FRESH.replace('"go"', '"fly"') % (1, 0),
    )
]
CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f]")


def heard(name: str) -> list[dict[str, Any]]:
    return [v for v in load(name) if v.get("by") != "server"]


def cases() -> dict[str, Any]:
    """Every case that the engine is given, by kind."""
    ttl: dict[str, Any] = load("ttl")
    for sequence in ttl["sequences"]:
        for step in sequence["steps"]:
            if "message" in step:
                step["message"] = json.dumps(step["message"])
    return {
        "valid": [
            {"name": v["name"], "text": json.dumps(v["json"], ensure_ascii=False)}
            for v in [*heard("valid"), *load("crowd")["valid"]]
            if v["from"] == "server"
        ],
        "invalid": [{"name": v["name"], "text": expand(v["json"])} for v in [*heard("invalid"), *OWN] if "json" in v],
        "crowd": [
            {"name": v["name"], "text": expand(v["json"])} for v in [*load("crowd")["invalid"], *PARTS] if "json" in v
        ],
        "phase": load("phase"),
        **ttl,
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What the engine made of every case, by kind."""
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "cases.json").write_text(json.dumps(cases(), ensure_ascii=False), "utf-8")
    engine = Engine(folder, "vectors.gd", f"--cases={folder / 'cases.json'}")
    try:
        engine.until(lambda line: line["of"] == "end", "at the end")
        assert engine.process.wait(20) == 0
        assert engine.faults() == []
    finally:
        engine.end()
    found: dict[str, list[dict[str, Any]]] = {}
    for line in engine.events:
        found.setdefault(line["of"], []).append(line)
    return found


def same(found: Any, wanted: Any) -> bool:
    """Equal but for digits that the engine's JSON writer leaves out, and control characters: they become spaces."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return found.keys() == wanted.keys() and all(same(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, int | float) and not isinstance(wanted, bool):
        return bool(found == pytest.approx(wanted, rel=1e-5))
    return bool(found == (CONTROL.sub(" ", wanted) if isinstance(wanted, str) else wanted))


@pytest.mark.skipif(MISSING, reason=REASON)
def test_valid_messages_are_read(told: dict[str, list[dict[str, Any]]]) -> None:
    given = {v["name"]: v["json"] for v in [*heard("valid"), *load("crowd")["valid"]]}
    assert len(told["valid"]) > 20
    for line in told["valid"]:
        if line["name"].startswith("big"):
            continue
        wanted = {k: v for k, v in given[line["name"]].items() if v is not None}
        if wanted["type"] == "call_many":
            assert line["read"].pop("faults") == 0
        assert same(line["read"], wanted if wanted["type"] in HEARD else {}), (line["name"], line["read"])


@pytest.mark.skipif(MISSING, reason=REASON)
def test_nothing_is_executed_upon_an_invalid_message_and_the_session_goes_on(
    told: dict[str, list[dict[str, Any]]],
) -> None:
    given = {v["name"]: expand(v["json"]) for v in [*heard("invalid"), *OWN] if "json" in v}
    live, waiting = 3, 4
    assert len(told["invalid"]) > 200
    for line in told["invalid"]:
        # A bye that is too long is believed nevertheless, where the engine could read it: safe is never wrong.
        allowed = [([], live), (["stop"], waiting)] if '"bye"' in given[line["name"]] else [([], live)]
        assert (line["done"], line["state"]) in allowed, line


@pytest.mark.skipif(MISSING, reason=REASON)
def test_crowd_leaves_out_a_wrong_part_and_ignores_a_wrong_message(told: dict[str, list[dict[str, Any]]]) -> None:
    assert len(told["crowd"]) > 30
    for line in told["crowd"]:
        part = line["name"].startswith("part")
        unfit = ["stop"] if "fly" in line["name"] else []
        assert (line["done"], line["state"]) == ([unfit, ["left"] if part else []], 3), line
        assert line["errors"] == 0 or not part, line
        assert (line["ignored"] != {}) == (part and not unfit), line


@pytest.mark.skipif(MISSING, reason=REASON)
def test_age_of_calls(told: dict[str, list[dict[str, Any]]]) -> None:
    wanted = {case["name"]: case["verdict"] for case in load("ttl")["age"] if not case["name"].startswith("big")}
    assert len(wanted) > 10
    assert {line["name"]: line["verdict"] for line in told["age"] if line["name"] in wanted} == wanted


@pytest.mark.skipif(MISSING, reason=REASON)
def test_instants_to_look_are_those_of_the_vectors(told: dict[str, list[dict[str, Any]]]) -> None:
    wanted = {
        (case["name"], i): -1 if step["due_ns"] is None else step["due_ns"]
        for case in load("phase")
        for i, step in enumerate(case["steps"])
        if "next" in step
    }
    assert len(wanted) > 50
    assert {(line["name"], line["step"]): line["due_ns"] for line in told["phase"]} == wanted


@pytest.mark.skipif(MISSING, reason=REASON)
def test_call_that_answers_an_older_observation_tells_nothing_of_how_long_one_waits(
    told: dict[str, list[dict[str, Any]]],
) -> None:
    waits = next(line["waits_ns"] for line in told["waits"] if line["name"].startswith("a call that answers an older"))
    assert waits == [3_000_000] * 4


@pytest.mark.skipif(MISSING, reason=REASON)
def test_what_is_in_force(told: dict[str, list[dict[str, Any]]]) -> None:
    sequences = load("ttl")["sequences"]
    lines = iter(told["sequence"])
    for sequence in sequences:
        for number, step in enumerate(sequence["steps"]):
            line = next(lines)
            assert (line["name"], line["step"]) == (sequence["name"], number)
            expires_ns = -1 if step["expires_ns"] is None else step["expires_ns"]
            line["execute"] = line["execute"] if "minor" in sequence else next(iter(line["execute"]), None)
            wanted = {**{k: step[k] for k in ("execute", "in_force", "expired")}, "expires_ns": expires_ns}
            assert {k: line[k] for k in wanted} == wanted, (sequence["name"], number)
