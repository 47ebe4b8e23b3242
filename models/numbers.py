"""Read the numbers of a sentence, in digits or words, with the units after them. All code that needs the numbers of
instructions uses this module."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

# fmt: off
ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
        "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# Words that are numbers only together with the next word, as in `second two`.
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "dozen")
_NOT_FINITE = ("nan", "inf", "infinity", "infinite")
_BEFORE_VALUES = ("at", "to", "of", "x", "y", "speed", "height", "minus", "plus")  # elsewhere `nan` may be a person
# One unit per field: its name, then its other names.
_NAMES = """
m metre metres meter meters|km kilometre kilometres kilometer kilometers k's|cm centimetre centimetres|mm|mi mile miles
km/h kmh kph kmph|mph|m/s mps|kn knot knots kt kts|ft foot feet|inch inches|yd yard yards|%|percent pct
° degree degrees deg|rad radian radians|s second seconds sec secs|min minute minutes mins|h hour hours hr hrs|day days
week weeks|unit units|px pixel pixels|rpm|hz|times|g gee gees|mach|kg kilo kilos|volts|watts
"""
_UNITS = {name: line.split()[0] for line in _NAMES.replace("\n", "|").split("|") if line for name in line.split()}
_PER = frozenset({"/", "per", "a", "an"})
# fmt: on
_VALUES = {word: Decimal(n) for n, word in enumerate(ONES)} | {"nought": Decimal(0), "oh": Decimal(0)}
_VALUES |= {word: Decimal(10 * n) for n, word in enumerate(TENS) if word}
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000}
_SHARES = {"half": Decimal("0.5"), "quarter": Decimal("0.25"), "quarters": Decimal("0.25")}
_SIGNS = frozenset({"minus", "negative"})
_COUNTED = frozenset({*_VALUES, *_SCALES, *_SHARES})
_SPOKEN = frozenset({*_COUNTED, *_SIGNS, "point", "decimal"})
# Matches punctuation that is not part of a number: a dot or comma that no digit follows, or that follows a letter;
# and a comma after decimals, as in 0.3,0.7.
_MARKS = re.compile(
    r"[=;()\[\]{}\"!?]|[.,:](?!\d)|(?<=[^\W\d])[.,:]|(?<!\d):|(?:(?<=\.\d)|(?<=\.\d\d)),(?=[-+\u2212]?\d)"
)
_DIGITS = re.compile(r"([-+]?)(\d+(?:[.,]\d+)?|[.,]\d+)([^\W\d_]\D*|[%°]\D*)?")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:[.,]\d{3})+")  # ambiguous: 1,000 may be 1000 or 1.000
_RATE = re.compile(r"[^\W\d]+/[^\W\d]+")
_SYMBOLS = re.compile(r"[^\w\s]+")  # after a symbol, a number is not certain: it may be negative, a bound or a price
_PLAIN = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
MAX_UNKNOWN, MAX_SPOKEN = 8, 12  # maximum number of reported unknown numbers, and of words in one number
MOST_LISTED = 64  # if more numbers have the same count of decimals, they are stored as ranges


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a sentence. `number` is the number as written. `value` is its value, or None if the value is unclear
    (1,000; 3-5; 1e3; 1/2). `unit` is the short name of the unit after it, such as `km/h`, or empty. `next_word` is the
    word after the number, and `span` the number's place in the sentence. `in_words` is True if it has no digits."""

    number: str
    value: Decimal | None
    unit: str
    next_word: str
    span: tuple[int, int]
    in_words: bool = False

    @property
    def decimals(self) -> int:
        """Return the number of decimal places as written."""
        return 0 if self.value is None else max(0, -int(self.value.as_tuple().exponent))

    @property
    def text(self) -> str:
        """Return the number with its unit, for messages."""
        return f"{self.number} {self.unit}".strip()


def read_quantities(sentence: str) -> Iterator[Quantity]:
    """Yield the numbers of a sentence in order."""
    chunks = list(re.finditer(r"\n|\S+", _MARKS.sub("\n", sentence)))
    words = [chunk[0].lower() for chunk in chunks]
    index = 0
    while index < len(chunks):
        spoken = _count_spoken(words, index)
        count = max(1, spoken)
        span = chunks[index].start(), chunks[index + count - 1].end()
        following = words[index + count : index + count + 4]
        following = following[: following.index("\n")] if "\n" in following else following
        next_word, before = " ".join(following[:1]), words[index - 1] if index else ""
        if any(unicodedata.category(letter)[0] == "N" for letter in words[index]):
            yield _read_digits(sentence, span, following, before)
        elif (words[index] in _ORDINALS and next_word not in ("", "of")) or (
            words[index] in _NOT_FINITE and before in _BEFORE_VALUES
        ):
            yield Quantity(f"{words[index]} {next_word}".strip(), None, "", next_word, span, True)
        elif spoken:
            parts = " ".join(words[index : index + count]).replace("-", " ").split()
            unit = _unit_of(following)
            if parts not in (["one"], ["million"]) or unit:  # `the left one` and `thanks a million` have no number
                yield Quantity(" ".join(parts), _value_of(parts), unit, next_word, span, True)
        index += count


def parse_number(text: str) -> int | float | None:
    """Return the number in a text such as `0.7`, `,7` or `-.5`; None for any other text, and for an ambiguous number
    such as `1,000`."""
    plain = text.strip()
    read = next(read_quantities(plain), None)
    if read is None or read.in_words or read.value is None or read.number != plain:
        return None
    return float(read.value) if read.decimals else int(read.value)


def with_plain_numbers(sentence: str, units: Iterable[str] | None = None, spoken: bool = False) -> str | None:
    """Return a sentence with its numbers in plain digits (`-0.7` for `\u22120,70`). Numbers in words are only converted
    with `spoken`. Return None if a number in digits is unclear, or has a unit that is not in `units` (None: any
    unit)."""
    parts, end = [], 0
    for read in read_quantities(sentence):
        if read.in_words and (not spoken or read.value is None):
            continue
        if read.value is None or (read.unit and units is not None and read.unit not in units):
            return None
        parts += [sentence[end : read.span[0]], f"{read.value.normalize():f} "]
        end = read.span[1]
    return "".join([*parts, sentence[end:]])


class TrainedNumbers:
    """The numbers and units of training sentences, from three lists of texts: `digits` has numbers as written, `words`
    the values of numbers in words, and `units` the units. A range such as 0.40..1.10 covers all numbers between its
    ends with as many decimals."""

    def __init__(self, listed: Mapping[str, Iterable[str]]) -> None:
        self._texts = {kind: frozenset(texts) for kind, texts in listed.items()}
        self._ranges = {
            kind: [tuple(map(Decimal, text.split(".."))) for text in texts if ".." in text and kind != "units"]
            for kind, texts in self._texts.items()
        }

    def unknown(self, sentence: str, words: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the different numbers of a sentence that are unknown or have an unknown unit. A word of `words`
        directly after a number counts as an unknown unit."""
        strange = (
            q.text for q in read_quantities(sentence) if not self._is_known(q) or (not q.unit and q.next_word in words)
        )
        return tuple(itertools.islice(dict.fromkeys(strange), MAX_UNKNOWN))

    def _is_known(self, quantity: Quantity) -> bool:
        kind = "words" if quantity.in_words else "digits"
        if quantity.unit and quantity.unit not in self._texts["units"]:
            return False
        if _listed_text(quantity) in self._texts[kind]:
            return True
        value, decimals = quantity.value, quantity.decimals
        if value is None or not (quantity.in_words or _PLAIN.fullmatch(quantity.number)):
            return False
        return any(
            len(f"{low}".partition(".")[2]) == decimals and low <= value <= high for low, high in self._ranges[kind]
        )


def known_numbers(sentences: Iterable[str]) -> dict[str, list[str]]:
    """Return the numbers and units of sentences, in the format that TrainedNumbers reads."""
    read = {replace(q, span=(0, 0), next_word="") for sentence in sentences for q in read_quantities(sentence)}
    listed = {"units": sorted({q.unit for q in read} - {""})}
    for kind in ("digits", "words"):
        same = [q for q in read if q.in_words == (kind == "words")]
        values: dict[int, set[Decimal]] = {}
        for q in same:
            if q.value is not None:
                values.setdefault(q.decimals, set()).add(q.value)
        many = {decimals for decimals, distinct in values.items() if len(distinct) > MOST_LISTED}
        texts = {_listed_text(q) for q in same if q.value is None or q.decimals not in many}
        listed[kind] = sorted(texts) + [f"{min(values[d]):.{d}f}..{max(values[d]):.{d}f}" for d in sorted(many)]
    return listed


def _listed_text(quantity: Quantity) -> str:
    """Return a number in digits as written, and a number in words as its value."""
    return f"{quantity.value:f}" if quantity.in_words and quantity.value is not None else quantity.number


def _read_digits(sentence: str, span: tuple[int, int], following: list[str], before: str) -> Quantity:
    """Return the quantity in the word of the sentence at `span`, which has digits and is preceded by `before`."""
    start, end = span
    written = sentence[start:end]
    folded = unicodedata.normalize("NFKC", written).replace("\u2212", "-").lower()
    plain = "".join(str(unicodedata.decimal(letter)) if letter.isdecimal() else letter for letter in folded)
    match = _DIGITS.fullmatch(plain)
    if match is None or before in _SIGNS or _SYMBOLS.fullmatch(before) or _THOUSANDS.fullmatch(match[2]):
        number = f"{before} {written}" if before in _SIGNS else written
        return Quantity(number, None, _unit_of(following), " ".join(following[:1]), span)
    sign, digits, glued = match[1], match[2], match[3] or ""
    following = [glued.strip(".,'"), *following] if glued else following
    end -= len(glued)
    unit = _unit_of(following) or glued
    value = Decimal(sign + digits.replace(",", "."))
    return Quantity(sentence[start:end], value, unit, " ".join(following[:1]), (start, end))


def _unit_of(words: list[str]) -> str:
    """Return the unit at the start of these words, such as `km/h` for `kilometres an hour`; else an empty text."""
    first, per, period = [*words[:3], "", "", ""][:3]
    unit = _UNITS.get(first, first if first[:1] in ("%", "°") or _RATE.fullmatch(first) else "")
    if unit and per in _PER and _UNITS.get(period) in ("h", "s", "min"):
        return f"{unit}/{_UNITS[period]}"
    return unit


def _count_spoken(words: list[str], index: int) -> int:
    """Return how many words from `index` on are a number in words; 0 if there is none."""
    end = index
    while end < min(len(words), index + MAX_SPOKEN):
        joint = 0  # number of words between two parts of a number: 2 (`and a`) in `two and a half`
        while end > index and joint < 2 and words[end + joint : end + joint + 1] in (["and"], ["a"]):
            joint += 1
        word = "".join(words[end + joint : end + joint + 1])
        if not _SPOKEN.issuperset(word.split("-")) or (joint and word not in _SHARES and words[end - 1] not in _SCALES):
            break
        end += joint + 1
    counted = {part for word in words[index:end] for part in word.split("-")} & _COUNTED
    return end - index if counted and words[index] != "oh" else 0


def _value_of(parts: list[str]) -> Decimal | None:
    """Return the value of a number in words, such as `minus two and a half`; None if it is unclear."""
    if len(parts) > 1 and all(_VALUES.get(part, 10) < 10 for part in parts):  # digits, such as `seven zero`
        return Decimal("".join(str(_VALUES[part]) for part in parts))
    negative = parts[0] in _SIGNS
    plain = " ".join(part for part in parts[negative:] if part != "a").replace("decimal", "point")
    whole, point, decimals = plain.partition("point")
    value, before = Decimal(0), ""
    for word in whole.split():
        if word in _SHARES:
            value = value * _SHARES[word] if before in _VALUES else value + _SHARES[word]
        elif word in _SCALES and value < 1000:
            value = max(value, Decimal(1)) * _SCALES[word]
        elif word in _VALUES and _may_follow(before, _VALUES[word], value):
            value += _VALUES[word]
        elif word != "and":
            return None
        before = word
    digits = [_VALUES.get(word, Decimal(-1)) for word in decimals.split()]
    if (point and not digits) or min(digits, default=Decimal(0)) < 0:
        return None
    pair = len(digits) == 2 and digits[0] >= 20 > 10 > digits[1]  # such as `point seventy five`
    value += Decimal("0." + (str(sum(digits)) if pair else "".join(map(str, digits)))) if digits else 0
    return -value if negative else value


def _may_follow(before: str, ones: Decimal, value: Decimal) -> bool:
    """Return whether a word for `ones` may follow the word `before`, when `value` is the value of the words so far."""
    if before in ("", *_SCALES):
        return True
    return value % 100 == 0 and value > 0 if before == "and" else before in TENS and 0 < ones < 10
