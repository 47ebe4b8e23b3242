"""Tests of the skills for coding agents: they follow the public rules (agentskills.io) and match this project."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.processes import ROOT, cli

FOLDER = ROOT / ".agents" / "skills"
SKILLS = sorted(FOLDER.glob("*/SKILL.md"))
OPTIONAL = {"license", "compatibility", "metadata", "allowed-tools"}
GAME = FOLDER / "make-my-game-playable" / "SKILL.md"
FLOORS = ("rtcontrol", "models", "agents", "envs", "bridges/rtcontrol_client")


def parts(skill: Path) -> tuple[dict[str, Any], str]:
    """Return the front matter and the body of a skill."""
    found = re.fullmatch(r"---\n(.*?)\n---\n(.*)", skill.read_text("utf-8"), re.DOTALL)
    assert found is not None, "it begins with no front matter"  # Internet-Architecture-and-Security/PacketScope#95
    return yaml.safe_load(found[1]), found[2]


# Vigil-SOC/vigil#925, jtydhr88/screenwriting-skills#14: with a name that is not the folder's, too long a description,
# or a colon that YAML reads otherwise, and the skill is skipped without a word.
@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.parent.name)
def test_skill_follows_the_public_rules(skill: Path) -> None:
    head, body = parts(skill)
    assert {"name", "description"} <= head.keys() <= {"name", "description"} | OPTIONAL
    assert head["name"] == skill.parent.name and len(head["name"]) <= 64
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", head["name"])
    assert 1 <= len(head["description"]) <= 1024 and "<" not in head["description"]
    assert len(head.get("compatibility", "x")) <= 500
    assert all(isinstance(value, str) for value in head.get("metadata", {}).values())
    assert len(body.splitlines()) < 500


def test_files_named_by_the_skill_exist() -> None:
    named = re.findall(r"`((?:docs|examples|bridges)/[\w./-]*\w)`", GAME.read_text("utf-8"))
    assert len(set(named)) > 8 and [name for name in named if not (ROOT / name).exists()] == []


def test_messages_explained_by_the_skill_exist() -> None:
    table = GAME.read_text("utf-8").partition("\n## 8.")[2]
    messages = [m for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for m in re.findall(r"`([^`]+)`", row)]
    source = "".join(path.read_text("utf-8") for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
    assert len(messages) > 8
    for message in messages:
        # What stands for something else: names in quotes, lists of colours, numbers, what was left out.
        said = max(re.split(r"'[^' ]*' | in \d+|'[^' ]*'|blue, green and red| \.\.\.$|rtcontrol new", message), key=len)
        assert said.strip() and said.strip() in source, message


def test_skill_steps_for_gymnasium_work(tmp_path: Path) -> None:
    way = parts(GAME)[1].partition("\n## 3.")[2].partition("\n## 4.")[0]
    (agent,) = re.findall(r"```python\n(.*?)```", way, re.DOTALL)
    (tmp_path / "agent.py").write_text(agent)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", way, re.DOTALL) for line in block.splitlines()]
    assert [shlex.split(line)[1] for line in lines] == ["check", "check", "run"]
    said = []
    for line in lines:
        done = cli(*shlex.split(line)[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    assert re.search(
        r"first observation: \{.*'angle': .*\nas text for the model: .*angle .*\npossible calls: act\(", said[0]
    )
    assert "5 of 5 succeeded" in said[2]
