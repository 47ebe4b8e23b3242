"""How often the villagers' model does what is said: sentences of its recipe in situations of another seed, and others.

python -c "from rtcontrol.bench.village import table; table()"
"""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

from rtcontrol.evaluation.score_tables import share
from rtcontrol.models.crowd import CharacterPrompt, CrowdDecoder
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.training import village

SEED, SITUATIONS, LEAST = 1_000_003, 2_000, 0.51  # below that certainty the page has them stand still
# Sentences that the recipe does not have, with one of its own that means the same.
OTHERS = {
    "meet up at the well": "meet at the well",
    "everybody to the church": "to the church",
    "march to the mill": "go to the mill",
    "head over to the market": "head to the market",
    "gather round the oak": "gather around the oak",
    "walk back to the pond": "go back to the pond",
    "let us go to the market": "go to the market",
    "come and stand at the well": "stand at the well",
    "hurry over to the church": "hurry to the church",
    "sprint over to the mill": "sprint to the mill",
    "chase after the fox": "chase the fox",
    "run as fast as you can to the well": "run to the well",
    "look over at the mill": "look at the mill",
    "gaze at the church": "look at the church",
    "turn around to the oak": "turn to the oak",
    "keep watching the fox": "watch the fox",
    "walk around where you like": "wander",
    "amble": "wander",
    "stroll about for a while": "stroll about",
    "stop right there": "stop there",
    "hold your position": "stay",
    "stay where you stand": "stay",
    "go back to your house": "go home",
    "run to your home": "run home",
    "go back to your home": "go home",
}


def table(model: str = "village") -> None:
    """Print, by what is asked for, how many calls are right, and of sentences in other words how many are unsure."""
    decoder = CrowdDecoder(DeciderSpec(model, tuple(village.tools), history=0))
    rng, right = Random(SEED), defaultdict[str, list[int]](list)
    drawn = [village.situations(rng) for _ in range(SITUATIONS)]
    for (told, seen), (call, _) in zip(drawn, _calls(decoder, drawn), strict=True):
        right[village.goal_kind(told)].append(call == _right(told, seen))
    for kind, found in right.items():
        print(f"| {kind} | {share(found)} |")
    others = [(told, village.situations(rng)[1]) for told in OTHERS for _ in range(8)]
    outcome: Counter[str] = Counter()
    for (told, seen), (call, sure) in zip(others, _calls(decoder, others), strict=True):
        outcome["unsure" if sure < LEAST else "right" if call == _right(OTHERS[told], seen) else "wrong"] += 1
    print(f"| in other words | {outcome['right']} right, {outcome['wrong']} wrong, {outcome['unsure']} unsure |")


def _calls(decoder: CrowdDecoder, asked: list[tuple[str, str]]) -> list[tuple[str, float]]:
    """Each call as text, and how sure the model is of it."""
    made = decoder.decide([CharacterPrompt(f"{i}", seen, told) for i, (told, seen) in enumerate(asked)])
    found: list[tuple[str, float]] = []
    for one in made:
        if isinstance(one, Exception):
            raise one
        found.append(("" if one.call is None else one.call.text(), min(one.confidence.values(), default=1.0)))
    return found


def _right(told: str, seen: str) -> str:
    answer = village.teacher(told, seen)
    if isinstance(answer, str):
        return f"{answer}()"
    return f'{answer["name"]}(direction="{answer["arguments"]["direction"]}")'
