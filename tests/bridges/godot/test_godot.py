"""Check the grammar of the Godot project's files, and the files that they name, without an engine."""

from __future__ import annotations

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.bridges.godot.web import ADDON, PROJECT
from tests.models.recipes import recipe

village = recipe("village")
GDPARSE = shutil.which("gdparse")
SCRIPTS = sorted(PROJECT.rglob("*.gd"))


@pytest.mark.skipif(GDPARSE is None, reason="gdparse missing: pip install gdtoolkit")
@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_script_parses_as_godot_4(file: Path) -> None:
    done = subprocess.run([str(GDPARSE), str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_plugin_scenes_and_project_refer_to_existing_files() -> None:
    plugin = ConfigParser()
    plugin.read(ADDON / "plugin.cfg")
    assert set(plugin["plugin"]) == {"name", "description", "author", "version", "script"}
    assert (ADDON / plugin["plugin"]["script"].strip('"')).is_file()
    named = 0
    for file in (*PROJECT.rglob("*.tscn"), PROJECT / "project.godot"):
        for path in re.findall(r"res://([^\"]+)", file.read_text("utf-8")):
            named += 1
            assert (PROJECT / path).is_file(), (file, path)
    for file in SCRIPTS:
        for path in re.findall(r"(?:preload\(|^extends )\"([^\"]+)\"", file.read_text("utf-8"), re.MULTILINE):
            named += 1
            assert (file.parent / path).is_file(), (file, path)
    assert named >= 15


def test_village_has_the_tools_of_the_bundled_model() -> None:
    code = (PROJECT / "village.gd").read_text("utf-8")
    added = re.findall(r"add_tool\(\"(\w+)\", \"([^\"]+)\"", code)
    functions = [tool["function"] for tool in village.tools]
    assert added == [(function["name"], function["description"]) for function in functions]
    enum = functions[0]["parameters"]["properties"]["direction"]["enum"]
    assert "const DIRECTIONS = [" + ", ".join(f'"{one}"' for one in enum) + "]" in code
