"""Sentences from templates with slots: `{lead} land on the {pad}` takes any of each slot's alternatives."""

from __future__ import annotations

import itertools
import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any

_SLOT = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"[A-Za-z]+|[-+]?\d+(?:\.\d+)?|[^\s\w]")


def sentences(agent: str) -> dict[str, Any]:
    """The tables of `agents/AGENT/sentences.toml`: slots, and templates by split and kind; lists as tuples."""
    file = resources.files(f"rtcontrol.agents.{agent}").joinpath("sentences.toml")
    return {name: _tuples(table) for name, table in tomllib.loads(file.read_text("utf-8")).items()}


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list) else value


def split_words(text: str) -> list[str]:
    """The words, signed numbers and marks of a sentence, as vocabularies hold them."""
    return _WORD.findall(text)


def as_typed(rng: random.Random, text: str) -> str:
    """A sentence in small letters as people type it: at times with `I`, a capital, a full stop or a `!`."""
    if rng.random() < 0.5:
        text = re.sub(r"\bi\b", "I", text)
    if rng.random() < 0.2:
        text = text[0].upper() + text[1:]
    mark = rng.random()
    return text + ("." if mark < 0.1 else "!" if mark < 0.15 else "")


class Grammar:
    """Slots by name. A slot that the grammar does not know (a number's place) stays as it stands."""

    def __init__(self, slots: Mapping[str, tuple[str, ...]]) -> None:
        self.slots = slots

    def fill(self, rng: random.Random, template: str) -> str:
        """One sentence, each slot drawn at random."""
        text = _SLOT.sub(lambda m: rng.choice(self.slots[m[1]]) if m[1] in self.slots else m[0], template)
        return " ".join(text.split())

    def expand(self, template: str) -> Iterator[str]:
        """Every sentence of a template; with repeats."""
        slots = [slot for slot in _SLOT.findall(template) if slot in self.slots]
        for choice in itertools.product(*(self.slots[slot] for slot in slots)):
            values = iter(choice)
            text = _SLOT.sub(lambda m, values=values: next(values) if m[1] in self.slots else m[0], template)  # type: ignore[misc]
            yield " ".join(text.split())

    def words(self, templates: Iterable[str]) -> set[str]:
        """Every word and mark that the templates can show."""
        found: set[str] = set()
        for template in templates:
            for part in (template, *(a for slot in _SLOT.findall(template) for a in self.slots.get(slot, ()))):
                found.update(split_words(_SLOT.sub(" ", part)))
        return found

    def held_out(self, rng: random.Random, templates: Iterable[str], trained: frozenset[str], count: int) -> list[str]:
        """`count` different sentences that are not in `trained`, spread evenly over the templates."""
        patterns: dict[str, None] = {}
        endless = itertools.cycle(templates)
        while len(patterns) < count:
            pattern = self.fill(rng, next(endless))
            if pattern not in trained:
                patterns[pattern] = None
        return list(patterns)
