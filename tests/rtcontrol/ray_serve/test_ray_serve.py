"""The gateway as an application of Ray Serve: real proxies, real replicas, decoders that they share."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import os
import queue
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi", reason="the ray-serve extra is not installed")
from applications import AT_ONCE, STATE, TOKEN, WAITING, Applications
from websockets.exceptions import InvalidStatus

from rtcontrol.hosts.fleet_door import BEAT_S
from rtcontrol.run import assembly
from rtcontrol_client.wire import encode_json
from rtcontrol_client.wire.messages import Hello, Instruct, Program
from tests.helpers.processes import Program as Child
from tests.helpers.processes import cli, free_port, until

pytestmark = pytest.mark.serial

PIDFD_GETFD = 438


def sessions(served: Applications) -> int:
    """Of all replicas, as one of them knows it."""
    return sum(one["sessions"] for one in served.get("/v1/fleet").json()["decoders"])


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# ray-project/ray#34712, #33118: the status of what did not start told no reason.
def test_status_says_what_is_wrong_with_an_argument_and_what_to_do(served: Applications) -> None:
    until(lambda: served.status("wrong")["status"] == "DEPLOY_FAILED", "it was built all the same")
    said = served.status("wrong")["message"]
    assert "modle is no argument of rtcontrol.ray_serve. The nearest one is model" in said
    served.tell({**served.config, "applications": served.config["applications"][:2]})


def test_the_manifests_application_answers_as_the_gateway_does(served: Applications) -> None:
    health = served.get("/health").json()
    assert (health["status"], health["loaded"], health["model"]) == ("ok", True, "lander")
    (decoder,) = served.get("/v1/fleet").json()["decoders"]
    assert decoder["state"] == "up" and decoder["pid"] not in served.replicas().values()
    assert "<title>" in served.get("/").text and served.get("/metrics").text.startswith("# HELP")
    tools = assembly.agent("lander").tools.openai()
    asked = {"messages": [{"role": "user", "content": "land on the pad"}], "environment": [STATE], "tools": tools}
    answer = httpx.post(f"{served.url}/v1/function_call", json=asked, timeout=60.0)
    assert answer.json()["success"], answer.text
    assert "There is no GET /v2 here" in served.get("/v2").text


def test_sessions_and_requests_of_one_id_come_to_one_replica(served: Applications) -> None:
    """So a client that comes back finds its record and its history there."""
    for number in range(4):
        mine, before = {"x-session-id": f"robot-{number}"}, served.homes()
        with served.line(additional_headers=mine) as one:
            token = one.hello().session
            one.until_fresh()
        with served.line(additional_headers=mine) as again:
            again.seq = one.seq
            assert again.hello(resume=token).resumed
            again.until_fresh()
            again.bye()
        assert len(served.homes()) == len(before) + 1, "it went on at another one"
        shown = {served.get("/metrics", headers=mine).text.partition("sessions_opened_total ")[2][:4] for _ in range(6)}
        assert len(shown) == 1


def test_who_shows_no_token_gets_nothing_but_the_page_whatever_the_prefix(served: Applications) -> None:
    """Starlette's paths have the prefix, and the gate's rules do not: Kludex/starlette#1336."""
    for path in ("/guarded/v1/models", "/guarded/health", "/guarded/metrics", "/guarded/view/sessions"):
        refused = served.get(path)
        assert (refused.status_code, refused.json()["code"]) == (401, "token"), path
        assert served.get(path, headers=bearer("another-token-of-the-tests")).status_code == 401
        assert served.get(path, headers=bearer()).status_code == 200, path
    assert "<title>" in served.get("/guarded/").text
    for options in ({}, {"origin": "https://evil.example"}):
        with pytest.raises(InvalidStatus) as told, served.line("/guarded/ws", **options):
            pass
        assert told.value.response.status_code == (403 if options else 401)
    with served.line(f"/guarded/ws?token={TOKEN}") as one:
        assert one.hello().model == "noop"
    (pid,) = served.replicas("guarded").values()
    logs = [path for path in Path(f"/proc/{pid}/fd/1").readlink().parent.rglob("*") if path.is_file()]
    assert len(logs) > 3 and not [path for path in logs if TOKEN.encode() in path.read_bytes()]


def test_without_a_token_only_programs_and_pages_of_this_machine_come_in(served: Applications) -> None:
    for headers, status in (
        ({"x-forwarded-for": "127.0.0.1"}, 401),  # Serve's own server believes it, and names that client
        ({"host": "evil.example"}, 421),
        ({"origin": "https://evil.example"}, 403),
    ):
        assert served.get("/v1/models", headers=headers).status_code == status
        with pytest.raises(InvalidStatus) as told, served.line(additional_headers=headers):
            pass
        assert told.value.response.status_code == status


# Kludex/uvicorn#3149: of a socket that was bound before, asyncio does not know that it is TCP, and leaves Nagle on.
def test_serves_proxy_sends_small_messages_at_once(served: Applications) -> None:
    with served.line() as one:
        (theirs,) = accepted(one.socket.socket.getsockname())
        with theirs:
            assert theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def accepted(peer: tuple[str, int]) -> Iterator[socket.socket]:
    """The other end of a connection, taken out of the process that has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if not str(entry.readlink()).startswith("socket:") or int(entry.parts[2]) == os.getpid():
                continue
            process = os.pidfd_open(int(entry.parts[2]))
        except OSError:
            continue
        taken = libc.syscall(PIDFD_GETFD, process, int(entry.name), 0)
        os.close(process)
        if taken < 0:
            continue
        end = socket.socket(fileno=taken)
        try:
            if end.getpeername() == peer:
                yield end
                continue
        except OSError:
            pass
        end.close()


def opened(served: Applications, method: str, path: str, *lines: str) -> socket.socket:
    """A connection on which a request of `guarded` was begun, without a client that goes on with it."""
    bare = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    head = [f"{method} /guarded{path} HTTP/1.1", f"Host: 127.0.0.1:{served.port}", f"Authorization: Bearer {TOKEN}"]
    bare.sendall("\r\n".join([*head, *lines, "", ""]).encode())
    return bare


def upgraded(served: Applications) -> socket.socket:
    lines = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    bare = opened(served, "GET", "/ws", *lines, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    assert b" 101 " in bare.recv(4096)
    return bare


def opened_sessions(served: Applications) -> int:
    """Of `guarded`."""
    return int(served.get("/guarded/health", headers=bearer()).json()["sessions_total"])


def all_let_go(served: Applications) -> None:
    """As many as a replica takes at once are answered, and it holds no WebSocket."""
    with ThreadPoolExecutor(AT_ONCE) as many:
        ask = lambda _: served.get("/guarded/health", headers=bearer()).status_code  # noqa: E731
        until(lambda: set(many.map(ask, range(AT_ONCE))) == {200}, "places are held", 30.0)
    # Serve's proxy itself pings, and gives up after 40 s.
    free = "rtcontrol_websockets 0.0"
    until(lambda: free in served.get("/guarded/metrics", headers=bearer()).text, "one is held", 30.0)


# ray-project/ray#44644: whose client had gone held its place for good, until all of a replica's places were held so.
def test_clients_that_hang_up_hold_no_place_at_a_replica(served: Applications) -> None:
    for _ in range(2 * AT_ONCE):
        for gone in (opened(served, "POST", "/v1/function_call", "Content-Length: 1000"), upgraded(served)):
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.close()
    all_let_go(served)


def test_a_client_that_stops_reading_holds_none_either(served: Applications) -> None:
    """Serve's proxy waits for its word that the connection may end; the replica does not."""
    hello = Hello(protocol=[1, 1], client=Program(name="test"), t_client_ns=0, agent="lander")
    text = encode_json(hello).encode()
    before = opened_sessions(served)
    with contextlib.ExitStack() as stack:
        for _ in range(AT_ONCE - 1):
            silent = stack.enter_context(upgraded(served))
            silent.sendall(b"\x81\xfe" + struct.pack("!H", len(text)) + b"\0\0\0\0" + text)
        until(lambda: opened_sessions(served) == before + AT_ONCE - 1, "they have no sessions")
        all_let_go(served)


def test_more_requests_than_may_wait_are_told_so_at_once(served: Applications) -> None:
    asked, answers = AT_ONCE + WAITING, queue.SimpleQueue[int]()

    def ask() -> None:
        answers.put(served.get("/guarded/health", headers=bearer()).status_code)

    with ThreadPoolExecutor(asked) as many:
        with contextlib.ExitStack() as stack:
            for _ in range(AT_ONCE):
                stack.enter_context(upgraded(served))
            for _ in range(asked):
                many.submit(ask)
            refused = [answers.get(timeout=60.0) for _ in range(AT_ONCE)]
            assert set(refused) == {503} and answers.empty()
        assert [answers.get(timeout=60.0) for _ in range(WAITING)] == [200] * WAITING


def test_a_session_goes_on_at_another_replica_when_its_own_is_killed(served: Applications) -> None:
    known = Counter(served.homes())
    with served.line() as first:
        welcome = first.hello()
        first.until_fresh()
        first.send(Instruct(session=welcome.session, instruction="hover at 0.7"))
        assert first.until(Instruct).instruction == "hover at 0.7"
        (before,) = Counter(served.homes()) - known
        until(lambda: all(sessions(served) for _ in range(8)), "the others do not hear of it")
        time.sleep(2 * BEAT_S)  # what was said a moment ago is not known there yet
        os.kill(served.replicas()[before], signal.SIGKILL)
        assert first.is_cut(60.0)
    until(lambda: before not in served.replicas(), "Serve did not miss it")
    with served.line() as second:
        second.seq = first.seq
        again = second.hello(resume=welcome.session)
        assert (again.resumed, again.session) == (True, welcome.session)
        assert again.instruction == "hover at 0.7", "it began anew"
        second.until_fresh()
        homes = Counter(served.homes()) - known
        assert len(homes) == 2 and homes[before] == 1, "nobody else took it"
    until(lambda: len(served.replicas()) == 2, "the replica did not come back", 120.0, 0.2)


@pytest.mark.slow
def test_doors_of_other_terms_are_refused_and_those_by_zeromq_come_in(served: Applications, tmp_path: Path) -> None:
    (made,) = copy.deepcopy(served.config["applications"][:1])
    web = free_port()
    given = ["--model", "lander", "--fleet", "lab", "--decoders", "1", "--threads", "1", "--out", f"{tmp_path}/out"]
    given += ["--http", f"127.0.0.1:{web}", "--bind", f"tcp://127.0.0.1:{free_port()}"]
    door = Child(["-m", "rtcontrol", "serve", *given], tmp_path / "log", env=served.env)
    try:
        door.says(f"listening on http://127.0.0.1:{web}/", 120.0)
        direct = f"http://127.0.0.1:{web}"
        pids = [[one["pid"] for one in httpx.get(f"{url}/v1/fleet").json()["decoders"]] for url in (direct, served.url)]
        assert pids[0] == pids[1], "each has decoders of its own"
        done = cli("bench", "proxy", direct, served.url, "--trips", "100", "--json", str(tmp_path / "proxy.json"))
        assert done.returncode == 0 and list(json.loads((tmp_path / "proxy.json").read_text())["ms"])[1] == served.url
        made["args"]["decoders"] = 2
        served.tell({**served.config, "applications": [made]})
        differs = "The fleet lab has --decoders 1, and this server 2"
        until(lambda: differs in served.message("open"), "it was let in", 240.0, 0.5)
    finally:
        door.end()
    served.tell({**served.config, "applications": served.config["applications"][:2]})
    until(lambda: served.are_up("open", "guarded"), "it does not go on", 240.0, 0.5)


def test_an_application_that_is_taken_away_ends_in_good_order(served: Applications) -> None:
    doors = served.replicas()
    served.tell({**served.config, "applications": served.config["applications"][1:2]})
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in doors.values()), "they did not end")
    for name in doors:  # what a server writes last
        assert (served.out / name / "server.json").is_file(), "it was killed"
