"""Free values: strings, unbounded numbers, arrays and objects, decoded token by token under a grammar.

The grammar is llguidance's business: it gives, for each step, the tokens that may follow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import Free
from rtcontrol.models.schema.ending import Ending, filled, whole_text
from rtcontrol.models.schema.json_schema import as_declared, flattened
from rtcontrol.models.schema.numbers import LEAST, MOST
from rtcontrol.models.schema.scalar_grammar import Parts, Texts, possible, texts_of
from rtcontrol.models.schema.schema_grammar import SchemaGrammar
from rtcontrol.models.schema.validator import check_patterns

MAX_TOKENS = 64  # of one free value, unless said otherwise: it must end by then
ENDED = 256  # tokens that it may take to end JSON behind that
TEXT = "start: TEXT\nTEXT: "
ANY, UNQUOTED = "(?s:.)", r'[^"\\\x00-\x1f]'  # a character of a text; of one that stands in JSON's quotes as it is


_machines: WeakKeyDictionary[STTokenizer, dict[int, Any]] = WeakKeyDictionary()


class Grammars:
    """Compiles a grammar for each free domain once, at start-up."""

    def __init__(self, tokenizer: STTokenizer, vocabulary: int) -> None:
        import llguidance

        self._library, self.tokenizer, self.vocabulary = llguidance, tokenizer, vocabulary
        # Grammar text is bytes; control tokens can never be part of a value, so they get no bytes here but the end's.
        end = tokenizer.special_id("<|im_end|>") if "<|im_end|>" in tokenizer.specials else 0
        machines = _machines.setdefault(tokenizer, {})
        if vocabulary not in machines:  # of a vocabulary of 150,000 it takes a second and 40 MB
            machines[vocabulary] = llguidance.LLTokenizer(tokenizer.to_json(), n_vocab=vocabulary, eos_token=end)
        self._machine = machines[vocabulary]
        self._begun: dict[str, Any] = {}  # by grammar: to copy one takes less than to make it
        self._endings: dict[str, Ending] = {}
        self.special = np.array([tokenizer.special_id(t) for t in tokenizer.specials], np.int64)

    def compile(self, domain: Free, where: str, quoted: bool = False, space: str = "") -> str:
        """The grammar text of a domain; raises UserError (`where` names tool and argument) when its schema has none.

        A `quoted` string stands in JSON's quotes and holds nothing that JSON would escape. `space` is before JSON, and
        behind its separators. What the grammar does not know is checked when the value is whole (`parse_free`).
        """
        check_patterns(domain.rules or domain.schema, where)
        one = UNQUOTED if quoted else ANY
        if domain.is_string:
            each = dict.fromkeys(t for t in map(texts_of, flattened(domain.schema)) if possible(t, one))
            if not each:
                raise UserError(f"{where}: no text matches its schema's pattern, format and length.", "Loosen them.")
            # All that holds of them; where that is too much for the library, what does in any case.
            ways = dict.fromkeys((tuple(each), (texts_of(domain.schema),)))
            made = [(_text(way, one), Ending(Parts(dict.fromkeys(way)), self.tokenizer.encode, one)) for way in ways]
        else:
            try:
                read = SchemaGrammar(domain.schema, where, space)
            except RecursionError:
                what = f"{where}: its schema has too many properties, or too many levels."
                raise UserError(what, "Describe a smaller value.") from None
            made = [(read.text, Ending(read.parts, self.tokenizer.encode))]
        error = ""
        for grammar, ending in made:
            if not (error := self._error(grammar)):
                self._endings[grammar] = ending
                return grammar
        raise UserError(
            f"{where}: its schema cannot be decoded ({error.strip().splitlines()[0][:200]}).",
            "Use a plain type, bounds or an enum, or shorter patterns.",
        )

    def _error(self, grammar: str) -> str:
        """What the library says against it, nothing: it takes it."""
        error = self._library.LLMatcher.validate_grammar(grammar, self._machine)
        if not error:
            self._matcher(grammar).compute_bitmask()  # what takes more than the library spends on a token, says so now
            error = self._matcher(grammar).get_error()
        return str(error or "")

    def check(self, grammar: str, limit: int, where: str) -> None:
        """UserError where no value of the grammar has so few tokens; JSON may have more, of which most are forced."""
        most = limit + ENDED * (not grammar.startswith(TEXT))
        if self._endings[grammar].shortest(self._matcher(grammar), most) is None:
            told = f"{where}: no value of at most {limit} tokens satisfies its schema."
            raise UserError(told, "Loosen its rules, give its parts shorter names, or allow more tokens.")

    def start(self, grammar: str, limit: int = MAX_TOKENS, where: str = "a free value") -> FreeValue:
        """A value at its beginning, of at most `limit` tokens and what it takes to end it there; errors say `where`."""
        return FreeValue(self, self._matcher(grammar).deep_copy(), limit, self._endings[grammar], where)

    def _matcher(self, grammar: str) -> Any:
        """At the beginning of a value."""
        first = self._begun.get(grammar)
        if first is None:
            first = self._begun[grammar] = self._library.LLMatcher(self._machine, grammar)
        return first

    def bytes_of(self, tokens: Sequence[int]) -> bytes:
        """What they write: a token may be a part of a character."""
        return bytes(self._machine.decode_bytes(list(tokens)))


class FreeValue:
    """The tokens of one free value so far, and what may follow them."""

    def __init__(self, grammars: Grammars, matcher: Any, limit: int, ending: Ending, where: str) -> None:
        self._grammars, self._matcher, self._limit, self._ending = grammars, matcher, limit, ending
        self._where = where
        self.tokens: list[int] = []

    def legal(self, end_id: int, null_id: int | None) -> np.ndarray:
        """Which ids [vocabulary] may follow: `end_id` where the value may end, `null_id` (None: never) at its start.

        After `limit` tokens only the end may; raises DecodeError where it must not."""
        full = len(self.tokens) >= self._limit
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            told = str(self._matcher.get_error()).strip().splitlines()[0][:200]
            raise DecodeError(f"{self._where}: what may follow takes too long to find out ({told})")
        legal = np.unpackbits(bits, bitorder="little")[: self._grammars.vocabulary].view(bool)
        legal[self._grammars.special] = False
        if full:
            legal[:] = False
        legal[end_id] = self._matcher.is_accepting()
        if null_id is not None and not self.tokens:
            legal[null_id] = True
        if not legal.any():
            raise DecodeError(f"{self._where}: the value did not end within {len(self.tokens)} tokens")
        return legal

    def push(self, *tokens: int) -> None:
        self._matcher.consume_tokens(tokens)
        self.tokens += tokens

    def pop(self, count: int) -> None:
        """Take back the last tokens."""
        if count:
            self._matcher.rollback(count)
            del self.tokens[-count:]

    def forced(self) -> list[int]:
        """Push the text that must follow, in the tokenizer's own tokens, and none where the value may end; of a value
        that is too long the shortest end that is found."""
        before = len(self.tokens)
        if before < self._limit and not self._matcher.is_accepting():
            self.push(*self._matcher.compute_ff_tokens())
        if len(self.tokens) >= self._limit and not self._matcher.is_accepting():
            self.push(*self._rest())
        return self.tokens[before:]

    def text_after(self) -> str:
        """The text that must follow, none where the value may end."""
        return "" if self._matcher.is_accepting() else str(self._matcher.compute_ff_bytes(), "utf-8", "ignore")

    def _rest(self) -> list[int]:
        """Tokens that end the value; none where none are found."""
        ahead, raw = self._matcher.deep_copy(), self._grammars.bytes_of(self.tokens)
        whole: list[int] = []
        if whole_text(raw)[1]:  # the last token is the beginning of a character
            bits = np.unpackbits(np.frombuffer(ahead.compute_bitmask(), np.uint8), bitorder="little")
            legal = np.flatnonzero(bits[: self._grammars.vocabulary]).tolist()
            whole = filled(ahead, self._grammars.bytes_of, raw, legal)
            ahead.consume_tokens(whole)
            raw += self._grammars.bytes_of(whole)
        return [*whole, *(self._ending.of(ahead, whole_text(raw)[0]) or [])]


def _text(ways: Sequence[Texts], one: str) -> str:
    """The grammar of texts that are of one of these."""
    arms = [" & ".join(f"/{r}/" for r in texts.regexes(one)) for texts in ways]
    return f"{TEXT}{arms[0] if len(arms) == 1 else ' | '.join(f'({arm})' for arm in arms)}\n"


def _integer(digits: str) -> int:
    """Raises ValueError for one that no message takes."""
    number = int(digits)
    if not LEAST <= number <= MOST:
        raise ValueError("an integer beyond 64 bits")
    return number


def parse_free(domain: Free, text: str) -> Any:
    """The typed value of decoded text by the declared type; raises DecodeError when it does not parse, or breaks a rule
    that the grammar does not know. What a set names twice it has once."""
    value: Any = text
    if not domain.is_string:
        try:
            value = json.loads(text, parse_int=_integer, parse_float=lambda digits: float(digits) + 0.0)
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"{text!r} is no JSON ({error})") from None
        value = as_declared(value, domain.schema)
    if (fault := domain.judge.fault(value)) is not None:
        value = _each_once(value, domain.schema)
        fault = domain.judge.fault(value)
    if fault is not None:
        raise DecodeError(f"{text[:200]!r} breaks its schema ({fault})")
    return value


def _each_once(value: Any, schema: Any) -> Any:
    """Without what stands twice where items are unique."""
    if not isinstance(schema, Mapping):
        return value
    for arm in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        value = _each_once(value, arm)
    if isinstance(value, list):
        first, rest = schema.get("prefixItems", ()), schema.get("items")
        items = [_each_once(v, first[i] if i < len(first) else rest) for i, v in enumerate(value)]
        return [v for i, v in enumerate(items) if v not in items[:i]] if schema.get("uniqueItems") else items
    if isinstance(value, Mapping):
        own, rest = schema.get("properties", {}), schema.get("additionalProperties")
        return {k: _each_once(v, own.get(k, rest)) for k, v in value.items()}
    return value
