"""Training tells the truth: what is right by tool and argument, and where the score stands still."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rtcontrol.agents import Tools
from rtcontrol.models.call import Call
from rtcontrol.training.dataset import Taught, check
from rtcontrol.training.fit_run import name_things
from rtcontrol.training.model_size import learner
from rtcontrol.training.validation import MOST, HeldOut, plateau
from tests.rtcontrol.training.signals import TOOLS, rows, teacher


def taught(given: list[dict[str, Any]]) -> list[Taught]:
    return check((("", row) for row in given), Tools(TOOLS))[1]


def test_the_score_is_split_by_tool_and_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = taught(rows(150))
    held = HeldOut(learner(Tools(TOOLS), [one.row for one in listed], None, False, 0)[0], listed)
    slow = [Call.from_dict(teacher("slow", one.row.observation)) for one in listed]  # deaf to how fast it shall go
    monkeypatch.setattr(held, "answers", lambda asked: slow)
    found = held.look(MOST)
    assert found.parts["tool stop"].value == 1.0 and 0.3 < found.parts["argument go.speed"].value < 0.7
    assert (
        sum(share.count for name, share in found.parts.items() if name.startswith("tool")) == found.score.count == 150
    )
    (told,) = found.messages()
    assert told.startswith("Least right is the ") and found.to_dict()["parts"]["tool stop"][0] > 0


def line(seconds: float, right: int, accuracy: float = 0.9) -> dict[str, Any]:
    return {"seconds": seconds, "accuracy": accuracy, "held_out": {"right": right, "count": 100}}


@pytest.mark.parametrize(
    ("lines", "ceiling", "endless", "says"),
    [
        ([line(t, 60) for t in range(0, 300, 20)], 1.0, False, "stands still at 60% for"),
        ([line(t, 60) for t in range(0, 300, 20)], 1.0, False, "Least right is x. Look"),
        ([line(t, 60, 0.999) for t in range(0, 300, 20)], 1.0, False, "known by heart. Give more different rows"),
        ([line(t, 60, 0.999) for t in range(0, 300, 20)], 1.0, True, "then give more --minutes"),
        ([line(t, min(60, t // 5)) for t in range(0, 300, 20)], 1.0, False, None),
        ([line(t, 99) for t in range(0, 300, 20)], 1.0, False, None),
        ([line(t, 60) for t in range(0, 40, 5)], 1.0, False, None),
        ([line(t, 80) for t in range(0, 300, 20)], 0.8, False, None),  # contradictory rows are no plateau of the model
    ],
)
def test_a_plateau_is_named_with_what_to_try(
    lines: list[dict[str, Any]], ceiling: float, endless: bool, says: str | None
) -> None:
    found = plateau(lines, "Least right is x.", ceiling, endless)
    assert found is None if says is None else (found is not None and says in found)


def test_rows_that_name_what_is_seen_are_told_from_those_that_do_not() -> None:
    assert not name_things([one.row for one in taught(rows(80))])
    rng = random.Random(0)
    naming = [row | {"instruction": f"go to the {rng.choice(['red', 'green'])} light"} for row in rows(80)]
    assert name_things([one.row for one in taught(naming)])
