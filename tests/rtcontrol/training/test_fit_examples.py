"""Checks and held-out parts of rows, even sampling of rare decisions, and scores."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtcontrol
from rtcontrol.agents import Goal, Tools
from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Row
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.scratch import NARROW, WIDE, choose_shape, count_words, new_learner
from rtcontrol.training import world_rows
from rtcontrol.training.examples import check_rows, contradiction_notice, tools_of
from rtcontrol.training.fit_run import MAX_HELD_OUT, HeldOut, split
from rtcontrol.training.world_rows import Moment, Rehearsal
from tests.rtcontrol.training.signals import TOOLS, rows, teacher, write

GOOD = rows(1)[0]
GO = {"name": "go", "arguments": {"speed": "fast"}}


def row(**other: object) -> dict[str, object]:
    return GOOD | other


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('{"instruction": "a",', "not JSON"),
        ("[1]", "a list is not a row"),
        (json.dumps(row(observation="")), "its observation is empty"),
        (
            json.dumps(row(call={"name": "jump", "arguments": {}})),
            "calls 'jump', which is not among its tools. Its tools are: go, stop",
        ),
        (json.dumps(row(call={"name": "go", "arguments": {"speed": "warp"}})), "speed='warp' is not one of its values"),
        ("[" * 100_000, "not JSON"),
        (json.dumps(row(observation="light \ud83d")), "half a character"),
        (json.dumps(row(allowed=[{"name": "fly"}])), "calls 'fly'"),
    ],
)
def test_wrong_row_is_named_and_nothing_written(wrong: str, says: str, tmp_path: Path) -> None:
    given = write(tmp_path / "rows.jsonl", [*rows(60), wrong, *rows(5)])
    with pytest.raises(UserError) as refused:
        rtcontrol.fit(given, TOOLS, out=tmp_path / "made")
    assert f"{given}:61: " in refused.value.what and says in refused.value.what
    assert not (tmp_path / "made").exists()


def test_all_wrong_rows_are_counted_and_the_first_ones_listed(tmp_path: Path) -> None:
    given = write(tmp_path / "rows.jsonl", [row(call="fly")] * 20 + rows(60))
    with pytest.raises(UserError, match=r"20 of 80 rows[\s\S]*rows.jsonl:1: [\s\S]*rows.jsonl:8: [\s\S]*and 12 more"):
        rtcontrol.fit(given, TOOLS, out=tmp_path / "made")


def test_too_few_questions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="All 60 rows have the same question"):
        split(check_rows((("", GOOD) for _ in range(60)), Tools(TOOLS))[1])
    with pytest.raises(UserError, match="10 rows: too few"):
        rtcontrol.fit(write(tmp_path / "few.jsonl", rows(10)), TOOLS, out=tmp_path / "made")


def test_tools_come_from_rows_without_option() -> None:
    found, _ = check_rows((("", r | {"tools": TOOLS}) for r in rows(60)), None)
    assert [t.name for t in found] == ["stop", "go"]
    with pytest.raises(UserError, match="No tools"):
        check_rows((("", r) for r in rows(60)), None)


def test_pairs_and_names_are_accepted_as_rows_and_tools() -> None:
    tools = tools_of({"LEFT": "Go left.", "RIGHT": "Go right."})
    _, found = check_rows(
        (("", pair) for pair in [("wall right", "LEFT"), ("wall left", Call("RIGHT"))] * 30), tools, "on"
    )
    assert found[0].call == Call("LEFT") and found[1].call == Call("RIGHT")
    assert {one.instruction for one in found} == {"on"}
    with pytest.raises(UserError, match="is not a tool"):
        tools_of("LEFT")


def test_contradictory_rows_are_counted_with_the_best_score() -> None:
    one = {"instruction": "a", "observation": "b"}
    stop, go = one | {"call": "stop"}, one | {"call": GO}
    listed = [(f"f:{n}", r) for n, r in enumerate([stop, stop, stop, go, *rows(60)], start=1)]
    told = contradiction_notice(check_rows(listed, Tools(TOOLS))[1])
    assert told is not None
    assert told.startswith("4 rows contradict others: 1 questions") and "f:4: go(" in told and "98.4%" in told
    either = [(where, r | ({"allowed": [GO]} if r["call"] == "stop" else {})) for where, r in listed]
    assert contradiction_notice(check_rows(either, Tools(TOOLS))[1]) is None


def test_rows_of_one_question_are_held_out_together() -> None:
    _, given = check_rows((("", r) for r in rows(600)), Tools(TOOLS))
    learnt, held = split(given)
    assert len(learnt) + len(held) == 600 and 30 < len(held) < 120
    assert not {one.question for one in learnt} & {one.question for one in held}
    assert {one.question for one in split(given[::-1])[1]} == {one.question for one in held}


def test_vocabulary_and_width_follow_words_and_numbers() -> None:
    _, given = check_rows((("", r) for r in rows(300)), Tools(TOOLS))
    words = count_words(given)
    assert {str(n) for n in range(21)} <= set(words.numbers) and choose_shape(words) == NARROW
    _, many = check_rows((("", row(observation=f"x {n} cm")) for n in range(-200, 200)), Tools(TOOLS))
    assert choose_shape(count_words(many)) == WIDE


def moment(call: str | None, seen: object, kind: str = "go") -> Moment:
    return Moment(Row(kind, str(seen), None if call is None else Call(call)), Goal(kind), {})


def test_rare_decision_is_sampled_as_often_as_common() -> None:
    kept, rng = Rehearsal(), random.Random(0)
    for tick in range(5_000):
        kept.add(moment("door" if tick % 1_000 == 0 else "ride", tick))
    drawn = Counter(kept.sample(rng).row.call.name for _ in range(2_000))  # type: ignore[union-attr]
    assert 900 < drawn["door"] < 1_100


@given(
    st.lists(st.tuples(st.sampled_from(["ride", "door", None]), st.integers(0, 30)), min_size=1, max_size=120),
    st.integers(1, 40),
    st.integers(0, 9),
)
def test_spread_moments_differ_and_cover_each_decision(
    ticks: list[tuple[str | None, int]], count: int, seed: int
) -> None:
    kept = Rehearsal()
    for call, seen in ticks:
        kept.add(moment(call, f"{call} {seen}"))
    found = kept.sample_evenly(random.Random(seed), count)
    asked = [one.row.observation for one in found]
    assert len(set(asked)) == len(asked) == min(count, len(asked)) and set(asked) <= {f"{c} {s}" for c, s in ticks}
    if count >= len({call for call, _ in ticks}):
        assert {one.row.call and one.row.call.name for one in found} == {call for call, _ in ticks}
    if len(asked) < count:  # all there is: of each decision the newest ones
        newest = {c: [s for call, s in ticks if call == c][-world_rows.EACH :] for c, _ in ticks}
        assert set(asked) == {f"{c} {s}" for c, seen in newest.items() for s in seen}


# What is right by tool and argument.


def taught(given: list[dict[str, Any]]) -> list[Row]:
    return check_rows((("", row) for row in given), Tools(TOOLS))[1]


def test_the_score_is_split_by_tool_and_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = taught(rows(150))
    held = HeldOut(new_learner(Tools(TOOLS).schemas, count_words(listed), "", False, 0), listed)
    slow = [Call.from_dict(teacher("slow", one.observation)) for one in listed]  # deaf to how fast it shall go
    monkeypatch.setattr(held, "answers", lambda asked: slow)
    found = held.evaluate(MAX_HELD_OUT)
    assert found.parts["tool stop"].value == 1.0 and 0.3 < found.parts["argument go.speed"].value < 0.7
    assert (
        sum(share.count for name, share in found.parts.items() if name.startswith("tool")) == found.score.count == 150
    )
    assert str(found.worst()).startswith("Worst result: ") and found.to_dict()["parts"]["tool stop"][0] > 0
