"""The addon in the engine itself: Godot 4's web build in a browser. Skipped where there is none: see `web.py`."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.client.worlds import free_port
from tests.bridges.godot import port, test_godot
from tests.bridges.godot.engine import HERE, Served
from tests.bridges.godot.web import MISSING, WebEngine

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
SCENE = """[gd_scene load_steps=2 format=3]

[ext_resource type="Script" path="res://test.gd" id="1"]

[node name="Test" type="Node"]
script = ExtResource("1")
"""
Run = Callable[..., WebEngine]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Starts the addon's project with a script as its main scene: `run(script, files by name)`."""
    started: list[WebEngine] = []

    def start(script: str, files: dict[str, Any], page: int | None = None) -> WebEngine:
        project = {path: text.encode() for path, text in port.files().items()}
        # The editor's part is not in a build.
        project["project.godot"] = re.sub(
            rb"\[editor_plugins\].*?\n\n(?=\[)", b"", project["project.godot"], flags=re.S
        )
        project["project.godot"] = project["project.godot"].replace(b"res://main.tscn", b"res://test.tscn")
        project |= {"test.tscn": SCENE.encode(), "test.gd": script.encode()}
        project |= {name: json.dumps(value, ensure_ascii=False).encode() for name, value in files.items()}
        one = WebEngine(tmp_path / "browser", page or free_port(), project)
        started.append(one)
        return one

    yield start
    for one in started:
        one.end()


def faults(engine: WebEngine) -> list[str]:
    """Faults of the scripts."""
    return [line for line in engine.errors if "SCRIPT ERROR" in line or "Parse Error" in line]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Served, int, dict[str, Any]]]:
    """A server that lets the page of a port in with a token; the client's settings for it."""
    token, page = "k3" * 16, free_port()
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    origin = f"http://127.0.0.1:{page}"
    served = Served(tmp_path, "--token-file", str(tmp_path / "token"), "--allow-origin", origin)
    served.start()
    yield served, page, {"url": served.url, "token": token, "ttl_ms": 500.0}
    served.stop()


def test_sample_is_driven_and_safe_when_its_server_is_killed_and_goes_on_with_another(
    run: Run, guarded: tuple[Served, int, dict[str, Any]]
) -> None:
    served, page, given = guarded
    engine = run((HERE / "web_flight.gd").read_text(), {"flight.json": given}, page)
    engine.until(event="welcomed", resumed=False)
    for _ in range(40):
        acted = engine.until(event="acted", cause="call")
    assert acted["counts"]["fresh"] > 20 and acted["counts"]["errors"] == 0, acted
    # It has learnt when to look.
    assert acted["waits"] > 10
    served.kill()
    assert engine.until(event="acted", cause="expired")["name"] == "stop"
    served.start()
    engine.until(event="welcomed", resumed=False)
    engine.until(event="acted", cause="call")
    assert faults(engine) == []


def test_session_goes_on_after_a_server_that_stood_still_and_the_next_of_a_list_is_tried(
    run: Run, guarded: tuple[Served, int, dict[str, Any]]
) -> None:
    served, page, given = guarded
    given["url"] = f"ws://127.0.0.1:{free_port()}/ws,{served.url}"
    engine = run((HERE / "web_flight.gd").read_text(), {"flight.json": given}, page)
    engine.until(event="acted", cause="call")
    served.signal(signal.SIGSTOP)
    try:
        assert engine.until(event="acted", cause="expired")["name"] == "stop"
        engine.until(event="lost")
    finally:
        served.signal(signal.SIGCONT)
    engine.until(event="welcomed", resumed=True)
    engine.until(event="acted", cause="call")
    assert faults(engine) == []


def test_crowd_is_driven_by_the_names_of_its_nodes(run: Run, guarded: tuple[Served, int, dict[str, Any]]) -> None:
    _, page, given = guarded
    engine = run((HERE / "web_crowd.gd").read_text(), {"flight.json": given}, page)
    for name in ("anna", "bert"):
        engine.until(event="acted", id=name, cause="call")
    assert faults(engine) == []


def vectors() -> str:
    """The script that the vectors are tried with in Godot 3, as one for Godot 4."""
    text = port.script("vectors", (HERE / "vectors.gd").read_text())
    for before, after in (
        ("extends SceneTree", "extends Node"),
        ("func _initialize():", "func _ready():"),
        ('"res://rtcontrol_', '"res://addons/rtcontrol/rtcontrol_'),
        ("	quit()", "	get_tree().quit()"),
    ):
        assert before in text, before
        text = text.replace(before, after)
    begin, end = text.index("	var file = File.new()"), text.index('	for case in cases["valid"]:')
    read = '	var cases = JSON.parse_string(FileAccess.get_file_as_string("res://cases.json"))\n'
    return text[:begin] + read + text[end:]


def test_vectors_are_read_and_judged_as_in_godot_3(run: Run) -> None:
    engine = run(vectors(), {"cases.json": test_godot.cases()})
    told: dict[str, list[dict[str, Any]]] = {}
    while (line := engine.event(120))["of"] != "end":
        # A text of Godot 4 cannot hold a zero: there, it is another character that stands for none.
        told.setdefault(line["of"], []).append(json.loads(json.dumps(line, ensure_ascii=False).replace("\ufffd", " ")))
    assert faults(engine) == []
    for check in (
        test_godot.test_valid_messages_are_read,
        test_godot.test_nothing_is_executed_upon_an_invalid_message_and_the_session_goes_on,
        test_godot.test_crowd_leaves_out_a_wrong_part_and_ignores_a_wrong_message,
        test_godot.test_age_of_calls,
        test_godot.test_instants_to_look_are_those_of_the_vectors,
        test_godot.test_what_is_in_force,
    ):
        check(told)
