"""Decode free values (strings, unbounded numbers, arrays, objects) token by token under a grammar of llguidance."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import Free
from rtcontrol.models.schema.json_schema import as_declared
from rtcontrol.models.schema.mask import FORMATS, mask_of
from rtcontrol.models.schema.validator import LEAST_INTEGER, MOST_INTEGER

MAX_TOKENS = 64  # the most tokens of a free value by default
ENDED = 256  # further tokens that may complete its JSON
# Characters that are tried to end a value, in this order: closing ones (a letter before brackets, which a text may
# hold); digits, and letters that many patterns accept; opening ones.
ORDER = b'"a}],1A0-_.:/@ xetfn[{'
ANY, UNQUOTED = "(?s:.)", r'[^"\\\x00-\x1f]'  # a character of a text; a character that JSON writes without an escape
FORMED = {"pattern", "allOf", "anyOf"}  # the kinds of texts that may not have all characters
# The first lines of two kinds of grammars: for a plain text, and for a JSON text without its quotes.
RAW, INSIDE = "// a text\n", "// a text of JSON, without its quotes\n"


class _Machine:
    """The llguidance form of one of our tokenizers, and the ids that may occur in an unescaped text."""

    def __init__(self, tokenizer: STTokenizer, vocabulary: int) -> None:
        import llguidance

        # A grammar works on bytes. Control tokens can never be part of a value, so they all get the bytes of the end
        # token.
        end = tokenizer.special_id("<|im_end|>") if "<|im_end|>" in tokenizer.specials else 0
        self.tokens = llguidance.LLTokenizer(tokenizer.to_json(), n_vocab=vocabulary, eos_token=end)
        texts = [bytes(self.tokens.decode_bytes([i])) for i in range(vocabulary)]
        # A mask [vocabulary] of the ids without quote, backslash and control character.
        self.unescaped = np.array([re.search(rb'["\\\x00-\x1f\x7f]', text) is None for text in texts])
        singles = {text[0]: i for i, text in reversed([*enumerate(texts)]) if len(text) == 1}
        first = [byte for byte in ORDER if byte in singles]
        # Ids of one byte, in the order in which they are tried to end a value.
        self.singles = [singles[byte] for byte in (*first, *sorted(set(singles) - set(first)))]


_machines: WeakKeyDictionary[STTokenizer, dict[int, _Machine]] = WeakKeyDictionary()


class Grammars:
    """A compiler that builds the grammar of each free domain once, at start-up."""

    def __init__(self, tokenizer: STTokenizer, vocabulary: int) -> None:
        import llguidance

        self._library, self.tokenizer, self.vocabulary = llguidance, tokenizer, vocabulary
        machines = _machines.setdefault(tokenizer, {})
        if vocabulary not in machines:  # built on first use: a vocabulary of 150,000 takes a second and 40 MB
            machines[vocabulary] = _Machine(tokenizer, vocabulary)
        self.machine = machines[vocabulary]
        self._first: dict[str, Any] = {}  # by grammar: copying a matcher is faster than making one
        self.special = np.array([tokenizer.special_id(t) for t in tokenizer.specials], np.int64)
        (self.quote, *_) = tokenizer.encode('"')

    def compile(self, domain: Free, where: str, quoted: bool = False, space: str = "") -> str:
        """Return the grammar of a domain. Raises UserError (`where` names tool and argument) for a schema without one.

        A `quoted` string is the inside of a JSON string, without characters that need an escape. `space` precedes JSON
        values and follows their separators. Rules that the grammar does not enforce are checked by `parse_free`.
        """
        schema = domain.schema
        if domain.is_string and schema.keys().isdisjoint(FORMED) and schema.get("format") not in FORMATS:
            least, most = schema.get("minLength", 0), schema.get("maxLength", "")
            grammar = f"{RAW}start: TEXT\nTEXT: /(?:{UNQUOTED if quoted else ANY}){{{least},{most}}}/\n"
        elif domain.is_string:
            grammar = f"{INSIDE}{mask_of(domain, where).grammar}"
        else:
            grammar = mask_of(domain, where, space).grammar
        self._refuse(grammar, where)
        return grammar

    def _refuse(self, grammar: str, where: str) -> None:
        """Raise UserError for a grammar that llguidance refuses."""
        first = self.matcher(grammar)
        if not first.is_error():
            first.compute_bitmask()  # a grammar that exceeds the library's limits for a token reports that now
        if first.is_error():
            raise UserError(
                f"{where}: its schema cannot be decoded ({str(first.get_error()).strip().splitlines()[0][:200]}).",
                "Use a plain type, bounds or an enum, or shorter patterns.",
            )

    def check(self, grammar: str, limit: int, where: str) -> None:
        """Raise UserError if every value of the grammar has more than `limit` tokens. JSON may have more, since most of
        its tokens are forced."""
        text = grammar.startswith((RAW, INSIDE))
        end = self.start(grammar, limit, where).end(limit + ENDED * (not text))
        self._refuse(grammar, where)
        # Within JSON the search for a pattern's end may fail, so nothing is refused.
        if end is None and (text or '"pattern' not in grammar):
            problem = f"{where}: no value of at most {limit} tokens satisfies its schema."
            raise UserError(problem, "Loosen its rules, give its parts shorter names, or allow more tokens.")

    def start(self, grammar: str, limit: int = MAX_TOKENS, where: str = "a free value") -> FreeValue:
        """Return an empty value that may grow to `limit` tokens, plus those that end the value. Errors name `where`."""
        machine = self.machine
        inside = grammar.startswith(INSIDE)
        return FreeValue(self, grammar, limit, where, machine.unescaped if inside else None)

    def matcher(self, grammar: str) -> Any:
        """Return a matcher at the start of a value."""
        first = self._first.get(grammar)
        if first is None:
            first = self._first[grammar] = self._library.LLMatcher(self.machine.tokens, grammar)
            if grammar.startswith(INSIDE) and not first.is_error():
                first.consume_tokens([self.quote])
        return first

    def shorter(self, grammar: str, tokens: Sequence[int]) -> Iterator[Any]:
        """Yield matchers after these tokens that bound texts with a pattern or format, from a short bound to longer
        ones. Without a bound such a text may never end."""
        before, _, written = grammar.partition("%json ")
        inside = grammar.startswith(INSIDE)
        if '"pattern"' not in written and '"format"' not in written:
            return
        text = bytes(self.machine.tokens.decode_bytes(list(tokens)))  # the last token may be a part of a character
        written_so_far = len(text.decode("utf-8", "ignore")) if inside else 0
        for more in (0, *(2**k for k in range(9))):
            bounded = json.dumps(_with_short_texts(json.loads(written), written_so_far + more))
            matcher = self._library.LLMatcher(self.machine.tokens, f"{before}%json {bounded}\n")
            taken = [self.quote] * inside + [*tokens]
            if not matcher.is_error() and matcher.try_consume_tokens(taken) == len(taken):
                yield matcher


class FreeValue:
    """A free value in progress: its tokens so far, and the tokens that may follow.

    With `unescaped` ids the value is the text of a JSON string without quotes, and may end if the quote may follow.
    """

    def __init__(
        self, grammars: Grammars, grammar: str, limit: int, where: str, unescaped: np.ndarray | None = None
    ) -> None:
        self._grammars, self._grammar, self._limit = grammars, grammar, limit
        self._matcher = grammars.matcher(grammar).deep_copy()
        self._where, self._unescaped = where, unescaped
        self.tokens: list[int] = []
        self._excluded: tuple[int, int] | None = None  # an excluded token, and how many tokens precede it

    def exclude(self, token: int) -> None:
        """Exclude a token at this position: its value was illegal."""
        self._excluded = len(self.tokens), token

    def _ends(self, matcher: Any) -> bool:
        """Return whether a value may end here."""
        if self._unescaped is None:
            return bool(matcher.is_accepting())
        return bool(matcher.validate_tokens([self._grammars.quote]) == 1)

    def legal(self, ends: Any, null_id: int | None) -> np.ndarray:
        """Return a mask [vocabulary] of the ids that may follow: also `ends` if the value may end, and `null_id` (None:
        never) at the start of the value.

        After `limit` tokens only the end is legal. Raises DecodeError if the value cannot end.
        """
        legal = self._bits(self._matcher)
        if self._matcher.is_error():
            reason = str(self._matcher.get_error()).strip().splitlines()[0][:200]
            raise DecodeError(f"{self._where}: the legal tokens take too long to find ({reason})")
        if len(self.tokens) >= self._limit:
            legal[:] = False
        legal[ends] = self._ends(self._matcher)
        if null_id is not None and not self.tokens:
            legal[null_id] = True
        if self._excluded is not None and self._excluded[0] == len(self.tokens):
            legal[self._excluded[1]] = False
        if not legal.any():
            raise DecodeError(f"{self._where}: the value did not end within {len(self.tokens)} tokens")
        return legal

    def _bits(self, matcher: Any) -> np.ndarray:
        """Return a mask [vocabulary] of the ids that the grammar allows next."""
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        legal = np.unpackbits(bits, bitorder="little")[: self._grammars.vocabulary].view(bool)
        legal[self._grammars.special] = False
        return legal if self._unescaped is None else legal & self._unescaped

    def push(self, *tokens: int) -> None:
        self._matcher.consume_tokens(tokens)
        self.tokens += tokens

    def pop(self, count: int) -> None:
        """Take back the last tokens."""
        if count:
            self._matcher.rollback(count)
            del self.tokens[-count:]

    def forced(self) -> list[int]:
        """Push the tokens of the text that must follow, or none if the value may end, and return them. Complete a value
        that has reached its limit."""
        before = len(self.tokens)
        if before < self._limit and not self._ends(self._matcher):
            self.push(*self._must_follow(self._matcher))
        if len(self.tokens) >= self._limit and not self._ends(self._matcher):
            self.push(*(self.end(ENDED) or ()))
        return self.tokens[before:]

    def _must_follow(self, matcher: Any) -> list[int]:
        """Return the tokens of the text that must follow."""
        if self._unescaped is None:
            return list(matcher.compute_ff_tokens())
        tokens = self._grammars.tokenizer.encode(self._text_after(matcher))
        return tokens if matcher.validate_tokens(tokens) == len(tokens) else []

    def text_after(self) -> str:
        """Return the text that must follow, or an empty one if the value may end."""
        return self._text_after(self._matcher)

    def _text_after(self, matcher: Any) -> str:
        if self._ends(matcher):
            return ""
        text = str(matcher.compute_ff_bytes(), "utf-8", "ignore")
        return text if self._unescaped is None else re.split(r'["\\]', text)[0]

    def end(self, most: int) -> list[int] | None:
        """Return at most `most` tokens that end the value, or None if no such tokens were found.

        llguidance does not say how a grammar can end, so closing characters are tried first, then others.
        """
        for matcher in chain([self._matcher], self._grammars.shorter(self._grammar, self.tokens)):
            ahead, path = matcher.deep_copy(), list[int]()
            while not self._ends(ahead) and len(path) <= most:
                legal = (i for i in self._grammars.machine.singles if ahead.validate_tokens([i]) == 1)
                if self._unescaped is not None:
                    legal = (i for i in legal if self._unescaped[i])
                more = [*self._must_follow(ahead)] or [*islice(legal, 1)]
                if not more:
                    break
                ahead.consume_tokens(more)
                path += more
            if self._ends(ahead) and len(path) <= most:
                return path
        return None


def _with_short_texts(schema: Any, most: int) -> Any:
    """Return a schema whose texts with a pattern or format have at most `most` characters."""
    if isinstance(schema, list):
        return [_with_short_texts(part, most) for part in schema]
    if not isinstance(schema, dict) or "enum" in schema:
        return schema
    bounded: dict[str, Any] = {}
    for key, value in schema.items():
        named = key in ("properties", "patternProperties")
        bounded[key] = (
            {n: _with_short_texts(part, most) for n, part in value.items()} if named else _with_short_texts(value, most)
        )
    if bounded.keys().isdisjoint(("pattern", "format")):
        return bounded
    return {**bounded, "maxLength": min(bounded.get("maxLength", most), most)}


def _integer(digits: str) -> int:
    """Return an integer. Raises ValueError for one that does not fit 64 bits."""
    number = int(digits)
    if not LEAST_INTEGER <= number <= MOST_INTEGER:
        raise ValueError("an integer beyond 64 bits")
    return number


def _float(digits: str) -> float:
    """Return a finite number, never minus zero. Raises ValueError for one that is not finite."""
    number = float(digits) + 0.0
    if not math.isfinite(number):
        raise ValueError("a number beyond what is finite")
    return number


def parse_free(domain: Free, text: str) -> Any:
    """Return the typed value of decoded text. Raises DecodeError if the text does not parse, or breaks a rule that the
    grammar does not enforce. Duplicates in a list of unique items are dropped."""
    value: Any = text
    if not domain.is_string:
        try:
            value = json.loads(text, parse_int=_integer, parse_float=_float)
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"{text!r} is not JSON ({error})") from None
        value = as_declared(value, domain.schema)
    if (fault := domain.judge.fault(value)) is not None:
        value = _each_once(value, domain.schema)
        fault = domain.judge.fault(value)
    if fault is not None:
        raise DecodeError(f"{text[:200]!r} breaks its schema ({fault})")
    return value


def _each_once(value: Any, schema: Any) -> Any:
    """Drop duplicates from lists of unique items."""
    if not isinstance(schema, Mapping):
        return value
    for arm in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        value = _each_once(value, arm)
    if isinstance(value, list):
        first, rest = schema.get("prefixItems", ()), schema.get("items")
        items = [_each_once(v, first[i] if i < len(first) else rest) for i, v in enumerate(value)]
        return [v for i, v in enumerate(items) if v not in items[:i]] if schema.get("uniqueItems") else items
    if isinstance(value, Mapping):
        declared, rest = schema.get("properties", {}), schema.get("additionalProperties")
        return {k: _each_once(v, declared.get(k, rest)) for k, v in value.items()}
    return value
