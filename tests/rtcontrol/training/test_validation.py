"""Training tells the truth: by tool, argument and goal, of words that change nothing, and where it stands still."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from rtcontrol.agents import Tools
from rtcontrol.models.call import Call
from rtcontrol.training.dataset import MOST, HeldOut, Share, Taught, check, split
from rtcontrol.training.fit_run import FitRun, FitSchedule, GivenRows, name_things
from rtcontrol.training.instruction_words import Swap, Swaps, Vocabulary
from rtcontrol.training.model_size import learner
from rtcontrol.training.validation import Breakdown, Examiner, plateau
from tests.rtcontrol.training.signals import TOOLS, rows, teacher

TOLD = ["go to the red one", "go to the blue one", "go to the green one", "hover at 0.5", "hover at 0.7", "stop now"]


def taught(given: list[dict[str, Any]]) -> list[Taught]:
    return check((("", row) for row in given), Tools(TOOLS))[1]


@pytest.fixture(scope="module")
def deaf(tmp_path_factory: pytest.TempPathFactory) -> tuple[HeldOut, list[Taught]]:
    """A model that was really taught to ignore how fast it is told to go: it always goes slow."""
    given = [row | {"call": teacher("slow", row["observation"])} for row in rows()]
    torch.set_num_threads(1)  # as `fit` does: others of this machine's make a second one wait
    learn, held = split(taught(given))
    one, _ = learner(Tools(TOOLS), [t.row for t in learn], None, False, 0)
    judge, stream = HeldOut(one, held), GivenRows([t.row for t in learn])
    examiner = Examiner(judge, Swaps(judge, learn), learn, 1.0, lambda told: None)
    FitRun(one, stream, examiner, FitSchedule(minutes=3), {}, tmp_path_factory.mktemp("deaf")).run()
    asked = taught(rows(400, seed=5))
    return HeldOut(one, asked[:150]), asked[150:]


def expert(told: str, seen: str) -> Call:
    return Call.from_dict(teacher(told, seen))


def test_a_word_that_the_model_ignores_is_named_in_a_plain_sentence(deaf: tuple[HeldOut, list[Taught]]) -> None:
    held, learn = deaf
    swap = next(s for s in Swaps(held, learn, expert).check() if "fast" in s.words)
    assert swap.ignored and swap.certain and swap.asked >= 40
    count = f"{swap.same} of {swap.asked}"
    assert swap.message() == (
        f"fast and slow give the same call in {count} situations where the right calls differ: the model ignores them."
    )


def test_without_an_expert_the_rows_calls_say_that_a_word_should_matter(deaf: tuple[HeldOut, list[Taught]]) -> None:
    held, learn = deaf
    swap = next(s for s in Swaps(held, learn).check() if "fast" in s.words)
    assert swap.ignored and "give the same call" in swap.message()


def test_the_score_is_split_by_tool_argument_and_goal(deaf: tuple[HeldOut, list[Taught]]) -> None:
    held, learn = deaf
    said: list[str] = []
    examiner = Examiner(held, Swaps(held, learn, expert), learn, 1.0, said.append)
    lines = [
        {"seconds": float(s), "accuracy": 0.8, "held_out": {"right": 75, "count": 100}} for s in range(10, 200, 10)
    ]
    found = examiner.look(MOST, [*lines, {"seconds": 200.0, "accuracy": 0.8}])
    parts = found.parts
    assert parts.tools["stop"].value == 1.0 and parts.goals.keys() == {"drive _"}
    assert 0.3 < parts.arguments["go.speed"].value < 0.7
    assert sum(share.count for share in parts.tools.values()) == found.score.count == 150
    worst = parts.worst()
    assert worst is not None and worst[0] in ("the argument go.speed", "the tool go")
    examiner.tell(found)
    assert found.plateau is not None
    # What is only counted otherwise by now was said before.
    examiner.tell(replace(found, plateau=found.plateau.replace("75%", "76%").replace("for 1", "for 2")))
    assert len(said) == 1 and "stands still" in said[0] and "fast and slow give the same call" in said[0]
    assert found.messages()[0].startswith("fast and slow") and found.to_dict()["swaps"][0]["asked"] > 0


def test_words_that_stand_for_each_other_are_found_and_leave_gaps() -> None:
    words = Vocabulary(TOLD)
    assert sorted(words.groups) == [("0.5", "0.7"), ("blue", "green", "red")]
    assert words.kind("go to the red one") == "go to the _ one" and words.kind("stop now") == "stop now"
    assert words.kind("hover at 0.9") == "hover at _"


def test_a_mark_behind_a_word_makes_no_other_word_of_it() -> None:
    told = ["a gin, please", "a rum, please", "is it gin?", "is it rum?", "now gin.", "now rum!", "stop.", "stop!"]
    words = Vocabulary(told)
    assert words.groups == [("gin", "rum")]
    assert words.kind("a gin, please") == "a _, please" and words.kind("is it rum?") == "is it _?"
    assert [*words.variants("is it gin?")] == [("gin", {"gin": "is it gin?", "rum": "is it rum?"})]


def test_a_mark_stands_for_no_word() -> None:
    words = Vocabulary(["now go", "now stop", "now ?"])
    assert [word for word, _ in words.variants("now ?")] == []
    assert [word for word, _ in words.variants("now go")] == ["go"]


EMPTY = Breakdown({}, {}, {})
IGNORED = Swap(("blue", "red"), 83, 83, 0, True)


def line(seconds: float, right: int, accuracy: float = 0.9) -> dict[str, Any]:
    return {"seconds": seconds, "accuracy": accuracy, "held_out": {"right": right, "count": 100}}


@pytest.mark.parametrize(
    ("lines", "swaps", "says"),
    [
        ([line(t, 60) for t in range(0, 300, 20)], [IGNORED], "stands still at 60 %".replace(" %", "%")),
        ([line(t, 60) for t in range(0, 300, 20)], [IGNORED], "blue and red give the same call in 83 of 83"),
        ([line(t, 60, 0.999) for t in range(0, 300, 20)], [], "known by heart. Give more different rows"),
        ([line(t, 60) for t in range(0, 300, 20)], [], "Only 3 rows call scan. Add rows"),
        ([line(t, min(60, t // 5)) for t in range(0, 300, 20)], [IGNORED], None),
        ([line(t, 99) for t in range(0, 300, 20)], [], None),
        ([line(t, 60) for t in range(0, 40, 5)], [IGNORED], None),
    ],
)
def test_a_plateau_is_named_with_what_to_try(lines: list[dict[str, Any]], swaps: list[Swap], says: str | None) -> None:
    parts = Breakdown({"scan": Share(0, 20)}, {}, {})
    found = plateau(lines, swaps, parts, {"scan": 3, "drive": 900}, 1.0)
    assert found is None if says is None else (found is not None and says in found)


def test_of_rows_without_end_no_more_rows_are_asked_for() -> None:
    lines = [line(t, 60, 0.999) for t in range(0, 300, 20)]
    for parts in (Breakdown({"scan": Share(0, 20)}, {}, {}), EMPTY):
        found = plateau(lines, [], parts, {"scan": 3, "drive": 900}, 1.0, endless=True)
        assert found is not None and "by heart" not in found and "Add rows" not in found and "more rows" not in found


def test_contradictory_rows_are_no_plateau_of_the_models() -> None:
    assert plateau([line(t, 80) for t in range(0, 300, 20)], [], EMPTY, {}, 0.8) is None


def test_rows_that_name_what_is_seen_are_told_from_those_that_do_not() -> None:
    assert not name_things([one.row for one in taught(rows(80))])
    rng = random.Random(0)
    naming = [row | {"instruction": f"go to the {rng.choice(['red', 'green'])} light"} for row in rows(80)]
    assert name_things([one.row for one in taught(naming)])
