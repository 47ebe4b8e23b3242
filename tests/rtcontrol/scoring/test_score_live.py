"""In real time: who decides late loses what who decides in time succeeds at, and the misses are told beside it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
from walk import AGENT, SKILL, Walker

from rtcontrol.envs.evaluate import cases
from rtcontrol.evaluation import real_time
from rtcontrol.evaluation.policies import OPEN, ModelFlyer, scripted
from rtcontrol.evaluation.score import measure
from rtcontrol.evaluation.score_document import Document
from rtcontrol.evaluation.score_plan import Cell, Settings, plan, subjects
from rtcontrol.evaluation.score_tables import pick, tables
from rtcontrol.models.call import Decision
from rtcontrol.models.errors import UserError

pytestmark = pytest.mark.realtime
HZ, TOLD = 10.0, ("go left", "go right")


@dataclass(frozen=True)
class Slow(Walker):
    """Takes longer than a period."""

    def decide(self, request: Any) -> Decision:
        time.sleep(0.25)
        return super().decide(request)


def test_what_being_late_costs_in_real_time_stands_beside_lockstep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walk.LIMIT_S", 1.0)
    sources = {"quick": Walker(TOLD), "slow": Slow(TOLD)}
    settings = Settings("walk", "walk", tuple(sources), HZ, 1, gates=("0", "0"), rates=(HZ,), goals=("go left",))
    document, said = Document(settings, None), list[float]()
    told = subjects(SKILL, HZ, settings.goals)
    flyers = {name: scripted(SKILL, name) for name in ("expert", "no-op", "random")}
    flyers |= {name: ModelFlyer(SKILL, AGENT, Walker(TOLD), HZ) for name in sources}

    def fly(cell: Cell, cases: Any) -> Any:
        config = real_time.wall_config("walk", AGENT, cell.by, "torch", cell.hz, OPEN, cases, 60.0)
        return real_time.fly_wall(
            SKILL, AGENT, config, sources.get(cell.by, real_time.expert_source(SKILL)), cases, 60.0
        )

    measure(SKILL, plan(settings, told, []), flyers, document, lambda *told: said.append(told[3]), fly)
    cells = list(document.data["cells"].values())
    for by, right in (("quick", [1]), ("expert", [1]), ("slow", [0])):
        assert pick(cells, "rates", "go left", by, wall=True) == right
        [run] = next(cell for cell in cells if cell["wall"] and cell["by"] == by)["runs"]
        assert (run["miss_rate"] > 0.5) == (by == "slow")
    assert [table.title for table in tables(document.data)][1] == "what being late costs, in real time"
    assert said[0] > said[-1] > 0


def test_a_world_that_breaks_down_in_real_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = cases(SKILL.goals[0], [2000])
    config = real_time.wall_config("walk", AGENT, "expert", "torch", HZ, OPEN, told, 60.0)
    monkeypatch.setattr("walk.Walk.outcome", lambda self: 1 / 0 if self._t > 0.2 else None)
    with pytest.raises(UserError, match="ZeroDivisionError"):
        real_time.fly_wall(SKILL, AGENT, config, real_time.expert_source(SKILL), told, 60.0)
