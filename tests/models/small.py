"""Small random checkpoints and schemas for the decoding laws, with Hugging Face transformers as the oracle."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from rtcontrol.models.call import Decision
from rtcontrol.models.checkpoint.prompt import COMPACT
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.decode.core import DecoderCore
from rtcontrol.models.decode.plan import ANY_TOOL, NO_TOOL, ROOT, SchemaPlan
from rtcontrol.models.decode.protocol import Budget, DecodeError, Runner
from rtcontrol.models.in_flight import Decoding
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import ABSENT, tool_schemas
from rtcontrol.models.train.export import export
from rtcontrol.models.train.vocabulary import add_st_tokens, build_tokenizer, number_words

WORDS = "go turn stop left right fast slow the of and red green blue north south value set get open close alpha beta"
KINDS = ("qwen2", "qwen3", "llama", "llama3")
NAMES = ("go", "turn_left", "turn_right", "set_value", "set_speed", "open", "stop", "close_the_red", "get_value")
VALUES = ("left", "right", "red", "green blue", "green red", "alpha beta go", "alpha beta stop", "zürich", "<|null|>")

TOLD = st.tuples(st.text(max_size=20), st.text(max_size=20))  # an observation and an instruction
NUMBERS = number_words(20, 0.2)
LONG = "RTCONTROL_LONG_LAWS"  # if set, the laws run with many examples
MARGIN = 1e-4  # choices with a smaller margin may differ by rounding (design, section 4)


def law(examples: int) -> settings:
    """Return settings for a property test: this many examples in the long run (marked slow) and for mutants, a quarter
    of them by default."""
    whole = bool(os.environ.get(LONG)) or settings.get_current_profile_name() == "mutants"
    most = examples if whole else -(-examples // 4)
    return settings(max_examples=most, deadline=None, suppress_health_check=list(HealthCheck))


@cache
def qwen(data: Path) -> STTokenizer:
    """Qwen2's tokenizer with the ST tokens."""
    base = Tokenizer.from_file(str(data / "qwen2_tokenizer" / "tokenizer.json"))
    add_st_tokens(base)
    return STTokenizer(base)


def tool(name: str, required: int = 99, **domains: Any) -> dict[str, Any]:
    """Return a tool whose parameters are schemas or lists of values, the first `required` of them required."""
    properties = {k: v if isinstance(v, dict) else {"enum": v} for k, v in domains.items()}
    return {"name": name, "parameters": {"properties": properties, "required": list(properties)[:required]}}


def build(folder: Path, tools: Sequence[dict[str, Any]], **options: Any) -> STDecider:
    return DeciderSpec(str(folder), tuple(tools), **options).build()


def over(decider: STDecider, runner: Runner, budget: Budget | None = None) -> STDecider:
    """Return the same decider on another runner."""
    hysteresis = decider.spec.hysteresis
    core = DecoderCore(decider.plan, decider.tokenizer, runner.caps.vocabulary, hysteresis=hysteresis)
    decider.runner = runner
    decider.decoding = Decoding(runner, core, decider.template.prefix_ids(decider.plan.tools), budget)
    decider.prefix = decider.decoding.prefix
    return decider


def prompt_of(decider: STDecider, observation: str, instruction: str) -> list[int]:
    return [*decider.template.prefix_ids(decider.plan.tools), *decider.template.suffix_ids(instruction, observation)]


def outcome(decider: STDecider, situation: tuple[str, str]) -> Any:
    """Return the decision, or the text of the DecodeError."""
    try:
        return decider.decide(*situation)
    except DecodeError as error:
        return str(error)


def shown(decision: Decision) -> Any:
    """Return the part of a decision that the oracle also gives."""
    return decision.call and (decision.call.name, dict(decision.call.arguments))


def build_checkpoint(
    folder: Path, kind: str = "qwen2", seed: int = 0, scale: float = 0.3, numbers: Sequence[str] = NUMBERS
) -> Path:
    """Create a random model whose logits are spread by `scale`, so that near-ties are rare. Without `numbers` the
    tokenizer writes numbers digit by digit."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer([WORDS, '{"type": "function", "name": "x", "parameters": {}}'], numbers)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    common: dict[str, Any] = {
        "vocab_size": size + 5,
        "max_position_embeddings": 2048,
        "initializer_range": scale,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }
    if kind == "qwen2":
        model: Any = hf.Qwen2ForCausalLM(hf.Qwen2Config(**common, tie_word_embeddings=True, use_sliding_window=False))
        with torch.no_grad():  # biases start at zero, which would hide a missing bias
            for layer in model.model.layers:
                for p in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                    p.bias.normal_(0, 0.3)
    elif kind == "qwen3":
        model = hf.Qwen3ForCausalLM(hf.Qwen3Config(**common, head_dim=16, tie_word_embeddings=False))
    elif kind == "llama3":
        rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0}
        rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 256}
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**common, rope_parameters=rope, tie_word_embeddings=False))
    else:
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**common, tie_word_embeddings=False))
    export(model, tokenizer, COMPACT, folder)
    return folder


def reconfigure(folder: Path, **changes: Any) -> Path:
    """Change keys of a checkpoint's config, or remove those whose value is `...`; return the folder."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    return folder


def plain_base(folder: Path, specials: Sequence[str], kind: str = "qwen2", **options: Any) -> Path:
    """Create a small model and a tokenizer with only these special tokens."""
    build_checkpoint(folder, kind, **options)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    first = content["added_tokens"][0]
    size = len(content["model"]["vocab"])
    content["added_tokens"] = [first | {"id": size + i, "content": name} for i, name in enumerate(specials)]
    path.write_text(json.dumps(content))
    (folder / "st_template.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    return folder


def parameter_schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for closed parameters of every kind."""
    return st.one_of(
        st.just({"type": "boolean"}),
        st.lists(st.sampled_from(VALUES), min_size=1, max_size=6, unique=True).map(lambda v: {"enum": v}),
        st.lists(st.integers(-30, 300), min_size=2, max_size=6, unique=True).map(lambda v: {"enum": v}),
        st.integers(0, 25).map(lambda n: {"type": "integer", "minimum": -3, "maximum": n}),
        st.sampled_from((0.25, 0.5, 0.1)).map(
            lambda s: {"type": "number", "minimum": 0, "maximum": 2, "multipleOf": s}
        ),
    )


@st.composite
def tool_lists(draw: st.DrawFn, most: int = 4, parameters: int = 4) -> list[dict[str, Any]]:
    """Draw one to `most` tools with closed parameters, some optional, some grouped."""
    tools = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=most, unique=True)):
        count = draw(st.integers(0, parameters))
        properties = {f"p{i}": dict(draw(parameter_schemas())) for i in range(count)}
        for schema in properties.values():
            if draw(st.integers(0, 9)) == 0:
                schema["x-group"] = "g"
        required = [p for p in properties if draw(st.booleans())]
        tools.append({"name": name, "parameters": {"type": "object", "properties": properties, "required": required}})
    # A group may have too many combinations of values.
    assume(all(isinstance(slot.domain, ClosedDomain) for tool in tool_schemas(tools) for slot in tool.slots()))
    return tools


@dataclass
class Oracle:
    """Constrained greedy decoding, token by token and head by head, by Hugging Face without our caches."""

    model: Any
    margin: float = float("inf")  # the smallest margin between the best two choices so far

    @classmethod
    def load(cls, folder: Path) -> Oracle:
        return cls(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """[length, vocabulary]"""
        with torch.no_grad():
            logits: torch.Tensor = self.model(torch.tensor([list(ids)])).logits[0]
        return logits

    def decide(self, plan: SchemaPlan, prompt: Sequence[int]) -> tuple[str, dict[str, Any]] | None:
        """Return (name, arguments), or None if the function head chooses null."""
        self.margin = float("inf")
        tool = self._head(plan, 0, prompt, 1 << ANY_TOOL, ANY_TOOL)
        if tool == NO_TOOL:
            return None
        arguments: dict[str, Any] = {}
        for k, slot in enumerate(plan.slots[tool], start=1):
            value = self._head(plan, k, prompt, 1 << tool, tool)
            if value is not ABSENT:
                arguments |= slot.arguments(value)
        return plan.tools[tool].name, arguments

    def _head(self, plan: SchemaPlan, k: int, prompt: Sequence[int], mask: int, tool: int) -> Any:
        trie = plan.heads[k].trie
        node = ROOT
        while legal := trie.legal_children(node, mask):
            row = self.logits([*prompt, trie.last_token(ROOT), *node])[-1]
            scores = [float(row[t]) for t, _ in legal]
            if len(scores) > 1:
                best, second = sorted(scores, reverse=True)[:2]
                self.margin = min(self.margin, best - second)
            _, node = legal[scores.index(max(scores))]
        return trie.value(node, tool)
