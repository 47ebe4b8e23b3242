"""Free values: strings, unbounded numbers, arrays and objects, decoded token by token under a grammar.

The grammar is llguidance's business: it gives, for each step, the tokens that may follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from rtcontrol.models.domain import Free
from rtcontrol.models.engines.base import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.normal import as_declared
from rtcontrol.models.tokenizer import STTokenizer

MAX_TOKENS = 64  # of one free value, unless said otherwise: it must end by then
ENDINGS = ('"', "}", "]", ",", "0", "false", "null", "[", "{")  # of which the end of a too long value is made
TEXT = "start: TEXT\nTEXT: "
TRIED = 200  # beginnings of such an end
MAX_NUMBER = 10**15  # size of a number without any bound: larger ones would need an exponent
DEFAULT_LENGTH = 256


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
        self.special = np.array([tokenizer.special_id(t) for t in tokenizer.specials], np.int64)

    def compile(self, domain: Free, where: str, quoted: bool = False, space: str = "") -> str:
        """The grammar text of a domain; raises UserError (`where` names tool and argument) when its schema has none.

        A string's `pattern` must match the whole value; a `quoted` one stands in JSON's quotes and holds nothing that
        JSON would escape. Objects with `properties` have no others. `space` is before JSON, and behind its separators.
        """
        matcher = self._library.LLMatcher
        schema = dict(domain.schema)
        try:
            if domain.is_string:
                grammar = _string_grammar(schema, quoted)
            else:
                options = {"item_separator": f",{space}", "key_separator": f":{space}", "whitespace_flexible": False}
                text = json.dumps({**_decodable(schema), "x-guidance": options})
                spaced = f'start: "{space}" value\nvalue: %json {text}\n'
                grammar = spaced if space else matcher.grammar_from_json_schema(text)
            error = matcher.validate_grammar(grammar, self._machine)
        except ValueError as raised:
            error = str(raised)
        if error:
            raise UserError(
                f"{where}: its schema cannot be decoded ({str(error).splitlines()[0][:200]}).",
                "Use a plain type, bounds or an enum; in a pattern no look-around and no back-reference.",
            )
        return str(grammar)

    def start(self, grammar: str, limit: int = MAX_TOKENS, where: str = "a free value") -> FreeValue:
        """A value at its beginning, of at most `limit` tokens and what it takes to end it there; errors say `where`."""
        first = self._begun.get(grammar)
        if first is None:
            first = self._begun[grammar] = self._library.LLMatcher(self._machine, grammar)
        return FreeValue(self, first.deep_copy(), limit, grammar.startswith(TEXT), where)


class FreeValue:
    """The tokens of one free value so far, and what may follow them."""

    def __init__(self, grammars: Grammars, matcher: Any, limit: int, is_text: bool, where: str) -> None:
        self._grammars, self._matcher, self._limit, self._is_text = grammars, matcher, limit, is_text
        self._where = where
        self.tokens: list[int] = []

    def legal(self, end_id: int, null_id: int | None) -> np.ndarray:
        """Which ids [vocabulary] may follow: `end_id` where the value may end, `null_id` (None: never) at its start.

        After `limit` tokens only the end may; raises DecodeError where it must not."""
        full = len(self.tokens) >= self._limit
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
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
            self.push(*self._ending())
        return self.tokens[before:]

    def text_after(self) -> str:
        """The text that must follow, none where the value may end."""
        return "" if self._matcher.is_accepting() else str(self._matcher.compute_ff_bytes(), "utf-8", "ignore")

    def _ending(self) -> list[int]:
        """Tokens that close what is open: quotes and brackets, and where a value is missing the shortest."""
        queue, first, encode = [(self._matcher.deep_copy(), list[int]())], 0, self._grammars.tokenizer.encode
        while not self._is_text and first < len(queue) < TRIED:
            matcher, path = queue[first]
            first += 1
            legal = {t: i for t in ENDINGS if matcher.validate_tokens(i := encode(t)) == len(i)}
            inside = '"' in legal and "}" in legal and "0" in legal  # a text, which all of them may go on
            for tokens in [legal['"']] if inside else [*([] if path else [[]]), *legal.values()]:
                ahead = matcher.deep_copy()
                ahead.consume_tokens(tokens)
                while not ahead.is_accepting() and (forced := ahead.compute_ff_bytes()):
                    more = encode(forced.decode("utf-8", "ignore"))
                    if not (count := ahead.try_consume_tokens(more)):
                        break
                    tokens = [*tokens, *more[:count]]
                if ahead.is_accepting():
                    return [*path, *tokens]
                queue.append((ahead, [*path, *tokens]))
        return []


def _string_grammar(schema: Mapping[str, Any], quoted: bool) -> str:
    one = r'[^"\\\x00-\x1f]' if quoted else "."
    text = rf"/(?s:{one}{{{schema.get('minLength', 0)},{schema.get('maxLength', DEFAULT_LENGTH)}}})/"
    if pattern := schema.get("pattern"):
        # Between slashes: a bare slash is escaped, a line break written as one.
        slashes = re.sub(r"(\\.)|/", lambda m: m.group(1) or r"\/", pattern, flags=re.DOTALL).replace("\n", r"\n")
        text = f"/{slashes}/ & {text}"
    return f"{TEXT}{text}\n"


def _decodable(schema: Any) -> Any:
    """The schema as the grammar needs it: objects closed, numbers bounded on both sides (else one may be 1e999, or an
    integer that no message takes)."""
    if isinstance(schema, list):
        return [_decodable(s) for s in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {k: v if k in ("enum", "const", "default") else _decodable(v) for k, v in schema.items()}
    if isinstance(schema.get("properties"), Mapping) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    if schema.get("type") in ("number", "integer"):
        least = schema.get("minimum", schema.get("exclusiveMinimum"))
        most = schema.get("maximum", schema.get("exclusiveMaximum"))
        if least is None:
            found["minimum"] = -MAX_NUMBER if most is None else min(-MAX_NUMBER, most - MAX_NUMBER)
        if most is None:
            found["maximum"] = MAX_NUMBER if least is None else max(MAX_NUMBER, least + MAX_NUMBER)
    return found


def _integer(digits: str) -> int:
    """Raises ValueError for one that no message takes: where a schema has no type, a number has no bound."""
    number = int(digits)
    if not -(2**63) <= number < 2**64:
        raise ValueError("an integer beyond 64 bits")
    return number


def parse_free(domain: Free, text: str) -> Any:
    """The typed value of decoded text by the declared type; raises DecodeError when it does not parse."""
    if domain.is_string:
        return text
    try:
        value = json.loads(text, parse_int=_integer)
    except ValueError as error:
        raise DecodeError(f"{text!r} is no JSON ({error})") from None
    return as_declared(value, domain.schema)
