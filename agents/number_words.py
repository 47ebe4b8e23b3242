"""Numbers as people write them: in figures or in words."""

from __future__ import annotations

import re

# fmt: off
_ONES = {word: value for value, word in enumerate(
    ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
     "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"))} | {"nought": 0, "oh": 0}
_TENS = {word: 10 * value for value, word in enumerate(
    ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"), 2)}
# fmt: on
_FRACTIONS = {"a quarter": 0.25, "quarter": 0.25, "a half": 0.5, "half": 0.5, "three quarters": 0.75}
_SIGNS = ("minus ", "negative ")
_THOUSANDS = re.compile(r"[-+]?0*[1-9]\d{0,2}(?:[.,]\d{3})+")  # or decimals: nobody can tell
_FIGURES = re.compile(r"[-+]?(?:\d+(?:[.,]\d+)?|[.,]\d+)")


def number_of(text: str) -> int | float | None:
    """The number that a text is: `0.7`, `,7`, `-.5`, `minus two point five`, `fifty-five`, `a half`; None where it is
    no number, or may be two: `1,000`."""
    plain, sign = " ".join(text.lower().replace("\u2212", "-").split()), 1
    for word in _SIGNS:
        if plain.startswith(word):
            sign, plain = -1, plain.removeprefix(word)
    if _THOUSANDS.fullmatch(plain):
        return None
    if _FIGURES.fullmatch(plain):
        number = float(plain.replace(",", "."))
        return sign * (int(number) if plain.lstrip("+-").isdigit() else number)
    plain = " ".join(plain.replace("-", " ").split())
    if plain in _FRACTIONS:
        return sign * _FRACTIONS[plain]
    whole, point, decimals = plain.partition("point")
    read = _whole(whole.split()) if whole.strip() or not point else 0
    if read is None or not point:
        return None if read is None else sign * read
    digits = _digits(decimals.split())
    return None if digits is None else sign * (read + float(f"0.{digits}"))


def _whole(words: list[str]) -> int | None:
    """`fifty five`, `one hundred and twenty`; None for `two five` and all else that is no one number."""
    total, least, before = 0, 1000, ""  # what comes next must be below `least`
    for word in words:
        value = _ONES.get(word, _TENS.get(word))
        if word == "hundred" and before in _ONES and 0 < total < 20:
            total, least = 100 * total, 100
        elif value is not None and value < least and (value or not before):
            total, least = total + value, 10 if word in _TENS else 0
        elif word != "and" or before != "hundred":
            return None
        before = word
    return total if before not in ("", "and") else None


def _digits(words: list[str]) -> str | None:
    """Behind the point: `seven`, `oh five`, `two five`, `twenty five`."""
    found = ""
    for i, word in enumerate(words):
        if word in _TENS:
            follows = i + 1 < len(words) and 0 < _ONES.get(words[i + 1], 0) < 10
            found += str(_TENS[word] // 10) if follows else str(_TENS[word])
        elif word in _ONES:
            found += str(_ONES[word])
        else:
            return None
    return found or None
