"""How a value that has grown too long is ended: the fewest characters that its grammar takes.

A grammar's state cannot be asked how it ends, so what may come is proposed (brackets, what makes a begun text match its
pattern, the digits that a number lacks, listed values, keys) and the grammar is asked whether it takes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from rtcontrol.models.schema.numbers import NumberRange, ended
from rtcontrol.models.schema.pattern import PatternError, following, matcher
from rtcontrol.models.schema.scalar_grammar import Parts, Texts

TRIED = 400  # beginnings of an end
LISTED = 64  # listed values, and kinds of text, that are tried at a place
MOST = 4096  # characters that a text is ended with
FILLED = tuple(b"a0 A-_.:/1x")  # of what there is a choice
OTHERS = "abc123"  # of texts that must differ
OPEN_NUMBER = re.compile(r"(?:^|[\[:,\s])(-?[0-9]*\.?[0-9]*)$")
HALF_ESCAPE = re.compile(r"(?:[^\\]|^)(?:\\\\)*(\\(?:u[0-9a-fA-F]{0,3})?)$")
Encode = Callable[[str], list[int]]


def text_ending(texts: Texts, begun: str, one: str = "(?s:.)") -> str | None:
    """The fewest characters that make one of these strings of its beginning, of such characters as `one` says; None
    where there are none."""
    return _text_ending(texts, begun, one)


@lru_cache(maxsize=1024)
def _text_ending(texts: Texts, begun: str, one: str) -> str | None:
    most = texts.most if texts.most is not None else MOST
    room = min(max(most - len(begun), 0), MOST)
    if not texts.patterns:
        lacking = max(texts.least - len(begun), 0)
        return None if lacking > room or len(begun) > most else chr(FILLED[0]) * lacking

    def after(more: int) -> Any | None:
        """What takes the strings of at most so many characters more, behind the beginning."""
        regexes = Texts(texts.patterns, texts.least, min(most, len(begun) + more)).regexes(one)
        try:
            machine = matcher(f"start: T\nT: {' & '.join(f'/{r}/' for r in regexes)}\n")
        except PatternError:
            return None
        given = list(begun.encode())
        if machine.try_consume_tokens(given) < len(given):
            return None
        return machine if machine.is_accepting() or following(machine) else None

    low, high = -1, 0
    while after(high) is None:
        if high >= room:
            return None
        low, high = high, min(max(2 * high, 1), room)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if after(middle) is not None else (middle, high)
    machine, found = after(high), bytearray()
    assert machine is not None
    while not machine.is_accepting():
        legal = following(machine)
        if not legal:
            return None
        byte = next((b for b in (*FILLED, *range(32, 127)) if b in legal), legal[0])
        machine.consume_tokens([byte])
        found.append(byte)
    return found.decode("utf-8", "ignore")


@lru_cache(maxsize=1024)
def _number_ending(begun: str, numbers: NumberRange) -> str | None:
    return ended(begun, numbers)


class Ending:
    """Ends the values of one grammar, of whose `parts` they are made: JSON, or one string without quotes, of such
    characters as `one` says."""

    def __init__(self, parts: Parts, encode: Encode, one: str | None = None) -> None:
        self._numbers, self._encode, self._one = tuple(parts.numbers), encode, one
        self._literals, self._texts = sorted(parts.literals, key=len), tuple(parts.texts)[:LISTED]

    def of(self, machine: Any, begun: str, most: int = MOST) -> list[int] | None:
        """At most so many tokens that end what is begun, behind whole characters; None where none are found."""
        if machine.is_accepting():
            return []
        for asked in (False, True):
            if (found := self._found(machine, begun, asked, most)) is not None:
                return found
        return None

    def _found(self, machine: Any, begun: str, asked: bool, most: int) -> list[int] | None:
        stack: list[tuple[Any, str, list[int]]] = [(machine.deep_copy(), begun, [])]
        tried = 0
        while stack and tried < TRIED:
            ahead, text, tokens = stack.pop()
            tried += 1
            if len(tokens) > most:  # others are no shorter, as far as is known
                return None
            if ahead.is_accepting():
                return tokens
            found = []
            for more in dict.fromkeys(self._proposed(ahead, text, asked)):
                ids = self._encode(more)
                if ids and ahead.validate_tokens(ids) == len(ids):
                    then = ahead.deep_copy()
                    then.consume_tokens(ids)
                    found.append((then, text + more, [*tokens, *ids]))
            stack += reversed(found)
        return None

    def shortest(self, machine: Any, most: int) -> list[int] | None:
        """The tokens of a whole value, of few that are tried the fewest; None where none of so many are found."""
        found = [self.of(machine, "", most)]
        for more in self._proposed(machine, "") if self._one is None else ():
            ids = self._encode(more)
            if ids and machine.validate_tokens(ids) == len(ids):
                then = machine.deep_copy()
                then.consume_tokens(ids)
                rest = self.of(then, more, most - len(ids))
                found.append(None if rest is None else [*ids, *rest])
        return min((tokens for tokens in found if tokens is not None), key=len, default=None)

    def _proposed(self, machine: Any, text: str, asked: bool = False) -> Iterator[str]:
        """What may come next, the likeliest to end it soon first; with `asked` that which the schema names, as an
        array may go on without end until it has it."""
        if (one := self._one) is not None:
            yield from filter(None, (text_ending(t, text, one) for t in self._texts))
            return
        inside = _open_string(text)
        if inside is not None:
            yield from self._of_string(inside, text)
            return
        yield from "}]"
        number = OPEN_NUMBER.search(text)
        begun = number[1] if number is not None else ""
        ends = [e for r in self._numbers if (e := _number_ending(begun, r)) is not None]
        if begun:  # which has digits without end
            ends += [value[len(begun) :] for value in self._literals if value.startswith(begun)][:LISTED]
            yield from sorted(filter(None, ends), key=len)
            yield ","
            return
        if forced := bytes(machine.compute_ff_bytes()).decode("utf-8", "ignore"):
            yield forced
        strings = [t for t in map(self._whole, self._texts) if t is not None]
        named = [*self._literals[:LISTED], *strings, *ends]
        # What is there already comes later: keys and items may have to differ.
        rest = sorted(["null", "true", "false", *"0123456789", '""', *named], key=lambda v: (v in text, len(v)))
        yield from (*(sorted(named, key=len) if asked else ()), *rest)
        yield from ("[", "{", '"', ",", ", ", " ")

    def _whole(self, texts: Texts) -> str | None:
        found = text_ending(texts, "")
        return None if found is None else json.dumps(found, ensure_ascii=False)

    def _of_string(self, inside: str, text: str) -> Iterator[str]:
        """`inside` is what an open string has so far, as JSON writes it."""
        if half := HALF_ESCAPE.search(inside):
            lacking = {"\\": ("n", "u0001")}.get(half[1], ("0" * (6 - len(half[1])), "1", "f"))
            yield from ('"', *lacking)
            return
        begun = json.loads(f'"{inside}"')
        found = {text_ending(t, begun) for t in self._texts}
        written = [f'{json.dumps(f, ensure_ascii=False)[1:-1]}"' for f in found if f is not None]
        written += [v[len(inside) + 1 :] for v in self._literals if v.startswith(f'"{inside}')][:LISTED]
        written += ['"', *(f'{letter}"' for letter in OTHERS)]
        before = text[: -1 - len(inside)]
        written = sorted(filter(None, written), key=len)
        again = [more for more in written if f'"{inside}{more}' in before]
        yield from (more for more in written if more not in again)
        for letter in OTHERS if again else ():  # another than those that are there
            found = {text_ending(t, begun + letter) for t in self._texts}
            other = [f'{letter}{json.dumps(f, ensure_ascii=False)[1:-1]}"' for f in found if f is not None]
            yield from (more for more in other if f'"{inside}{more}' not in before)
        yield from (*OTHERS, *again)


def _open_string(text: str) -> str | None:
    """What stands behind the quote of a string that is not closed."""
    at, start = 0, None
    while at < len(text):
        if text[at] == "\\" and start is not None:
            at += 1
        elif text[at] == '"':
            start = at + 1 if start is None else None
        at += 1
    return None if start is None else text[start:]


def whole_text(raw: bytes) -> tuple[str, int]:
    """The whole characters of a text, and how many bytes of one that is not whole stand behind them."""
    for count in range(4):
        try:
            return raw[: len(raw) - count].decode(), count
        except UnicodeDecodeError:
            continue
    return raw.decode("utf-8", "replace"), 0


def filled(machine: Any, decode_bytes: Callable[[Sequence[int]], bytes], raw: bytes, legal: Sequence[int]) -> list[int]:
    """Tokens that make a character whole of which the first bytes are there; none where none are found."""
    stack: list[tuple[Any, bytes, list[int]]] = [(machine, raw, [])]
    for _ in range(TRIED):
        if not stack:
            break
        ahead, text, tokens = stack.pop()
        if not whole_text(text)[1]:
            return tokens
        for token in legal:
            more = decode_bytes([token])
            if len(more) == 1 and more[0] & 0xC0 == 0x80 and ahead.validate_tokens([token]) == 1:
                then = ahead.deep_copy()
                then.consume_tokens([token])
                stack.append((then, text + more, [*tokens, token]))
                break
    return []
