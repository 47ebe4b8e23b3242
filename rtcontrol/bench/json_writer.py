"""The baseline that writes JSON in our own engine: `{"name": ..., "arguments": {...}}` token after token.

The model's choice is replaced by the tokens of the call that was decided: the cost is that of a model which writes
exactly this call. A pass scores the whole vocabulary at its last token, and where the grammar leaves few tokens these
alone, as the heads' do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import llguidance
import numpy as np

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.draft_tree import FEW, Stop
from rtcontrol.models.decode.protocol import Ask, Runner, Tree, Work
from rtcontrol.models.schema.tool_schema import ToolSchema


class JsonWriter:
    """Writes calls after a prompt, in a sequence of its own. `skip`: text that the tools' grammar forces costs no pass
    of its own, it shares that of the next choice; without, every token is a pass."""

    def __init__(
        self, runner: Runner, tokenizer: STTokenizer, tools: Sequence[ToolSchema], prefix: Sequence[int], skip: bool
    ) -> None:
        self._runner, self._tokenizer, self._skip = runner, tokenizer, skip
        self._vocabulary = runner.caps.vocabulary
        self._handle, _ = runner.open(prefix)
        self._matcher = matcher(tokenizer, tools, self._vocabulary) if skip else None
        self.passes = self.nodes = 0  # of the last call: passes, and tokens that went through them

    def write(self, prompt: Sequence[int], call: Call) -> Call:
        """Write `call` as JSON after `prompt`, parse it back."""
        self.passes = self.nodes = 0
        # The prompt's last token is the first whose scores are asked for.
        self._handle.start(prompt[:-1], reserve=1)
        text = json.dumps(call.to_dict())
        write = self._choices if self._skip else self._tokens
        return Call.from_dict(json.loads(self._tokenizer.decode(write(prompt[-1], text))))

    def _tokens(self, last: int, text: str) -> list[int]:
        written: list[int] = []
        for token in self._tokenizer.encode(text):
            self._pass([written[-1] if written else last], token)
            written.append(token)
        return written

    def _choices(self, last: int, text: str) -> list[int]:
        assert self._matcher is not None
        matcher, chain = self._matcher.deep_copy(), [last]
        written: list[int] = []
        while True:
            certain = forced(matcher, self._tokenizer)
            written += certain
            chain += certain
            if matcher.is_accepting():
                return written
            token = self._tokenizer.encode(text[len(self._tokenizer.decode(written)) :])[0]
            stop = Stop(legal(matcher))
            assert stop.legal[token], f"{text!r} is no text of the grammar at {token}"
            self._pass(chain, token, stop.few)
            matcher.consume_token(token)
            written.append(token)
            chain = [token]

    def _pass(self, chain: Sequence[int], token: int, few: Sequence[int] = ()) -> None:
        """Evaluate these tokens, and choose `token` behind them, of all or of a few."""
        first, last = self.nodes, [len(chain) - 1]
        self.nodes = end = first + len(chain)
        if few:
            ask = Ask(last, few)
        else:
            mask = np.zeros((1, self._vocabulary), np.bool_)
            mask[0, token] = True
            ask = Ask(last, masks=mask)
        tree = Tree(chain, range(first - 1, end - 1), range(first, end), [ask])
        ((found,),) = self._runner.run([Work(self._handle, tree)])[0]
        assert len(found) == len(few) if few else found[0] == token
        self.passes += 1


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
