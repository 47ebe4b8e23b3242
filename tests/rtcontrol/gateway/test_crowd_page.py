"""The page `/crowd`: its rules under Node."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gateway_peer import NODE, SCRIPTS, copy_page

from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.models.recipes import recipe

village = recipe("village")

under_node = pytest.mark.skipif(NODE is None, reason="there is no `node` to run the page's modules")
pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def village_page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of the page's modules under Node."""
    folder = tmp_path_factory.mktemp("village")
    copy_page(folder)
    command = [str(NODE), str(SCRIPTS / "village.mjs"), str(folder / "page")]
    done = subprocess.run(command, input=json.dumps(WHO), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    matches: dict[str, Any] = json.loads(done.stdout)
    return matches


WHO: dict[str, tuple[int, str]] = {
    "everyone, gather at the well": (50, "gather at the well"),
    "Everyone in red, gather at the well!": (10, "gather at the well"),
    "go to the well": (50, "go to the well"),
    "stay at the well": (50, "stay at the well"),
    "those in blue and green: go home": (20, "go home"),
    "reds, run home": (10, "run home"),
    "The yellow ones wander about.": (10, "wander about"),
    "villager 7: flee the fox": (1, "flee the fox"),
    "villagers 7, 8 and 12 go home": (3, "go home"),
    "Ada and Ben, don’t move": (2, "don't move"),
    "everyone except the reds, stop": (40, "stop"),
    "everyone but Ada and Ben, stop": (48, "stop"),
    "all in purple stop": (10, "stop"),
    "everybody, go to the well, except the reds": (40, "go to the well"),
    "except the reds, everybody go to the well": (40, "go to the well"),
    "All but the reds and blues, go home": (30, "go home"),
    "go home, except for Ada": (49, "go home"),
    "everyone except villagers 3 and 4, stop": (48, "stop"),
    "everyone in red but not Ada, stop": (9, "stop"),
}


@under_node
@pytest.mark.parametrize("sentence", WHO)
def test_rules_find_addressed_villagers(village_page: dict[str, Any], sentence: str) -> None:
    assert village_page["meant"][sentence] == list(WHO[sentence])


@under_node
def test_page_offers_the_bundled_models_tools(village_page: dict[str, Any]) -> None:
    learnt = TrainingMetadata.load(ZOO / "village")
    assert learnt is not None and learnt.knows(tool_schemas(village_page["tools"]))
    assert village_page["tools"] == village.tools


@under_node
def test_villagers_texts_use_the_trained_words(village_page: dict[str, Any]) -> None:
    for text in village_page["looks"]:
        for saying in ("go to the well", "flee the fox", "wander", "run home"):
            assert village.right_call(saying, text)
    words = {word for text in village_page["looks"] for word in text.split()}
    rng = random.Random(0)
    assert words <= {word for _ in range(500) for word in village.random_situation(rng)[1].split()}


@under_node
def test_villager_with_right_calls_reaches_goal(village_page: dict[str, Any], tmp_path: Path) -> None:
    # By the teacher's calls, four times a second: what the model is measured against.
    command = [str(NODE), str(SCRIPTS / "village_walk.mjs"), str(tmp_path / "page")]
    copy_page(tmp_path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as walk:
        assert walk.stdin is not None and walk.stdout is not None
        for _ in range(4 * 25):
            looks = json.loads(walk.stdout.readline())["looks"]
            calls = [village.right_call("gather at the well", text) for text in looks]
            walk.stdin.write(
                json.dumps([{"name": single} if isinstance(single, str) else single for single in calls]) + "\n"
            )
            walk.stdin.flush()
        there = json.loads(walk.stdout.readline())["well"]
        walk.kill()
    assert there >= 48
