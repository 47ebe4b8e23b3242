"""The part of a schema's grammar for values without parts: listed ones, texts and numbers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import MAX_CLOSED, json_text
from rtcontrol.models.schema.json_schema import TOO, as_declared
from rtcontrol.models.schema.numbers import LEAST, MOST, NumberRange, common, grid_of, range_of
from rtcontrol.models.schema.pattern import Pattern, PatternError, compiled, literal, matcher
from rtcontrol.models.schema.validator import Validator

_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_ANY_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY = (
    f"(?:{_ANY_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_FOUR = "[0-9a-f]{1,4}"
_URI = r"[a-zA-Z][a-zA-Z0-9+.-]*:(?://)?(?:[a-zA-Z0-9._~!$&'()*+,;=:@/?#-]|%[0-9a-fA-F]{2})+"
FORMATS = {
    "date": f"^{_DAY}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DAY}T{_TIME}$",
    "duration": r"^P(?:[0-9]+W|[0-9]+D(?:T[0-9]+[HMS])?|T[0-9]+[HMS])$",
    "uuid": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    "email": rf"^[a-zA-Z0-9_+-]+(?:\.[a-zA-Z0-9_+-]+)*@{_HOST}$",
    "hostname": f"^{_HOST}$",
    "ipv4": rf"^{_BYTE}(?:\.{_BYTE}){{3}}$",
    "ipv6": f"^(?:(?:{_FOUR}:){{7}}{_FOUR}|(?:{_FOUR}:){{1,6}}(?::{_FOUR})|::(?:{_FOUR}(?::{_FOUR}){{0,5}})?)$",
    "uri": f"^{_URI}$",
}


@dataclass(frozen=True)
class Texts:
    """The strings of a schema: each `pattern` is found in them, and they have `least` to `most` (None: any number of)
    characters."""

    patterns: tuple[Pattern, ...]
    least: int
    most: int | None

    def regexes(self, one: str = "(?s:.)") -> list[str]:
        """Regular expressions that all of them match, of characters that are such `one`."""
        length = f"(?:{one}){{{self.least},{'' if self.most is None else self.most}}}"
        return [*(p.regex for p in self.patterns), length]


def texts_of(schema: Schema) -> Texts:
    """Of a schema of type string; a format that leaves no text is passed over. Raises PatternError."""
    parts = [schema, *schema.get(TOO, ())]
    patterns = [compiled(p["pattern"]) for p in parts if "pattern" in p]
    found = Texts(
        tuple(dict.fromkeys(patterns)),
        max(p.get("minLength", 0) for p in parts),
        min((p["maxLength"] for p in parts if "maxLength" in p), default=None),
    )
    formats = [compiled(FORMATS[p["format"]]) for p in parts if p.get("format") in FORMATS]
    narrow = Texts(tuple(dict.fromkeys((*patterns, *formats))), found.least, found.most)
    return narrow if formats and possible(narrow) else found


@lru_cache(maxsize=4096)
def possible(texts: Texts, one: str = "(?s:.)") -> bool:
    """Whether there is such a text, of such characters as `one` says."""
    if texts.most is not None and texts.least > texts.most:
        return False
    try:
        matcher(f"start: T\nT: {' & '.join(f'/{r}/' for r in texts.regexes(one))}\n")
    except PatternError:
        return False
    return True


EXACT = 2**53  # up to which the library takes any bound exactly
FAR = 2**62  # a bound that it takes, where the schema has none
LARGEST_STEP, DIGITS = 10_000, 9  # of a step that the library takes, whose states are as many; of what it is a part of
Schema = Mapping[str, Any]


@dataclass
class Parts:
    """Of what the values are made: what a value that grew too long is ended with."""

    texts: dict[Texts, None] = field(default_factory=dict)
    numbers: dict[NumberRange, None] = field(default_factory=dict)
    literals: dict[str, None] = field(default_factory=dict)


class ScalarRules(ABC):
    """Rules and terminals of one grammar, and the `parts` of its values. `space` stands behind JSON's separators."""

    def __init__(self, where: str, space: str) -> None:
        self.parts, self._where = Parts(), where
        self._comma, self._colon = json.dumps(f",{space}"), f":{space}"
        self._rules: list[str] = []
        self._known: dict[str, str | None] = {}

    @abstractmethod
    def _of(self, schema: Any) -> str | None:
        """The rule of a schema, made once; None where it has no value."""

    def _any(self, made: Sequence[str | None]) -> str | None:
        return " | ".join(dict.fromkeys(m for m in made if m is not None)) or None

    def _terminal(self, expression: str) -> str:
        name = f"T{len(self._known)}_{len(self._rules)}"
        self._rules.append(f"{name}: {expression}")
        return name

    def _listed(self, values: Sequence[Any], schema: Schema) -> str | None:
        rest = {k: v for k, v in schema.items() if k not in ("enum", "const")}
        judge = Validator(rest, self._where)
        kept = [as_declared(v, rest) for v in values if judge.takes(v)]
        if large := [v for v in kept if isinstance(v, int) and not LEAST <= v <= MOST]:
            raise UserError(f"{self._where}: {large[0]} does not fit 64 bits.", "Use smaller numbers, or strings.")
        texts = [json_text(v) for v in kept if not isinstance(v, list | dict)]
        # A whole number may be written with its point, and without.
        whole = [t.removesuffix(".0") for t in texts if t.endswith(".0") and not t.startswith('"')]
        whole = [t for t in whole if LEAST <= int(t) <= MOST]
        plain = self._literals([*texts, *whole]) if texts else None
        return self._any([plain, *(self._exactly(v) for v in kept if isinstance(v, list | dict))])

    def _exactly(self, value: Any) -> str:
        """One listed value, in pieces: a text that begins as others do is not looked back at."""
        comma, colon = f" {self._comma} ", json.dumps(self._colon)
        if isinstance(value, list):
            return f'"[" {comma.join(map(self._exactly, value))} "]"'
        if isinstance(value, Mapping):
            pairs = (f"{self._exactly(k)} {colon} {self._exactly(v)}" for k, v in value.items())
            return f'"{{" {comma.join(pairs)} "}}"'
        self.parts.literals[json_text(value)] = None
        return json.dumps(json_text(value), ensure_ascii=False)

    def _literals(self, texts: Sequence[str]) -> str:
        self.parts.literals |= dict.fromkeys(texts)
        if len(texts) == 1:
            return json.dumps(texts[0], ensure_ascii=False)
        return self._terminal(f"/(?:{'|'.join(map(literal, dict.fromkeys(texts)))})/")

    def _string(self, schema: Schema) -> str | None:
        texts = texts_of(schema)
        if not possible(texts):
            return None
        self.parts.texts[texts] = None
        length = {"minLength": texts.least, **({} if texts.most is None else {"maxLength": texts.most})}
        patterns = [{"pattern": f"^(?:{p.regex})$"} for p in texts.patterns]
        return f"%json {json.dumps({'type': 'string', **length, **({'allOf': patterns} if patterns else {})})}"

    def _number(self, schema: Schema) -> str | None:
        numbers = range_of(schema)
        if numbers.empty():
            for end, beyond in ((numbers.high, numbers.low >= MOST), (numbers.low, numbers.high <= LEAST)):
                if beyond and end in (MOST, LEAST):
                    told = f"{self._where}: its numbers lie beyond 64 bits ({LEAST} to {MOST})."
                    raise UserError(told, "Bring the bounds nearer, or take another unit.")
            return None
        self.parts.numbers[numbers] = None
        if numbers.step is None or (numbers.integer and numbers.step.numerator == 1):
            return self._terminal(numbers.terminal())
        places = numbers.step_decimals
        if numbers.step == Fraction(1, 10**places):  # all that have no more decimals
            decimals = f"0|[0-9]{{1,{places}}}" if places else "0"
            return self._terminal(f"{numbers.terminal()} & /-?[0-9]+(?:[.](?:{decimals}))?/")
        grid = grid_of(schema, self._where)
        if grid is not None and grid.count <= MAX_CLOSED:
            whole = [t.removesuffix(".0") for t in grid.texts() if t.endswith(".0")]
            return self._terminal(f"/(?:{'|'.join(map(literal, (*grid.texts(), *whole)))})/")
        step = numbers.step.numerator if numbers.integer else float(numbers.step)
        if numbers.step.numerator > LARGEST_STEP or len(str(numbers.step.denominator)) > DIGITS:
            zeros = len(str(numbers.step.numerator)) - 1
            if numbers.step != 10**zeros:
                return self._terminal(numbers.terminal())  # and checked when it is whole
            point = "" if numbers.integer else "(?:[.]0+)?"
            return self._terminal(f"{numbers.terminal()} & /(?:0|-?[1-9][0-9]*0{{{zeros}}}){point}/")
        # From the first multiple to the last, which the library takes exactly.
        by = Fraction(numbers.step.numerator) if numbers.integer else numbers.step
        first, last = (int(n) * by for n in numbers.multiples(by))
        least, most = (FAR if numbers.integer and not _bounded(schema, end) else EXACT for end in ("inimum", "aximum"))
        if first > most or last < -least:
            return self._terminal(numbers.terminal())
        bounds = {"minimum": max(first, Fraction(-least)), "maximum": min(last, Fraction(most))}
        rest: dict[str, Any] = {"type": schema["type"], "multipleOf": step}
        rest |= {key: int(bound) if bound.denominator == 1 else float(bound) for key, bound in bounds.items()}
        if numbers.integer:
            self.parts.numbers[range_of(rest)] = None
            # What a schema's own bounds allow beyond what the library takes exactly is checked when it is whole.
            wide = [replace(numbers, low=Decimal(EXACT + 1), above=False)] if most == EXACT else []
            wide += [replace(numbers, high=Decimal(-EXACT - 1), below=False)] if least == EXACT else []
            terminals = [self._terminal(part.terminal()) for part in wide if not part.empty()]
            return " | ".join([f"%json {json_text(rest)}", *terminals])
        if numbers.step.denominator == 1:  # the library writes these without a point
            units = self._of({**rest, "type": "integer"})
            return None if units is None else f"{units} {self._terminal('/[.]0/')} | {units}"
        # And others with as many decimals as the step has, or none: of those with fewer the step is longer.
        steps = dict.fromkeys(common(numbers.step, Fraction(1, 10**k)) for k in range(1, places + 1))
        zero = ['"0.0"'] if first <= 0 <= last else []
        return " | ".join([*(f"%json {json_text({**rest, 'multipleOf': float(s)})}" for s in steps), *zero])


def _bounded(schema: Schema, end: str) -> bool:
    """Whether a schema has a bound whose name ends so."""
    return any(key.endswith(end) for key in schema)
