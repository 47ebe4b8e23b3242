"""The browser and Node client against the behaviour table, with a false clock and false sockets."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bridges.behaviour import Seen, cases, check, options_of
from tests.bridges.javascript.node_client import HERE, SOURCE
from tests.bridges.program import Program


class Node(Program):
    """`behaviour.mjs`: a line for a line."""

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def errors(self) -> str:
        assert self.process.stderr is not None
        return "" if self.process.poll() is None else self.process.stderr.read()

    def begin(self, options: dict[str, Any]) -> None:
        self.say(json.dumps({"options": options}))
        self.answer()

    def step(self, step: dict[str, Any]) -> Seen:
        self.say(json.dumps(step))
        return Seen(**self.answer())


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    if shutil.which("node") is None:
        pytest.skip("there is no node: apt-get install nodejs")
    command = ["node", str(HERE / "behaviour.mjs"), str(SOURCE / "src" / "index.js")]
    one = Node(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    yield one
    one.end()


@cases("javascript")
def test_client_behaves_as_the_table_says(node: Node, case: dict[str, Any]) -> None:
    node.begin(options_of(case))
    check(case, node)
