"""Many characters in the same passes: each gets the call that it gets alone, and its own fault alone."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol.agents import Tools
from rtcontrol.models.call import Decision
from rtcontrol.models.crowd import CharacterPrompt, CrowdDecoder
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly

tools: Tools = assembly.agent("lander").tools
SPEC = DeciderSpec("lander", tuple(tools.openai()))
GOALS = ("Land softly on the pad.", "hover", "land left of the pad", "do the zorgle")
numbers = st.integers(-99, 99)


@st.composite
def prompts(draw: st.DrawFn) -> CharacterPrompt:
    x, y, vx, vy, angle = (draw(numbers) for _ in range(5))
    seen = f"x {x} y {abs(y)} vx {vx} vy {vy} angle {angle} spin 0 legs 0 0"
    return CharacterPrompt(str(draw(st.integers(0, 400))), seen, draw(st.sampled_from(GOALS)))


@pytest.fixture(scope="module")
def crowd() -> CrowdDecoder:
    return CrowdDecoder(SPEC, most=1)


def same(found: Decision | Exception, alone: Decision) -> None:
    assert isinstance(found, Decision), found
    assert (found.call, found.unknown) == (alone.call, alone.unknown)
    assert found.confidence == pytest.approx(alone.confidence, rel=1e-3)


@settings(max_examples=25)
@given(st.lists(prompts(), min_size=1, max_size=70, unique_by=lambda one: one.key))
def test_a_batch_gives_each_the_call_that_it_gets_alone(crowd: CrowdDecoder, asked: list[CharacterPrompt]) -> None:
    # Also where a character takes the sequence of another, and where there are more than one pass takes.
    for one, found in zip(asked, crowd.decide(asked), strict=True):
        same(found, crowd.lone.decide(one.observation, one.instruction))


# One request's fault ended the engine for all: vllm-project/vllm#1543, vllm-project/vllm#45689.
def test_what_is_wrong_with_one_is_its_own(crowd: CrowdDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = [CharacterPrompt(str(i), f"x {i} y 50 vx 0 vy 0 angle 0 spin 0 legs 0 0", GOALS[0]) for i in range(4)]
    alone = [crowd.lone.decide(one.observation, one.instruction) for one in fine]
    too_long = dataclasses.replace(fine[1], observation="x 1 " * 9000)
    found = crowd.decide([fine[0], too_long, *fine[2:]])
    assert isinstance(found[1], UserError)
    for i in (0, 2, 3):
        same(found[i], alone[i])
    runs = crowd.lone.runner.run

    def not_finite(work):  # type: ignore[no-untyped-def]
        answers = runs(work)
        answers[2] = [[[float("nan")] * len(row) for row in ask] for ask in answers[2]]
        return answers

    monkeypatch.setattr(crowd.lone.runner, "run", not_finite)
    found = crowd.decide(fine)
    monkeypatch.undo()
    assert isinstance(found[2], DecodeError)
    for i in (0, 1, 3):
        same(found[i], alone[i])
    same(crowd.decide(fine)[2], alone[2])  # and the next time it is decided again


def test_a_crowd_keeps_no_more_sequences_than_it_may() -> None:
    small = CrowdDecoder(SPEC, most=1)
    batch = small.lone.runner.caps.batch
    for start in (0, 40, 80):
        small.decide([CharacterPrompt(str(start + i), f"x {i} y 9", GOALS[0]) for i in range(batch)])
    assert len(small._kept) == batch


def test_a_batch_that_nobody_waits_for_ends_before_its_next_pass(crowd: CrowdDecoder) -> None:
    steps = crowd.decide_in_steps([CharacterPrompt(str(i), f"x {i} y 9", GOALS[0]) for i in range(130)])
    next(steps)
    crowd.cancel()
    with pytest.raises(StopIteration) as done:
        while True:
            next(steps)
    kinds = {type(one).__name__ for one in done.value.value[64:]}
    assert kinds == {"Cancelled"}
