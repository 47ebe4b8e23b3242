"""Engines are compared over the same situations, and what differs is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rtcontrol.bench.dtype import WARM_UP, compare_engines
from rtcontrol.bench.situations import schemas, situations
from rtcontrol.bench.tables import tables
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.runners.registry import ENGINES, installed

SPEC = DeciderSpec("lander", tuple(schemas("lander")["bundled"]))


def test_engines_give_the_same_calls_in_as_many_passes() -> None:
    found = compare_engines(SPEC, ("torch", "transformers"), situations("lander", WARM_UP + 12))
    assert (found["decisions"], found["tolerance"]) == (12, 1e-4)
    ours, theirs = found["engines"].values()
    assert ours["equal"] == 12 and theirs["equal"] + found["near_ties"] >= 12
    assert theirs["differ_without_near_tie"] == 0
    assert ours["forward_passes"] == theirs["forward_passes"] >= 1
    assert len(theirs["raw_ms"]) == 12
    (table,) = tables({"bench": "engines", "model": "lander", "result": found})
    assert f"torch {torch.__version__} in fp32 on cpu; transformers" in table.note
    absent = [name for name in ENGINES if name not in installed()]
    assert [row[0] for row in table.rows] == ["torch", "transformers", *absent]
    assert all("not installed" in row[-1] for row in table.rows[2:])
    assert table.beside(table, "GPU").rows[0][-1] == f"{ours['ms']['p50']:.2f}", "columns of a GPU are by engine"


def test_another_call_that_was_no_near_tie_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = STDecider.decide

    def other(self: STDecider, *told: Any) -> Any:
        made = plain(self, *told)
        if self.spec.engine == "transformers":
            object.__setattr__(made, "call", Call("land_now", {}))
        return made

    monkeypatch.setattr(STDecider, "decide", other)
    found = compare_engines(SPEC, ("torch", "transformers"), situations("lander", WARM_UP + 3))
    assert found["engines"]["torch"]["differ_without_near_tie"] == 0
    assert found["engines"]["transformers"]["differ_without_near_tie"] == 3 - found["near_ties"]
