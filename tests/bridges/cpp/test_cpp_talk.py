"""The C++ client's conversation event by event, at instants of the test's choice; endpoints, keys, the build."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rtcontrol.serve import zmq_auth
from tests.bridges.cpp.build import FOLDER, INCLUDE, WARNINGS, Driver, run
from tests.conformance import load

MS = 1_000_000
VALID = {v["name"]: v["json"] for v in load("valid")}
WELCOME: dict[str, Any] = {**VALID["welcome, required fields only"], "t_server_ns": 0, "t_client_ns": 2**53}
CALL = {"session": WELCOME["session"], "tick": 0, "epoch": 0, "ttl_ms": 0, "deadline_ns": 0, "t_server_ns": 0}


class Conversation:
    """The pure part of the client; `options` are some of those of the C++ struct."""

    def __init__(self, core: Driver, **options: Any) -> None:
        self._core, self.now_ns = core, 1000 * MS
        self.wrong = core.ask(f"talk {msgpack.packb(options).hex()}")

    def on(self, event: str, *more: Any) -> Any:
        return self._core.ask(" ".join(["on", event, str(self.now_ns), *(msgpack.packb(one).hex() for one in more)]))

    def hear(self, **message: Any) -> Any:
        return self.on("hear", message)

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


@pytest.mark.parametrize("far_ns", [0, 2**62, 2**63 - 1])
def test_instants_of_a_hostile_server_overflow_nothing(talk: Conversation, far_ns: int) -> None:
    # Under the sanitizer of undefined behaviour, as all of this file.
    talk.on("observe", "left 40")
    for ping_ns in (0, talk.now_ns, far_ns):
        talk.hear(type="pong", id=1, t_received_ns=far_ns, t_sent_ns=far_ns, t_ping_ns=ping_ns)
    for tick, age_ms in enumerate((0, 1e9)):
        times = {"t_server_ns": far_ns, "release_ns": far_ns, "deadline_ns": far_ns, "timing": {"age_ms": age_ms}}
        talk.fresh(tick=tick, call={"name": "steer"}, ttl_ms=1e9, **times)
        talk.on("next")
    talk.call(tick=2**53 - 1, status="fresh", t_obs_ns=far_ns, seq_obs=2**53 - 1, ttl_ms=1e9)
    found = talk.on("look")
    assert found["in_force"] == "call"
    assert talk.hear(type="ping", id=2**53 - 1, t_ns=far_ns)["open"]


@pytest.mark.parametrize(("meanwhile", "again"), [("clock", True), ("reset", False), ("lost", True)])
def test_safe_call_that_failed_is_tried_again_unless_the_world_was_set_back(
    talk: Conversation, meanwhile: str, again: bool
) -> None:
    assert talk.call(status="safe")["begins"]
    talk.on("take")
    talk.on(meanwhile)
    assert talk.on("failed")["begins"] == again


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"hz": -1.0}, "hz"),
        ({"ttl_ms": float("1e300")}, "ttl_ms"),
        ({"pacing": "both"}, "pacing"),
        ({"name": "x" * 65}, "client.name"),
        ({"safe_calls": [{"name": "", "arguments": {}}]}, "safe_call.name"),
        ({"agent": "lander"}, "agent"),
    ],
)
def test_mistake_in_the_options_is_told_with_its_field(core: Driver, options: dict[str, Any], field: str) -> None:
    wrong = Conversation(core, **options).wrong
    assert wrong["field"] == field and wrong["remedy"], wrong


def test_keys_are_those_of_the_files_and_a_file_that_is_none_is_named(core: Driver, tmp_path: Path) -> None:
    server, arm = (zmq_auth.create(tmp_path, name) for name in (zmq_auth.SERVER, "arm"))
    secret = tmp_path / "arm.key_secret"
    assert core.ask(f"keys {secret}") == [server.public, arm.public, arm.secret]
    secret.chmod(0o640)
    open_to_others = core.ask(f"keys {secret}")
    assert "may be read by other users" in open_to_others["what"]
    assert open_to_others["remedy"] == f"chmod 600 {secret}"
    secret.chmod(0o600)
    for name, told in (("none", "cannot be read"), (".", "cannot be read")):
        assert told in core.ask(f"keys {tmp_path / name}")["what"]
    secret.write_text('secret-key = "' + "\x7f" * 40 + '"\n')
    wrong = core.ask(f"keys {secret}")
    assert "has no public-key" in wrong["what"] and "keys new" in wrong["remedy"]


# The build.


def test_package_is_installed_and_found_by_cmake_and_pkg_config(shared: Path, tmp_path: Path) -> None:
    prefix, build = tmp_path / "prefix", tmp_path / "build"
    for command in (
        ("cmake", "-S", FOLDER, "-B", build, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DRTCONTROL_EXAMPLES=OFF"),
        ("cmake", "--install", build),
    ):
        done = run(*command)
        assert done.returncode == 0, done.stderr + done.stdout
    found = run(
        "pkg-config",
        "--cflags",
        "--libs",
        "rtcontrol-client",
        env={**os.environ, "PKG_CONFIG_PATH": str(prefix / "share" / "pkgconfig")},
    )
    # From the file's own place: it may have been installed, or moved, elsewhere than it was configured for.
    where = next(Path(word[2:]) for word in found.stdout.split() if word.startswith(f"-I{prefix}"))
    assert where.resolve() == (prefix / "include").resolve() and "-lzmq" in found.stdout, found.stderr
    user = tmp_path / "user"
    user.mkdir()
    # zaphoyd/websocketpp#178: functions of a header-only library were defined twice where two files included it.
    (user / "one.cpp").write_text("#include <rtcontrol/client.h>\nint main() { return rtcontrol::now_ns() < 0; }\n")
    (user / "two.cpp").write_text("#include <rtcontrol/client.h>\nint two() { return sizeof(rtcontrol::Client); }\n")
    (user / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(user CXX)\nfind_package(rtcontrol 0.1 REQUIRED)\n"
        "add_executable(user one.cpp two.cpp)\ntarget_link_libraries(user PRIVATE rtcontrol::client)\n"
    )
    for command in (
        ("cmake", "-S", user, "-B", user / "build", f"-DCMAKE_PREFIX_PATH={prefix}"),
        ("cmake", "--build", user / "build", "-j", "2"),
        (user / "build" / "user",),
    ):
        done = run(*command)
        assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("header", sorted(p.name for p in INCLUDE.glob("rtcontrol/*.h")))
def test_each_header_stands_alone(shared: Path, header: str) -> None:
    source = f"#include <rtcontrol/{header}>\nint main() {{}}\n"
    done = run("clang++", "-std=c++17", *WARNINGS, f"-I{INCLUDE}", "-fsyntax-only", "-xc++", "-", input=source)
    assert done.returncode == 0, done.stderr
