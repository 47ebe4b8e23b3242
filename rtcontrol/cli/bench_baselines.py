"""`rtcontrol bench`: the decoder beside others' ways of deciding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.figures import JsonFile, show
from rtcontrol.envs.registry import agent_names

Decisions = Annotated[int, typer.Option(min=1, help="Decisions by each way, in turns.")]
QUICKER = "default: one or all, whichever is quicker now"
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of torch (default: the model's own).")]


def serving(
    cases: Annotated[list[str] | None, typer.Argument(metavar="[CASE]...", help="late, early, lander.")] = None,
    decisions: Decisions = 100,
    dtype: Annotated[str | None, typer.Option(help="fp32 or bf16 (default: both).")] = None,
    python: Annotated[Path | None, typer.Option(help="The interpreter that has vLLM.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help=f"Of ours ({QUICKER}).")] = None,
    vllm_threads: Annotated[int | None, typer.Option(min=1, help=f"Of vLLM in the same process ({QUICKER}).")] = None,
    backend: Annotated[str, typer.Option(help="vLLM's grammar: xgrammar or guidance.")] = "xgrammar",
    json_file: JsonFile = None,
) -> None:
    """One packed pass beside vLLM on the same weights: SimpleTool's way, its best form, and JSON under a grammar.

    `late` and `early`: random weights of 15 M parameters, four heads whose values have 8 tokens and are told apart by
    the last or the first of them, prompts of 365 tokens. `lander`: the bundled model on its own prompts. Text to typed
    call, in turns, in a process for each case.

    Examples:

      rtcontrol bench serving --python fleet/bin/python

      rtcontrol bench serving lander --dtype fp32 --threads 1 --json serving.json
    """
    from rtcontrol.bench import everything
    from rtcontrol.bench.serving import CASES, DTYPES, ServingOptions, python_with_vllm

    dtypes = (dtype,) if dtype else DTYPES
    options = ServingOptions(tuple(cases or CASES), dtypes, threads, vllm_threads, backend)
    found = python_with_vllm(python)
    show(lambda p: everything.serving(options, decisions, found, p), json_file)


def chat(
    agents: Annotated[
        list[str] | None, typer.Argument(metavar="[AGENT]...", help=f"{', '.join(agent_names())}.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A chat checkpoint (default: random weights, Qwen's tokenizer).")
    ] = None,
    decisions: Decisions = 60,
    threads: Threads = None,
    json_file: JsonFile = None,
) -> None:
    """Passes of a chat model's calls, arguments in sequence and in parallel, beside JSON token by token and JSON with
    forced tokens skipped. The random weights need $RTCONTROL_DATA with Qwen's tokenizer.

    Examples:

      rtcontrol bench chat

      rtcontrol bench chat lander --model path/to/Qwen2.5-0.5B-Instruct --json chat.json
    """
    from rtcontrol.bench import everything
    from rtcontrol.bench.situations import agent_of

    chosen = tuple(agent_of("", agent) for agent in agents or ())
    show(lambda p: everything.chat(model, chosen, decisions, threads, p), json_file)


def speculative(decisions: Decisions = 60, threads: Threads = None, json_file: JsonFile = None) -> None:
    """What guesses of a free value save: the prompt's text, or a smaller model's call, of whose tokens a pass verifies
    2, 3, 4 or all. Random weights that write given values: the mechanism's passes, tokens and milliseconds.

    Example: rtcontrol bench speculative --decisions 200 --json speculative.json
    """
    from rtcontrol.bench import everything

    show(lambda p: everything.speculative(decisions, threads, p), json_file)


COMMANDS = (serving, chat, speculative)
