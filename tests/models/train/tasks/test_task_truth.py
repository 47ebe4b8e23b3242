"""Every synthetic task's answer follows from its text: read back by rules that know nothing of how it was made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.train.tasks import names, schemas
from rtcontrol.models.train.tasks.check import Directive, SyntheticTask
from rtcontrol.models.train.tasks.names import SIDES, compare, count, if_then, look_up, nearest, towards
from tests.models.small import law

WAYS = {word for ways in schemas.WAYS for word in ways}
UNASKED = {word for words in schemas.STATES for word in words if isinstance(word, str)}
Tasks = Callable[..., Iterator[SyntheticTask]]
ALL: dict[str, Tasks] = {
    "look up": look_up,
    "compare": compare,
    "count": count,
    "nearest": nearest,
    "towards": towards,
    "if then": if_then,
}


def is_value(word: str) -> bool:
    return word in WAYS | UNASKED or re.fullmatch(r"-?\d+", word) is not None


def read(observation: str) -> dict[str, list[Any]]:
    """Names and what stands beside them, in any of the layouts: values before or behind the name, of which each thing
    has as many."""
    words = [w for w in re.findall(r"-?\w+", observation) if w not in ("the", "is")]
    runs: list[tuple[bool, list[str]]] = []
    for word in words:
        if not runs or runs[-1][0] != is_value(word):
            runs.append((is_value(word), []))
        runs[-1][1].append(word)
    assert len(runs) % 2 == 0
    pairs = [(a, b) if b[0] else (b, a) for a, b in zip(runs[::2], runs[1::2], strict=True)]
    return {" ".join(n): [v if v in WAYS | UNASKED else int(v) for v in vs] for (_, n), (_, vs) in pairs}


def never_trained(name: str) -> bool:
    return name in names.UNSEEN or (name not in names.TRAINING["words"] and names.held_out(name))


def named(sentence: str, seen: dict[str, list[Any]]) -> str:
    (name,) = [n for n in seen if re.search(rf"\b{n}\b", sentence)]
    return name


def looked_up(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    name = named(told, seen)

    def asked(like: Any) -> Any:
        (value,) = [v for v in seen[name] if (v in schemas.DIGITS if isinstance(like, int) else v in WAYS)]
        return value

    return [a if a == name else asked(a) for a in arguments]


def compared(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    a, word, b = re.fullmatch(r"is (.+) (more|less|above|below|higher|lower) than (.+)", told).groups()  # type: ignore[union-attr]
    more = word in ("more", "above", "higher")
    other = seen[b][0] if b in seen else int(b)
    true = seen[a][0] > other if more else seen[a][0] < other
    return [("true" if true else "false") if arguments[0] in ("true", "false") else ("yes" if true else "no")]


def counted(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    return [sum(values == [told.split()[-1]] for values in seen.values())]


def extreme(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    best = min if told.split()[-1] in ("nearest", "closest") else max
    return [best(seen.values())[1]]


def sided(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    positive = (seen[named(told, seen)][0] > 0) == ("towards" in told)
    minus, plus = next(pair for pair in SIDES if arguments[0] in pair)
    return [plus if positive else minus]


def chosen(told: str, seen: dict[str, list[Any]], arguments: list[Any]) -> list[Any]:
    name, way, then, other = re.fullmatch(r"if (.+) is (\w+) \w+ (\w+) else \w+ (\w+)", told).groups()  # type: ignore[union-attr]
    return [then if seen[name] == [way] else other]


RIGHT = dict(zip(ALL, (looked_up, compared, counted, extreme, sided, chosen), strict=True))


@pytest.mark.parametrize("kind", ALL)
@law(150)
@given(st.integers(0, 10**9), st.integers(1, 6), st.booleans())
@example(734269, 6, False)  # a name was "back", as a value was
@example(328, 5, False)
@example(650, 3, False)  # a name was "hot", as a state of a thing is
def test_the_answer_follows_from_the_text_and_is_legal(kind: str, seed: int, things: int, unseen: bool) -> None:
    if kind == "count":
        things = max(things, 2)
    for task in ALL[kind](Random(seed), things, unseen):
        seen = read(task.observation)
        assert len(seen) == max(things, 2 if kind in ("compare", "nearest") else 1)
        assert all(never_trained(name) == unseen for name in seen)
        for told in task.told:
            (tool,) = [t for t in task.tools if t.name == told.call.name]
            assert len(task.tools) == 1 or re.search(rf"\b{tool.name}\b", told.instruction)
            assert [p.name for p in tool.parameters] == list(told.call.arguments)
            for p, value in zip(tool.parameters, told.call.arguments.values(), strict=True):
                assert not isinstance(p.domain, ClosedDomain) or p.domain.holds(value)
            values = list(told.call.arguments.values())
            assert values == RIGHT[kind](told.instruction, seen, values)


def test_the_same_seed_draws_the_same_tasks_and_another_one_others() -> None:
    for tasks in ALL.values():
        first, again, other = ([(t.observation, t.told) for t in tasks(Random(s), 3)] for s in (1, 1, 2))
        assert first == again != other


def test_names_are_many_split_for_ever_and_share_their_parts() -> None:
    for kind, trained in names.TRAINING.items():
        kept = names.HELD_OUT[kind]
        assert not {*trained} & {*kept} and len(trained) > len(kept) > 40
    assert sum(map(len, names.TRAINING.values())) > 1000
    rng = Random(0)
    assert len({name for _ in range(300) for name in names.draw(rng, 3, mix=(0, 0, 0, 0, 1))}) > 700
    halves = {name[:2] for name in names.TRAINING["made up"]}
    assert all(name[:2] in halves for name in names.HELD_OUT["made up"])


def test_tools_differ_in_name_order_and_words() -> None:
    rng = Random(0)
    drawn = [task.tools for _ in range(300) for task in look_up(rng, 3)][::2]
    assert len({tool.name for tools in drawn for tool in tools}) > 30
    assert {len(tools) for tools in drawn} == {1, 2, 3, 4}
    orders = {tuple(p.name for p in tool.parameters) for tools in drawn for tool in tools}
    assert any(order[::-1] in orders for order in orders if len(order) == 2)


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        ("compare", lambda told: bool(re.search("more|above|higher", told.instruction))),
        ("towards", lambda told: "towards" in told.instruction),
    ],
)
def test_the_plain_way_is_asked_more_often_in_training_alone(kind: str, plain: Callable[[Directive], bool]) -> None:
    for unseen, least, most in ((False, 0.75, 0.85), (True, 0.44, 0.56)):
        told = [d for seed in range(100) for task in ALL[kind](Random(seed), 3, unseen) for d in task.told]
        assert least < sum(map(plain, told)) / len(told) < most
