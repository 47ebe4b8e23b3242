"""The C++ client over sockets: against real servers (also killed, or with keys), a scripted server, and other peers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.serve import key_files
from rtcontrol_client.wire.messages import Bye, ErrorMessage, Executed, FunctionCall, Hello, Observe
from tests.bridges.client.worlds import Process, free_port, until
from tests.bridges.cpp.conftest import FOLDER, INCLUDE, WARNINGS, Driver, Start, run
from tests.bridges.web_ends import check_first_server, check_next_server, fronted
from tests.conformance.check import check_any_client
from tests.conformance.check.stand import Stand

TTL_MS = 500
STEER = FunctionCall(name="steer", arguments={"angle": 10})


def fly(driver: Start, endpoint: str, *more: str) -> Driver:
    return driver("run", "--endpoint", endpoint, "--ttl-ms", str(TTL_MS), *more)


def begin(driver: Start, stand: Stand, *more: str, **welcome: Any) -> Driver:
    flying = fly(driver, stand.endpoint, *more)
    stand.expect(Hello, 20.0, "hello")
    stand.welcome(**welcome)
    flying.event("connected")
    return flying


def well(closed: dict[str, object]) -> None:
    assert (closed["in_force"], closed["beyond"]) == ("safe", 0), closed


def test_client_passes_the_conformance_check(strict: Start) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    flying = fly(strict, endpoint, "--hz", "20")
    findings = check_any_client(endpoint)
    assert [f.name for f in findings if f.status != "passed"] == [], findings
    well(flying.close())


@pytest.mark.parametrize("how", ["handler", "pump", "follow", "looks"])
def test_each_build_runs_without_sanitizer_reports(every_exe: Path, server: Process, how: str) -> None:
    flying = Driver(every_exe, "run", "--endpoint", server.endpoint, *([] if how == "handler" else [f"--{how}", "1"]))
    try:
        until(lambda: flying.stats()["executed"] >= 10, "not driven")
        stats = flying.stats()
        assert (stats["too_old"], stats["beyond"], stats["errors"], stats["failed"]) == (0, 0, 0, 0)
        well(flying.close())
    finally:
        flying.end()


def test_example_drives_and_ends_with_the_safe_call(shared: Path, server: Process, tmp_path: Path) -> None:
    rover = tmp_path / "rover"
    flags = ("-std=c++17", *WARNINGS, f"-I{INCLUDE}", "-pthread")
    done = run("clang++", *flags, FOLDER / "examples" / "rover.cpp", "-lzmq", "-o", rover)
    assert done.returncode == 0, done.stderr
    said = tmp_path / "said.txt"
    with said.open("w") as out, subprocess.Popen([rover, server.endpoint], stdout=out, stderr=out) as process:
        until(lambda: said.read_text().count("call:") > 3, "it does not drive")
        process.terminate()
        assert process.wait(20) == 0, said.read_text()
    assert said.read_text().splitlines()[-1].startswith("safe: stop 0"), said.read_text()


def test_lockstep_gets_one_call_for_each_observation(strict: Start, server: Process) -> None:
    reported = strict("run", "--endpoint", server.endpoint, "--lockstep", "100", "--ttl-ms", "0").event("lockstep")
    assert (reported["answered"], reported["stats"]["fresh"]) == (100, 100)


def test_server_with_keys_accepts_only_listed_clients(strict: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    for name in (key_files.SERVER, "arm", "stranger"):
        key_files.create_key_pair(keys, name)
    (keys / "stranger.key").unlink()
    server = Process(tmp_path, free_port(), "--keys", str(keys))
    server.start()
    try:
        flying = strict("run", "--endpoint", server.endpoint, "--keys", str(keys / "arm.key_secret"))
        flying.event("call")
        well(flying.close())
        for given, reported in (
            (("--keys", str(keys / "stranger.key_secret")), "does not accept this key"),
            ((), "Nobody"),
        ):
            other = strict("run", "--endpoint", server.endpoint, "--seconds", "2", *given)
            stats = other.event("stats")["stats"]
            assert (stats["sessions"], reported in stats["trouble"]) == (0, True), stats
            other.closed()
    finally:
        server.stop()


def test_client_follows_the_answers_of_connect(strict: Start) -> None:
    with fronted() as (front, first, second):
        client = check_first_server(front, first, lambda url: strict("run", "--endpoint", url, "--ttl-ms", "500"))
        check_next_server(front, first, second, client, client.stats)


def test_refused_call_is_acknowledged_and_the_session_continues(driver: Start, stand: Stand) -> None:
    flying = begin(driver, stand, "--bounds", "1")
    sent = stand.call(stand.observation(), call=STEER)
    reported = stand.expect(Executed, 5.0, "executed", lambda m: m.tick == sent.tick)
    assert reported.outcome == "refused" and flying.stats()["in_force"] == "call"
    flying.end()


def test_hanging_handler_delays_neither_heartbeat_nor_expiry_nor_close(driver: Start, stand: Stand) -> None:
    flying = begin(driver, stand)
    flying.say("block 60000")
    flying.stats()
    stand.call(stand.observation(), call=STEER)
    flying.event("call")
    until(lambda: flying.stats()["in_force"] == "safe", "the call is still in force")
    stand.observation()
    flying.say("close")
    closed = flying.event("closed")
    assert closed["in_force"] == "safe"
    assert closed["end_ms"] < closed["close_ms"] / 2, "its destructor waited as long once more"
    assert stand.pump(3.0, lambda m: isinstance(m, Bye)) is not None or any(isinstance(m, Bye) for m in stand.heard)
    flying.end()


def test_unread_log_does_not_delay_calls(driver: Start, stand: Stand) -> None:
    # openvstorage/volumedriver#230, clice-io/clice#514: a program hung in its log because its stderr was not read.
    flying = begin(driver, stand, "--stderr", "1", heartbeat_ms=10_000.0)
    flying.say("clog 60000")
    flying.stats()
    for number in range(300):
        stand.send(ErrorMessage(code="decoder", message=f"Mistake {number} {'x' * 1024}.", retryable=True))
    until(lambda: flying.stats()["errors"] == 300, "not heard")
    stand.call(stand.new_observation(), call=STEER)
    flying.event("call")
    assert flying.event("safe")["cause"] == "expired"
    assert flying.stats()["unlogged"] >= 100, "lines are kept without bound"
    flying.end()


def test_message_against_the_protocol_is_refused_and_the_session_continues(strict: Start, stand: Stand) -> None:
    flying = begin(strict, stand)
    flying.say("instruct " + "€" * 30_000)
    assert flying.event("unsent")["why"].startswith("instruction: A string is longer")
    flying.say("nan")
    assert flying.event("unsent")["why"].startswith("data.left: It is not finite.")
    flying.say("text")
    flying.say("array")
    observed = stand.expect(Observe, 5.0, "an array", lambda m: bool(m.arrays))
    assert [(a.name, a.dtype, a.shape) for a in observed.arrays] == [("range", "f4", [2])]
    assert observed.arrays[0].data == bytes([0, 0, 0xC0, 0x3F, 0, 0, 0, 0xC0])
    well(flying.close())
