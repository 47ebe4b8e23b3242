"""Sentences as people type them in a hurry: fillers and courtesies around them, slips of the finger, case, marks."""

from __future__ import annotations

import random
import re

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
