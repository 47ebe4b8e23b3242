"""What the villagers of the page `/crowd` learn, and whether the bundled ones learnt it."""

from __future__ import annotations

from random import Random

import pytest

from rtcontrol.models.crowd import CharacterPrompt, CrowdDecoder
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.training import village


def test_every_sentence_has_one_right_call_with_whatever_is_put_before_or_behind_it() -> None:
    rng = Random(1)
    seen = village.situations(rng)[1]
    for saying in village.SAYINGS:
        right = village.teacher(saying, seen)
        assert village.teacher(f"please {saying}", seen) == right == village.teacher(f"{saying} now", seen)


def test_a_sentence_that_was_never_taught_has_no_right_call() -> None:
    with pytest.raises(LookupError):
        village.teacher("paint the well", village.situations(Random(1))[1])


def test_the_bundled_villagers_do_what_they_are_told() -> None:
    decoder, rng = CrowdDecoder(DeciderSpec("village", tuple(village.tools), history=0)), Random(2_000_003)
    drawn = [one for one in (village.situations(rng) for _ in range(300)) if village.goal_kind(one[0]) != "flee"]
    made = decoder.decide([CharacterPrompt(f"{i}", seen, told) for i, (told, seen) in enumerate(drawn)])
    right = 0
    for (told, seen), one in zip(drawn, made, strict=True):
        assert not isinstance(one, Exception) and one.call is not None
        call = village.teacher(told, seen)
        wanted = {"name": call, "arguments": {}} if isinstance(call, str) else call
        right += {"name": one.call.name, "arguments": dict(one.call.arguments)} == wanted
    assert len(drawn) > 200 and right >= 0.97 * len(drawn)
