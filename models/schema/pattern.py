"""A schema's `pattern`, one meaning everywhere: it is searched for, as ECMA-262 reads it.

It is translated into a regular expression of a whole text, without anchors, that a linear engine takes: the one that
the grammar of a free value has, and by which a finished value is checked. Where Python reads a class of characters
otherwise than ECMA-262 does (`\\s`, `.`), what both take is meant: what matches here matches for both. What cannot be
translated soundly is refused, never read as something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

MAX_LENGTH = 4096  # characters of a pattern
ANY = "(?s:.*)"
OPEN, SHUT = "open", "shut"  # an end of the text, where no anchor holds it, and where one does
SPACES = r"\t\n\x{b}\x{c}\r\x{20}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
# Of a class of characters what ECMA-262 and Python both take, and what either takes.
BOTH = {"d": "0-9", "w": "0-9A-Za-z_", "s": SPACES}
EITHER = {"d": r"\p{Nd}", "w": r"\p{L}\p{N}_", "s": rf"{SPACES}\x{{1c}}-\x{{1f}}\x{{85}}\x{{feff}}"}
CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
GROUP = re.compile(r"\(\?(?::|P?<(?![=!])\w+>|i:)|\((?!\?)")
REPEATED = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")


class PatternError(ValueError):
    """What of a pattern cannot be decoded."""


class NoText(PatternError):
    """No text has it."""


@dataclass(frozen=True)
class _Group:
    """Branches, each a list of parts: an expression, an anchor (`^`, `$`) or a group."""

    opening: str
    branches: list[list[Any]]
    repeated: str = ""


@dataclass(frozen=True)
class Pattern:
    """`regex`: of a whole text in which the pattern is found."""

    regex: str

    @cached_property
    def _machine(self) -> Any:
        return matcher(f"start: TEXT\nTEXT: /{self.regex}/\n")

    def matches(self, text: str) -> bool:
        """In time linear in the text. Raises PatternError where the engine gives up."""
        try:
            return accepts(self._machine, text)
        except UnicodeEncodeError:
            return False  # half a character
        except PatternError:
            # It remembers what it has met, up to a limit: once more from the beginning.
            del self.__dict__["_machine"]
            return accepts(self._machine, text)


@lru_cache(maxsize=1)
def _bytes() -> Any:
    import llguidance

    return llguidance.LLTokenizer("byte")


def matcher(grammar: str) -> Any:
    """What takes a text byte by byte. Raises PatternError for a grammar that there is not, or that no text has."""
    import llguidance

    made = llguidance.LLMatcher(_bytes(), grammar)
    if made.is_error():
        raise PatternError(str(made.get_error()).strip().splitlines()[-1][:200])
    if not made.is_accepting() and not following(made):
        raise NoText("no text has it")
    return made


def following(machine: Any) -> list[int]:
    """The bytes that may come next."""
    bits = np.unpackbits(np.frombuffer(machine.compute_bitmask(), np.uint8), bitorder="little")
    return [int(b) for b in np.flatnonzero(bits) if b < 256]


def accepts(machine: Any, text: str) -> bool:
    """Whether this is a whole text of it."""
    ahead, given = machine.deep_copy(), list(text.encode())
    taken = ahead.try_consume_tokens(given)
    if ahead.is_error():
        raise PatternError(str(ahead.get_error()).strip().splitlines()[-1][:200])
    return taken == len(given) and bool(ahead.is_accepting())


@lru_cache(maxsize=4096)
def compiled(source: str) -> Pattern:
    """Raises PatternError."""
    if len(source) > MAX_LENGTH:
        raise PatternError(f"more than {MAX_LENGTH} characters")
    try:
        found = Pattern(_PatternReader(source).whole())
    except RecursionError:
        raise PatternError("nested too deeply") from None
    _ = found._machine
    return found


class _PatternReader:
    """Reads a pattern once, from left to right."""

    def __init__(self, source: str) -> None:
        self._flag = "(?i)" if source.startswith("(?i)") else ""
        self._source, self._at = source, len(self._flag)

    def whole(self) -> str:
        found = self._group("(?:", inside=False)
        return f"{self._flag}{_written(found, OPEN, OPEN)}"

    def _group(self, opening: str, inside: bool) -> _Group:
        branches: list[list[Any]] = [[]]
        while self._at < len(self._source):
            letter = self._source[self._at]
            if letter == ")":
                if not inside:
                    raise PatternError("a `)` without its `(`")
                self._at += 1
                return _Group(opening, branches)
            if letter == "|":
                self._at += 1
                branches.append([])
            elif letter in "^$":
                self._at += 1
                if REPEATED.match(self._source, self._at):
                    raise PatternError("a repeated anchor")
                branches[-1].append(letter)
            else:
                branches[-1].append(self._repeated(self._atom(letter)))
        if inside:
            raise PatternError("a `(` without its `)`")
        return _Group(opening, branches)

    def _repeated(self, atom: Any) -> Any:
        found = REPEATED.match(self._source, self._at)
        if found is None:
            return atom
        self._at = found.end()
        after = self._source[self._at : self._at + 1]
        if after == "?":  # lazy: the same texts
            self._at += 1
        elif after == "+" or REPEATED.match(self._source, self._at):
            raise PatternError("a possessive or doubled repetition")
        if isinstance(atom, _Group):
            return _Group(atom.opening, atom.branches, found.group())
        return f"{atom}{found.group()}"

    def _atom(self, letter: str) -> Any:
        if letter == "(":
            found = GROUP.match(self._source, self._at)
            if found is None:
                what = "a look-around" if re.match(r"\(\?<?[=!]", self._source[self._at :]) else "a group of its kind"
                raise PatternError(f"{what} (`{self._source[self._at : self._at + 4]}`)")
            self._at = found.end()
            return self._group("(?i:" if found.group() == "(?i:" else "(?:", inside=True)
        if letter == "[":
            return self._class()
        if letter == "\\":
            escaped = self._escape(inside=False, negative=False)
            return escaped if isinstance(escaped, str) else _letter(escaped)
        if letter in "*+?" or re.match(r"\{,?\d", self._source[self._at :]):
            raise PatternError(f"`{letter}` with nothing to repeat")
        self._at += 1
        return r"[^\n\r\x{2028}\x{2029}]" if letter == "." else _letter(ord(letter))

    def _class(self) -> str:
        self._at += 1
        negative = self._source.startswith("^", self._at)
        self._at += negative
        found: list[str] = []
        if self._source.startswith("]", self._at):
            raise PatternError("an empty class `[]`")
        while not self._source.startswith("]", self._at):
            low = self._member(negative)
            if self._source.startswith("-", self._at) and self._source[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._member(negative)
                if isinstance(low, str) or isinstance(high, str) or low > high:
                    raise PatternError("a range in a class that has no ends")
                found.append(f"{_letter(low)}-{_letter(high)}")
            else:
                found.append(low if isinstance(low, str) else _letter(low))
        self._at += 1
        return f"[{'^' * negative}{''.join(found)}]"

    def _member(self, negative: bool) -> int | str:
        if self._at >= len(self._source):
            raise PatternError("a `[` without its `]`")
        if self._source[self._at] == "\\":
            return self._escape(inside=True, negative=negative)
        self._at += 1
        return ord(self._source[self._at - 1])

    def _escape(self, inside: bool, negative: bool) -> int | str:
        """A character's number, or the expression of a class. In a `negative` class what it takes must be larger, so
        that less is left."""
        rest = self._source[self._at + 1 :]
        letter = rest[:1]
        self._at += 2
        if letter.lower() in BOTH:
            plain = letter.islower()
            members = (BOTH if plain != negative else EITHER)[letter.lower()]
            return f"[{'' if plain else '^'}{members}]"
        if letter in CONTROL:
            if letter == "0" and rest[1:2].isdigit():
                raise PatternError("an octal escape")
            return CONTROL[letter]
        if letter == "b" and inside:
            return 8
        if letter == "x" and (found := re.match(r"x([0-9a-fA-F]{2})", rest)):
            self._at += 2
            return int(found[1], 16)
        if letter == "u" and (found := re.match(r"u(?:([0-9a-fA-F]{4})|\{([0-9a-fA-F]{1,6})\})", rest)):
            self._at += found.end() - 1
            number = int(found[1] or found[2], 16)
            low = re.match(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})", self._source[self._at :])
            if 0xD800 <= number < 0xDC00 and low is not None:
                self._at += 6
                number = 0x10000 + ((number - 0xD800) << 10) + int(low[1], 16) - 0xDC00
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                raise PatternError(f"`\\{found.group()}`, which is no character")
            return number
        if letter == "c" and rest[1:2].isascii() and rest[1:2].isalpha():
            self._at += 1
            return ord(rest[1]) % 32
        if letter in "pP" and letter and (found := re.match(r"[pP]\{[A-Za-z_]+(?:=[A-Za-z_]+)?\}", rest)):
            self._at += found.end() - 1
            return f"\\{found.group()}"
        if letter.isalnum() or not letter:
            what = {"b": "a word boundary", "B": "a word boundary", "k": "a back-reference"}
            told = "a back-reference" if letter.isdigit() else what.get(letter, "an escape that is not known")
            raise PatternError(f"{told} (`\\{letter}`)")
        return ord(letter)


def apart(source: str) -> tuple[str, list[str], list[str]]:
    """A pattern without the look-aheads that stand right behind its `^`; the patterns that must be found besides, and
    those that must not. Of one with alternatives outside of groups, where they are of the first alone, all is left."""
    flag = "(?i)" * source.startswith("(?i)")
    at, found = len(flag) + 1, dict[str, list[str]]({"(?=": [], "(?!": []})
    if source[at - 1 : at] == "^":
        while (kind := source[at : at + 3]) in found:
            end, _ = _outside(source, at + 3)
            if end == len(source) or REPEATED.match(source, end + 1):
                return source, [], []
            found[kind].append(f"{flag}^(?:{source[at + 3 : end]})")
            at = end + 1
    if at == len(flag) + 1 or _outside(source, at)[1]:
        return source, [], []
    return f"{flag}^{source[at:]}", found["(?="], found["(?!"]


def _outside(source: str, at: int) -> tuple[int, bool]:
    """Where the group that is open here is closed (or the end), and whether it has alternatives of its own."""
    depth, several = 0, False
    for found in re.finditer(r"\\.|\[\^?(?:\\.|[^\]\\])*\]|[()|]", source[at:], re.DOTALL):
        if found.group() == ")" and not depth:
            return at + found.start(), several
        depth += (found.group() == "(") - (found.group() == ")")
        several |= found.group() == "|" and not depth
    return len(source), several


def literal(text: str) -> str:
    """The expression of this very text."""
    return "".join(_letter(ord(letter)) for letter in text)


def _letter(number: int) -> str:
    letter = chr(number)
    if 0xD800 <= number < 0xE000:
        raise PatternError("half a character")
    return letter if letter.isascii() and letter.isalnum() else rf"\x{{{number:x}}}"


def _written(group: _Group, first: str, last: str) -> str:
    """The group as an expression. Where it stands first or last in a text that is `open` there, what may come before or
    behind it is a part of each branch; where that is `shut`, an anchor says nothing more."""
    if group.repeated and (first or last):
        # What is repeated is no place for an anchor, so it stands between.
        return f"{ANY * (first == OPEN)}{_written(group, '', '')}{ANY * (last == OPEN)}"
    found = []
    for parts in group.branches:
        before, behind = first, last
        while parts and parts[0] == "^" and before:
            parts, before = parts[1:], SHUT
        while parts and parts[-1] == "$" and behind:
            parts, behind = parts[:-1], SHUT
        text, final = "", len(parts) - 1
        for i, part in enumerate(parts):
            if part in ("^", "$"):
                raise PatternError(f"an anchor `{part}` within")
            if isinstance(part, _Group):
                text += _written(part, before * (i == 0), behind * (i == final))
                before, behind = before * (i > 0), behind * (i < final)
            else:
                text += part
        if not parts:
            text, before, behind = ANY * (OPEN in (before, behind)), "", ""
        found.append(f"{ANY * (before == OPEN)}{text}{ANY * (behind == OPEN)}")
    return f"{group.opening}{'|'.join(found)}){group.repeated}"
