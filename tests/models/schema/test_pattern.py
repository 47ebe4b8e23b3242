"""Patterns are searched for, as ECMA-262 has them, and what cannot be read soundly is refused.

Reports of others that are tried here: llama.cpp#26930 and openclaw#107939 (a tool with `\\S` fails the whole request),
llguidance#66 (whole matches), vLLM#12131.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import llguidance
import pytest

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.decode.grammar import Grammars, parse_free
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.schema.domain import Free
from rtcontrol.models.schema.pattern import PatternError, apart, compiled
from rtcontrol.models.schema.tool_schema import tool_schemas

TEXTS = (
    *("", "/", "a", "a/", "/a", "ab", "xab", "abx", "b", "c", "ac", "bc", "xac", "xbc", "a,b", "x,a", "a.b", "1a"),
    *(
        "12", " ", "a b", "A", "AB", "a\nb", "\n", "😀", "[a]", "a-b", "\\", 'a"b', "ab1", "foo@bar.com", "aab", "\t",
        "x1y",
    ),
)  # fmt: skip
PATTERNS = [
    *("", "^", "$", "^$", "^/", r"\S", "a$|^b", "(^a|b)c", "(^|,)a", "(^|,)a(,|$)", r"^\d+$", r"^\w+$", r"[^\s]"),
    *(
        "^.$", "a*?b", "(a|b)+c?$", "^(?:a|b$)", "^a{2,}", "[a-c]", r"[\]a]", r"\u0061b", r"\x41", r"[\u0061-\u0063]$",
        "(?i)ab$",
    ),
    *("^(?:^a)", "a{", "x{a}", "^(a|^b)", "^(a|)$", "(a$|b)$", r"^[\w.-]+@[\w-]+\.\w+$", '"', r"\\", "^^a$$"),
    *(r"^[^\\]$", ".*[xyz]{3}$", "(?:x|)1", "[[a]", "[&&b]", "[a~~]", "a|", r"\D", r"\W"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Possible")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_found_where_python_finds_it(pattern: str) -> None:
    found = compiled(pattern)
    for text in TEXTS:
        wanted = re.search(pattern, text) is not None
        if wanted and text.endswith("\n"):  # of `$` Python also says so before a last line break
            assert not found.matches(text) or re.search(pattern.replace("$", r"\Z"), text)
        else:
            assert found.matches(text) == wanted, text


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    tokenizer = Checkpoint.open("lander").tokenizer
    return Grammars(tokenizer, tokenizer.size)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_the_same_at_the_top_in_a_list_and_in_a_key(grammars: Grammars, pattern: str) -> None:
    plain = {"type": "string", "pattern": pattern}
    schemas: list[tuple[Free, Any]] = [
        (Free(plain), lambda text: text),
        (Free({"type": "array", "items": plain}), lambda text: json.dumps([text], ensure_ascii=False)),
        (
            Free({"type": "object", "patternProperties": {pattern: True}, "additionalProperties": False}),
            lambda text: json.dumps({text: 1}, ensure_ascii=False, separators=(",", ":")),
        ),
    ]
    for domain, written in schemas:
        machine = llguidance.LLMatcher(grammars._machine, grammars.compile(domain, ""))
        for text in TEXTS:
            if domain.schema["type"] == "object" and re.search(r'["\\\x00-\x1f]', text):
                continue  # of a key that JSON escapes the finished value is checked
            ids, ahead = grammars.tokenizer.encode(written(text)), machine.deep_copy()
            taken = ahead.try_consume_tokens(ids) == len(ids) and ahead.is_accepting()
            if taken and not compiled(pattern).matches(text):  # the library's classes take some escapes too many
                with pytest.raises(DecodeError, match="does not match"):
                    parse_free(domain, written(text))
            else:
                assert taken == compiled(pattern).matches(text), (written(text), domain)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?!a)b", "look-around"), ("(?<=a)b", "look-around"), (r"\bfoo", "word boundary"), ("a++", "possessive"),
        (r"(a)\1", "back-reference"), (r"(?<n>a)\k<n>", "back-reference"), ("x^y", "anchor"), ("a$b", "anchor"),
        ("[]", "empty class"), ("(a", "without its"), ("a)", "without its"), ("[a", "without its"),
        ("(?>a)", "a group of its kind"), ("(?s).", "a group of its kind"), ("[z-a]", "range"),
        (r"\ud800", "no character"), (r"\q", "not known"), ("*a", "nothing to repeat"),
        ("(" * 3000, "nested|without|characters"), ("a" * 5000, "characters"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_by_name(pattern: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        compiled(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(.*a){20}", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y", "(a|b)*a(a|b){200}"],
)
def test_a_pattern_over_which_python_sits_for_ever_is_soon_decided(pattern: str) -> None:
    began = time.process_time()
    for text in ("a" * 5000 + "!", "ab" * 500, "x" * 3000):
        compiled(pattern).matches(text)
    assert time.process_time() - began < 20  # Python's own takes years


@pytest.mark.parametrize(
    ("pattern", "both", "one"),
    [
        (r"^\w$", ["a", "_"], ["é", "\u0663"]), (r"^\d$", ["7"], ["\u0663"]),
        (r"^\s$", ["\u00a0"], ["\ufeff", "\x1c", "\x85"]), (r"^\S$", ["é"], ["\ufeff", "\x1c", "\x85"]),
        (r"^\W$", ["-"], ["é"]), (r"^[^\W]$", ["a"], ["é"]), (r"^[^\D]$", ["7"], ["\u0663"]),
        ("^.$", ["é"], ["\r", "\u2028"]), ("^a$", ["a"], ["a\n"]),
    ],
)  # fmt: skip
def test_where_python_and_ecma_262_differ_what_both_take_is_meant(
    pattern: str, both: list[str], one: list[str]
) -> None:
    assert all(compiled(pattern).matches(text) for text in both)
    assert not any(compiled(pattern).matches(text) for text in one)


EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"


@pytest.mark.parametrize(
    ("source", "takes", "refuses"),
    [
        (EMAIL, ["a.b@c.de"], [".a@c.de", "a..b@c.de", "a@c"]),
        (DECIMAL, ["1.5", "-.5", "007"], ["", ".", "-", "1e3"]),
        (r"^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{8,12}$", ["Abcdefg1"], ["abcdefg1", "Abcdefgh"]),
        (r"^(?!con$|nul$)[a-z)]+$", ["cons", "a)"], ["con", "nul"]),
        (r"^(?![)|]a)[)|a-z]+$", ["a", "|b"], [")a", "|a"]),
    ],
)
def test_look_aheads_at_the_beginning_are_rules_of_their_own(source: str, takes: list[str], refuses: list[str]) -> None:
    """As generators write them for addresses and decimal numbers, whose tools would all be refused."""
    tool = {"name": "t", "parameters": {"properties": {"p": {"type": "string", "pattern": source}}}}
    (read,) = tool_schemas([tool])
    ((p,),) = (read.parameters,)
    assert isinstance(p.domain, Free)
    for text in (*takes, *refuses):
        assert bool(re.search(source, text)) == (text in takes) == p.domain.judge.takes(text), text


@pytest.mark.parametrize("source", ["^(?!a)b|c", "^(?!a){2}b", "^a(?!b)", "x(?=a)", "^(?!a"])
def test_look_aheads_elsewhere_stay_where_they_are(source: str) -> None:
    assert apart(source) == (source, [], [])
