"""Sentences from templates with slots: `{lead} land on the {pad}` takes any of each slot's alternatives."""

from __future__ import annotations

import itertools
import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any

# fmt: off
# None of these changes what any sentence asks for, whatever world it is said to.
BEFORE = (
    "please", "please", "pls", "um", "uh", "er", "hmm", "well", "so", "ok", "okay", "ok now", "ok so", "now", "and now",
    "hey", "hey you", "listen", "alright", "attention:", "new order:", "new plan:", "change of plan,", "quick,", "dude",
    "mate", "sir,", "robot,", "computer,", "dear computer,", "yo", "come on,", "ah,", "oh,", "just", "actually,",
    "once more:", "i repeat:", "my dear,", "buddy,", "then", "for now", "this time", "from now on", "as i said,",
)
AFTER = (
    "please", "please", "pls", "plz", "thanks", "thank you", "thx", "now", "ok?", "okay", "if you can", "asap",
    "ok", "if you don't mind", "mate", "buddy", "dude", "from now on", "for now", "this time", "got it?",
    "my friend", "would you", "will you", "at once", "quickly", "when you are ready", "if possible", "sir", "dear",
    "as i said",
)
# Single words that change no sentence; none that turns, orders or counts what is asked for.
_FILLERS = """
a an the this that these those it its is are was be been am i you he she we they me him us them my your our their
please pls plz thanks thank thx um uh er hmm well so ok okay now hey listen alright dude mate sir robot computer dear
yo ah oh just actually buddy friend will would can could shall should may might must do does did have has had want wants
need needs like let lets let's i'd i'll i'm you'd you'll we'll that's it's of to
"""
FILLERS = frozenset(_FILLERS.split())
_NEIGHBOURS = {
    "a": "sqz", "b": "vnh", "c": "xvd", "d": "sfe", "e": "wrd", "f": "dgr", "g": "fht", "h": "gjy", "i": "uok",
    "j": "hku", "k": "jli", "l": "kop", "m": "nj", "n": "bmh", "o": "ipl", "p": "ol", "q": "wa", "r": "etf", "s": "adw",
    "t": "ryg", "u": "yij", "v": "cbf", "w": "qes", "x": "zcs", "y": "tuh", "z": "xa",
}
# fmt: on
LONG = 4  # letters of a word in which a slip leaves enough to read


def casual(rng: random.Random, text: str, words: frozenset[str], slips: float = 0.15) -> str:
    """A sentence with what people put around it, one slip with probability `slips`; `words` are those that a slip must
    not make of another."""
    if rng.random() < 0.2:
        text = f"{rng.choice(BEFORE)} {text}"
    if rng.random() < 0.15:
        text = f"{text.rstrip('.!?')} {rng.choice(AFTER)}"
    if rng.random() < slips:
        text = _slipped(rng, text, words)
    look = rng.random()
    if look < 0.15:
        text = text[:1].upper() + text[1:]
    elif look < 0.18:
        text = text.upper()
    if text[-1:].isalnum() and rng.random() < 0.2:
        text += rng.choice((".", ".", "!", "!!", "...", "?"))
    return text


def _slipped(rng: random.Random, text: str, words: frozenset[str]) -> str:
    spots = [m for m in re.finditer(r"[a-z]+", text) if len(m[0]) >= LONG]
    if not spots:
        return text
    spot = rng.choice(spots)
    word, at = spot[0], rng.randrange(1, len(spot[0]) - 1)
    made = rng.choice(
        (
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at + 1 :],
            word[: at + 1] + word[at:],
            word[:at] + rng.choice(_NEIGHBOURS[word[at]]) + word[at + 1 :],
        )
    )
    return text if made in words else text[: spot.start()] + made + text[spot.end() :]


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
