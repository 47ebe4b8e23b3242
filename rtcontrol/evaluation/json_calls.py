"""The baseline: the same model writes the call as JSON, token after token, each the likeliest.

The prompt is that of the heads. Writing ends where the JSON object does, at a token that ends a turn, or after so many
tokens; what the grammar of the tools forces is written in the pass of the next choice, and without the grammar every
token is a pass.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np

from rtcontrol.evaluation.answerers import Opened, loaded
from rtcontrol.evaluation.options import ModelOptions
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.chat_template import ChatTemplate
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.data.compression import Tokens
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.decode.draft_tree import FEW, Stop
from rtcontrol.models.decode.protocol import Ask, DecodeError, NotFinite, Tree, Work
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.predictions import Prediction
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

MOST = 512  # tokens of a call
ENDS = ("<|im_end|>", "<|endoftext|>", "</tool_call>", "<|eot_id|>", "</s>")
HISTORY = 6


@dataclass
class _Tools:
    """What is made once for a set of tools."""

    handle: Any
    template: Any
    prefix: list[int]
    grammar: Any


class JsonAnswerer:
    """Writes each row's call."""

    def __init__(self, options: ModelOptions) -> None:
        self._checkpoint, self._runner, told = loaded(options)
        if options.grammar and isinstance(self._checkpoint.template, ChatTemplate):
            raise UserError(
                f"{options.model} is a chat model: its JSON stands in a syntax of its own, which has no grammar here.",
                "Leave --grammar out; --way heads holds its calls to the tools.",
            )
        self.told: Mapping[str, Any] = {**told, "grammar": options.grammar}
        self.tokens: Tokens | None = Tokens(self._checkpoint.folder)
        self._grammar = options.grammar
        self._tokenizer, self._vocabulary = self._checkpoint.tokenizer, self._runner.caps.vocabulary
        special = self._tokenizer.specials
        self._ends = {self._tokenizer.special_id(token) for token in ENDS if token in special}
        free = np.ones(self._vocabulary, np.bool_)
        free[[i for t in special if (i := self._tokenizer.special_id(t)) not in self._ends]] = False
        self._free = Stop(free)
        learnt = TrainingMetadata.of(self._checkpoint.folder)
        self._history = HISTORY if learnt is None else min(HISTORY, learnt.history)
        self._opened = Opened[_Tools]()

    def answer(self, row: DataRow) -> Prediction:
        try:
            tools, opening_ms = self._opened.of(row.tools, lambda: self._open(row.tools))
            shown = row.history[-self._history :] if self._history else ()
            began = time.perf_counter()
            prompt = [*tools.prefix, *tools.template.suffix_ids(row.instruction, row.observation, shown)]
            tools.handle.start(prompt[:-1], reserve=1)
        except UserError as error:
            return Prediction(row.id, (), error=f"refused: {error.what}")
        try:
            written, passes, nodes, sure = self._write(tools, prompt[-1])
        except (DecodeError, UserError) as error:
            return Prediction(row.id, (), opening_ms=opening_ms, error=f"no call: {error}")
        call = read_call(self._tokenizer.decode(written))
        took_ms = (time.perf_counter() - began) * 1e3
        calls = () if call is None else (call,)
        wrong = None if call is not None else "no call was written"
        tokens = nodes + len(prompt) - 1 - len(tools.prefix)
        return Prediction(row.id, calls, {"call": sure}, took_ms, opening_ms, passes, tokens, len(written), wrong)

    def forget(self) -> None:
        self._opened.clear()

    def _open(self, tools: Sequence[Mapping[str, Any]]) -> _Tools:
        schemas = tool_schemas(list(tools))
        template = copy.copy(self._checkpoint.template)  # a chat template keeps the turn that it opened
        prefix = template.prefix_ids(schemas)
        handle, _ = self._runner.open(prefix)
        try:
            grammar = matcher(self._tokenizer, schemas, self._vocabulary) if self._grammar else None
        except (AssertionError, ValueError) as error:
            raise UserError(f"these tools have no grammar ({str(error)[:80]}).", "Leave --grammar out.") from None
        return _Tools(handle, template, prefix, grammar)

    def _write(self, tools: _Tools, last: int) -> tuple[list[int], int, int, float]:
        """The tokens, the passes, how many tokens went through these (the prompt's `last` among them), and the product
        of the choices' probabilities."""
        grammar = None if tools.grammar is None else tools.grammar.deep_copy()
        written, chain, passes, nodes, sure = list[int](), [last], 0, 0, 1.0
        while len(written) < MOST:
            stop = self._free
            if grammar is not None:
                certain = forced(grammar, self._tokenizer)
                written += certain
                chain += certain
                if grammar.is_accepting():
                    return written, passes, nodes, sure
                stop = Stop(legal(grammar)[: self._vocabulary])
            end = nodes + len(chain)
            # Few legal tokens are scored alone, as the heads' are.
            ask = Ask([len(chain) - 1], stop.few) if stop.few else Ask([len(chain) - 1], masks=stop.legal[None])
            tree = Tree(chain, range(nodes - 1, end - 1), range(nodes, end), [ask])
            ((found,),) = self._runner.run([Work(tools.handle, tree)])[0]
            best = stop.best(stop.few, found) if stop.few else found
            token, nodes, passes = int(best[0]), end, passes + 1
            sure *= float(best[1])
            if not np.isfinite(sure):
                raise NotFinite
            if token in self._ends:
                return written, passes, nodes, sure
            written.append(token)
            chain = [token]
            if grammar is not None:
                grammar.consume_token(token)
            elif "}" in self._tokenizer.decode([token]) and _is_whole(self._tokenizer.decode(written)):
                return written, passes, nodes, sure
        return written, passes, nodes, sure


def _is_whole(text: str) -> bool:
    """Whether a JSON object has just ended."""
    return text.rstrip().endswith("}") and _object(text) is not None


def _object(text: str) -> Any:
    """The first JSON object in a text, None where there is none that is whole."""
    begin = text.find("{")
    try:
        return json.JSONDecoder().raw_decode(text, begin)[0] if begin >= 0 else None
    except (ValueError, RecursionError):
        return None


def read_call(text: str) -> Call | None:
    """The first call in what was written: an object with a name, and arguments (or parameters)."""
    found = _object(text)
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    return Call(found["name"], arguments) if isinstance(arguments, dict) else None


def matcher(tokenizer: STTokenizer, tools: Sequence[ToolSchema], vocabulary: int) -> Any:
    """The grammar of all calls as `json.dumps` writes them."""
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps({**json_schema(tools), "x-guidance": options}))
    end = tokenizer.special_id("<|im_end|>") if "<|im_end|>" in tokenizer.specials else 0
    machine = llguidance.LLTokenizer(tokenizer.to_json(), n_vocab=vocabulary, eos_token=end)
    made = llguidance.LLMatcher(machine, grammar)
    assert not made.get_error(), made.get_error()
    return made


def legal(matcher: Any) -> np.ndarray:
    """Of each id whether it may come next."""
    return np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little").view(bool)


def forced(matcher: Any, tokenizer: STTokenizer) -> list[int]:
    """The tokens that must follow, which the matcher takes: what it is sure of, and where all that may come next only
    spells the same text in more or fewer tokens, the longest."""
    found: list[int] = []
    while True:
        certain = list(matcher.compute_ff_tokens())
        text = "" if certain else matcher.compute_ff_bytes().decode(errors="ignore")
        if text and len(ids := np.flatnonzero(legal(matcher))) <= FEW:
            pieces = {tokenizer.decode([int(i)]): int(i) for i in ids}
            if all(map(text.startswith, pieces)):
                certain = [pieces[max(pieces, key=len)]]
        if not certain:
            return found
        for token in certain:
            matcher.consume_token(token)
        found += certain


def json_schema(tools: Sequence[ToolSchema]) -> dict[str, Any]:
    """Of all calls of these tools, as JSON."""
    calls = []
    for tool in tools:
        arguments = {**tool.to_openai()["function"]["parameters"], "additionalProperties": False}
        body = {"name": {"const": tool.name}, "arguments": arguments}
        calls.append(
            {"type": "object", "properties": body, "required": ["name", "arguments"], "additionalProperties": False}
        )
    return {"anyOf": calls}
