"""The programs of examples/ run unchanged, here or in tests/smoke. `supervise.py` is in
tests/rtcontrol/gateway/test_mcp_server.py, `own_loop.py` in tests/bridges/client/test_client.py."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rtcontrol_client.ros2 import EXAMPLE
from tests.bridges.client.worlds import free_port
from tests.helpers.processes import ROOT, Program, cli, python, until
from tests.helpers.ros_domain import own_domain
from tests.rtcontrol.gateway.chromium import Chromium, in_chromium

HERE = ROOT / "examples"

ELSEWHERE = {"supervise", "own_loop"}


def ran(name: str, *arguments: str, status: int = 0) -> str:
    """Run an example, and return its output; for a failure, the text on stderr."""
    done = python(str(HERE / f"{name}.py"), *arguments)
    assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
    return done.stderr if status else done.stdout


@contextmanager
def serving(folder: Path, *given: str, http: bool = False) -> Iterator[str]:
    """Run a server, and yield the ZeroMQ endpoint or, with `http`, the page's address."""
    ports = free_port(), free_port()
    line = ["-m", "rtcontrol", "serve", "--host", "inprocess", "--out", str(folder / "served"), *given]
    line += ["--bind", f"tcp://127.0.0.1:{ports[0]}", *(["--http", f"127.0.0.1:{ports[1]}"] if http else [])]
    server = Program(line, folder / "server.log")
    address = f"http://127.0.0.1:{ports[1]}" if http else f"tcp://127.0.0.1:{ports[0]}"
    try:
        server.says(f"listening on {address}")
        yield address
    finally:
        server.kill()


def test_calls_become_instances_of_pydantic_tools() -> None:
    lines = ran("pydantic_tools", "0.2").splitlines()
    assert len(lines) == 3
    assert all(re.search(r"-> (Grip\(force=\d+\)|Move\(side='(left|right)'\)|Wait\(\))$", line) for line in lines)


def test_car_with_light_package_follows_speed_and_stops(tmp_path: Path) -> None:
    assert not re.search(r"^(from|import) rtcontrol\b", (HERE / "robot.py").read_text("utf-8"), re.MULTILINE)
    with serving(tmp_path) as address:
        drives, stops, counts = ran("robot", address).splitlines()
    # How fast it is by then depends on the machine; that the right call is in force does not.
    assert re.match(r"instructed 'drive at 30': \d+ km/h after 5 s, by set_speed, ", drives)
    assert re.match(r"instructed 'stop': \d+ km/h after 3 s, by stop, ", stops)
    assert int(counts.split()[0]) > 0


def test_village_over_one_connection_gets_calls_for_each(tmp_path: Path) -> None:
    assert not re.search(r"^(from|import) rtcontrol\b", (HERE / "crowd.py").read_text("utf-8"), re.MULTILINE)
    with serving(tmp_path, "--agent", "lander") as address:
        (counts,) = ran("crowd", address, "12").splitlines()
    assert re.match(r"12 of 12 had calls; \d+ fresh, \d+ held", counts)


# The tab that is hidden draws no frames: pollen-robotics/reachy_mini#1370, OpenRoberta/openroberta-lab#1690.
@in_chromium
def test_users_page_is_played_and_safe_while_hidden(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--set", f"serve.static={HERE}", http=True) as address,
        Chromium(tmp_path / "profile") as page,
    ):
        page.open(f"{address}/static/browser.html")
        page.until("rtcontrol.session.state === 'live' && rtcontrol.count.returned >= 3", 60)
        assert "in force: call" in page.value("document.querySelector('p').textContent")
        page.value("document.querySelector('input').value = 'stay at the top'")
        page.value("document.querySelector('form').requestSubmit()")
        page.until("rtcontrol.world.own_y < 8", 60)
        safe = page.value("rtcontrol.count.safe")
        page.value("window.requestAnimationFrame = () => 0")
        page.until(f"rtcontrol.count.safe > {safe}")
        assert page.errors == []


ROS = os.environ.get("RTCONTROL_ROS_KILTED")


# ros2/rclpy#841, ros2/rclpy#1166: a node that is ended by a signal ends with a traceback.
@pytest.mark.skipif(not ROS, reason="RTCONTROL_ROS_KILTED names no Python with ROS 2's wheels (docs/clients.md)")
@pytest.mark.parametrize("number", [None, signal.SIGINT])
def test_a_robot_of_ros_2_is_driven_by_the_bridge(tmp_path: Path, number: int | None) -> None:
    domain = {**own_domain(), "ROS_LOG_DIR": str(tmp_path)}
    with serving(tmp_path, "--model", "random") as address:
        line = ["-m", "rtcontrol_client.ros2", "--config", str(EXAMPLE), "--connect", address]
        bridge = Program(line, tmp_path / "bridge.log", ROS, env=domain)
        seconds = "6" if number is None else "60"
        robot = Program([str(HERE / "ros2_robot.py"), seconds], tmp_path / "robot.log", ROS, env=domain)
        try:
            if number is not None:
                robot.says("is driven")
                assert robot.end(number) == 0, robot.log()
            until(lambda: robot.popen.poll() is not None, "it does not end", 120)
        finally:
            bridge.kill()
            robot.kill()
    assert robot.popen.returncode == 0 and "Traceback" not in robot.log(), robot.log()
    found = re.search(r"([\d.]+) m by (\d+) commands", robot.log())
    assert found is not None and int(found[2]) > 0, robot.log() + bridge.log()
    assert number is not None or float(found[1]) > 0


def test_every_example_is_run_by_a_test() -> None:
    names = {path.name for path in HERE.iterdir() if path.suffix in (".py", ".html")}
    here = Path(__file__).read_text("utf-8") + (ROOT / "tests/smoke/test_smoke.py").read_text("utf-8")
    run = {f"{name}.py" for name in (*re.findall(r'ran\("(\w+)"', here), *ELSEWHERE)}
    page = (ROOT / "docs" / "examples.md").read_text("utf-8")
    assert names == set(re.findall(r"\| `([\w.]+)` \|", page))
    assert names == run | set(re.findall(r"\b(ros2_robot\.py|policy_server\.py|browser\.html)\"", here))


def test_policy_server_plays_game_with_deadline_and_safe_call(tmp_path: Path) -> None:
    port = free_port()
    server = Program([str(HERE / "policy_server.py"), str(port)], tmp_path / "policy.log")
    try:
        server.says(f"a policy at ws://127.0.0.1:{port}")
        model = f"openpi:ws://127.0.0.1:{port}"
        given = ("--env", "paddle", "--model", model, "--episodes", "1", "--clock", "lockstep", "--no-live")
        done = cli("run", *given, "--out", str(tmp_path / "run"))
        assert done.returncode == 0, done.stderr
    finally:
        server.kill()
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["releases"] > 100 and report["calls"]["total"] > 100
    assert "1 of 1 succeeded" in done.stdout
