"""What an episode asks for once in a while is drawn as often as what it asks for all the time."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.agents import Goal
from rtcontrol.models.call import Call
from rtcontrol.models.train.rows import Row
from rtcontrol.training import replay_buffer
from rtcontrol.training.replay_buffer import Moment, Rehearsal


def moment(call: str | None, seen: object, kind: str = "go") -> Moment:
    return Moment(Row(kind, str(seen), None if call is None else Call(call)), Goal(kind), {})


def test_a_rare_decision_is_drawn_as_often_as_a_common_one() -> None:
    kept, rng = Rehearsal(), random.Random(0)
    for tick in range(5_000):
        kept.add(moment("door" if tick % 1_000 == 0 else "ride", tick))
    drawn = Counter(kept.draw(rng).row.call.name for _ in range(2_000))  # type: ignore[union-attr]
    assert 900 < drawn["door"] < 1_100


def test_another_goal_and_what_the_learner_missed_are_decisions_of_their_own() -> None:
    kept = Rehearsal()
    for seen, kind, more in (("a", "go", ()), ("b", "stay", ()), ("c", "go", ("missed",))):
        for _ in range(100):
            kept.add(moment("ride", seen, kind), *more)
    drawn = Counter(kept.draw(random.Random(i)).row.observation for i in range(600))
    assert set(drawn) == {"a", "b", "c"} and min(drawn.values()) > 120


def test_old_moments_and_decisions_that_are_met_no_more_are_forgotten() -> None:
    kept, rng = Rehearsal(), random.Random(0)
    for tick in range(1_000):
        kept.add(moment("ride", tick))
    assert {int(kept.draw(rng).row.observation) for _ in range(1_000)} == set(range(1_000 - replay_buffer.EACH, 1_000))
    for number in range(2 * replay_buffer.TOOLS):
        kept.add(moment(f"act_{number}", number))
    assert not any(kept.draw(rng).row.call == Call("ride") for _ in range(5_000))


def test_a_rare_decision_is_not_lost_among_calls_of_many_numbers() -> None:
    kept, rng = Rehearsal(), random.Random(0)
    for tick in range(20_000):
        call = Call("drop") if tick == 0 else Call("turn", {"to": tick % 3_000})
        kept.add(Moment(Row("go", str(tick), call), Goal("go"), {}))
    assert sum(kept.draw(rng).row.call == Call("drop") for _ in range(1_000)) > 400


def test_a_rare_decision_that_always_looks_alike_is_among_those_that_are_spread() -> None:
    kept = Rehearsal()
    for seen in range(replay_buffer.EACH):
        kept.add(moment("drop", "at the door"))
        for way in range(10):
            kept.add(moment(f"ride_{way}", f"{way} {seen}"))
    found = [one.row.call for one in kept.spread(random.Random(0), 200)]
    assert found.count(Call("drop")) == 1 and len(found) == 200


@given(
    st.lists(st.tuples(st.sampled_from(["ride", "door", None]), st.integers(0, 30)), min_size=1, max_size=120),
    st.integers(1, 40),
    st.integers(0, 9),
)
def test_what_is_spread_is_different_and_each_decision_has_its_share(
    ticks: list[tuple[str | None, int]], count: int, seed: int
) -> None:
    kept = Rehearsal()
    for call, seen in ticks:
        kept.add(moment(call, f"{call} {seen}"))
    found = kept.spread(random.Random(seed), count)
    asked = [one.row.observation for one in found]
    assert len(set(asked)) == len(asked) == min(count, len(asked)) and set(asked) <= {f"{c} {s}" for c, s in ticks}
    if count >= len({call for call, _ in ticks}):
        assert {one.row.call and one.row.call.name for one in found} == {call for call, _ in ticks}
    if len(asked) < count:  # all there is: of each decision the newest ones
        newest = {c: [s for call, s in ticks if call == c][-replay_buffer.EACH :] for c, _ in ticks}
        assert set(asked) == {f"{c} {s}" for c, seen in newest.items() for s in seen}
