"""A model whose scores are NaN or infinite, as of damaged weights or an overflow, never gives a call."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rtcontrol.models.decider import STDecider
from rtcontrol.models.decode.protocol import NotFinite
from tests.models.small import build, tool

GO, SAY = tool("act", to=["left", "right", "stop", "red"]), tool("act", text={"type": "string", "maxLength": 8})
FEW = tool("act", text={"type": "string", "pattern": "^[qz]+$", "maxLength": 8})
BAD = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])


def fouled(made: STDecider, monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    """From here on every score is bad but the best of each row."""
    plain = made.runner.model.logits  # type: ignore[attr-defined]

    def logits(*arguments: Any) -> Any:
        found = plain(*arguments)
        best = found.argmax(-1, keepdim=True)
        return torch.full_like(found, bad).scatter(-1, best, found.gather(-1, best))

    monkeypatch.setattr(made.runner.model, "logits", logits)  # type: ignore[attr-defined]


@BAD
@pytest.mark.parametrize("acts", [GO, SAY, FEW], ids=["closed", "text", "few"])
def test_scores_that_are_not_finite_are_an_error_and_the_next_decision_is_sound(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bad: float, acts: dict[str, Any]
) -> None:
    made = build(folder, [acts])
    sound = made.decide("go left", "turn fast")
    with monkeypatch.context() as patch:
        fouled(made, patch, bad)
        with pytest.raises(NotFinite):
            made.decide("go left", "turn fast")
        with pytest.raises(NotFinite):
            made.decide_many([("go left", "turn fast")])
    # Nothing of what was computed meanwhile is used again.
    again = made.decide("go left", "turn fast")
    assert again.reused_tokens == 0
    assert (again.call, again.confidence) == (sound.call, pytest.approx(sound.confidence, rel=1e-3))


@BAD
def test_a_bad_score_outside_the_legal_ones_is_an_error_of_the_decision_after_it_was_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    """The mass outside the tries is looked at when a call is given, of every 16th, the first included."""
    made = build(folder, [GO])
    plain = made.runner.model.logits  # type: ignore[attr-defined]

    def logits(*arguments: Any) -> Any:
        found = plain(*arguments).clone()
        if len(arguments) == 1:  # the whole vocabulary
            found[..., -1] = bad
        return found

    monkeypatch.setattr(made.runner.model, "logits", logits)  # type: ignore[attr-defined]
    assert made.decide("go left", "turn fast").outside_mass is None
    made.rest()
    if bad < 0:  # no mass at all
        assert made.decide("go left", "turn fast").outside_mass is not None
    else:
        with pytest.raises(NotFinite):
            made.decide("go left", "turn fast")
    made.rest()
    again = made.decide("go left", "turn fast")
    assert again.outside_mass is None and again.call is not None
