"""Patterns are searched for in linear time, and what matches here matches for jsonschema."""

from __future__ import annotations

import re
import time

import pytest

from rtcontrol.models.schema.pattern import PatternError, compiled

TEXTS = (
    *("", "/", "a", "a/", "/a", "ab", "xab", "abx", "b", "c", "ac", "bc", "xac", "xbc", "a,b", "x,a", "a.b", "1a"),
    *("12", " ", "a b", "A", "AB", "a\nb", "\n", "😀", "[a]", "a-b", "ab1", "foo@bar.com", "aab", "\t", "x1y"),
)
PATTERNS = [
    *("", "^", "$", "^$", "^/", r"\S", "a$|^b", r"^\d+$", r"^\w+$", r"[^\s]", "^.$", "a*?b", "(a|b)+c?$"),
    *("^(?:a|b$)", "^a{2,}", "[a-c]", r"[\]a]", r"\x41", "(?i)ab$", r"^[\w.-]+@[\w-]+\.\w+$", ".*[xyz]{3}$"),
    *("(?:x|)1", "a|", r"\D", r"\W"),
]
ESCAPED = ["\\", 'a"b', "a\\b", '"']


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern_matches_where_python_finds_it(pattern: str) -> None:
    found = compiled(pattern)
    for text in TEXTS:
        wanted = re.search(pattern, text) is not None
        if wanted and text.endswith("\n"):  # of `$` Python also says so before a last line break
            assert not found.matches(text) or re.search(pattern.replace("$", r"\Z"), text)
        else:
            assert found.matches(text) == wanted, text


@pytest.mark.parametrize(
    "pattern", [*PATTERNS, r"^[^\\]+$", '^[^"]*$', r"[^\\]b$", r"^\\$", '^"', "^[^a|]$", "^[ -~]+$", r"^[^\x00-\x7f]$"]
)
def test_quotes_and_backslashes_match_only_where_python_finds_them(pattern: str) -> None:
    for text in ESCAPED:
        assert not compiled(pattern).matches(text) or re.search(pattern, text), text


@pytest.mark.parametrize("pattern", ["^[ -~]+$", r"\S", r"^\\$", '^a"b$', "b$", "^[^x]+$"])
def test_quotes_and_backslashes_match_where_a_pattern_has_no_alternatives(pattern: str) -> None:
    for text in ESCAPED:
        assert compiled(pattern).matches(text) == bool(re.search(pattern, text)), text


@pytest.mark.parametrize(
    "pattern",
    ["(?!a)b", "(?<=a)b", r"\bfoo", r"(a)\1", "x^y", "a$b", "(a", "a)", "[a", "[z-a]", "*a", "(" * 3000, "a" * 5000],
)
def test_pattern_that_the_engine_lacks_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compiled(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(.*a){20}", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y", "(a|b)*a(a|b){200}"]
)
def test_pattern_that_backtracks_without_end_is_decided_soon(pattern: str) -> None:
    began = time.process_time()
    for text in ("a" * 5000 + "!", "ab" * 500, "x" * 3000, 'a"' * 1000):
        compiled(pattern).matches(text)
    assert time.process_time() - began < 20  # Python's own takes years
