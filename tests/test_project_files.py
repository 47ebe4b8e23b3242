"""Tests of the files for contributors: issue forms, CI, hooks and the dev container."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.helpers.processes import ROOT, python

GITHUB = ROOT / ".github"
SCHEMA = ("check_jsonschema", "--builtin-schema")
COMMANDS = [
    (*SCHEMA, "vendor.github-workflows", ".github/workflows/ci.yml"),
    (*SCHEMA, "vendor.github-issue-forms", ".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/feature.yml"),
    (*SCHEMA, "vendor.github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
    ("pre_commit", "validate-config", ".pre-commit-config.yaml"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[-1])
def test_project_file_matches_its_schema(command: tuple[str, ...]) -> None:
    done = python("-m", *command, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_hook_runs_a_command_of_ci() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks if " ".join(hook["entry"].split()[:1]) not in ci] == []


def test_code_owners_name_paths_that_exist() -> None:
    lines = (GITHUB / "CODEOWNERS").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert [path for path in paths if path != "*" and not (ROOT / path.strip("/")).exists()] == []


def test_dev_container_installs_the_packages_of_readme() -> None:
    command = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())["postCreateCommand"]
    packages = re.search(r"torch==\S+ -e \./bridges -e '\.\[dev\]'", (ROOT / "README.md").read_text())
    assert packages is not None
    assert packages[0] in command
