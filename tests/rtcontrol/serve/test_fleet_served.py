"""A server with two decoders on two nodes of a Ray cluster, and clients that go on whatever is done to these."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from many_clients import Flown

from rtcontrol.bench.wire import TEXT
from rtcontrol.hosts import load
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.errors import UserError
from rtcontrol.serve.operators import decoders_of
from rtcontrol.serve.options import ServeOptions, decoders_between
from rtcontrol_client import Crowd
from tests.bridges.client.worlds import Process, free_port
from tests.helpers.processes import until
from tests.helpers.ray_cluster import RayCluster

pytestmark = pytest.mark.serial


@dataclass
class Served:
    """The server's process, and what its operator asks of it."""

    process: Process
    url: str
    token: Path
    cluster: RayCluster

    @property
    def endpoint(self) -> str:
        return self.process.endpoint

    def fleet(self, body: dict[str, Any] | None = None, token: str | None = None) -> Any:
        """The answer, or the status and the words of a refusal."""
        headers = {"content-type": "application/json"}
        if body is not None:
            headers["authorization"] = f"Bearer {self.token.read_text().strip() if token is None else token}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{self.url}/v1/fleet", data, headers)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def decoders(self) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = self.fleet()["decoders"]
        return shown

    def busiest(self) -> dict[str, Any]:
        return max(self.decoders(), key=lambda one: one["sessions"])

    def all_up(self, count: int = 2) -> None:
        until(lambda: [one["state"] for one in self.decoders()] == ["up"] * count, "a decoder is not back", 120.0)


def start(process: Process, cluster: RayCluster) -> None:
    """In the cluster; what this process is told of Ray stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", cluster.address)
        for name in [name for name in os.environ if name.startswith("RAY_AUTH")]:
            patch.delenv(name)
        process.start()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    out, web = tmp_path_factory.mktemp("fleet"), free_port()
    with RayCluster() as cluster:
        token = out / "token"
        more = ("--http", f"127.0.0.1:{web}", "--token-file", str(token))
        process = Process(out, free_port(), "--host", "ray", "--model", "lander", "--decoders", "2", *more)
        start(process, cluster)
        yield Served(process, f"http://127.0.0.1:{web}", token, cluster)
        status = process.end()
        assert status == 128 + signal.SIGTERM, process.logs()
        assert "Traceback" not in process.logs(), process.logs()


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The bundled lander by other names."""

    def made(name: str) -> Path:
        return Path(shutil.copytree(resolve("lander"), tmp_path_factory.mktemp("model") / name))

    return made


def test_each_decoder_is_shown_with_its_node_and_sessions(served: Served) -> None:
    served.all_up()
    decoders = served.decoders()
    assert {one["node"] for one in decoders} == set(served.cluster.nodes), "spread over the nodes"
    with Flown(served.endpoint, 2, 10.0) as flown:
        flown.go_on()
        assert sum(one["sessions"] for one in served.decoders()) == 2
        with urllib.request.urlopen(f"{served.url}/health") as answer:
            health = json.load(answer)
        assert [one["decoder"] for one in health["decoders"]] == [one["decoder"] for one in decoders]
        with urllib.request.urlopen(f"{served.url}/metrics") as answer:
            text = answer.read().decode()
        assert f'rtcontrol_decoder_sessions{{decoder="{decoders[0]["decoder"]}",node="{decoders[0]["node"]}"' in text
        assert "rtcontrol_decoder_busy{" in text


def test_only_the_operator_changes_the_decoders(served: Served) -> None:
    name = served.decoders()[0]["decoder"]
    assert served.fleet({"drain": name}, token="guessed-by-somebody")[0] == 401
    for body in ({}, {"drain": name, "model": "lander"}, {"drain": name, "more": 1}, {"drain": 7}):
        status, words = served.fleet(body)
        assert status == 400, words
    for body, words in (
        ({"drain": "decoder-77"}, "There is no decoder 'decoder-77'"),
        ({"model": "random"}, "no checkpoint that the decoders could load"),
        ({"model": "/no/such/folder"}, "/no/such/folder"),
    ):
        status, told = served.fleet(body)
        assert status == 400 and words in told, told
    assert len(served.decoders()) == 2


def test_a_decoder_is_killed_under_load_and_its_sessions_go_on_with_safe_calls_in_between(served: Served) -> None:
    served.all_up()
    with Flown(served.endpoint, 4, 10.0, hold_ms=0) as flown:
        flown.go_on()
        victim, marks = served.busiest(), flown.marks()
        os.kill(victim["pid"], signal.SIGKILL)
        until(lambda: any("host" in key for key in flown.outcomes(marks)), "nobody noticed")
        flown.go_on(10)
        there = {one["decoder"]: one["sessions"] for one in served.decoders()}
        assert there[victim["decoder"]] == 0 and sum(there.values()) == 4
        flown.check_once()
        for client, mark in zip(flown.clients, marks, strict=True):
            missed = [call for call in client.calls[mark:] if call.cause == "host"]
            assert all(call.status == "safe" for call in missed), "nothing may be held, and was"
        assert any(call.cause == "host" for client in flown.clients for call in client.calls)


def test_a_crowd_goes_on_at_another_decoder_when_its_own_is_killed(served: Served) -> None:
    served.all_up()
    names = [f"villager {number}" for number in range(6)]
    with Crowd.connect(served.endpoint, agent="lander", hz=5) as crowd:
        for name in names:
            crowd.join(name, instruction="land on the pad", every_tick=True)

        def all_decided_since(began_ns: int) -> bool:
            crowd.observe(dict.fromkeys(names, TEXT))
            crowd.wait(0.1)
            now_ns = time.monotonic_ns()
            ages = [one.age_ms for one in map(crowd.call, names) if one.status == "fresh"]
            return len(ages) == len(names) and all(age is not None and now_ns - 1e6 * age > began_ns for age in ages)

        until(lambda: all_decided_since(0), "no calls", 60.0)
        victim = served.busiest()
        assert victim["sessions"] == 1
        os.kill(victim["pid"], signal.SIGKILL)
        until(lambda: served.busiest()["decoder"] != victim["decoder"], "the crowd did not move", 60.0)
        killed_ns = time.monotonic_ns()
        until(lambda: all_decided_since(killed_ns), "no calls of the other decoder", 60.0)
        assert not crowd.refusals


def test_a_decoder_is_drained_under_load_and_no_tick_is_lost_by_that(served: Served) -> None:
    served.all_up()
    with Flown(served.endpoint, 4, 10.0) as flown:
        flown.go_on()
        gone, marks = served.busiest(), flown.marks()
        left = served.fleet({"drain": gone["decoder"]})["decoders"]
        names = [one["decoder"] for one in left]
        assert len(left) == 2 and gone["decoder"] not in names, "another one is there in its place"
        assert sum(one["sessions"] for one in left) == 4
        until(lambda: not Path(f"/proc/{gone['pid']}").exists(), "its process did not end")
        flown.go_on()
        assert not [key for key in flown.outcomes(marks) if "host" in key]
        flown.check_once()


def test_the_model_is_changed_under_load_and_back_where_it_does_not_serve(
    served: Served, copies: Callable[[str], Path]
) -> None:
    with Flown(served.endpoint, 4, 10.0) as flown:
        flown.go_on()
        marks, before = flown.marks(), {one["decoder"] for one in served.decoders()}
        mine, broken = copies("mine"), copies("broken")
        answer = served.fleet({"model": str(mine)})
        assert answer["model"] == str(mine) and before.isdisjoint(one["decoder"] for one in answer["decoders"])
        flown.go_on()
        with Flown(served.endpoint, 1, 10.0) as late:
            late.go_on()
            assert late.clients[0].session is not None and late.clients[0].session.welcome.model == "mine"
        weights = next(broken.glob("*.safetensors"))
        weights.write_bytes(weights.read_bytes()[:1000])
        status, told = served.fleet({"model": str(broken)})
        assert status == 400 and "All sessions stay with the model before" in told, told
        flown.go_on()
        assert served.fleet()["model"] == str(mine)
        assert not [key for key in flown.outcomes(marks) if "host" in key or "decide.error" in key]
        flown.check_once()


@contextmanager
def two_models(tmp_path: Path, cluster: RayCluster) -> Iterator[tuple[Served, Flown, Flown]]:
    """Another server of the cluster, and clients of two models, so that both of its decoders have sessions."""
    process, web = Process(tmp_path, free_port()), free_port()
    command = [word for word in process._command if word not in ("--model", "random")]
    process._command = [*command, "--host", "ray", "--decoders", "2", "--http", f"127.0.0.1:{web}"]
    start(process, cluster)
    other = Served(process, f"http://127.0.0.1:{web}", tmp_path, cluster)
    try:
        with (
            Flown(other.endpoint, 2, 10.0, hold_ms=0) as lander,
            Flown(other.endpoint, 2, 5.0, agent="paddle") as paddle,
        ):
            lander.go_on()
            paddle.go_on()
            assert [one["sessions"] for one in other.decoders()] == [2, 2], "they have not the same model"
            yield other, lander, paddle
    finally:
        assert process.end() == 128 + signal.SIGTERM, process.logs()


def test_a_machine_that_goes_is_left_before(tmp_path: Path, served: Served) -> None:
    # ray-project/ray#65502: nodes were taken back, and what ran there was not moved, as nobody asked which.
    served.cluster.add()
    with two_models(tmp_path, served.cluster) as (other, *flown):
        marks = [one.marks() for one in flown]
        going = next(one for one in other.decoders() if one["node"] in served.cluster.nodes[1:])
        served.cluster.drain(going["node"])
        gone = going["decoder"]
        until(lambda: gone not in [one["decoder"] for one in other.decoders()], "nobody left the machine", 120.0)
        assert going["node"] not in [one["node"] for one in other.decoders()] and len(other.decoders()) == 2
        for one, mark in zip(flown, marks, strict=True):
            one.go_on()
            assert not [key for key in one.outcomes(mark) if "host" in key]
            one.check_once()
        served.cluster.kill(going["node"])
        for one in flown:
            one.go_on()


def test_a_node_dies_and_its_sessions_go_on_at_the_other(tmp_path: Path, served: Served) -> None:
    """The last one of this server: the cluster has one node from now on."""
    with two_models(tmp_path, served.cluster) as (other, *flown):
        head, dies = served.cluster.nodes
        (victim,) = [one for one in other.decoders() if one["node"] == dies]
        marks = [one.marks() for one in flown]
        served.cluster.kill(dies)
        # vllm-project/production-stack#420: requests went on to nodes that were dead.
        until(lambda: any(one["state"] == "lost" for one in other.decoders()), "not noticed")
        until(lambda: sum(one["sessions"] for one in other.decoders() if one["state"] == "up") == 4, "not moved")
        for one in flown:
            one.go_on(10)
            one.check_once()
        for client, mark in zip(flown[0].clients, marks[0], strict=True):
            missed = [call for call in client.calls[mark:] if call.cause == "host"]
            assert all(call.status == "safe" for call in missed)
        other.all_up()  # what ran on the node comes up at the other
        assert {one["node"] for one in other.decoders()} == {head}
        assert victim["pid"] not in [one["pid"] for one in other.decoders()]
        flown[0].go_on()


def test_decoders_are_a_number_or_two() -> None:
    assert decoders_between("4") == (4, 4) and decoders_between("2:8") == (2, 8)
    for text in ("", "0", "-1", "1:2:3", "8:2", "two", "1.5", ":3", "2:", "99999", "٣"):
        with pytest.raises(UserError, match="no number of decoders"):
            decoders_between(text)
    for given in ({"host": "inprocess"}, {"standby": True}):
        with pytest.raises(UserError, match="exclude each other"):
            ServeOptions(decoders="2", **given).check()  # type: ignore[arg-type]


def test_each_decoder_gives_its_own_time_away(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Half of a decoder's time each, whatever decisions take on this machine.
    monkeypatch.setattr(load, "undisturbed", lambda shares: 25e6)
    made, half = bench(model="lander", host="ray", decoders="2"), {"agent": "lander", "hz": 20}
    for _ in range(2):
        made.enter(**half)
    shown = decoders_of(made.admission.pool)
    assert [one["sessions"] for one in shown] == [1, 1] and [one["busy"] for one in shown] == [0.5, 0.5]
    error = made.peer().denied(**half)
    assert error.code == "busy" and "50% of its time by 1 other session" in error.message
    made.enter(agent="lander", hz=4)


def test_several_that_come_at_once_share_the_decoders(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # vllm-project/router#235: each saw the same free decoder, as none of them was counted there yet.
    monkeypatch.setattr(load, "undisturbed", lambda shares: 25e6)
    made = bench(model="lander", host="ray", decoders="2")
    with Flown(made.server.endpoints[0], 2, 20.0) as flown:
        flown.go_on()
        assert [one["sessions"] for one in decoders_of(made.admission.pool)] == [1, 1]
