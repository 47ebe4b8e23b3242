"""Small random chat checkpoints of each family of call syntax, and an oracle that lists every legal call as text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.runners import weights
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema
from tests.models.runners.test_transformers import ARCHITECTURES

ABSENT = object()
TURNS = """{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% if loop.first and tools %}
%TOLD%
{%- for t in tools %}
{{ t | tojson }}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# For each family: what its template says about calls, and its control tokens.
TOLD = {
    "hermes": ("Answer in <tool_call></tool_call>:", ("<tool_call>", "</tool_call>")),
    "llama3": ('Answer {"name": function, "parameters": dictionary}:', ()),
    "mistral": ("Answer in [TOOL_CALLS]:", ("[TOOL_CALLS]",)),
    "gemma": (
        "Answer in <start_function_call>:",
        ("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
}
# The architecture of each family.
KINDS = {"hermes": "qwen3", "llama3": "llama", "mistral": "mistral", "gemma": "gemma3"}
# The call syntax of each family by its documentation: text before and after the name, around a key, between and after #
# values.
SHOWN = {
    "hermes": ('<tool_call>\n{"name": "', '", "arguments": {', '"{}":', ", ", "}}\n</tool_call>"),
    "llama3": ('{"name": "', '", "parameters": {', '"{}":', ", ", "}}"),
    "mistral": ('[TOOL_CALLS][{"name": "', '", "arguments": {', '"{}":', ", ", "}}]"),
    "gemma": ("<start_function_call>call:", "{", "{}:", ",", "}<end_function_call>"),
}
CORPUS = [
    '{"name": "go", "arguments": {"speed": 70, "side": -50, "left": true, "x": null}}\n',
    '", "arguments": {"direction": "left turn"}} fast slow red green the of and',
    "call:go{direction:left,speed:70} user assistant system instruction observed",
]


def checkpoint(folder: Path, family: str, seed: int = 0) -> Path:
    """Create a random two-layer model whose tokenizer merges quotes, braces and spaces with text, as real ones do."""
    family_text, added = TOLD[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=seed % 2 == 0), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, min_frequency=1, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 20, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(list(added))
    torch.manual_seed(seed)
    size = tokenizer.get_vocab_size()
    hf.AutoModelForCausalLM.from_config(ARCHITECTURES[KINDS[family]](size)).save_pretrained(folder)
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = TURNS.replace("%TOLD%", family_text)
    fast.save_pretrained(folder)
    return folder


def engine_of(folder: Path) -> str:
    """Return the first engine that supports the checkpoint's architecture."""
    kind = json.loads((folder / "config.json").read_text("utf-8"))["model_type"]
    return "torch" if kind in weights.ARCHITECTURES else "transformers"


def build(folder: Path, tools: Sequence[dict[str, Any]], **options: Any) -> STDecider:
    return DeciderSpec(str(folder), tuple(tools), engine=engine_of(folder), **options).build()


def calls_of(tool: ToolSchema, most: int) -> list[dict[str, Any]]:
    """Return all legal arguments of a tool, but at most `most` + 1."""
    options = []
    for p in tool.parameters:
        assert isinstance(p.domain, ClosedDomain)
        options.append([*p.domain.values, *[None] * p.nullable, *([] if p.required else [ABSENT])])
    rows = itertools.islice(itertools.product(*options), most + 1)
    names = [p.name for p in tool.parameters]
    return [{n: v for n, v in zip(names, row, strict=True) if v is not ABSENT} for row in rows]


class Written:
    """Writes calls as text in a family's syntax, split at the values, independently of the code under test."""

    def __init__(self, decider: STDecider, family: str) -> None:
        self._decider, self._family = decider, family
        self._marks = ["<|im_start|>", "<|im_end|>", *TOLD[family][1]]

    def ids(self, text: str) -> list[int]:
        """Encode a text of the call syntax; control tokens keep their ids."""
        tokenizer, ids, rest = self._decider.tokenizer, list[int](), text
        while rest:
            at, mark = min(((i, m) for m in self._marks if (i := rest.find(m)) >= 0), default=(len(rest), ""))
            ids += tokenizer.encode(rest[:at]) if at else []
            ids += [tokenizer.special_id(mark)] if mark else []
            rest = rest[at + len(mark) :]
        return ids

    def pieces(self, tool: ToolSchema, arguments: dict[str, Any]) -> list[list[int]]:
        before, behind, key, between, end = SHOWN[self._family]
        gemma, encode = self._family == "gemma", self._decider.tokenizer.encode
        parts, left = [self.ids(before), encode(tool.name)], behind
        present = [p for p in tool.parameters if p.name in arguments]
        for p in present:
            value, quote, space = arguments[p.name], "<escape>" if gemma else '"', "" if gemma else " "
            written, text = left + key.replace("{}", p.name), isinstance(value, str)
            compact = (",", ":") if gemma else None
            shown = value if gemma and text else json.dumps(value, ensure_ascii=False, separators=compact)
            if text:  # the quote behind it belongs to what follows
                shown = value if gemma else shown[1:-1]
            if self.texts_only(p):
                parts += [self.ids(written + space + quote), encode(shown)]
            elif gemma:
                parts += [self.ids(written), [*self.ids(quote * text), *encode(shown)]]
            else:
                parts += [self.ids(written), encode(space + quote * text + shown)]
            left = quote * text + between
        return [*parts, self.ids((left.removesuffix(between) if present else left) + end)]

    @staticmethod
    def texts_only(p: Parameter) -> bool:
        assert isinstance(p.domain, ClosedDomain)
        return not p.nullable and all(isinstance(v, str) for v in p.domain.values)


def greedy(model: Any, prompt: Sequence[int], paths: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], float]:
    """Return the path of constrained greedy decoding, with one forward of the whole text per token, and the smallest
    margin of a choice."""
    left, done, margin = list(paths), list[int](), float("inf")
    while len(left) > 1:
        ids = sorted({path[len(done)] for path in left})
        chosen = ids[0]
        if len(ids) > 1:
            with torch.no_grad():
                scores = model(torch.tensor([[*prompt, *done]]), logits_to_keep=1).logits[0, -1].float()[ids]
            first, second = scores.topk(2).values.tolist()
            margin, chosen = min(margin, first - second), ids[int(scores.argmax())]
        done.append(chosen)
        left = [path for path in left if path[len(done) - 1] == chosen]
    return left[0], margin


def every(written: Written, tools: Sequence[ToolSchema], most: int) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield each legal call with its tokens."""
    for tool in tools:
        for arguments in calls_of(tool, most):
            pieces = written.pieces(tool, arguments)
            yield tuple(t for piece in pieces for t in piece), (tool.name, arguments)
