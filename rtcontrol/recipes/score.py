"""Scores that every bundled model's card lists: by goal beside expert, no-op and random, and by phrasing.

Seeds 1000 and up are for evaluation only; no recipe touches them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.envs.base import Episode
from rtcontrol.envs.demonstrations import Policy
from rtcontrol.envs.evaluate import Case, cases, evaluate, summary, wilson
from rtcontrol.envs.skill import Skill, Task
from rtcontrol.models.call import Call
from rtcontrol.models.decider import STDecider

FIRST_SEED = 2000
PHRASING_SEED = 4000
Progress = Callable[[str], None]
Sentences = Callable[[Any], Sequence[tuple[str, Task]]]


@dataclass(frozen=True)
class Trial:
    """What is flown for the card: `goals`, told canonically; the goal to tell instead (`opposite`), by what is judged;
    `mixed`, goals spread over the same seeds under one title; the two lists of phrasings for each of `kinds`."""

    skill: Skill
    goals: tuple[Task, ...]
    opposite: Mapping[Task, Task]
    kinds: tuple[Any, ...]
    seen_words: Sentences
    unseen_words: Sentences
    mixed: Mapping[str, tuple[Task, ...]] = field(default_factory=dict)

    def score(
        self, policy: Policy, seeds: int, progress: Progress = lambda _: None, sentences: int | None = None
    ) -> dict[str, Any]:
        """Everything the model card lists, as plain values; `seeds` episodes a goal, of each list of phrasings at most
        `sentences` a kind, spread over it."""
        return {
            "seeds": [FIRST_SEED, FIRST_SEED + seeds - 1],
            "goals": self.goal_scores(policy, seeds, progress),
            "phrasings": self.phrasing_scores(policy, progress, sentences),
        }

    def goal_scores(self, policy: Policy, seeds: int, progress: Progress) -> dict[str, Any]:
        """Successes by goal: model, expert, no-op, random; the model told the opposite."""
        span = range(FIRST_SEED, FIRST_SEED + seeds)
        found: dict[str, Any] = {}
        others: dict[str, Policy] = {
            "expert": self.skill.expert_policy,
            "no-op": self.skill.no_op_policy,
            "random": self.skill.random_policy(0),
        }

        def beside(told: Sequence[Case]) -> dict[str, Any]:
            entry = {"model": summary(self._play(policy, told))}
            return entry | {name: summary(evaluate(self.skill, other, told)) for name, other in others.items()}

        for goal in self.goals:
            progress(goal.text())
            told = cases(goal, span)
            entry = beside(told)
            if goal in self.opposite:
                text = self.opposite[goal].text()
                entry["model told the opposite"] = summary(self._play(policy, cases(goal, span, text)))
            found[goal.text()] = entry
        for title, goals in self.mixed.items():
            progress(title)
            told = [case for i, seed in enumerate(span) for case in cases(goals[i % len(goals)], [seed])]
            found[title] = beside(told)
        return found

    def phrasing_scores(self, policy: Policy, progress: Progress, sentences: int | None = None) -> dict[str, Any]:
        """For each list and goal: how many phrasings end as the canonical phrasing does on the same seed, and
        succeed."""
        found: dict[str, Any] = {}
        for name, listed in (("words seen", self.seen_words), ("words never seen", self.unseen_words)):
            for kind in self.kinds:
                progress(f"{kind}, {name}")
                told = list(listed(kind))
                told = told[:: max(1, len(told) // sentences)][:sentences] if sentences else told
                plain = [Case(goal.text(), goal, PHRASING_SEED + i) for i, (_, goal) in enumerate(told)]
                said = [Case(text, goal, PHRASING_SEED + i) for i, (text, goal) in enumerate(told)]
                canonical, phrased = self._play(policy, plain), self._play(policy, said)
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

    def _play(self, policy: Policy, told: Sequence[Case]) -> list[Episode]:
        # Sixteen at once fill a pass; with more, the mask outgrows what the decoder keeps.
        return evaluate(self.skill, policy, told, parallel=16)


def model_policy(decider: STDecider) -> Policy:
    """The decoder itself, all worlds of a tick in the same forward pass (by law the same calls as one by one)."""

    def decide(situations: Sequence[tuple[str, str]]) -> list[Call]:
        calls = [d.call for d in decider.decide_many([(seen, told) for told, seen in situations])]
        assert all(call is not None for call in calls)  # agents of recipes allow no null function
        return [call for call in calls if call is not None]

    return decide
