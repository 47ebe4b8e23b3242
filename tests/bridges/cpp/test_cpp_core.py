"""The C++ client's core, built by g++ and clang++ with each sanitizer: vectors, behaviour table, options, keys; and the
package's build."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rtcontrol.serve import key_files
from tests.bridges import vectors
from tests.bridges.behaviour import Shell, TalkCore, cases, check, options_of
from tests.bridges.cpp.conftest import DRIVER, FOLDER, INCLUDE, WARNINGS, Driver, run
from tests.conformance import load

MS = 1_000_000
VALID = {v["name"]: v["json"] for v in load("valid")}
WELCOME: dict[str, Any] = {**VALID["welcome, required fields only"], "t_server_ns": 0, "t_client_ns": 2**53}
CALL = {"session": WELCOME["session"], "epoch": 0, "deadline_ns": 0, "call": {"name": "steer"}, "status": "fresh"}


@pytest.mark.parametrize("of", [vectors.valid, vectors.invalid, vectors.clock, vectors.phase])
def test_core_passes_the_vectors(pure: Driver, of: Any) -> None:
    of(pure.ask)


def test_connect_answer_names_a_server_or_none(core: Driver) -> None:
    vectors.connect(core.ask)


@cases("cpp")
def test_conversation_follows_the_behaviour_table(core: Driver, case: dict[str, Any]) -> None:
    check(case, Shell(TalkCore(core.ask, options_of(case))))


def test_clock_counts_while_the_machine_is_suspended(shared: Path, tmp_path: Path) -> None:
    program = "#include <rtcontrol/clock.h>\nint main() { return rtcontrol::kClock == CLOCK_BOOTTIME ? 0 : 1; }"
    (tmp_path / "clock.cpp").write_text(program)
    done = run("g++", "-std=c++17", *WARNINGS, f"-I{INCLUDE}", tmp_path / "clock.cpp", "-o", tmp_path / "clock")
    assert done.returncode == 0, done.stderr
    assert run(tmp_path / "clock").returncode == 0


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_c99_rule_gives_every_verdict(compiler: str, shared: Path, tmp_path: Path) -> None:
    """The expiry rule alone, in C99 as on a microcontroller."""
    flags = ("-std=c99", *WARNINGS, "-O2", "-fsanitize=undefined", "-fno-sanitize-recover=all", f"-I{INCLUDE}")
    done = run(compiler, *flags, DRIVER / "rule.c", "-o", tmp_path / "rule")
    assert done.returncode == 0, done.stderr
    given = load("ttl")["age"]
    stamps = [-1 if one["t_obs_ns"] is None else one["t_obs_ns"] for one in given]
    lines = [f"{t} {int(one['ttl_ms'] * 1e6)} {one['now_ns']}" for t, one in zip(stamps, given, strict=True)]
    reported = subprocess.run([tmp_path / "rule"], input="\n".join(lines), capture_output=True, text=True, check=True)
    assert reported.stdout.split() == [str(int(one["verdict"] == "expire")) for one in given]


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("tcp://[::1]:5555", ""),
        ("http://127.0.0.1:1/connect", ""),
        ("https://127.0.0.1:1/connect", "needs TLS"),
        ("tcp://127.0.0.1:9,tcp://127.0.0.1:8", "is no endpoint"),
        ("tcp://127.0.0.1:65536", "is no endpoint"),
        ("ws://127.0.0.1:80", "is no endpoint"),
    ],
)
def test_endpoint_is_accepted_or_refused_with_a_reason(core: Driver, text: str, refused: str) -> None:
    answer = core.ask(f"endpoint {text}")
    assert (refused in answer["what"] and answer["remedy"]) if refused else answer == text


@pytest.mark.parametrize("far_ns", [2**62, 2**63 - 1])
def test_instants_from_a_hostile_server_do_not_overflow(core: Driver, far_ns: int) -> None:
    # All tests in this file run with the sanitizer for undefined behaviour.
    def on(event: str, *more: Any) -> Any:
        return core.ask(" ".join(["on", event, str(1000 * MS), *(msgpack.packb(one).hex() for one in more)]))

    core.ask("talk")
    on("connected")
    on("due")
    assert on("hear", WELCOME)["open"]
    on("observe", "left 40")
    for ping_ns in (0, 1000 * MS, far_ns):
        on("hear", {"type": "pong", "id": 1, "t_received_ns": far_ns, "t_sent_ns": far_ns, "t_ping_ns": ping_ns})
    times = {"t_server_ns": far_ns, "release_ns": far_ns, "timing": {"age_ms": 1e9}, "ttl_ms": 1e9}
    on("hear", {"type": "call", **CALL, **times, "tick": 0, "seq_obs": 1, "t_obs_ns": 1000 * MS})
    on("next")
    on("hear", {"type": "call", **CALL, **times, "tick": 2**53 - 1, "seq_obs": 2**53 - 1, "t_obs_ns": far_ns})
    assert on("look")["in_force"] == "call"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"ttl_ms": float("1e300")}, "ttl_ms"),
        ({"pacing": "both"}, "pacing"),
        ({"name": "x" * 65}, "client.name"),
        ({"safe_calls": [{"name": "", "arguments": {}}]}, "safe_call.name"),
        ({"agent": "lander"}, "agent"),
    ],
)
def test_error_in_the_options_names_the_field(core: Driver, options: dict[str, Any], field: str) -> None:
    wrong = core.ask(f"talk {msgpack.packb(options).hex()}")
    assert wrong["field"] == field and wrong["remedy"], wrong


def test_keys_are_read_from_files_and_a_wrong_file_is_named(core: Driver, tmp_path: Path) -> None:
    server, arm = (key_files.create_key_pair(tmp_path, name) for name in (key_files.SERVER, "arm"))
    secret = tmp_path / "arm.key_secret"
    assert core.ask(f"keys {secret}") == [server.public, arm.public, arm.secret]
    secret.chmod(0o640)
    open_to_others = core.ask(f"keys {secret}")
    assert "may be read by other users" in open_to_others["what"]
    assert open_to_others["remedy"] == f"chmod 600 {secret}"
    secret.chmod(0o600)
    assert "cannot be read" in core.ask(f"keys {tmp_path / 'none'}")["what"]
    secret.write_text('secret-key = "' + "\x7f" * 40 + '"\n')
    wrong = core.ask(f"keys {secret}")
    assert "has no public-key" in wrong["what"] and "keys new" in wrong["remedy"]


def test_cmake_and_pkg_config_locate_the_installed_package(shared: Path, tmp_path: Path) -> None:
    def good(*command: str | Path, **options: Any) -> str:
        done = run(*command, **options)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    prefix, build = tmp_path / "prefix", tmp_path / "build"
    good("cmake", "-S", FOLDER, "-B", build, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DRTCONTROL_EXAMPLES=OFF")
    good("cmake", "--install", build)
    env = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "share" / "pkgconfig")}
    result = good("pkg-config", "--cflags", "--libs", "rtcontrol-client", env=env)
    # Paths are relative to the file, since the package may be installed or moved elsewhere than configured.
    where = next(Path(word[2:]) for word in result.split() if word.startswith(f"-I{prefix}"))
    assert where.resolve() == (prefix / "include").resolve() and "-lzmq" in result
    user = tmp_path / "user"
    user.mkdir()
    # zaphoyd/websocketpp#178: a header-only library defined functions twice if two files included it.
    (user / "one.cpp").write_text("#include <rtcontrol/client.h>\nint main() { return rtcontrol::now_ns() < 0; }\n")
    (user / "two.cpp").write_text("#include <rtcontrol/client.h>\nint two() { return sizeof(rtcontrol::Client); }\n")
    (user / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(user CXX)\nfind_package(rtcontrol 0.1 REQUIRED)\n"
        "add_executable(user one.cpp two.cpp)\ntarget_link_libraries(user PRIVATE rtcontrol::client)\n"
    )
    good("cmake", "-S", user, "-B", user / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    good("cmake", "--build", user / "build", "-j", "2")
    good(user / "build" / "user")


@pytest.mark.parametrize("header", sorted(p.name for p in INCLUDE.glob("rtcontrol/*.h")))
def test_each_header_compiles_alone(shared: Path, header: str) -> None:
    source = f"#include <rtcontrol/{header}>\nint main() {{}}\n"
    done = run("clang++", "-std=c++17", *WARNINGS, f"-I{INCLUDE}", "-fsyntax-only", "-xc++", "-", input=source)
    assert done.returncode == 0, done.stderr
