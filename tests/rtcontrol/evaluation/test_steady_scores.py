"""How steady a flyer's calls are in a score: counted, gone on with, shown where asked for; and with hysteresis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from walk import AGENT, LEFT, SKILL

from rtcontrol.envs.evaluate import Case, Seat, play
from rtcontrol.evaluation.policies import SCRIPTED, Flyer, ModelFlyer, SteadyFlyer, scripted
from rtcontrol.evaluation.score import measure, skill_for
from rtcontrol.evaluation.score_document import Document
from rtcontrol.evaluation.score_plan import Cell, Settings
from rtcontrol.evaluation.score_tables import tables
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.call import Call
from rtcontrol.run import assembly
from rtcontrol.telemetry.steadiness import Steadiness

HZ = 10.0


def wobble(seats: Sequence[Seat]) -> list[Call | None]:
    return [Call("walk", {"step": 1 if seat.tick % 2 else -1}) for seat in seats]


def scored(path: Path | None, seeds: range) -> dict[str, Any]:
    document = Document(Settings("walk", "walk", ("m",), HZ, 4), path)
    document.tools = AGENT.tools.openai()
    flyers: dict[str, Flyer] = {"m": wobble, **{name: scripted(SKILL, name) for name in SCRIPTED}}
    cases = [Case("go left", LEFT, seed) for seed in seeds]
    cells = [Cell("goals", "go left", by, cases, HZ) for by in ("m", "expert", "no-op")]
    measure(SKILL, cells, flyers, document, lambda *_: None)
    return document.data


def figures(data: dict[str, Any]) -> dict[str, Any]:
    """By flyer, without what is kept to go on from: its sums may be rounded otherwise."""
    return {
        cell["by"]: {name: value for name, value in cell["steadiness"].items() if name != "counted"}
        for cell in data["cells"].values()
    }


def test_who_wobbles_shows_and_a_score_that_goes_on_counts_as_one_in_one_go(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    scored(path, range(2))
    parted, found = figures(scored(path, range(5))), figures(scored(None, range(5)))
    assert parted == found
    for by in ("m", "expert", "no-op"):
        assert found[by]["stale"] == 0 and found[by]["untracked"] == 0
    wobbles = found["m"]
    flown = 5 * 30  # ticks of episodes of three seconds
    assert wobbles["calls"] == flown and wobbles["repeated"] == 0
    assert wobbles["reversals"] == flown - 5 * 2, "all but the first two calls of each episode"
    assert wobbles["dwell_ms"]["p50"] == pytest.approx(100, rel=0.01)
    assert found["no-op"]["repeated_share"] == pytest.approx(29 / 30, abs=1e-3) and not found["no-op"]["reversals"]
    assert found["expert"]["dwell_ms"]["p50"] > 100


def test_the_table_is_shown_where_it_is_asked_for() -> None:
    data = scored(None, range(2))
    plain, steady = [[table.title for table in tables(data, asked)] for asked in (False, True)]
    assert not any("steady" in str(title) for title in plain)
    assert [title for title in steady if title not in plain] == ["how steady the calls are; models with no hysteresis"]
    (shown,) = (table for table in tables(data, True) if "steady" in str(table.title))
    rows = list(zip(*(column.cells for column in shown.columns), strict=True))
    assert [(row[0], row[1], row[2]) for row in rows] == [("go left", "m", "2"), ("go left", "expert", "2")]
    assert float(str(rows[0][4])) > 500 and rows[0][6] == "0.0%"


def test_a_model_flies_with_hysteresis_in_each_world_alone_and_it_is_counted() -> None:
    skill, agent = skill_for("lander", "", None), assembly.agent("lander", None, "lander")
    goal = skill.goals[0]
    told = [Case(goal.text(), goal, 2000 + i) for i in range(3)]
    found = {}
    for terms in (None, "margin=1"):
        config = RunConfig(env="lander", hz=16.0, clock="lockstep", hysteresis=terms)
        flyer = ModelFlyer(skill, agent, assembly.decider(config, agent, "lander"), 16.0)
        watched = Steadiness()
        play(skill, SteadyFlyer(flyer, watched, 16.0), told, 16.0, 16, longest_s=1.0)
        found[terms] = watched
    free, held = found[None], found["margin=1"]
    assert free.kept == 0 and free.reversals > 0 and free.calls == held.calls == 3 * 16
    # A margin that nothing reaches keeps the first call of each episode to its end.
    assert held.repeated == held.calls - 3 and held.reversals == 0 and held.kept > 10
