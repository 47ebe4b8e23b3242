"""`rtcontrol bench equal`: are our packed calls those of Hugging Face's model, decoded token by token?

The judge knows nothing of our tries, masks, caches and walks: of each head it lists the legal values as token sequences
and lets transformers' model, in fp32 with its own cache, go on from the head token one token after another, always the
best of those that a legal value goes on with. A head is decoded alone, behind the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rtcontrol.bench.drawn import DECIDED, DrawnDecision, drawn
from rtcontrol.bench.dtype import NEAR, TOLERANCE
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS, FUNCTION, NULL, closing, opening
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.hf_runner import cache_name
from rtcontrol.models.runners.prefix_store import nothing_kept
from rtcontrol.models.runners.torch_runner import thread_limit
from rtcontrol.models.runners.weights import fingerprint
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import ABSENT, ToolSchema, tool_schemas

Values = dict[tuple[int, ...], Any]  # by the tokens that write them, the closing one included


@dataclass(slots=True)
class JudgedDecision:
    """What the judge calls, over how many forwards, and the smallest lead of a choice: in logits, and as a part of the
    largest score of those that were legal."""

    name: str
    arguments: dict[str, Any]
    forwards: int = 0
    lead: float = float("inf")
    relative: float = float("inf")

    @property
    def text(self) -> str:
        """The call."""
        return shown(self.name, self.arguments)


def shown(name: str, arguments: Any) -> str:
    """A call, so that 1 is not 1.0, nor true."""
    return json.dumps([name, dict(arguments)], sort_keys=True)


class TokenByToken:
    """transformers' model, in fp32."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        told: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True}
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder, **told, trust_remote_code=False
        ).eval()
        self._layers, self._tokenizer = cache_name(self._model.base_model), checkpoint.tokenizer
        self._prefix: tuple[Sequence[int], Any] | None = None

    @torch.no_grad()
    def decide(
        self, tools: Sequence[ToolSchema], prefix: Sequence[int], rest: Sequence[int], overflow: Any
    ) -> JudgedDecision:
        """A call of these tools, all of whose values are closed, behind a prompt in two parts: the first is computed
        once for all that begin with it."""
        if self._prefix is None or self._prefix[0] != prefix:
            self._prefix = prefix, self._states(prefix, None)[1]
        found = JudgedDecision("", {})
        _, behind = self._states(rest, deepcopy(self._prefix[1]))
        found.forwards += 1
        names: Values = {self._written(tool.name, FUNCTION): i for i, tool in enumerate(tools)}
        tool = tools[self._head(FUNCTION, names, behind, found)]
        found.name = tool.name
        for head, slot in zip(ARGUMENTS, tool.slots(overflow), strict=False):
            assert isinstance(slot.domain, ClosedDomain), "drawn tools have closed values alone"
            each = zip(slot.domain.texts, slot.domain.values, strict=True)
            values: Values = {self._written(text, head): value for text, value in each}
            values |= {(self._tokenizer.special_id(NULL),): null for null in slot.null}
            value = self._head(head, values, behind, found)
            if value is not ABSENT:
                found.arguments |= slot.arguments(value)
        return found

    def _states(self, ids: Sequence[int], cache: Any) -> tuple[torch.Tensor, Any]:
        """The state of the last of these tokens, and the cache that they are in now."""
        told = {} if cache is None else {self._layers: cache}
        out = self._model.base_model(torch.tensor([list(ids)]), use_cache=True, **told)
        return out.last_hidden_state[0, -1], out[self._layers]

    def _written(self, text: str, head: str) -> tuple[int, ...]:
        return (*self._tokenizer.encode(text), self._tokenizer.special_id(closing(head)))

    def _head(self, head: str, values: Values, behind: Any, found: JudgedDecision) -> Any:
        cache, token, written = deepcopy(behind), self._tokenizer.special_id(opening(head)), tuple[int, ...]()
        while written not in values:
            legal = sorted({v[len(written)] for v in values if v[: len(written)] == written})
            state, cache = self._states([token], cache)
            if len(legal) > 1:
                scores = (self._model.get_output_embeddings().weight[legal] @ state).tolist()
                best, second = sorted(scores, reverse=True)[:2]
                found.lead = min(found.lead, best - second)
                found.relative = min(found.relative, (best - second) / max(map(abs, scores)))
                legal = [legal[scores.index(best)]]
            found.forwards += 1
            token = legal[0]
            written = (*written, token)
        return values[written]


class Kept:
    """A file of what is judged: a line a decision, behind one that says of what. Raises UserError for another's."""

    def __init__(self, path: Path | None, of: dict[str, Any]) -> None:
        self.path, self.lines = path, dict[int, dict[str, Any]]()
        if path is None:
            return
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(of) + "\n", "utf-8")
            return
        try:
            first, *rest = path.read_text("utf-8").splitlines()
            known = json.loads(first)
            whole = [line for line in rest if line.endswith("}")]  # one that was cut off is judged again
            self.lines = {(one := json.loads(line))["number"]: one for line in whole}
            path.write_text("".join(f"{line}\n" for line in (first, *whole)), "utf-8")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read ({error}).", "Give another file with --keep.") from None
        if known != of:
            raise UserError(f"{path} is of another model, seed or dtype.", "Give another file with --keep.")

    def add(self, line: dict[str, Any]) -> None:
        """A decision more."""
        self.lines[line["number"]] = line
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def bench_equal(
    model: str,
    dtypes: Sequence[str],
    decisions: int,
    seed: int,
    threads: int | None,
    keep: Path | None,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """How many of so many drawn calls equal the judge's, by dtype, and the judge's smallest lead where they do not."""
    checkpoint = Checkpoint.open(model)
    of = {"fingerprint": fingerprint(checkpoint.folder), "seed": seed, "dtypes": list(dtypes)}
    kept = Kept(keep, of)
    missing = [(i, one) for i, one in enumerate(drawn(decisions, seed)) if i not in kept.lines]
    done = decisions - len(missing)
    progress(done, decisions)
    if missing:
        with nothing_kept(), thread_limit(threads):
            for line in _judged(checkpoint, model, dtypes, missing, threads):
                kept.add(line)
                done += 1
                progress(done, decisions)
    lines = [kept.lines[i] for i in range(decisions)]
    lengths, window = sorted(line["prompt_tokens"] for line in lines), checkpoint.config.get("sliding_window")
    return {
        "decisions": decisions,
        "seed": seed,
        "sets_of_tools": -(-decisions // DECIDED),
        "layers": checkpoint.config.get("num_hidden_layers"),
        "window": window,
        "prompt_tokens": [lengths[0], lengths[len(lengths) // 2], lengths[-1]],
        "beyond_window": sum(n > window for n in lengths) if window else 0,
        "arguments": sum(line["arguments"] for line in lines),
        "judges_forwards": sum(line["forwards"] for line in lines),
        "threads": threads,
        "dtypes": {dtype: _counted(lines, dtype) for dtype in dtypes},
    }


def _counted(lines: Sequence[dict[str, Any]], dtype: str) -> dict[str, Any]:
    """Of a dtype. Each call of fp32 that differs is told; of the others, whose scores are others, between which leads
    they lie."""
    near = NEAR if dtype == "fp32" else TOLERANCE
    others = [line for line in lines if dtype in line["others"]]
    leads = [line["relative"] for line in others]
    return {
        "equal": len(lines) - len(others),
        "tolerance": near,
        "near_ties": sum(line["relative"] <= near for line in lines),
        "differ_without_near_tie": sum(lead > near for lead in leads),
        "leads": [min(leads), max(leads)] if leads else None,
        "others": [
            {"ours": line["others"][dtype], **{k: line[k] for k in ("number", "judge", "lead", "relative")}}
            for line in others
            if dtype == "fp32"
        ],
    }


def _judged(
    checkpoint: Checkpoint,
    model: str,
    dtypes: Sequence[str],
    missing: Sequence[tuple[int, DrawnDecision]],
    threads: int | None,
) -> Iterator[dict[str, Any]]:
    judge, ours, known = TokenByToken(checkpoint), dict[str, STDecider](), tuple[dict[str, Any], ...]()
    loaded = [DeciderSpec(model, ({"name": "stop"},), dtype=d, threads=threads).build() for d in dtypes]  # stay so
    for number, one in missing:
        if one.tools != known:
            spec = {dtype: DeciderSpec(model, one.tools, dtype=dtype, threads=threads) for dtype in dtypes}
            ours, known = {dtype: made.build() for dtype, made in spec.items()}, one.tools
        template, tools = loaded[0].template, tool_schemas(one.tools)
        prompt = template.prefix_ids(tools), template.suffix_ids(one.instruction, one.observation)
        judged = judge.decide(tools, *prompt, template.overflow)
        calls = {dtype: decider.decide(one.observation, one.instruction).call for dtype, decider in ours.items()}
        told = {dtype: "null" if call is None else shown(call.name, call.arguments) for dtype, call in calls.items()}
        yield {
            "number": number,
            "judge": judged.text,
            "others": {dtype: text for dtype, text in told.items() if text != judged.text},
            "lead": judged.lead,
            "relative": judged.relative,
            "forwards": judged.forwards,
            "arguments": len(judged.arguments),
            "prompt_tokens": sum(map(len, prompt)),
        }
