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

    def step(self, step: dict[str, Any]) -> Seen:
        return Seen(**self.ask(json.dumps(step)))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    if shutil.which("node") is None:
        pytest.skip("there is no node: apt-get install nodejs")
    one = Node(["node", str(HERE / "behaviour.mjs"), str(SOURCE / "src" / "index.js")])
    yield one
    one.end()


@cases("javascript")
def test_client_behaves_as_the_table_says(node: Node, case: dict[str, Any]) -> None:
    node.ask(json.dumps({"options": options_of(case)}))
    check(case, node)


def test_handlers_that_throw_and_full_lines_cost_nothing_else() -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no node: apt-get install nodejs")
    command = ["node", str(HERE / "faults.mjs"), str(SOURCE / "src")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "ok\n", done.stderr
