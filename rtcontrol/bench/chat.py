"""`rtcontrol bench chat`: the passes of a chat model's calls beside token-by-token JSON, in the same engine.

All ways are sessions of one model; they decide the same situations in turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from rtcontrol.bench.memory import DATA, QWEN, qwen_file
from rtcontrol.bench.shapes import RANDOM, random_weights
from rtcontrol.bench.situations import AGENTS, Situation, schemas, situations
from rtcontrol.bench.timing import Stopwatch, Turns, like, rotated, stepped
from rtcontrol.models.checkpoint.checkpoint import chats
from rtcontrol.models.decider import ARGUMENTS, DeciderSpec, STDecider
from rtcontrol.models.decode.protocol import Budget, PassCost
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.models.train.scratch import ModelShape

WARM_UP = 2
JSON = {"skip_forced": Budget(1), "token_by_token": Budget(1, 1, forced=True)}
WAYS = (*ARGUMENTS, *JSON)
SAME = ("sequential", *JSON)  # that give the same call
# In the turns and the call syntax of Qwen 2.5 and 3.
TEMPLATE = """{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% if loop.first and tools %}
Answer with a call within <tool_call></tool_call>, of one of these tools:
{%- for t in tools %}
{{ t | tojson }}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tokenizer_of_qwen() -> Path:
    """Raises UserError where it is not."""
    if (path := qwen_file()) is None:
        raise UserError(f"There is no Qwen tokenizer: ${DATA} names no folder with {QWEN}.", "Give --model CHECKPOINT.")
    return path


def random_chat(folder: Path, tokenizer: Path, shape: ModelShape | None = None) -> Path:
    """A chat checkpoint of random weights (the bundled models' shape) with somebody's tokenizer."""
    made = random_weights(folder, shape or ModelShape(), Tokenizer.from_file(str(tokenizer)), {"profile": "chat"})
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


def bench_chat(
    model: str | None, agents: Sequence[str], decisions: int, threads: int | None, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """By agent; without a model one of random weights with Qwen's tokenizer. Raises UserError."""
    step = stepped(progress, len(agents) * (decisions + WARM_UP))
    if model is not None and not chats(model):
        raise UserError(f"{model} is no chat model: it has ST tokens.", "Measure it with `rtcontrol bench decide`.")
    with tempfile.TemporaryDirectory(prefix="rtcontrol-bench-") as made:
        chosen = model or str(random_chat(Path(made, "chat"), tokenizer_of_qwen()))
        cases = {
            agent: bench_agent(chosen, schemas(agent)["bundled"], situations(agent, decisions + WARM_UP), threads, step)
            for agent in agents or AGENTS
        }
    for case in cases.values() if model is None else ():
        case["info"]["model"] = RANDOM
    return {"cases": cases}


def bench_agent(
    model: str,
    tools: Sequence[dict[str, Any]],
    asked: Sequence[Situation],
    threads: int | None = None,
    step: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Passes and milliseconds of each way for one list of tools."""

    def build(arguments: str) -> STDecider:
        return DeciderSpec(model, tuple(tools), arguments=arguments, threads=threads).build()

    sessions = {way: build(way) for way in ARGUMENTS}
    for way, budget in JSON.items():
        sessions[way] = build("sequential")
        sessions[way].decoding.core.adapt(budget, lambda: PassCost(1.0, 0.0))
    runner = sessions["sequential"].runner
    assert isinstance(runner, TorchRunner)
    watch, turns = Stopwatch(runner.model.device), Turns(WAYS, WARM_UP)
    passes, same = {way: list[int]() for way in WAYS}, list[bool]()
    with like(runner) as used:
        for i, one in turns.over(asked):
            found = {}
            for way in rotated(WAYS, i):
                decide = sessions[way].decide
                found[way], took = watch.time(lambda d=decide, one=one: d(one.observation, one.instruction))  # type: ignore[misc]
                turns.add({way: took.wall_ms})
            if turns.counted:
                for way, made in found.items():
                    passes[way].append(made.forward_passes)
                same.append(all(found[way].call == found["sequential"].call for way in SAME))
            step()
    return {
        "passes": {way: round(float(np.mean(counts)), 2) for way, counts in passes.items()},
        **turns.figures(),
        "decisions": len(same),
        "same_call": float(np.mean(same)),
        "threads": used,
        "info": sessions["sequential"].info(),
    }
