"""`rtcontrol bench decide`: compare methods of decoding a call: one packed pass, token by token, and generated JSON.

Each method has a session of the same model, and decides each situation; the order of the methods rotates. A method
reuses the cached tokens that the prompt shares with its previous prompt. A time is measured from the observation text
to the typed call, including tokenising and parsing. The lower bound ("floor") is a forward pass over the uncached
prompt tokens and only those tree nodes that lead to the call; everything else is prepared before the measurement.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import llguidance
import numpy as np

from rtcontrol.bench.situations import Situation, situations, tool_lists
from rtcontrol.bench.timing import Progress, Stopwatch, loop_conditions, rotated, summarize
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.draft_tree import FEW, ChoicePoint
from rtcontrol.models.decode.grammar import GrammarCompiler
from rtcontrol.models.decode.protocol import Budget, Runner, ScoreQuery, Tree, WorkItem
from rtcontrol.models.decode.walk import HeadNode
from rtcontrol.models.runners.packed import Node
from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.models.schema.tool_schema import ToolSchema

WARM_UP = 10
TOKEN_BY_TOKEN = {"token_by_token": Budget(1, forced=True), "token_by_token_skip_forced": Budget(1)}
JSON = ("json", "json_skip_forced")
WAYS = ("bare_forward", "one_pass", *TOKEN_BY_TOKEN, *JSON)


class DecideBench:
    """The benchmark of all decoding methods for one list of tools."""

    def __init__(self, spec: DeciderSpec) -> None:
        self._ways = {way: spec.build() for way in ("one_pass", *TOKEN_BY_TOKEN)}
        for way, budget in TOKEN_BY_TOKEN.items():
            self._ways[way].decoding.core.set_budget(budget)
        self._scout = spec.build()
        self.decider = decider = self._ways["one_pass"]
        assert isinstance(decider.runner, TorchRunner)
        self.runner = decider.runner
        self._prefix = decider.template.prefix_ids(decider.plan.tools)
        self._floor = self.runner.copy(decider.decoding.handle, self._prefix)
        self._json = {
            way: JsonWriter(self.runner, decider.tokenizer, decider.plan.tools, self._prefix, way == "json_skip_forced")
            for way in JSON
        }
        self._watch = Stopwatch(self.runner.model.device)
        self._round = 0

    def measure(self, situation: Situation) -> tuple[dict[str, float], dict[str, Any]]:
        """Let all methods decide one situation. Return milliseconds by method, and counts of tokens and passes."""
        texts = (situation.observation, situation.instruction)
        prompt = self._prompt(situation)
        call = self._scout.decide(*texts).call  # not measured; this decision selects the tree nodes of the floor
        walked = self._walked_nodes()
        assert call is not None, "the agents of benchmarks decide no null call"
        self._floor.start(prompt, len(walked))
        tokens, places, rows = self._floor.rows(walked)
        runs: dict[str, Callable[[], Any]] = {"bare_forward": lambda: self.runner.model.forward(tokens, places, [rows])}
        runs |= {way: partial(decider.decide, *texts) for way, decider in self._ways.items()}
        runs |= {way: partial(self._write, writer, situation, call) for way, writer in self._json.items()}
        times: dict[str, float] = {}
        results: dict[str, Any] = {}
        for way in rotated(runs, -self._round):
            results[way], times[way] = self._watch.time(runs[way])
        self._round += 1
        self._floor.record_pass(walked)
        decided: dict[str, Decision] = {way: results[way] for way in self._ways}
        calls = [*(decision.call for decision in decided.values()), *(results[way] for way in JSON)]
        one = decided["one_pass"]
        counts = {
            "agree": all(other == call for other in calls),
            "packed_tokens": one.tokens,
            "floor_tokens": len(prompt) - one.reused_tokens + len(walked),
            "least_tokens": decided["token_by_token_skip_forced"].tokens,
            **{f"{way}_passes": decision.forward_passes for way, decision in decided.items()},
            **{f"{way}_passes": writer.passes for way, writer in self._json.items()},
        }
        return times, counts

    def _write(self, writer: JsonWriter, situation: Situation, call: Call) -> Call:
        return writer.write(self._prompt(situation), call)

    def _prompt(self, situation: Situation) -> list[int]:
        return [*self._prefix, *self.decider.template.suffix_ids(situation.instruction, situation.observation)]

    def _walked_nodes(self) -> list[Node]:
        """Return the tree nodes at which the last decision of `_scout` chose a token, and the nodes above these."""
        nodes: list[Node] = []
        placed: dict[HeadNode, tuple[int, ...]] = {}
        for k, n in self._scout.decoding.visited_nodes:
            trie = self.decider.plan.heads[k].trie
            above: tuple[int, ...] = ()
            for node in (n[:end] for end in range(len(n) + 1)):
                if (k, node) not in placed:
                    placed[k, node] = (*above, len(nodes))
                    nodes.append(Node(trie.last_token(node), len(node), above))
                above = placed[k, node]
        return nodes


def measure(model: str, agent: str, dtype: str, decisions: int, progress: Progress) -> dict[str, Any]:
    """Return the result document of `bench decide` for the situations and tools of an agent.

    The lander's situations are also decided with the tools of `schemas/long.json`.
    """
    names = ("bundled", "long") if agent == "lander" else ("bundled",)
    each = situations(agent, decisions + WARM_UP)
    done = count(1)
    results: dict[str, Any] = {}
    for name in names:
        spec = DeciderSpec(model, tuple(tool_lists(agent)[name]), dtype=dtype)
        results[name] = bench_tools(spec, each, lambda: progress(next(done), len(names) * len(each)))
    return {"bench": "decide", "agent": agent, "model": model, "schemas": results}


def bench_tools(spec: DeciderSpec, each: Sequence[Situation], step: Callable[[], None]) -> dict[str, Any]:
    """Return percentiles and counts for one list of tools."""
    bench = DecideBench(spec)
    measured: list[tuple[dict[str, float], dict[str, Any]]] = []
    with loop_conditions(bench.runner) as threads:
        for situation in each:
            measured.append(bench.measure(situation))
            step()
            gc.collect(1)
    times, counts = zip(*measured[WARM_UP:], strict=True)
    return {
        "ms": summarize(WAYS, times),
        "tokens": {name: float(np.median([c[name] for c in counts])) for name in counts[0] if name != "agree"},
        "agreement": float(np.mean([c["agree"] for c in counts])),
        "decisions": len(counts),
        "threads": threads,
        "info": bench.decider.info(),
    }


class JsonWriter:
    """A baseline that generates calls as JSON text, with a forward pass for each token. If `skip`, tokens that the
    grammar of the tools forces have no separate pass: they are added to the pass of the next token with a choice."""

    def __init__(
        self, runner: Runner, tokenizer: STTokenizer, tools: Sequence[ToolSchema], prefix: Sequence[int], skip: bool
    ) -> None:
        self._runner, self._tokenizer, self._skip = runner, tokenizer, skip
        self._vocabulary = runner.caps.vocabulary
        self._handle, _ = runner.open(prefix)
        self._matcher = create_matcher(tokenizer, tools, self._vocabulary) if skip else None
        self.passes = self.nodes = 0  # forward passes and tokens of the last call

    def write(self, prompt: Sequence[int], call: Call) -> Call:
        """Generate `call` as JSON after `prompt`, and return the call parsed from the text."""
        self.passes = self.nodes = 0
        # The first pass starts with the prompt's last token, which gives the scores of the first generated token.
        self._handle.start(prompt[:-1], reserve=1)
        text = json.dumps(call.to_dict())
        generate = self._generate_choices if self._skip else self._generate_tokens
        return Call.from_dict(json.loads(self._tokenizer.decode(generate(prompt[-1], text))))

    def _generate_tokens(self, last: int, text: str) -> list[int]:
        written: list[int] = []
        for token in self._tokenizer.encode(text):
            self._run_pass([written[-1] if written else last], token)
            written.append(token)
        return written

    def _generate_choices(self, last: int, text: str) -> list[int]:
        assert self._matcher is not None
        matcher, chain = self._matcher.deep_copy(), [last]
        written: list[int] = []
        while True:
            forced = forced_tokens(matcher, self._tokenizer)
            written += forced
            chain += forced
            if matcher.is_accepting():
                return written
            token = self._tokenizer.encode(text[len(self._tokenizer.decode(written)) :])[0]
            stop = ChoicePoint(legal_tokens(matcher))
            if not stop.legal[token]:
                raise ValueError(f"{text!r} is not a text of the grammar at {token}")
            self._run_pass(chain, token, stop.few)
            matcher.consume_token(token)
            written.append(token)
            chain = [token]

    def _run_pass(self, chain: Sequence[int], token: int, few: Sequence[int] = ()) -> None:
        """Run a forward pass over `chain`, and choose `token` as the next token, from the tokens `few` or from all."""
        first, last = self.nodes, [len(chain) - 1]
        self.nodes = end = first + len(chain)
        if few:
            query = ScoreQuery(last, few)
        else:
            mask = np.zeros((1, self._vocabulary), np.bool_)
            mask[0, token] = True
            query = ScoreQuery(last, masks=mask)
        tree = Tree(chain, range(first - 1, end - 1), range(first, end), [query])
        ((scores,),) = self._runner.run([WorkItem(self._handle, tree)])[0]
        if len(scores) != len(few) if few else scores[0] != token:
            raise ValueError(f"the runner returned no scores of {few}, or not the token {token}")
        self.passes += 1


def create_matcher(tokenizer: STTokenizer, tools: Sequence[ToolSchema], vocabulary: int) -> Any:
    """Return a grammar matcher for the JSON texts of all calls of the tools, as `json.dumps` formats them."""
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps({**json_schema(tools), "x-guidance": options}))
    matching = llguidance.LLMatcher(GrammarCompiler(tokenizer, vocabulary).tables.tokens, grammar)
    if error := matching.get_error():
        raise ValueError(error)
    return matching


def legal_tokens(matcher: Any) -> np.ndarray:
    """Return a boolean array by token id: True if the token may come next."""
    return np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little").view(bool)


def forced_tokens(matcher: Any, tokenizer: STTokenizer) -> list[int]:
    """Return the tokens that the grammar forces next, and advance the matcher past them. If all legal tokens are
    prefixes of the same forced text, the longest of them counts as forced."""
    forced: list[int] = []
    while True:
        next_tokens = list(matcher.compute_ff_tokens())
        text = "" if next_tokens else matcher.compute_ff_bytes().decode(errors="ignore")
        if text and len(ids := np.flatnonzero(legal_tokens(matcher))) <= FEW:
            pieces = {tokenizer.decode([int(i)]): int(i) for i in ids}
            if all(map(text.startswith, pieces)):
                next_tokens = [pieces[max(pieces, key=len)]]
        if not next_tokens:
            return forced
        for token in next_tokens:
            matcher.consume_token(token)
        forced += next_tokens


def json_schema(tools: Sequence[ToolSchema]) -> dict[str, Any]:
    """Return the JSON Schema of all calls of these tools."""
    calls = []
    for tool in tools:
        arguments = {**tool.to_openai()["function"]["parameters"], "additionalProperties": False}
        body = {"name": {"const": tool.name}, "arguments": arguments}
        calls.append(
            {"type": "object", "properties": body, "required": ["name", "arguments"], "additionalProperties": False}
        )
    return {"anyOf": calls}
