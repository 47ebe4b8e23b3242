"""`rtcontrol bench speculative`: what a draft of a free value saves, by how many of its tokens a pass verifies.

Weights are random, so target and draft write what they are given (every pass is computed, then its answers are
replaced): the draft the target's value, with other tokens in WRONG of its places. Passes, tokens and milliseconds are
measured; that share is set, to about the acceptance that the paper reports.
"""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rtcontrol.bench.shapes import FIFTEEN, RANDOM, random_weights, small_vocabulary, some_words
from rtcontrol.bench.timing import Stopwatch, Turns, like, rotated
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import tools_text
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.decode.core import Drafts
from rtcontrol.models.decode.protocol import Runner, Work
from rtcontrol.models.in_flight import InFlightDecode, evaluate, result
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.scratch import ModelShape

DEPTHS = (2, 3, 4)  # the paper's
WRONG = 0.05
VALUE = 16  # tokens
WARM_UP = 3
SURE = 1e4  # logits
SMALL = ModelShape(hidden=96, layers=2, heads=3, kv_heads=1, intermediate=256)
TOOLS = [
    {
        "name": "say",
        "parameters": {
            "properties": {"words": {"type": "string", "maxLength": 400}, "loud": {"type": "boolean"}},
            "required": ["words", "loud"],
        },
    }
]
# By way: of a guess so many tokens a pass (None: all).
WAYS: dict[str, int | None] = {
    "none": None,
    "prompt": None,
    **{f"draft_{depth}": depth for depth in DEPTHS},
    "draft_whole": None,
}


class GivenRunner:
    """A runner whose model writes what it is given: a value's tokens by head token. One decision at a time."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.write({})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, values: Mapping[int, Sequence[int]]) -> None:
        """Of the decision that comes next."""
        self._values, self._paths = values, list[list[int]]()

    def run(self, batch: Sequence[Work]) -> list[list[Any]]:
        """The runner's answers, with the given token ahead of all others."""
        found = self._inner.run(batch)
        (tree,) = [work.tree for work in batch]
        base = len(self._paths)
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            self._paths.append([*(self._paths[parent] if parent >= 0 else ()), token])
        for ask, answers in zip(tree.asks, found[0], strict=True):
            for i, node in enumerate(ask.nodes):
                given = self._next(self._paths[base + node])
                if given is not None and ask.masks is None and given in ask.ids:
                    answers[i][ask.ids.index(given)] += SURE
                elif given is not None and ask.masks is not None and ask.masks[i][given]:
                    answers[i] = (given, 1.0)
        return found

    def _next(self, path: Sequence[int]) -> int | None:
        head, *begun = path
        value = self._values.get(head, ())
        return value[len(begun)] if list(value[: len(begun)]) == begun and len(begun) < len(value) else None


class GivenSession:
    """A model's decisions of what it is told to write, guessing as it is told to."""

    def __init__(self, folder: Path, threads: int | None) -> None:
        self.decider = STDecider(DeciderSpec(str(folder), tuple(TOOLS), threads=threads))
        self.runner = GivenRunner(self.decider.runner)
        self.core: Any = self.decider.decoding.core
        self.core.ahead = 0
        self._prefix = self.decider.template.prefix_ids(self.decider.plan.tools)

    def decide(self, told: str, value: Sequence[int], drafts: Drafts | None, depth: int | None, prompt: bool) -> Any:
        """The decision under way, done: with guesses of `drafts`, and of its `prompt`, of at most `depth` tokens."""
        head = self.decider.plan.heads[1]
        self.runner.write({head.head_id: [*value, head.end_id]})
        self.core.depth = depth
        suffix, handle = self.decider.template.suffix_ids(told, "now"), self.decider.decoding.handle
        reused = handle.start([*self._prefix, *suffix], self.core.reserve)
        fresh = len(self._prefix) + len(suffix) - reused
        begun = self.core.begin(drafts, suffix if prompt else ())
        one = InFlightDecode(begun, handle, threading.Event(), reused, fresh)
        result(evaluate(self.runner, [one]))
        one.decision()  # raises what ended it
        return begun


def bench_speculative(
    decisions: int,
    threads: int | None,
    progress: Callable[[int, int], None],
    shape: ModelShape = FIFTEEN,
    small: ModelShape = SMALL,
) -> dict[str, Any]:
    """Passes, tokens and milliseconds of each way: the decision, and the draft's own where there is one."""
    known, draw = some_words(), random.Random(0)
    tokenizer = small_vocabulary([tools_text(tool_schemas(TOOLS))])
    with tempfile.TemporaryDirectory(prefix="rtcontrol-bench-") as folder:
        target, draft = (
            GivenSession(random_weights(Path(folder, name), size, tokenizer), threads)
            for name, size in (("target", shape), ("draft", small))
        )
    watch = Stopwatch(target.decider.runner.model.device)  # type: ignore[attr-defined]
    turns = Turns(WAYS, WARM_UP)
    counts: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    encode = target.decider.tokenizer.encode
    with like(target.decider.runner) as used:  # type: ignore[arg-type]
        for i, _ in turns.over(range(decisions + WARM_UP)):
            words = draw.choices(known, k=VALUE)
            wrong = [draw.choice(known) if draw.random() < WRONG else word for word in words]
            value, guess, other = encode(" ".join(words)), encode(" ".join(wrong)), " ".join(draw.choices(known, k=9))

            def decided(way: str, words=words, value=value, guess=guess, other=other) -> Any:  # type: ignore[no-untyped-def]
                if way == "none":
                    return target.decide(other, value, None, None, False)
                if way == "prompt":
                    return target.decide(f"say {' '.join(words)}", value, Drafts(), None, True)
                call = draft.decide(other, guess, None, None, False).decision.call
                return target.decide(other, value, Drafts(call=call), WAYS[way], False)

            for way in rotated(WAYS, i):
                made, took = watch.time(lambda way=way, decided=decided: decided(way))  # type: ignore[misc]
                assert made.decision.call == Call("say", {"words": " ".join(words), **_rest(made)}), "what it is given"
                turns.add({way: took.wall_ms})
                if turns.counted:
                    guessed, right = made.guesses
                    told = {"passes": made.passes, "tokens": made.nodes, "guessed": guessed, "right": right}
                    counts[way].append(told)
            progress(i + 1, decisions + WARM_UP)
    mean = {way: {k: round(float(np.mean([c[k] for c in rows])), 2) for k in rows[0]} for way, rows in counts.items()}
    sizes = {name: {**one.decider.info(), "model": RANDOM} for name, one in (("target", target), ("draft", draft))}
    return {
        **turns.figures(),
        "counts": mean,
        "decisions": decisions,
        "value_tokens": VALUE,
        "wrong": WRONG,
        "threads": used,
        "info": sizes["target"],
        "draft": sizes["draft"],
    }


def _rest(made: Any) -> dict[str, Any]:
    """The argument that nobody gives."""
    return {"loud": made.decision.call.arguments["loud"]}
