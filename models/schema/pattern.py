"""Search for a schema's `pattern` in linear time.

llguidance reads the pattern as ECMA-262 has it, for the mask of a value that is decoded and for the check of a whole
one. Look-arounds, back-references, word boundaries and anchors in the middle are refused.
"""

from __future__ import annotations

import json
import re
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any

import numpy as np

MAX_LENGTH = 4096  # characters of a pattern
ANY = "(?s:.*)"


class PatternError(ValueError):
    """A pattern that the engine does not take, or that takes it too long."""


class Pattern:
    """A compiled pattern."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._grammar = f"start: %json {json.dumps({'type': 'string', 'pattern': source})}\n"
        self._machine = byte_matcher(self._grammar)

    @cached_property
    def _raw(self) -> Any | None:
        """A matcher of the text itself, None where the engine has none for this pattern.

        In JSON the engine takes quotes and backslashes that a class excludes."""
        body = self._source
        first, last = body.startswith("^"), bool(re.search(r"(?<!\\)(?:\\\\)*\$$", body))
        if "|" in body and (first or last):
            return None
        body = f"{ANY * (not first)}(?:{body[first : len(body) - last]}){ANY * (not last)}"
        try:
            return byte_matcher(llguidance().LLMatcher.grammar_from_regex(body))
        except PatternError:
            return None

    def matches(self, text: str) -> bool:
        """Whether the pattern is in the text. Raises PatternError where the engine gives up.

        Of a text with a quote or a backslash the answer is no where the engine cannot tell."""
        try:
            text.encode()
        except UnicodeEncodeError:
            return False  # a lone surrogate
        if ('"' in text or "\\" in text) and (self._raw is None or not accepts(self._raw, text)):
            return False
        written = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
        try:
            return accepts(self._machine, written)
        except PatternError:
            # The engine keeps the states that it has met, up to a limit: once more from an empty memory.
            self._machine = byte_matcher(self._grammar)
            return accepts(self._machine, written)


@lru_cache(maxsize=4096)
def compiled(source: str) -> Pattern:
    """Compile a pattern. Raises PatternError."""
    if len(source) > MAX_LENGTH:
        raise PatternError(f"more than {MAX_LENGTH} characters")
    return Pattern(source)


def byte_matcher(grammar: str) -> Any:
    """Return a matcher of bytes for a grammar. Raises PatternError for a grammar that is wrong or takes no text."""
    matcher = llguidance().LLMatcher(_byte_tokenizer(), grammar)
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8) if not matcher.is_error() else np.zeros(1, np.uint8)
    if matcher.is_error():
        raise PatternError(_reason(matcher))
    if not bits.any() and not matcher.is_accepting():
        raise PatternError("no text matches it")
    return matcher


def accepts(matcher: Any, text: str) -> bool:
    """Whether a text is a whole one of a matcher of bytes. Raises PatternError where the engine gives up."""
    ahead, given = matcher.deep_copy(), list(text.encode())
    taken = ahead.try_consume_tokens(given)
    if ahead.is_error():
        raise PatternError(_reason(ahead))
    return taken == len(given) and bool(ahead.is_accepting())


def _reason(matcher: Any) -> str:
    """Return what the engine says against a grammar, without the excerpt of it."""
    lines = [line.strip() for line in str(matcher.get_error()).splitlines() if line.strip()]
    first = lines[0].partition("compile JSON schema: ")
    # A parse error of the engine's own stands behind its excerpt.
    said = next((line for line in lines if line.startswith("error: ")), first[2] or first[0])
    return said.removeprefix("error: ")[:160]


@lru_cache(maxsize=1)
def _byte_tokenizer() -> Any:
    return llguidance().LLTokenizer("byte")


def llguidance() -> Any:
    """Return the library: it is imported when it is needed first."""
    return import_module("llguidance")
