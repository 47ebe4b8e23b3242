"""Free values: strings, unbounded numbers, arrays and objects, decoded token by token under a grammar.

The grammar is llguidance's business: it gives, for each step, the tokens that may follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rtcontrol.models.domain import Free
from rtcontrol.models.engines.base import DecodeError, NotFinite
from rtcontrol.models.errors import UserError
from rtcontrol.models.tokenizer import STTokenizer

MAX_TOKENS = 64  # of one free value: it must end by then
MAX_NUMBER = 10**15  # size of a number without any bound: larger ones would need an exponent
DEFAULT_LENGTH = 256


class Grammars:
    """Compiles a grammar for each free domain once, at start-up."""

    def __init__(self, tokenizer: STTokenizer, vocabulary: int) -> None:
        import llguidance

        self._library = llguidance
        self._tokenizer = tokenizer
        # Grammar text is bytes; control tokens can never be part of a value, so they get no bytes here but the end's.
        self._end = tokenizer.special_id("<|im_end|>") if "<|im_end|>" in tokenizer.specials else 0
        self._machine = llguidance.LLTokenizer(tokenizer.to_json(), n_vocab=vocabulary, eos_token=self._end)
        self._vocabulary = vocabulary
        self._special = np.array([tokenizer.special_id(t) for t in tokenizer.specials], np.int64)

    def compile(self, domain: Free, where: str) -> str:
        """The grammar text of a domain; raises UserError (`where` names tool and argument) when its schema has none.

        A string's `pattern` must match the whole value. Objects with `properties` have no others.
        """
        matcher = self._library.LLMatcher
        schema = dict(domain.schema)
        try:
            if domain.is_string:
                grammar = _string_grammar(schema)
            else:
                options = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
                grammar = matcher.grammar_from_json_schema(json.dumps({**_decodable(schema), "x-guidance": options}))
            error = matcher.validate_grammar(grammar, self._machine)
        except ValueError as raised:
            error = str(raised)
        if error:
            raise UserError(
                f"{where}: its schema cannot be decoded ({str(error).splitlines()[0]}).",
                "Use a plain type, bounds or an enum; in a pattern no look-around and no back-reference.",
            )
        return str(grammar)

    def start(self, grammar: str) -> FreeValue:
        """A cursor at the beginning of a value."""
        return FreeValue(self._library.LLMatcher(self._machine, grammar), self._vocabulary, self._end, self._special)


class FreeValue:
    """One free value under construction: which tokens may follow, and the choice among them."""

    def __init__(self, matcher: Any, vocabulary: int, end: int, special: np.ndarray) -> None:
        self._matcher, self._vocabulary, self._end, self._special = matcher, vocabulary, end, special
        self.tokens: list[int] = []
        self.confidence = 1.0

    def choose(self, logits: np.ndarray, end_id: int, null_id: int | None) -> int:
        """Pick the largest legal logit (ties: lowest id) of fp32 `logits` [vocabulary]; `end_id` is legal where the
        value may end, `null_id` (None: not legal) only at its start.

        Raises NotFinite, and DecodeError after `MAX_TOKENS` tokens."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        legal = np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(bool)
        legal[self._special] = False
        if self._matcher.is_accepting():
            legal[end_id] = True
        if null_id is not None and not self.tokens:
            legal[null_id] = True
        ids = np.flatnonzero(legal)
        if not len(ids) or len(self.tokens) >= MAX_TOKENS:
            raise DecodeError(f"a free value did not end within {len(self.tokens)} tokens")
        values = logits[ids].astype(np.float64)
        if not np.isfinite(values.sum()):
            raise NotFinite
        best = int(values.argmax())
        self.confidence /= float(np.exp(values - values[best]).sum())
        token = int(ids[best])
        if token not in (end_id, null_id):
            self._matcher.consume_token(token)
            self.tokens.append(token)
        return token


def _string_grammar(schema: Mapping[str, Any]) -> str:
    text = rf"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', DEFAULT_LENGTH)}}})/"
    if pattern := schema.get("pattern"):
        # Between slashes: a bare slash is escaped, a line break written as one.
        slashes = re.sub(r"(\\.)|/", lambda m: m.group(1) or r"\/", pattern, flags=re.DOTALL).replace("\n", r"\n")
        text = f"/{slashes}/ & {text}"
    return f"start: TEXT\nTEXT: {text}\n"


def _decodable(schema: Any) -> Any:
    """The schema as the grammar needs it: objects closed, numbers bounded (an unbounded one may be 1e999)."""
    if isinstance(schema, list):
        return [_decodable(s) for s in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {k: v if k in ("enum", "const", "default") else _decodable(v) for k, v in schema.items()}
    if isinstance(schema.get("properties"), Mapping) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    if schema.get("type") in ("number", "integer") and not any(b in schema for b in bounds):
        found |= {"minimum": -MAX_NUMBER, "maximum": MAX_NUMBER}
    return found


def parse_free(domain: Free, text: str) -> Any:
    """The typed value of decoded text by the declared type; raises DecodeError when it does not parse."""
    if domain.is_string:
        return text
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DecodeError(f"{text!r} is no JSON ({error})") from None
    return as_declared(value, domain.schema, domain.schema.get("$defs", {}))


def as_declared(value: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    """Numbers as their declared type: an integer literal for a `number` becomes a float, in nested places too."""
    if "$ref" in schema:
        schema = definitions.get(str(schema["$ref"]).rsplit("/", 1)[-1], {})
    kind = schema.get("type")
    if kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        return [as_declared(v, items, definitions) for v in value]
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        return {k: as_declared(v, properties.get(k, {}), definitions) for k, v in value.items()}
    return value
