"""What was learnt is played in its world, and what failed there is told: which goal, which call, which words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rtcontrol.models.call import Call
from rtcontrol.models.train.rows import Row
from rtcontrol.training import rollouts
from tests.rtcontrol.fitting.test_worlds import STILL, yard


def test_ways_kept_from_training_that_fail_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "EPISODES", 6)
    skill = yard(tmp_path)
    canonical = {goal.text(): goal for goal in skill.goals}
    told = {said for kind in skill.kinds for said, _ in skill.phrasings["unseen"](kind)}

    def answers(rows: list[Row]) -> list[Call]:
        """Of one who knows canonical instructions, and does nothing when told otherwise."""
        goals = [canonical.get(row.instruction) for row in rows]
        seen = [skill.read_back(row.observation) for row in rows]
        return [STILL if goal is None else skill.expert(s, goal) for s, goal in zip(seen, goals, strict=True)]

    shares, (note,) = rollouts.played(skill, 16.0, 60.0, SimpleNamespace(answers=answers, key=repr))  # type: ignore[arg-type]
    assert [share.right for share in shares.values()] == [6, 0, 6]
    assert told and all(f'"{said}"' in note for said in told)


def test_only_words_that_no_goal_has_are_blamed_and_what_has_one_is_left_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "EPISODES", 6)
    skill = yard(tmp_path)
    goal = skill.goals[0]
    said, asked = [goal.text()], set[str]()
    monkeypatch.setitem(skill.phrasings, "unseen", lambda kind: [(one, goal) for one in said])  # type: ignore[arg-type]

    def answers(rows: list[Row]) -> list[Call]:
        asked.update(row.instruction for row in rows)
        calls = [skill.expert(skill.read_back(row.observation), goal) for row in rows]
        return [STILL if row.instruction == said[0] else call for row, call in zip(rows, calls, strict=True)]

    def note() -> str:
        found = rollouts.played(skill, 16.0, 60.0, SimpleNamespace(answers=answers, key=repr))  # type: ignore[arg-type]
        return next(one for one in found[1] if "kept from training" in one)

    assert note().endswith("What has known words alone wants more time, or more ways of its kind.")
    assert "brackets" not in note()
    said[0] = f"swiftly {goal.text()}"
    asked.clear()
    assert f'"{said[0]}" (swiftly). The words in brackets' in note() and said[0] not in asked
    assert "wants more time" not in note()


def test_where_episodes_fail_the_goal_and_the_call_that_the_expert_would_not_make_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "EPISODES", 6)
    skill = yard(tmp_path)

    def answers(rows: list[Row]) -> list[Call]:
        """Of one who knows everything but how to reach the barrel from the east."""
        goals = [skill.recognise(row.instruction) for row in rows]
        calls = [skill.expert(skill.read_back(r.observation), g) for r, g in zip(rows, goals, strict=True)]
        return [
            STILL if row.instruction == "go to the barrel" and call.arguments["way"] == "west" else call
            for row, call in zip(rows, calls, strict=True)
        ]

    monkeypatch.setitem(skill.phrasings, "unseen", lambda kind: ())  # type: ignore[arg-type]
    shares, (note,) = rollouts.played(skill, 16.0, 60.0, SimpleNamespace(answers=answers, key=repr))  # type: ignore[arg-type]
    lost = shares["told canonically"].count - shares["told canonically"].right
    assert lost and f'told canonically: "go to the {{thing}}" {lost} of ' in note
    assert 'it calls drive(way="stop") where drive(way="west") is right (' in note
    assert 'told "go to the barrel", seeing "red box ' in note and note.count(" is right (") == 1


def test_an_expert_that_fails_itself_is_noticed(tmp_path: Path) -> None:
    assert rollouts.tried(yard(tmp_path), 16.0) == ()
    (other := tmp_path / "other").mkdir()
    (note,) = rollouts.tried(yard(other, ('"north" if', '"south" if')), 16.0)
    assert "a model learns no better" in note


def test_calls_with_braces_an_expert_that_raises_and_a_null_that_keeps_the_right_call_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "EPISODES", 2)
    raising = (
        "    x, y = data",
        '    assert goal["thing"] != "barrel" or data["barrel"][0] > -20, "too far"\n    x, y = data',
    )
    skill = yard(tmp_path, raising)
    monkeypatch.setitem(skill.phrasings, "unseen", lambda kind: ())  # type: ignore[arg-type]
    east = Call("drive", {"way": {"name": "east"}})  # as of a tool with objects

    def answers(rows: list[Row]) -> list[Call | None]:
        """Always to the east, past all things, where this expert fails."""
        return [Call("drive", {"way": "east"}) for _ in rows]

    shares, (note,) = rollouts.played(skill, 16.0, 60.0, SimpleNamespace(answers=answers, key=repr))  # type: ignore[arg-type]
    assert shares["told canonically"].right < 2 and 'it calls drive(way="east")' in note
    case = rollouts._cases(skill, 1)[0]
    lost = rollouts.Played(case, SimpleNamespace(success=False), {"differing": [("{seen}", east, STILL)]})  # type: ignore[arg-type]
    assert 'it calls drive(way={"name": "east"})' in rollouts._left_the_way([lost], [lost])


def test_a_world_that_judges_nothing_is_told_no_failure(tmp_path: Path) -> None:
    from rtcontrol.run.skills import UserSkill, skill_of

    (agent := tmp_path / "swing.py").write_text(
        "from rtcontrol import Call\n\ndef expert(data, goal):\n    return Call('act', {'a1': 0.0})\n"
    )
    skill = skill_of("gym:Pendulum-v1", str(agent))
    assert isinstance(skill, UserSkill) and rollouts.tried(skill, 20.0) == ()
