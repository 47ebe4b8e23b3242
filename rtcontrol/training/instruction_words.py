"""Words that stand for each other in instructions, and what a model does when one is put in another's place."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rtcontrol.models.call import Call
from rtcontrol.models.train.rows import Row
from rtcontrol.training.dataset import HeldOut, Taught
from rtcontrol.training.model_size import NUMBER, WORD

Expert = Callable[[str, str], Call | None]
"""(instruction, observation text) -> the right call; raises ValueError, or LookupError, where it knows none."""
SITUATIONS = 60  # of a group of words
FEW = 5  # below that nothing is said
VARIANTS = 4  # words tried in one situation
APART = 0.3  # total variation between the calls of two words
GAP = "_"
_PART = re.compile(r"[+-]?\d+(?:\.\d+)?|[^\W_]+(?:['-]\w+)*|\S")
_SPACED = re.compile(r" ([,.;:?!])")


@dataclass(frozen=True)
class Swap:
    """What putting one of `words` in another's place did: in `asked` situations the call should change; in `same` of
    them the model's stayed as it was, and in `right` every one was right. `certain`: the right calls are known there;
    else that they differ is only likely."""

    words: tuple[str, ...]
    asked: int
    same: int
    right: int
    certain: bool

    @property
    def ignored(self) -> bool:
        """Whether the model does not look at this word."""
        return self.asked >= FEW and self.same >= 0.9 * self.asked

    def message(self) -> str:
        """One plain sentence."""
        listed = f"{', '.join(self.words[:-1])} and {self.words[-1]}"
        where = " where the right calls differ" if self.certain else ""
        if self.ignored:
            return (
                f"{listed} give the same call in {self.same} of {self.asked} situations{where}: the model ignores them."
            )
        moved = self.asked - self.same
        more = f", and all are right in {self.right}" if self.certain else ""
        return f"{listed} change the call in {moved} of {self.asked} situations{where}{more}."


def _parts(text: str) -> list[str]:
    """The words, numbers and marks of an instruction: `the red one?` names red, and a one."""
    return _PART.findall(text)


class Vocabulary:
    """The words of instructions that stand for each other: in `go to the red one` and `go to the blue one`, red and
    blue. `groups` are such words; `kind` is an instruction with a gap in their place."""

    def __init__(self, instructions: Sequence[str]) -> None:
        self._known = {tuple(_parts(text)): text for text in instructions}
        self._slots: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
        for words, text in self._known.items():
            for i, word in enumerate(words):
                if word[-1].isalnum():
                    self._slots[(*words[:i], "", *words[i + 1 :])][word] = text
        self._group: dict[str, set[str]] = {}
        for alike in self._slots.values():
            if len(alike) > 1:
                merged = set(alike).union(*(self._group.get(word, ()) for word in alike))
                self._group |= dict.fromkeys(merged, merged)
        self.groups = [tuple(sorted(words)) for words in {id(g): g for g in self._group.values()}.values()]

    def kind(self, text: str) -> str:
        """The instruction with a gap where another word may stand."""
        words = _parts(text)
        gaps = [
            GAP if NUMBER.fullmatch(word) or len(self._slots[(*words[:i], "", *words[i + 1 :])]) > 1 else word
            for i, word in enumerate(words)
        ]
        return _SPACED.sub(r"\1", " ".join(gaps))

    def variants(self, text: str) -> Iterator[tuple[str, dict[str, str]]]:
        """Each word of an instruction that others may stand for, with the instruction for each of all these words."""
        words = _parts(text)
        for i, word in enumerate(words):
            if word[-1].isalnum() and len(alike := self._slots[(*words[:i], "", *words[i + 1 :])]) > 1:
                yield word, alike

    def group(self, word: str) -> tuple[str, ...]:
        """All that it stands for."""
        return tuple(sorted(self._group[word]))


def _apart(rows: Sequence[Taught], words: tuple[str, ...]) -> bool:
    """Whether rows with one of the words call otherwise than those with another, whatever is seen."""
    calls: dict[str, Counter[str]] = {word: Counter() for word in words}
    for one in rows:
        for word in set(_parts(one.row.instruction)) & set(words):
            calls[word][one.row.call.text() if one.row.call else ""] += 1
    often = [c for c in calls.values() if c.total() >= 30]
    return any(_distance(a, b) > APART for i, a in enumerate(often) for b in often[:i])


def _distance(a: Counter[str], b: Counter[str]) -> float:
    return 0.5 * sum(abs(a[k] / a.total() - b[k] / b.total()) for k in {*a, *b})


class Swaps:
    """The counterfactual check on held-out rows. `expert`, where there is one, says what is right for the other word;
    else rows that saw the same and were told otherwise do, where there are some; else a word is looked at that names
    something seen, or whose rows call otherwise."""

    def __init__(self, held: HeldOut, learnt: Sequence[Taught], expert: Expert | None = None, seed: int = 0) -> None:
        self._held, self._expert = held, expert
        everything = [*learnt, *held.rows]
        self.vocabulary = Vocabulary(list(dict.fromkeys(one.row.instruction for one in everything)))
        self._told: dict[tuple[str, str], Call | None] = {
            (one.row.instruction, one.row.observation): one.row.call for one in everything
        }
        self._situations: dict[tuple[str, ...], list[tuple[list[Row], bool]]] = {g: [] for g in self.vocabulary.groups}
        self._differ = {g: _apart(everything, g) for g in self.vocabulary.groups}
        rows = [one.row for one in held.rows]
        random.Random(seed).shuffle(rows)
        for row in rows:
            for word, alike in self.vocabulary.variants(row.instruction):
                kept = self._situations[self.vocabulary.group(word)]
                if len(kept) < SITUATIONS and (found := self._situation(row, word, alike)) is not None:
                    kept.append(found)

    def _situation(self, row: Row, word: str, alike: Mapping[str, str]) -> tuple[list[Row], bool] | None:
        seen = set(WORD.findall(row.observation)) | set(NUMBER.findall(row.observation))
        others = [w for w in alike if w != word]
        if names := word in seen:
            others = [w for w in others if w in seen]
        asked = [row, *(replace(row, instruction=alike[w], call=None) for w in others[:VARIANTS])]
        known = [asked[0]]
        for one in asked[1:]:
            try:
                known.append(replace(one, call=self._right(one)))
            except (LookupError, ValueError):
                continue
        if len(known) > 1 and (self._expert is not None or len(known) == len(asked)):
            differ = {self._held.key(one.call) for one in known}
            return (known, True) if len(differ) > 1 else None
        likely = names or self._differ[self.vocabulary.group(word)]
        return (asked, False) if len(asked) > 1 and likely and self._expert is None else None

    def _right(self, row: Row) -> Call | None:
        if self._expert is not None:
            return self._expert(row.instruction, row.observation)
        return self._told[row.instruction, row.observation]

    def check(self, most: int = SITUATIONS) -> list[Swap]:
        """Ask the model; of each group of words at most so many situations. Groups with too few are left out."""
        found = []
        for words, situations in self._situations.items():
            sure = [s for s in situations if s[1]]
            chosen = (sure if len(sure) >= FEW else situations)[:most]
            if len(chosen) < FEW:
                continue
            answers = iter(self._held.answers(row for asked, _ in chosen for row in asked))
            same = right = 0
            tried: set[str] = set()
            for asked, _ in chosen:
                keys = [self._held.key(next(answers)) for _ in asked]
                same += len(set(keys)) == 1
                right += keys == [self._held.key(row.call) for row in asked]
                tried |= set(words) & {w for row in asked for w in _parts(row.instruction)}
            shown = tuple(sorted(tried))
            found.append(Swap(shown, len(chosen), same, right, all(certain for _, certain in chosen)))
        return found
