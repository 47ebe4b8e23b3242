"""Sessions that share passes decide like each alone, and a fault in one session does not affect the others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol.agents import Tools
from rtcontrol.models.call import Decision
from rtcontrol.models.crowd import CharacterPrompt, CrowdDecoder
from rtcontrol.models.decider import DeciderSpec, STDecider, decide_together
from rtcontrol.models.decode.protocol import Cancelled, DecodeError, NotFinite
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners import torch_runner
from rtcontrol.run import assembly
from tests.models.small import MARGIN, Oracle, build, build_checkpoint, law, tool, tool_lists

FREE = st.sampled_from(
    [
        {"type": "string", "maxLength": 8},
        {"type": "integer"},
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 2},
    ]
)
SESSION = st.fixed_dictionaries(
    {
        "tools": st.one_of(
            tool_lists(most=3),
            st.tuples(tool_lists(most=2), FREE, st.booleans()).map(
                lambda drawn: [*drawn[0], tool("say", 99 * drawn[2], text=drawn[1], to=["left", "red"])]
            ),
        ),
        "budget_per_head": st.integers(1, 9),
        "budget_total": st.sampled_from((1, 3, 20, 128)),
        "allow_null": st.booleans(),
    }
)
PROMPTS = st.tuples(st.text(max_size=20), st.text(max_size=200), st.lists(st.text(max_size=9), max_size=3))


@contextmanager
def margins(decider: STDecider) -> Iterator[list[float]]:
    """Record the margin between the best two of every choice that is made during the block."""
    apart: list[float] = []
    walker = decider.decoding.core.walker
    walk, answered = walker.walk, torch_runner.compute_answers

    def top(scores: Any) -> None:
        two = np.sort(np.asarray(scores))[-2:]
        apart.append(float(two[-1] - two[0]) if len(two) > 1 else math.inf)

    def walked(head: int, state: Any, tools: int) -> Any:
        for node in (walked := walk(head, state, tools)).visited:
            top([state.rows[node][c] for c in walker.choices(head, node, tools)[0]])
        return walked

    def measured(of_all: Any) -> Any:
        for query, logits in ((a, logits) for queries, logits in of_all for a in queries if a.masks is not None):
            for row, mask in zip(logits(list(query.nodes), None).numpy(), query.masks, strict=True):
                top(row[mask])
        return answered(of_all)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walker, "walk", walked)
        patch.setattr(torch_runner, "compute_answers", measured)
        yield apart


def outcome(decider: STDecider, situation: Any) -> Decision | Exception:
    try:
        return decider.decide(*situation)
    except (DecodeError, UserError) as fault:
        return fault


def assert_same(alone: Decision | Exception, other: Decision | Exception) -> None:
    if isinstance(alone, Exception) or isinstance(other, Exception):
        assert (type(alone), str(alone)) == (type(other), str(other))
        return
    assert alone.call == other.call
    assert alone.confidence == pytest.approx(other.confidence, rel=1e-2, abs=1e-4)
    assert (alone.forward_passes, alone.tokens, alone.reused_tokens) == (
        other.forward_passes,
        other.tokens,
        other.reused_tokens,
    )


def decided_alone(deciders: list[STDecider], situations: list[Any]) -> tuple[list[Decision | Exception], bool]:
    """Return each outcome, and whether two values of any choice were nearly tied."""
    found, close = [], False
    for decider, situation in zip(deciders, situations, strict=True):
        with margins(decider) as apart:
            found.append(outcome(decider, situation))
        close |= min(apart, default=math.inf) <= MARGIN
    return found, close


@law(12)
@given(sessions=st.lists(SESSION, min_size=2, max_size=5), data=st.data(), batch=st.sampled_from((2, 3, 64)))
def test_sessions_decided_together_decide_like_each_alone(
    checkpoint: tuple[Path, Oracle], sessions: list[dict[str, Any]], data: st.DataObject, batch: int
) -> None:
    folder, _ = checkpoint
    alone = [build(folder, **session) for session in sessions]
    together = [build(folder, **session) for session in sessions]
    runner: Any = together[0].runner
    before = runner.caps
    runner.caps = replace(before, batch=batch)
    try:
        for _ in range(2):
            situations = data.draw(st.lists(PROMPTS, min_size=len(sessions), max_size=len(sessions)))
            expected, close = decided_alone(alone, situations)
            decisions = decide_together(list(zip(together, situations, strict=True)))
            if close:
                return  # guesses and caches may differ from this point on
            for before, other in zip(expected, decisions, strict=True):
                assert_same(before, other)
    finally:
        runner.caps = before


LATE = {"enum": [f"alpha beta go {w}" for w in ("red", "green", "blue")] + ["alpha beta stop"]}


def three(folder: Path) -> list[STDecider]:
    """Create sessions whose decisions take several passes, so that a fault can occur in between."""
    free = [tool("say", text={"type": "string", "maxLength": 40}), tool("go", v=LATE)]
    tools = [*([tool(n, v=LATE, w=LATE)] for n in ("go", "stop")), free]
    return [build(folder, offered, budget_per_head=1) for offered in tools]


def too_long(_: STDecider) -> tuple[str, str]:
    return " go" * 2048, "go"


def damaged(decider: STDecider) -> tuple[str, str]:
    decider.decoding.handle.cache.values.fill_(math.nan)
    return "x=1", "go left"


def cancelled(decider: STDecider) -> tuple[str, str]:
    run = decider.runner.run

    def cancel_meanwhile(batch: Any) -> Any:
        decider.cancel()
        return run(batch)

    decider.runner.run = cancel_meanwhile  # type: ignore[method-assign]
    return "x=1", "go left"


def unanswered(decider: STDecider) -> tuple[str, str]:
    """Make the scores of one session unreadable after the shared pass."""
    logits: Any = decider.runner._logits  # type: ignore[attr-defined]

    def none_for_it(handle: Any, *rest: Any) -> Any:
        if handle is decider.decoding.handle:
            raise RuntimeError("out of memory")
        return logits(handle, *rest)

    decider.runner._logits = none_for_it  # type: ignore[attr-defined]
    return "x=1", "go left"


FAULTS = {
    "too long": (too_long, UserError),
    "damaged": (damaged, NotFinite),
    "cancelled": (cancelled, Cancelled),
    "unanswered": (unanswered, RuntimeError),
}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_one_session_does_not_affect_the_others(tmp_path: Path, fault: str, place: int) -> None:
    folder = build_checkpoint(tmp_path / "m", seed=7)  # its runner is not shared with other tests
    deciders, plain = three(folder), three(folder)
    provoke, kind = FAULTS[fault]
    situations: list[tuple[str, str, Any]] = [("x=0", "go", ()), ("x=1", "go left", ("go()",)), ("x=2", "stop", ())]
    for decider in (*deciders, *plain):
        decider.decide("x=3", "stop")
    expected = [outcome(decider, situation) for decider, situation in zip(plain, situations, strict=True)]
    bad = (*provoke(deciders[place]), ())
    requests = [bad if i == place else situation for i, situation in enumerate(situations)]
    decisions = decide_together(list(zip(deciders, requests, strict=True)))
    vars(deciders[0].runner).pop("run", None)
    vars(deciders[0].runner).pop("_logits", None)
    assert isinstance(decisions[place], kind), decisions[place]
    for i in range(3):
        if i != place:
            assert_same(expected[i], decisions[i])
    # The next decision of each session is not affected.
    for decider, now, then in zip(
        deciders, decide_together(list(zip(deciders, situations, strict=True))), expected, strict=True
    ):
        assert isinstance(now, Decision) and isinstance(then, Decision), decider.spec.tools
        assert now.call == then.call
        assert now.confidence == pytest.approx(then.confidence, rel=1e-2)


def test_sessions_of_two_models_use_their_own_model(folder: Path, tmp_path: Path) -> None:
    other = build_checkpoint(tmp_path / "m", "llama", seed=3)
    tools = [tool("go", v=["left", "red", "alpha beta go", "green blue"])]
    deciders = [build(where, tools) for where in (folder, other, folder)]
    expected = [decider.decide(f"x={i}", "go") for i, decider in enumerate(deciders)]
    again = decide_together([(decider, (f"x={i}", "go", ())) for i, decider in enumerate(deciders)])
    for before, after in zip(expected, again, strict=True):
        assert isinstance(after, Decision)
        assert before.call == after.call
        assert before.confidence == pytest.approx(after.confidence, rel=1e-3)
    assert decide_together([]) == []
    with pytest.raises(ValueError, match="only one decision"):
        decide_together([(deciders[0], ("", "", ()))] * 2)


# Many characters in the same passes: each gets the same call as alone, and only its own faults.


tools: Tools = assembly.load_agent("lander").tools
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
    return CrowdDecoder(SPEC, max_sequences=1)


def same(decision: Decision | Exception, alone: Decision) -> None:
    assert isinstance(decision, Decision), decision
    assert (decision.call, decision.unknown) == (alone.call, alone.unknown)
    assert decision.confidence == pytest.approx(alone.confidence, rel=1e-3)


@settings(max_examples=25)
@given(st.lists(prompts(), min_size=1, max_size=70, unique_by=lambda character: character.key))
def test_batched_character_gets_the_same_call_as_alone(crowd: CrowdDecoder, characters: list[CharacterPrompt]) -> None:
    # This includes characters that reuse another's sequence, and more characters than fit a pass.
    for character, decision in zip(characters, crowd.decide(characters), strict=True):
        same(decision, crowd.decider.decide(character.observation, character.instruction))


# vllm-project/vllm#1543, vllm-project/vllm#45689: a fault of one request stopped the engine for all.
def test_fault_of_one_character_does_not_affect_the_batch(crowd: CrowdDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = [CharacterPrompt(str(i), f"x {i} y 50 vx 0 vy 0 angle 0 spin 0 legs 0 0", GOALS[0]) for i in range(4)]
    alone = [crowd.decider.decide(character.observation, character.instruction) for character in fine]
    too_long = dataclasses.replace(fine[1], observation="x 1 " * 9000)
    decisions = crowd.decide([fine[0], too_long, *fine[2:]])
    assert isinstance(decisions[1], UserError)
    for i in (0, 2, 3):
        same(decisions[i], alone[i])
    runs = crowd.decider.runner.run

    def not_finite(work):  # type: ignore[no-untyped-def]
        answers = runs(work)
        answers[2] = [[[float("nan")] * len(row) for row in query] for query in answers[2]]
        return answers

    monkeypatch.setattr(crowd.decider.runner, "run", not_finite)
    decisions = crowd.decide(fine)
    monkeypatch.undo()
    assert isinstance(decisions[2], DecodeError)
    for i in (0, 1, 3):
        same(decisions[i], alone[i])
    same(crowd.decide(fine)[2], alone[2])  # the next decision works again


def test_abandoned_batch_ends_before_its_next_pass(crowd: CrowdDecoder) -> None:
    steps = crowd.decide_in_steps([CharacterPrompt(str(i), f"x {i} y 9", GOALS[0]) for i in range(130)])
    next(steps)
    crowd.cancel()
    with pytest.raises(StopIteration) as done:
        while True:
            next(steps)
    kinds = {type(result).__name__ for result in done.value.value[64:]}
    assert kinds == {"Cancelled"}
