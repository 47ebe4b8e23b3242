"""The commands of `rtcontrol models`: inspect, adopt, train and quantise checkpoints."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer

from rtcontrol.cli.command import CommandLine, command
from rtcontrol.cli.figures import console_for_tables, group, resumable_training, save, say
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.recipe import FinetuneRecipe, check_extras
from rtcontrol.settings import setting
from rtcontrol_client.console import printable

SHOWN_EVERY = 10  # number of training steps between two lines of progress
CALIBRATED, COMPARED = 64, 200  # numbers of situations: to calibrate quantised weights, and to compare decisions
app = group(help="Inspect, convert, train and quantise models.")


@command(app)
def info(
    model: Annotated[
        str | None, typer.Argument(help="Bundled name, folder or hub id. (default: all bundled models)")
    ] = None,
) -> None:
    """Show a checkpoint's shape, tokenizer, prompt profile and size. Without a name, list the bundled models.

    Examples: `rtcontrol models info`; `rtcontrol models info lander`
    """
    from rtcontrol.models.checkpoint.checkpoint import Checkpoint, bundled_models, resolve

    for name in [model] if model else bundled_models():
        checkpoint = Checkpoint.open(name)
        size = sum(f.stat().st_size for f in resolve(name).glob("*.safetensors"))
        print(
            printable(f"{name}  {_shape_text(checkpoint)}, {size / 2**20:.1f} MiB, {checkpoint.tokenizer.size} tokens")
        )
        print(printable(f"    prompt profile {checkpoint.template.profile}, {checkpoint.folder}"))


@command(app, ("template_from", "base", "out"))
def adopt(
    checkpoint: Annotated[
        str | None, typer.Argument(help="Folder or hub id of a published SimpleTool checkpoint.")
    ] = None,
    template_from: Path | None = setting("train", None, "The server file of the authors, or a text with {tools_json}."),
    base: str | None = setting("train", None, "Convert this model (folder or hub id) to an ST checkpoint."),
    out: Path | None = setting("train", None, "Folder or file to write. (default: next to the weights)"),
    system: str | None = setting("train", None, "Format v2: domain prompt, a text or file. (default: the file's)"),
) -> None:
    """Add a prompt template to a published SimpleTool checkpoint, or convert a base model to the ST format.

    The template is written next to the weights. With --base, the compact template and the 17 ST tokens are added. The
    embedding of a new token is the mean of related words, so the model must be trained before its calls make sense.

    Examples:

        rtcontrol models adopt Cialtion/SimpleTool:RT-Qwen3-4B-AWQ-v2 --template-from 02_server.py
        rtcontrol models adopt --base Qwen/Qwen2.5-0.5B --out my-st-base
    """
    from rtcontrol.models.checkpoint.checkpoint import resolve

    if (checkpoint is None) == (base is None):
        raise UserError("models adopt needs a published checkpoint or --base, not both.", "Give one of them.")
    if base is not None:
        if out is None or (template_from, system) != (None, None):
            raise UserError("--base needs --out, and excludes the other options.", "Give a new folder with --out.")
        from rtcontrol.models.train.adopt import adopt_base

        made = adopt_base(resolve(base), out)
        print(printable(f"Checkpoint: {made.folder}, {_shape_text(made)}, {made.tokenizer.size:,} tokens"))
        print(printable(f"To train it: rtcontrol models train --base {made.folder} --rows ROWS.jsonl --out RUN"))
        return
    if template_from is None:
        raise UserError("The prompt template must come from a file of the authors.", "Give --template-from FILE.")
    from rtcontrol.models.train.adopt import adopt as work

    print(f"Template: {work(resolve(str(checkpoint)), template_from, out, system)}")


@command(app)
def quantize(
    model: Annotated[str, typer.Argument(help="Bundled name or checkpoint folder.")],
    out: Annotated[Path, typer.Argument(help="The new folder.", show_default=False)],
    scheme: str = setting("train", "gptq", "awq or gptq (4-bit weights), int8 (8-bit weights)."),
    agent: str | None = setting("train", None, "Agent whose prompts calibrate the model. (default: the model's agent)"),
    python: Path | None = setting("train", None, "A Python with llmcompressor. (default: $RTCONTROL_QUANT_PYTHON)"),
) -> None:
    """Quantise a checkpoint with llmcompressor on an agent's prompts, and count how often its calls stay the same.

    llmcompressor needs a separate Python environment. The quantised checkpoint runs with host.engine vllm, or torch,
    which dequantises the weights when it loads them.

    Example: `rtcontrol models quantize lander runs/lander-gptq --set train.python=quant/bin/python`
    """
    from rtcontrol.bench.situations import agent_for_model, situations, tool_lists
    from rtcontrol.models import quantize as work
    from rtcontrol.models.decider import DeciderSpec

    whose = agent_for_model(model, agent)
    spec = DeciderSpec(model, tuple(tool_lists(whose)["bundled"]))
    original = spec.build()
    folder = original.checkpoint.folder
    work.check_quantization(folder, scheme, out)
    interpreter = work.find_interpreter(python)
    requests = [(each.observation, each.instruction) for each in situations(whose, CALIBRATED + COMPARED)]
    console = console_for_tables()
    with console.status(f"quantising with {CALIBRATED} prompts of the agent {whose}"):
        ids = work.calibration_sequences(original, requests[:CALIBRATED])
        work.quantize(folder, scheme, out, ids, interpreter)
    with console.status("comparing"):
        quantised = replace(spec, model=str(out)).build()
        pairs = ((original.decide(*each).call, quantised.decide(*each).call) for each in requests[CALIBRATED:])
        same = sum(first == second for first, second in pairs)
    before, after = (work.weight_bytes(path) / 2**20 for path in (folder, out))
    say(console, f"Checkpoint: {out}, {after:.1f} MiB ({model}: {before:.1f})")
    say(console, f"The call is the same in {same} of {COMPARED} other situations.")


@command(app, options=FinetuneRecipe, figures=True)
def train(
    options: FinetuneRecipe,
    line: CommandLine,
    base: Annotated[str, typer.Option(help="Base model: bundled name, folder or hub id.", show_default=False)],
    rows: Annotated[list[Path], typer.Option(help="JSONL file of rows; may be repeated.", show_default=False)],
    out: Annotated[
        Path, typer.Option(help="Folder of the training; that of a stopped training resumes it.", show_default=False)
    ],
) -> None:
    """Fine-tune a pretrained model (Qwen2, 2.5, 3, Llama) to the ST format by the recipe of docs/training.md.

    The result is a merged checkpoint for our engines, vLLM and SimpleTool's server. The same command resumes a stopped
    training. `rtcontrol settings train` lists the settings. Needs `pip install 'rtcontrol[train]'`.

    Examples:

        rtcontrol models train --base Qwen/Qwen2.5-0.5B-Instruct --rows xlam.jsonl --out runs/st-qwen
        rtcontrol models train --base runs/st-qwen/model --rows mobile.jsonl --set train.rank=64 --out runs/st-mobile
    """
    from rtcontrol.models.checkpoint.checkpoint import resolve

    check_extras()
    resolve(base)  # raises if the checkpoint is missing, before the slow imports

    from rtcontrol.models.train.finetune import TRAINING, FinetuneJob, finetune

    console = console_for_tables(line.json)

    def show_step(step: dict[str, Any]) -> None:
        if "resumed" in step:
            say(console, f"Resuming at step {step['resumed']} of {step['steps']}.")
        elif step["step"] % SHOWN_EVERY == 0 or step["step"] in (1, step["steps"]):
            say(console, f"step {step['step']}/{step['steps']}  loss {step['loss']:.4f}")

    with resumable_training(out, TRAINING):
        outcome = finetune(FinetuneJob(base, tuple(rows), out, options, options.drop_bad), show_step)
    for reason, count in outcome.rows.dropped.items():
        say(console, f"left out: {count} rows, {reason}")
    save(line.json, outcome.to_dict())
    say(console, f"Checkpoint: {outcome.model} ({outcome.steps} steps on {len(outcome.rows)} rows)")


def _shape_text(checkpoint: Any) -> str:
    """Return a text with the model's type, number and width of layers, and number of parameters."""
    from safetensors import safe_open

    config, count = checkpoint.config, 0
    for path in checkpoint.folder.glob("*.safetensors"):
        with safe_open(str(path), framework="pt") as file:
            names = file.keys()  # the file is not a dict, so it needs keys()
            count += sum(prod(file.get_slice(name).get_shape()) for name in names)
    layers, width = config.get("num_hidden_layers"), config.get("hidden_size")
    return f"{config.get('model_type')}, {layers} layers of {width}, {count:,} parameters"
