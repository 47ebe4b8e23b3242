"""Several servers of one fleet of decoders in a Ray cluster, each a process: clients go on at another one, whatever
becomes of theirs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from many_clients import Flown

from rtcontrol.bench.wire import TEXT
from rtcontrol.hosts.fleet_door import BEAT_S
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.errors import UserError
from rtcontrol.serve.options import ServeOptions
from rtcontrol_client import Client, Crowd
from rtcontrol_client.wire.messages import Bye, CallMessage, ControlMessage, ErrorMessage, Instruct, Reset
from tests.bridges.client.worlds import Process, free_port, until_fresh_at
from tests.helpers.processes import environment, until
from tests.helpers.ray_cluster import RayCluster
from tests.rtcontrol.serve.crowd.crowd_peer import CrowdPeer
from tests.rtcontrol.serve.test_fleet_served import start
from tests.rtcontrol.serve.wire_peer import WirePeer

pytestmark = pytest.mark.serial

LAB = ("--host", "ray", "--model", "lander", "--decoders", "2")


# One decoder that refuses nobody, however busy the machine is.
ONE = (*LAB[:-1], "1", "--busy-max", "100")


@dataclass
class Door:
    """A server of a fleet, and the address of its page."""

    process: Process
    url: str

    @property
    def endpoint(self) -> str:
        return self.process.endpoint

    def decoders(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/v1/fleet") as answer:
            shown: list[dict[str, Any]] = json.load(answer)["decoders"]
        return shown

    def pids(self) -> list[int]:
        return [one["pid"] for one in self.decoders()]

    def sessions(self) -> int:
        """Of all servers of the fleet."""
        return sum(one["sessions"] for one in self.decoders())


Opening = Callable[..., Door]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster() as made:
        yield made


@pytest.fixture
def open_door(cluster: RayCluster, tmp_path: Path) -> Iterator[Opening]:
    with opening(cluster, tmp_path) as made:
        yield made


@contextmanager
def opening(cluster: RayCluster, out: Path) -> Iterator[Opening]:
    doors: list[Door] = []

    def made(fleet: str, *options: str) -> Door:
        folder, web = out / f"{fleet}-{len(doors)}", free_port()
        folder.mkdir()
        given = (*(options or LAB), "--fleet", fleet, "--http", f"127.0.0.1:{web}")
        doors.append(Door(Process(folder, free_port(), *given), f"http://127.0.0.1:{web}"))
        start(doors[-1].process, cluster)
        return doors[-1]

    yield made
    for door in doors:
        door.process.stop()


def ended(pids: list[int]) -> None:
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the decoders did not end", 120.0)


def test_client_of_a_killed_server_goes_on_at_another_one_with_the_same_decoders(open_door: Opening) -> None:
    first, second = open_door("lab"), open_door("lab")
    pids = first.pids()
    assert second.pids() == pids, "each has decoders of its own"
    options: dict[str, Any] = {"agent": "lander", "hz": 10, "ttl_ms": 600}
    with (
        Flown(second.endpoint, 2, 10.0) as others,
        Client.connect(f"{first.endpoint},{second.endpoint}", **options) as client,
    ):
        until_fresh_at(client, first.endpoint, TEXT)
        others.go_on()
        until(lambda: first.sessions() == second.sessions() == 3, "what is at the other one is not counted")
        marks = others.marks()
        first.process.kill()
        until_fresh_at(client, second.endpoint, TEXT)
        figures = client.statistics
        assert client.error is None
        assert (figures["sessions"], figures["resumed"]) == (1, 1), "the session did not go on"
        others.go_on()
        until(lambda: second.sessions() == 3, "sessions of a server that is gone count for ever")
        assert not [key for key in others.outcomes(marks) if "host" in key], "the others lost something by that"
        others.check_once()
        assert second.pids() == pids, "the decoders ended with the server that had made them"
    assert second.process.end() == 128 + signal.SIGTERM
    ended(pids)
    assert "Traceback" not in second.process.logs(), second.process.logs()


def heard(peer: WirePeer, what: str, fits: Callable[[Any], bool]) -> Any:
    """Observe until such a message has come."""
    found: list[Any] = []

    def comes() -> bool:
        peer.observe()
        while not found and (message := peer.receive(0.05)) is not None:
            found.extend([message] if fits(message) else [])
        return bool(found)

    until(comes, f"no {what}")
    return found[0]


def until_fresh_after(peer: WirePeer, tick: int) -> CallMessage:
    """Observe until something was decided, which is of a later tick than this one."""
    call: CallMessage = heard(peer, "fresh call", lambda one: isinstance(one, CallMessage) and one.status == "fresh")
    assert call.tick > tick, "its ticks do not grow"
    return call


def until_state(peer: WirePeer, state: str) -> None:
    """Observe until the client is told so of what people did."""
    heard(peer, state, lambda one: isinstance(one, ControlMessage) and one.state == state)


def test_session_goes_on_at_any_server_with_all_that_was_said_and_its_ticks_grow(open_door: Opening) -> None:
    # magro/memcached-session-manager#403: a session was not found at the node that took over.
    # igniterealtime/Openfire#2363: one that went on elsewhere was kept at the node that it had been on.
    first, second = open_door("lab"), open_door("lab")
    with WirePeer(first.endpoint) as peer, WirePeer(second.endpoint) as other:
        peer.enter(hz=10, capabilities=["control"])
        until_fresh_after(peer, -1)
        peer.send(Instruct(session=peer.token, instruction="land to the left of the pad"))
        peer.send(Reset(session=peer.token, epoch=1))
        peer.epoch = 1
        last = until_fresh_after(peer, -1)
        peer.send(ControlMessage(session=peer.token, say="pause"))
        until_state(peer, "paused")
        time.sleep(4 * BEAT_S)  # what was said in the last half second may be lost with the server
        other.seq = peer.seq

        welcome = other.enter(resume=peer.token)  # the first one still lives
        assert (welcome.resumed, welcome.session, welcome.epoch) == (True, peer.token, 1)
        assert welcome.instruction == "land to the left of the pad"
        until_state(other, "paused")
        peer.expect(Bye, reason="it went on at another server")
        other.send(ControlMessage(session=other.token, say="resume"))
        until_state(other, "running")
        last = until_fresh_after(other, last.tick)
        other.observe(seq=1)
        assert other.expect(ErrorMessage).code == "sequence", "a look of before would be decided upon"

        other.send(Reset(session=other.token, epoch=2))
        other.epoch = 2
        last = until_fresh_after(other, last.tick)
        time.sleep(4 * BEAT_S)
        second.process.kill()
        peer.seq = other.seq
        welcome = peer.enter(resume=peer.token)
        assert (welcome.resumed, welcome.epoch) == (True, 2)
        peer.epoch = 2
        until_fresh_after(peer, last.tick)

        refusal = WirePeer(first.endpoint)
        error = refusal.denied(resume="x" * 32)
        assert error.code == "session" and error.retryable and not error.fatal
        refusal.close()


def test_crowd_goes_on_at_any_server_with_its_members_and_their_ticks_grow(open_door: Opening) -> None:
    # colyseus/colyseus-unity-sdk#49: after the client was back, nothing that the server told arrived any more.
    first, second = open_door("lab"), open_door("lab")
    with (
        WirePeer(first.endpoint) as peer,
        WirePeer(second.endpoint) as other,
        Crowd.connect(f"{first.endpoint},{second.endpoint}", agent="lander", hz=10) as crowd,
    ):
        crowd.join("cora", ttl_ms=600)
        until_decided(crowd, first.endpoint)
        raw = CrowdPeer(peer, capabilities=["control"])
        raw.join({"id": "anna", "epoch": 3, "hz": 7, "priority": 9, "ttl_ms": 777}, {"id": "bert", "epoch": 4})
        raw.join("carl")
        last = max(call.tick for call in raw.until_fresh(["anna", "bert"]).values())
        raw.leave("carl")
        peer.send(Instruct(session=peer.token, instruction="land to the left of the pad"))
        peer.expect(Instruct)
        peer.send(ControlMessage(session=peer.token, say="pause"))
        peer.expect(ControlMessage, state="paused")
        time.sleep(4 * BEAT_S)  # what was said in the last half second may be lost with the server

        elsewhere = CrowdPeer(other, resume=peer.token)  # the first one still lives
        welcome = other.welcome
        assert welcome is not None and (welcome.resumed, welcome.session) == (True, peer.token)
        assert welcome.instruction == "land to the left of the pad"
        other.expect(ControlMessage, state="paused")
        peer.expect(Bye, reason="it went on at another server")
        other.send(ControlMessage(session=other.token, say="resume"))
        other.expect(ControlMessage, state="running")
        elsewhere.see(["anna", "carl"])
        refused = other.expect(ErrorMessage).members or []
        assert [(part.id, part.code) for part in refused] == [("anna", "sequence"), ("carl", "state")]
        elsewhere.seq = raw.seq
        found = elsewhere.until_fresh(["anna", "bert"])
        assert (found["anna"].epoch, found["anna"].ttl_ms, found["bert"].epoch) == (3, 777.0, 4)
        assert min(call.tick for call in found.values()) > last
        elsewhere.join({"id": "anna", "epoch": 2})
        assert other.expect(ErrorMessage).code == "epoch"

        first.process.kill()
        until_decided(crowd, second.endpoint)
        figures = crowd.statistics
        assert (figures["sessions"], figures["resumed"]) == (1, 1), "the session did not go on"


def until_decided(crowd: Crowd, endpoint: str) -> None:
    """Observe until the server there has decided anew."""
    counts: list[int] = []

    def fresh() -> bool:
        crowd.observe(dict.fromkeys(crowd.members, TEXT))
        crowd.wait(0.05)
        if not crowd.connected or crowd.address != endpoint:
            counts.clear()
            return False
        counts.append(crowd.statistics["fresh"])
        return counts[-1] > counts[0]

    until(fresh, f"no fresh call at {endpoint}: {crowd.error}")


def test_server_that_is_stopped_leaves_the_decoders_to_the_others(open_door: Opening) -> None:
    first, second = open_door("lab"), open_door("lab")
    pids = first.pids()
    with Flown(second.endpoint, 2, 10.0) as flown:
        flown.go_on()
        marks = flown.marks()
        assert first.process.end() == 128 + signal.SIGTERM
        flown.go_on(10)
        assert second.pids() == pids
        assert not [key for key in flown.outcomes(marks) if "host" in key]
    second.process.kill()  # the last one: nobody says that it ends
    ended(pids)


def test_two_fleets_of_one_cluster_have_decoders_of_their_own(open_door: Opening) -> None:
    one = open_door("one", *LAB[:-1], "1")
    other = open_door("other", "--host", "ray", "--model", "paddle")
    assert not set(one.pids()) & set(other.pids())
    with Flown(one.endpoint, 2, 10.0) as flown, Flown(other.endpoint, 1, 5.0, agent="paddle") as paddle:
        flown.go_on()
        paddle.go_on()
        assert one.sessions() == 2 and other.sessions() == 1
        gone = one.pids()
        assert one.process.end() == 128 + signal.SIGTERM
        ended(gone)
        paddle.go_on()


OTHER_VERSION = "import rtcontrol.models as m; m.__version__ = '9.9'; from rtcontrol.cli import main; main()"


def refused(cluster: RayCluster, tmp_path: Path, *options: str, code: str | None = None) -> str:
    """What a server says that ends for a mistake."""
    begun = ["-c", code] if code else ["-m", "rtcontrol"]
    given = [*begun, "serve", "--bind", f"tcp://127.0.0.1:{free_port()}", "--out", str(tmp_path / "refused"), *options]
    env = {name: value for name, value in environment(RAY_ADDRESS=cluster.address).items() if "RAY_AUTH" not in name}
    done = subprocess.run([sys.executable, *given], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def test_server_of_another_version_or_model_is_not_let_in_and_told_why(
    open_door: Opening, cluster: RayCluster, tmp_path: Path
) -> None:
    door = open_door("lab", *LAB[:-1], "1")
    with Flown(door.endpoint, 2, 10.0) as flown:
        flown.go_on()
        told = refused(cluster, tmp_path, *LAB[:-1], "1", "--fleet", "lab", code=OTHER_VERSION)
        assert "has rtcontrol 0.1.0, and this server 9.9" in told and "or give another --fleet NAME" in told
        told = refused(cluster, tmp_path, "--host", "ray", "--model", "paddle", "--fleet", "lab")
        assert "has --model lander, and this server paddle" in told and "Give --model lander" in told
        told = refused(cluster, tmp_path, *LAB, "--fleet", "lab")
        assert "has --decoders 1, and this server 2" in told
        flown.go_on()
        flown.check_once()


def asked(door: Door, token: Path, **body: str) -> Any:
    """What an operator is told who asks this of a server."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {token.read_text().strip()}"}
    told = urllib.request.Request(f"{door.url}/v1/fleet", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(told) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def model_of(flown: Flown) -> str:
    session = flown.clients[0].session
    assert session is not None
    return session.welcome.model


def copied(folder: Path) -> str:
    """The bundled lander by another name."""
    return str(shutil.copytree(resolve("lander"), folder))


def test_operator_drains_and_changes_the_model_at_any_server_and_all_serve_it(
    open_door: Opening, tmp_path: Path
) -> None:
    token, mine = tmp_path / "token", copied(tmp_path / "mine")
    first, second = [open_door("lab", *ONE, "--token-file", str(token)) for _ in range(2)]
    with Flown(first.endpoint, 2, 4.0) as one, Flown(second.endpoint, 2, 4.0) as other:
        for flown in (one, other):
            flown.go_on(5)
        marks = one.marks(), other.marks()
        (gone,) = first.decoders()
        (left,) = asked(first, token, drain=gone["decoder"])["decoders"]
        assert left["decoder"] != gone["decoder"] and second.decoders()[0]["pid"] == left["pid"]
        ended([gone["pid"]])
        answer = asked(second, token, model=mine)
        assert answer["model"] == mine and answer["decoders"][0]["decoder"] != left["decoder"]
        status, told = asked(first, token, drain=left["decoder"])
        assert status == 400 and "There is no decoder" in told
        for flown, mark in zip((one, other), marks, strict=True):
            flown.go_on(5)
            assert not [key for key in flown.outcomes(mark) if "host" in key or "decide.error" in key]
            flown.check_once()
        for door in (first, second, open_door("lab", *ONE)):  # the last one joins with the model of before
            with Flown(door.endpoint, 1, 4.0) as late:
                late.go_on(3)
                assert model_of(late) == "mine"


@pytest.mark.slow
def test_server_that_is_killed_while_it_changes_the_model_leaves_all_with_the_one_before(
    open_door: Opening, tmp_path: Path
) -> None:
    token, mine = tmp_path / "token", copied(tmp_path / "mine")
    first, second = [open_door("lab", *LAB, "--token-file", str(token)) for _ in range(2)]
    with Flown(second.endpoint, 4, 10.0) as flown, ThreadPoolExecutor(1) as pool:
        flown.go_on()
        marks = flown.marks()
        changing = pool.submit(asked, first, token, model=mine)
        until(lambda: len(second.decoders()) == 3, "no further decoder was started", 120.0)
        first.process.kill()
        assert isinstance(changing.exception(60), OSError)

        def in_order() -> bool:
            return [one["state"] for one in second.decoders()] == ["up", "up"]

        until(in_order, "nobody puts the decoders in order", 120.0)
        flown.go_on()
        assert not [key for key in flown.outcomes(marks) if "host" in key or "decide.error" in key]
        with Flown(second.endpoint, 1, 10.0) as late:
            late.go_on()
            assert model_of(late) == "lander"


@pytest.mark.slow
def test_machine_that_goes_is_left_by_the_sessions_of_all_servers(cluster: RayCluster, open_door: Opening) -> None:
    # ray-project/ray#65502: nodes were taken back, and what ran there was not moved, as nobody asked which.
    cluster.add()
    doors = [open_door("lab"), open_door("lab")]
    with Flown(doors[0].endpoint, 2, 10.0) as one, Flown(doors[1].endpoint, 2, 5.0) as other:
        for flown in (one, other):
            flown.go_on()
        marks = one.marks(), other.marks()
        going = next(each for each in doors[0].decoders() if each["node"] in cluster.nodes[1:])
        cluster.drain(going["node"])

        def left() -> bool:
            shown = [door.decoders() for door in doors]
            return all(going["decoder"] not in [each["decoder"] for each in there] for there in shown)

        until(left, "the machine was not left", 120.0)
        assert all(len(door.decoders()) == 2 for door in doors)
        cluster.kill(going["node"])
        for flown, mark in zip((one, other), marks, strict=True):
            flown.go_on()
            assert not [key for key in flown.outcomes(mark) if "host" in key]
            flown.check_once()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fleet": "a b"}, "is no name"),
        ({"fleet": "a/b"}, "is no name"),
        ({"fleet": "lab", "host": "inprocess"}, "exclude each other"),
        ({"fleet": "lab", "standby": True}, "exclude each other"),
        ({"fleet": "lab", "decoders": "2:1"}, "is no number of decoders"),
        ({"fleet": "lab", "model": "random"}, "needs no decoders that could be shared"),
        ({"fleet": "lab"}, "RAY_ADDRESS names none"),
    ],
)
def test_what_no_fleet_can_be_shared_with_is_told(
    options: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match=says):
        ServeOptions(**options).check()


@pytest.mark.slow
def test_killed_head_is_told_and_every_client_ends_safe(tmp_path: Path) -> None:
    # ray-project/ray#45570: what uses Ray is ended a minute after the head has gone, without a word before.
    with RayCluster() as cluster, opening(cluster, tmp_path) as made:
        door = made("lab")
        with Client.connect(door.endpoint, agent="lander", hz=10, ttl_ms=600) as client:
            until_fresh_at(client, door.endpoint, TEXT)
            cluster.behead()
            until(lambda: "Ray's head at" in door.process.logs(), "nobody is told")
            assert "Start the cluster again, and this server" in door.process.logs()

            def over() -> bool:
                client.observe(text=TEXT)
                return door.process.process is not None and door.process.process.poll() is not None

            until(over, "Ray ends nobody any more: say so", 180.0, every=0.1)
            until(lambda: client.call().status == "safe", "a call outlives its ttl")
            assert client.call().call is not None, "the agent's safe call"
    assert os.environ.get("RAY_ADDRESS") is None
