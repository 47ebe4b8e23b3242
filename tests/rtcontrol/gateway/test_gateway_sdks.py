"""Agent SDKs against `/v1`, each in an environment of its own: `RTCONTROL_SDK_VENVS` is the folder that has them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gateway_served import Served

CLIENTS = Path(__file__).parent / "sdk_clients.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pydanticai", "langchain", "instructor"])
def test_an_sdk_gets_what_it_asks_for_and_ends(served: Served, name: str) -> None:
    folder = os.environ.get("RTCONTROL_SDK_VENVS", "")
    python = Path(folder) / name / "bin" / "python"
    if not folder or not python.exists():
        pytest.skip(f"RTCONTROL_SDK_VENVS names no folder with {name}/bin/python")
    command = [str(python), str(CLIENTS), name, served.url + "v1"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100, env={"PATH": os.environ["PATH"]})
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    if name == "pydanticai":
        # The tool is called once at most, and then the run ends.
        assert found["text"] in (["str", 1], ["str", 0])
        assert found["tool"][0] == found["native"][0] == "Turn" and max(found["tool"][1], found["native"][1]) <= 1
    else:
        assert found.pop("bound", "Turn") == "Turn" and set(found.values()) == {"Turn"}
