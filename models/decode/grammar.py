"""Decode free values (strings, unbounded numbers, arrays, objects) token by token under a grammar, with llguidance."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import chain, islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from pydantic_core import from_json

from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import FreeDomain
from rtcontrol.models.schema.json_schema import to_declared_types
from rtcontrol.models.schema.mask import FORMATS, MAX_COUNT, UNIQUE, compile_masks, undecodable, without_repeats
from rtcontrol.models.schema.validator import MAX_INTEGER, MIN_INTEGER, engine_error

MAX_TOKENS = 64  # default limit for the tokens of a free value
MAX_ENDING = 256  # tokens beyond the limit that may be used to complete a JSON value
# Characters that are tried, in this order, to complete a value: first quote and closing brackets (a letter before "]",
# because strings may contain brackets), then digits and letters that many patterns accept, then opening brackets.
ENDING_ORDER = b'"a}],1A0-_.:/@ xetfn[{'
ANY_CHARACTER, UNESCAPED = (
    "(?s:.)",
    r'[^"\\\x00-\x1f]',
)  # patterns of any character, and of a character that JSON does not escape
UNFINISHED_NUMBER = re.compile(rb"[-.\d]+$")  # the last number of unfinished JSON, which may get more digits
PATTERN_KEYS = {"pattern", "allOf", "anyOf"}  # keywords that may restrict the characters of a string
# A grammar for a plain string starts with PLAIN_TEXT. A grammar for a JSON string without its quotes: with JSON_TEXT.
PLAIN_TEXT, JSON_TEXT = "// a text\n", "// a text of JSON, without its quotes\n"


class _TokenizerTables:
    """A tokenizer in llguidance's format, a mask of its `unescaped` tokens, and its `singles` (tokens of one byte)."""

    def __init__(self, tokenizer: STTokenizer, vocabulary: int) -> None:
        import llguidance

        # llguidance needs an end token. Any control token will do, because control tokens are never legal in a value.
        end = tokenizer.special_id("<|im_end|>") if "<|im_end|>" in tokenizer.specials else 0
        self.tokens = llguidance.LLTokenizer(tokenizer.to_json(), n_vocab=vocabulary, eos_token=end)
        texts = [bytes(self.tokens.decode_bytes([i])) for i in range(vocabulary)]
        # Mask [vocabulary]: True for tokens without quotes, backslashes and control characters.
        self.unescaped = np.array([re.search(rb'["\\\x00-\x1f\x7f]', text) is None for text in texts])
        singles = {text[0]: i for i, text in reversed([*enumerate(texts)]) if len(text) == 1}
        first = [byte for byte in ENDING_ORDER if byte in singles]
        # Tokens of one byte, in the order in which they are tried as the end of a value.
        self.singles = [singles[byte] for byte in (*first, *sorted(set(singles) - set(first)))]


_tables: WeakKeyDictionary[STTokenizer, dict[int, _TokenizerTables]] = WeakKeyDictionary()


class GrammarCompiler:
    """Compiles the grammars of free values for one tokenizer, and creates their matchers."""

    def __init__(self, tokenizer: STTokenizer, vocabulary: int) -> None:
        import llguidance

        self._library, self.tokenizer, self.vocabulary = llguidance, tokenizer, vocabulary
        machines = _tables.setdefault(tokenizer, {})
        if vocabulary not in machines:  # built once: 150,000 tokens take a second and 40 MB
            machines[vocabulary] = _TokenizerTables(tokenizer, vocabulary)
        self.tables = machines[vocabulary]
        self._first: dict[str, Any] = {}  # by grammar: the matcher at the start of a value, to be copied
        self._later = lru_cache(32)(self._new_matcher)
        self.special = np.array([tokenizer.special_id(t) for t in tokenizer.specials], np.int64)
        (self.quote, *_) = tokenizer.encode('"')

    def compile(self, domain: FreeDomain, where: str, quoted: bool = False, space: str = "") -> str:
        """Return the grammar of a domain. Raises UserError (`where` names tool and argument) if it cannot be compiled.

        A `quoted` value is a string within JSON quotes, without characters that need an escape. `space` precedes JSON
        values and follows their separators. `parse_free` checks the rules that the grammar does not enforce.
        """
        schema, fault = domain.schema, ""
        if domain.is_string and schema.keys().isdisjoint(PATTERN_KEYS) and schema.get("format") not in FORMATS:
            low = min(schema.get("minLength", 0), MAX_COUNT)
            high = min(schema["maxLength"], MAX_COUNT) if "maxLength" in schema else ""
            characters = UNESCAPED if quoted else ANY_CHARACTER
            return f"{PLAIN_TEXT}start: TEXT\nTEXT: /(?:{characters}){{{low},{high}}}/\n"
        prefix = JSON_TEXT if domain.is_string else ""
        for mask in compile_masks(domain, where, "" if domain.is_string else space):
            if not (fault := self._compile_error(f"{prefix}{mask.grammar}")):
                return f"{prefix}{mask.grammar}"
        raise undecodable(where, fault)

    def _compile_error(self, grammar: str) -> str:
        """Return why llguidance cannot decode values of a grammar; an empty text if it can."""
        ahead = self.matcher(grammar).deep_copy()
        if not ahead.is_error():
            ahead.consume_tokens(ahead.compute_ff_tokens())
            ahead.compute_bitmask()  # llguidance checks some limits only when it computes a mask
        return engine_error(ahead) if ahead.is_error() else ""

    def check(self, grammar: str, limit: int, where: str) -> None:
        """Raise UserError if every value of the grammar has more than `limit` tokens (for JSON plus MAX_ENDING)."""
        text = grammar.startswith((PLAIN_TEXT, JSON_TEXT))
        end = self.start(grammar, limit, where).find_ending(limit + MAX_ENDING * (not text))
        # For JSON with a pattern the search may miss a possible end, so do not raise an error.
        if end is None and (text or '"pattern' not in grammar):
            problem = f"{where}: no value of at most {limit} tokens satisfies its schema."
            raise UserError(problem, "Relax the schema, give its properties shorter names, or allow more tokens.")

    def start(self, grammar: str, limit: int = MAX_TOKENS, where: str = "a free value") -> FreeValue:
        """Return an empty value, which may get `limit` tokens plus tokens that end it. `where` names it in errors."""
        machine = self.tables
        inside = grammar.startswith(JSON_TEXT)
        return FreeValue(self, grammar, limit, where, machine.unescaped if inside else None)

    def matcher(self, grammar: str) -> Any:
        """Return llguidance's matcher at the start of a value, cached by grammar."""
        first = self._first.get(grammar)
        if first is None:
            first = self._first[grammar] = self._new_matcher(grammar)
            if grammar.startswith(JSON_TEXT) and not first.is_error():
                first.consume_tokens([self.quote])
        return first

    def _new_matcher(self, grammar: str) -> Any:
        return self._library.LLMatcher(self.tables.tokens, grammar)

    def without_repeats(self, grammar: str, tokens: Sequence[int]) -> tuple[str, Any] | None:
        """Return a stricter grammar, in which no item of an array of unique items repeats a complete item of `tokens`,
        and its matcher after these tokens. Return None if the grammar would be the same, or rejects these tokens."""
        before, _, written = grammar.partition("%json ")
        text = bytes(self.tables.tokens.decode_bytes(list(tokens)))
        try:
            value = from_json(UNFINISHED_NUMBER.sub(b"", text), allow_partial=True)
        except ValueError:  # no part of the value is complete
            return None
        narrowed = f"{before}%json {json.dumps(without_repeats(json.loads(written), value))}\n"
        if narrowed == grammar:
            return None
        matcher = self._later(narrowed).deep_copy()
        return (narrowed, matcher) if matcher.try_consume_tokens(list(tokens)) == len(tokens) else None

    def bounded_matchers(self, grammar: str, tokens: Sequence[int]) -> Iterator[tuple[str, Any]]:
        """Yield stricter grammars, each with its matcher after these tokens. Strings with a pattern or format have a
        maximum length in them, which increases from grammar to grammar. Without this limit a string may never end."""
        before, _, written = grammar.partition("%json ")
        inside = grammar.startswith(JSON_TEXT)
        if '"pattern"' not in written and '"format"' not in written:
            return
        text = bytes(self.tables.tokens.decode_bytes(list(tokens)))  # these bytes may end within a character
        written_so_far = len(text.decode("utf-8", "ignore")) if inside else 0
        for more in (0, *(2**k for k in range(9))):
            bounded = f"{before}%json {json.dumps(_with_short_texts(json.loads(written), written_so_far + more))}\n"
            matcher = self._new_matcher(bounded)
            consumed_tokens = [self.quote] * inside + [*tokens]
            if not matcher.is_error() and matcher.try_consume_tokens(consumed_tokens) == len(consumed_tokens):
                yield bounded, matcher


class FreeValue:
    """A free value in progress: its tokens so far, and a matcher for the tokens that may follow.

    If `unescaped` is not None, the value is a JSON string without its quotes, and may end where a quote may follow.
    """

    def __init__(
        self, grammars: GrammarCompiler, grammar: str, limit: int, where: str, unescaped: np.ndarray | None = None
    ) -> None:
        self._grammars, self._grammar, self._limit = grammars, grammar, limit
        self._matcher = grammars.matcher(grammar).deep_copy()
        self._where, self._unescaped = where, unescaped
        self.tokens: list[int] = []
        self._has_sets = UNIQUE in grammar  # True if the grammar has arrays of unique items
        # For each complete item of such an array: (number of tokens, grammar, matcher) before the item.
        self._before: list[tuple[int, str, Any]] = []
        self._excluded: tuple[int, int] | None = None  # (number of tokens before the excluded token, this token)

    def exclude_token(self, token: int) -> None:
        """Exclude a token at the current position, because the value with it was illegal."""
        self._excluded = len(self.tokens), token

    def _may_end(self, matcher: Any) -> bool:
        """Return whether the value may end at the position of the matcher."""
        if self._unescaped is None:
            return bool(matcher.is_accepting())
        return bool(matcher.validate_tokens([self._grammars.quote]) == 1)

    def legal_tokens(self, ends: Any, null_id: int | None) -> np.ndarray:
        """Return a mask [vocabulary] of the tokens that may follow: tokens that the grammar allows, `ends` if the value
        may end, and `null_id` (if not None) at the start of the value.

        After `limit` tokens only `ends` are legal. Raises DecodeError if no token is legal.
        """
        legal = self._legal_mask(self._matcher)
        if self._matcher.is_error():
            reason = engine_error(self._matcher)
            raise DecodeError(f"{self._where}: computing the legal tokens takes too long ({reason})")
        if len(self.tokens) >= self._limit:
            legal[:] = False
        legal[ends] = self._may_end(self._matcher)
        if null_id is not None and not self.tokens:
            legal[null_id] = True
        if self._excluded is not None and self._excluded[0] == len(self.tokens):
            legal[self._excluded[1]] = False
        if not legal.any():
            raise DecodeError(f"{self._where}: the value did not end within {len(self.tokens)} tokens")
        return legal

    def _legal_mask(self, matcher: Any) -> np.ndarray:
        """Return a mask [vocabulary] of the tokens that the grammar allows next."""
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        legal = np.unpackbits(bits, bitorder="little")[: self._grammars.vocabulary].view(bool)
        legal[self._grammars.special] = False
        return legal if self._unescaped is None else legal & self._unescaped

    def push(self, *tokens: int) -> None:
        self._matcher.consume_tokens(tokens)
        self.tokens += tokens
        if self._has_sets and (narrowed := self._grammars.without_repeats(self._grammar, self.tokens)):
            self._before.append((len(self.tokens), self._grammar, self._matcher))
            self._grammar, self._matcher = narrowed

    def pop(self, count: int) -> None:
        """Remove the last `count` tokens."""
        consumed, rest = len(self.tokens), len(self.tokens) - count
        while self._before and self._before[-1][0] > rest:
            consumed, self._grammar, self._matcher = self._before.pop()
        if count:
            self._matcher.rollback(consumed - rest)
            del self.tokens[rest:]

    def push_forced(self) -> list[int]:
        """Append the tokens without an alternative (none if the value may end), or complete a value that has reached
        its limit. Return the appended tokens."""
        before = len(self.tokens)
        if before < self._limit and not self._may_end(self._matcher):
            self.push(*self._forced_tokens(self._matcher))
        if len(self.tokens) >= self._limit and not self._may_end(self._matcher):
            self.push(*(self.find_ending(MAX_ENDING) or ()))
        return self.tokens[before:]

    def _forced_tokens(self, matcher: Any) -> list[int]:
        """Return the tokens that must follow, because no other token is legal."""
        if self._unescaped is None:
            return list(matcher.compute_ff_tokens())
        tokens = self._grammars.tokenizer.encode(self._forced_text(matcher))
        return tokens if matcher.validate_tokens(tokens) == len(tokens) else []

    def forced_text(self) -> str:
        """Return the text that must follow; empty if the value may end."""
        return self._forced_text(self._matcher)

    def _forced_text(self, matcher: Any) -> str:
        if self._may_end(matcher):
            return ""
        text = str(matcher.compute_ff_bytes(), "utf-8", "ignore")
        return text if self._unescaped is None else re.split(r'["\\]', text)[0]

    def find_ending(self, max_tokens: int) -> list[int] | None:
        """Return at most `max_tokens` tokens that end the value, or None if the search fails.

        llguidance does not report how a value can end, so characters are tried in the order ENDING_ORDER.
        """
        bounded = self._grammars.bounded_matchers(self._grammar, self.tokens)
        for grammar, matcher in chain([(self._grammar, self._matcher)], bounded):
            ahead = copy(self)
            ahead.tokens, ahead._before = [*self.tokens], []
            ahead._grammar, ahead._matcher = grammar, matcher.deep_copy()
            if ahead._extend_to_end(len(self.tokens) + max_tokens):
                return ahead.tokens[len(self.tokens) :]
        return None

    def _extend_to_end(self, limit: int) -> bool:
        """Append tokens until the value may end; return whether it then has at most `limit` tokens."""
        while not self._may_end(self._matcher) and len(self.tokens) <= limit:
            legal = (i for i in self._grammars.tables.singles if self._matcher.validate_tokens([i]) == 1)
            if self._unescaped is not None:
                legal = (i for i in legal if self._unescaped[i])
            more = [*self._forced_tokens(self._matcher)] or [*islice(legal, 1)]
            if not more:
                return False
            self.push(*more)
        return self._may_end(self._matcher) and len(self.tokens) <= limit


def _with_short_texts(schema: Any, size: int) -> Any:
    """Return a schema in which strings with a pattern or format have at most `size` characters."""
    if isinstance(schema, list):
        return [_with_short_texts(part, size) for part in schema]
    if not isinstance(schema, dict) or "enum" in schema:
        return schema
    bounded: dict[str, Any] = {}
    for key, value in schema.items():
        named = key in ("properties", "patternProperties")
        bounded[key] = (
            {n: _with_short_texts(part, size) for n, part in value.items()} if named else _with_short_texts(value, size)
        )
    if bounded.keys().isdisjoint(("pattern", "format")):
        return bounded
    return {**bounded, "maxLength": min(bounded.get("maxLength", size), size)}


def _integer(digits: str) -> int:
    """Parse an integer. Raises ValueError if it does not fit in 64 bits."""
    number = int(digits)
    if not MIN_INTEGER <= number <= MAX_INTEGER:
        raise ValueError("an integer of more than 64 bits")
    return number


def _float(digits: str) -> float:
    """Parse a number, with minus zero as zero. Raises ValueError if it is not finite."""
    number = float(digits) + 0.0
    if not math.isfinite(number):
        raise ValueError("a number that is too large")
    return number


def parse_free(domain: FreeDomain, text: str) -> Any:
    """Parse decoded text, and return its typed value. Duplicates in lists of unique items are dropped. Raises
    DecodeError if the text is not JSON, or violates a rule of the schema that the grammar does not enforce."""
    value: Any = text
    if not domain.is_string:
        try:
            value = json.loads(text, parse_int=_integer, parse_float=_float)
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"{text!r} is not JSON ({error})") from None
        value = to_declared_types(value, domain.schema)
    if (fault := domain.validator.violation(value)) is not None:
        value = _drop_duplicates(value, domain.schema)
        fault = domain.validator.violation(value)
    if fault is not None:
        raise DecodeError(f"{text[:200]!r} violates its schema ({fault})")
    return value


def _drop_duplicates(value: Any, schema: Any) -> Any:
    """Return a value without duplicates in all lists whose schema has `uniqueItems`."""
    if not isinstance(schema, Mapping):
        return value
    for arm in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        value = _drop_duplicates(value, arm)
    if isinstance(value, list):
        first, rest = schema.get("prefixItems", ()), schema.get("items")
        items = [_drop_duplicates(v, first[i] if i < len(first) else rest) for i, v in enumerate(value)]
        return [v for i, v in enumerate(items) if v not in items[:i]] if schema.get("uniqueItems") else items
    if isinstance(value, Mapping):
        declared, rest = schema.get("properties", {}), schema.get("additionalProperties")
        return {k: _drop_duplicates(v, declared.get(k, rest)) for k, v in value.items()}
    return value
