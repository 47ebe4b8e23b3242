"""The Godot client against the behaviour table, in the engine, with a clock and sockets of the driver's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bridges.behaviour import Seen, cases, check, options_of
from tests.bridges.godot.web import MISSING, Engine

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    one = Engine(tmp_path_factory.mktemp("behaviour"), "behaviour.gd")
    yield one
    assert one.faults() == []
    one.end()


class Driven:
    """The client of one case."""

    def __init__(self, engine: Engine, options: dict[str, Any]) -> None:
        self._engine = engine
        self.step({"options": options})

    def step(self, step: dict[str, Any]) -> Seen:
        self._engine.say(json.dumps(step))
        seen = self._engine.event("seen")
        return Seen(**{key: value for key, value in seen.items() if key != "event"})


@cases("gdscript")
def test_client_behaves_as_the_table_says(engine: Engine, case: dict[str, Any]) -> None:
    check(case, Driven(engine, options_of(case)))
