"""The scores of a lander model: by goal on unseen seeds, by phrasing, beside expert, no-op and random, in lockstep.

Seeds 1000 and up are for evaluation only; no recipe touches them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rtcontrol.agents.lander_goal import Goal
from rtcontrol.agents.lander_phrasings import HOVER_PLACES, KINDS, seen_words, unseen_words
from rtcontrol.envs.base import Episode
from rtcontrol.envs.evaluate import Case, RandomPolicy, cases, evaluate, expert_policy, no_op_policy, summary, wilson
from rtcontrol.envs.rollout import Policy
from rtcontrol.models.call import Call
from rtcontrol.models.decider import STDecider

FIRST_SEED = 2000
PHRASING_SEED = 4000
GOALS = (Goal("land"), Goal("left"), Goal("right"), Goal("hover", 0.0, 0.7))
OPPOSITE = {"left": "right", "right": "left"}
Progress = Callable[[str], None]


def model_policy(decider: STDecider) -> Policy:
    """The decoder itself, all landers of a tick in the same forward pass (by law the same calls as one by one)."""

    def decide(situations: Sequence[tuple[str, str]]) -> list[Call]:
        calls = [d.call for d in decider.decide_many([(seen, told) for told, seen in situations])]
        assert all(call is not None for call in calls)  # the lander's agent allows no null function
        return [call for call in calls if call is not None]

    return decide


def _fly(policy: Policy, told: Sequence[Case]) -> list[Episode]:
    # Sixteen at once fill a pass; with more, the mask outgrows what the decoder keeps.
    return evaluate(policy, told, parallel=16)


def score(policy: Policy, seeds: int, progress: Progress = lambda _: None) -> dict[str, Any]:
    """Everything the model card lists, as plain values; `seeds` flights a goal."""
    return {
        "seeds": [FIRST_SEED, FIRST_SEED + seeds - 1],
        "goals": goal_scores(policy, seeds, progress),
        "phrasings": phrasing_scores(policy, progress),
    }


def goal_scores(policy: Policy, seeds: int, progress: Progress) -> dict[str, Any]:
    """Successes by goal: model, expert, no-op, random; told the opposite side; hover at eight places."""
    span = range(FIRST_SEED, FIRST_SEED + seeds)
    found: dict[str, Any] = {}
    flyers: dict[str, Policy] = {"expert": expert_policy, "no-op": no_op_policy, "random": RandomPolicy(0)}
    for goal in GOALS:
        progress(goal.text())
        told = cases(goal, span)
        entry = {"model": summary(_fly(policy, told))}
        entry |= {name: summary(evaluate(flyer, told)) for name, flyer in flyers.items()}
        if goal.kind in OPPOSITE:
            other = Goal("right" if goal.kind == "left" else "left").text()
            entry["model told the opposite"] = summary(_fly(policy, cases(goal, span, other)))
        found[goal.text()] = entry
    progress("hover elsewhere")
    places = [Goal("hover", x / 100, y / 100) for x, y in HOVER_PLACES if (x, y) != (0, 70)]
    told = [case for i, seed in enumerate(span) for case in cases(places[i % len(places)], [seed])]
    found["hover elsewhere"] = {
        "model": summary(_fly(policy, told)),
        **{name: summary(evaluate(flyer, told)) for name, flyer in flyers.items()},
    }
    return found


def phrasing_scores(policy: Policy, progress: Progress) -> dict[str, Any]:
    """For each list and goal: how many phrasings end as the canonical phrasing does on the same seed, and succeed."""
    found: dict[str, Any] = {}
    for name, sentences in (("words seen", seen_words), ("words never seen", unseen_words)):
        for kind in KINDS:
            progress(f"{kind}, {name}")
            told = list(sentences(kind))
            plain = [Case(goal.text(), goal, PHRASING_SEED + i) for i, (_, goal) in enumerate(told)]
            said = [Case(text, goal, PHRASING_SEED + i) for i, (text, goal) in enumerate(told)]
            canonical, phrased = _fly(policy, plain), _fly(policy, said)
            same = [a.success == b.success for a, b in zip(canonical, phrased, strict=True)]
            found.setdefault(name, {})[kind] = {
                "phrasings": len(told),
                "same outcome": sum(same),
                "wilson_95": [round(x, 3) for x in wilson(sum(same), len(told))],
                "succeed": sum(bool(e.success) for e in phrased),
                "canonical succeed": sum(bool(e.success) for e in canonical),
                "other outcome": [text for (text, _), ok in zip(told, same, strict=True) if not ok],
            }
    return found
