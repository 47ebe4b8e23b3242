"""Test free values before a run: generate random values by their grammar, and count how many satisfy the rules that
are only checked after decoding."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from rtcontrol.models.decode.grammar import parse_free
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError, quoted_name
from rtcontrol.models.schema.domain import FreeDomain, json_text
from rtcontrol.models.schema.json_schema import normal_form
from rtcontrol.models.schema.mask import BOUNDS, MAX_CACHED, compile_mask
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.models.schema.validator import PatternError, all_parts, byte_matcher, matches_text, steps_taken

COUNT, FEWEST = 32, 8  # at most 32 values are generated per parameter; a result needs at least 8
MAX_BYTES = 400  # maximum bytes of a generated value
# Maximum choices of a byte for one tool (about 50 ms), and for all tools. STEPS steps of a check cost as much as one
# choice, and so does a sampled value for each CHARACTERS characters of its schema.
MAX_OF_TOOL, MAX_CHOICES, STEPS, CHARACTERS = 2_000, 10_000, 5, 500
OFTEN = 0.25  # the result names a parameter if a larger share of its values is illegal
MAX_LIKELY, MAX_PATTERNS = 32, 4  # maximum texts that probably satisfy a rule, and those for patterns and bounds
SHOWN = 240  # messages show at most this number of characters of a fault
LIKELIHOOD = 0.3  # probability with which such a text is tried instead of a byte
ENDS, OPENING, COMMA, DIGITS, LETTERS = b'"]}', b"[{", b",", b"0123456789", b"abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class ProbeResult:
    """The result for one parameter: how many of `count` random values are `legal`, which keywords are only `checked`
    after decoding, why one of the values is illegal (`fault`), and how many bytes were chosen (`choices`)."""

    count: int
    legal: int
    checked: tuple[str, ...]
    fault: str
    choices: int

    @property
    def fails_often(self) -> bool:
        return self.count >= FEWEST and self.count - self.legal > OFTEN * self.count

    def __str__(self) -> str:
        rules = ", ".join(f"`{key}`" for key in self.checked)
        share = f"{self.count - self.legal} of" if self.legal else "all"
        return f"{share} {self.count} random values violate {rules}, such as {self.fault}"


NO_RESULT = ProbeResult(0, 0, (), "", 0)


def unreliable_parameters(tools: Sequence[ToolSchema]) -> Iterator[tuple[ToolSchema, Parameter, ProbeResult]]:
    """Yield each parameter of which many random values are illegal, in at most about 50 ms for a tool."""
    rest = MAX_CHOICES
    for tool in tools:
        room = min(MAX_OF_TOOL, rest)
        for p in tool.parameters:
            if isinstance(p.domain, FreeDomain) and room > 0:
                written = json.dumps([p.domain.schema, p.rules], default=repr)
                if len(written) > MAX_CACHED:
                    continue
                probe = _probe_parameter(written)
                rest, room = rest - probe.choices, room - probe.choices
                if probe.fails_often:
                    yield tool, p, probe


def probe_hints(tools: Sequence[ToolSchema]) -> dict[str, list[str]]:
    """Return a list of hints for each tool name: its `unreliable_parameters`, and what to change."""
    hints: dict[str, list[str]] = {tool.name: [] for tool in tools}
    for tool, p, probe in unreliable_parameters(tools):
        hints[tool.name].append(
            f"parameter {p.name}: {probe}; such a call is a miss. Hint: relax this, or list values."
        )
    return hints


def check_probes(tools: Sequence[ToolSchema]) -> None:
    """Raise UserError if no random value of a required parameter is legal."""
    for tool, p, probe in unreliable_parameters(tools):
        if p.required and not p.nullable and not probe.legal:
            where = f"Tool {quoted_name(tool.name)}, parameter {quoted_name(p.name)}"
            hint = "Relax these rules, which are checked after decoding, or give a legal value in its `examples`."
            raise UserError(f"{where}: {probe}.", hint)


@lru_cache(maxsize=1024)
def _probe_parameter(written: str) -> ProbeResult:
    """Return the result for a parameter. `written` is its [schema, rules] as JSON."""
    schema, rules = json.loads(written)
    domain = FreeDomain(schema, rules=rules)
    try:
        mask = compile_mask(domain, "a probe")
    except UserError:  # a session refuses it by name
        return NO_RESULT
    if not mask.checked:
        return NO_RESULT
    matcher, rng = byte_matcher(mask.grammar), random.Random(0)
    likely, fault = _likely_texts(rules, rng), ""
    count = legal = choices = 0
    for example in (*rules.get("examples", ()), *([rules["default"]] if "default" in rules else ())):
        fits = domain.validator.accepts(example) and matches_text(matcher, json_text(example))
        count, legal = count + fits, legal + fits
    for _ in range(COUNT):
        text, chosen = _random_text(matcher, rng, likely, MAX_OF_TOOL // 2 - choices)
        choices += chosen + len(written) // CHARACTERS
        if text is None:
            continue
        count += 1
        try:
            parse_free(domain, json.loads(text) if domain.is_string else text)
            legal += 1
        except DecodeError as error:
            fault = fault or str(error)[:SHOWN]
        choices += steps_taken() // STEPS
        if choices >= MAX_OF_TOOL // 2:
            break
    return ProbeResult(count, legal, mask.checked, fault, choices)


def _likely_texts(rules: Mapping[str, Any], rng: random.Random) -> list[bytes]:
    """Return texts that the rules mention, and one text for each of their patterns and bounds."""
    texts: dict[str, None] = {}
    room = MAX_PATTERNS
    for part in all_parts(rules):
        values = [*part.get("enum", ())[:COUNT], *part.get("required", ()), *part.get("examples", ())]
        values += [part[key] for key in ("const", "default") if key in part]
        texts |= dict.fromkeys(map(json_text, values))
        if room and not part.keys().isdisjoint(("pattern", "multipleOf", *BOUNDS)):
            room -= 1
            typed = {"type": "string" if "pattern" in part else "integer", **part}
            try:
                mask = compile_mask(FreeDomain(normal_form(typed, "a rule")), "a rule")
                text, _ = _random_text(byte_matcher(mask.grammar), rng, (), MAX_BYTES)
            except (UserError, PatternError):
                continue
            texts |= {} if text is None else {text: None}
        if len(texts) >= MAX_LIKELY:
            break
    return [text.encode() for text in texts]


def _random_text(matcher: Any, rng: random.Random, likely: Sequence[bytes], room: int) -> tuple[str | None, int]:
    """Return a random text that the matcher accepts (None if it does not end within `room` choices of a byte), and the
    number of choices."""
    ahead, written, choices = matcher.deep_copy(), bytearray(), 0
    while len(written) < MAX_BYTES and choices < room and not ahead.is_error():
        if not (more := ahead.compute_ff_bytes()):
            choices += 1
            bits = np.frombuffer(ahead.compute_bitmask(), np.uint8)
            legal = np.flatnonzero(np.unpackbits(bits, bitorder="little")[:256]).tolist()
            if ahead.is_accepting() and (not legal or rng.random() < 0.5):
                return written.decode("utf-8", "ignore"), choices
            if not legal:
                break
            more = _next_bytes(ahead, legal, rng, likely)
        ahead.consume_tokens([*more])
        written += more
    return None, choices


def _next_bytes(matcher: Any, legal: Sequence[int], rng: random.Random, likely: Sequence[bytes]) -> bytes:
    """Return a likely text, or a random byte, which is of each kind (such as a digit) with the same probability."""
    if likely and rng.random() < LIKELIHOOD:
        text = rng.choice(likely)
        for more in (text, text.removeprefix(b'"')):  # the value may already have the quote
            if matcher.validate_tokens([*more]) == len(more):
                return more
    kinds = [[byte for byte in legal if byte in kind] for kind in (ENDS, OPENING, COMMA, DIGITS, LETTERS)]
    return bytes([rng.choice(rng.choice([*filter(None, kinds)] or [legal]))])
