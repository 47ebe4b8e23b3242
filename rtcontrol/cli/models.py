"""`rtcontrol models`: inspect, adopt, train and quantise checkpoints."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from rtcontrol.bridges.console import printable
from rtcontrol.cli import models_train
from rtcontrol.cli.figures import JsonFile, for_people, save
from rtcontrol.envs.registry import agent_names
from rtcontrol.models.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Inspect, adopt, train and quantise controller models.",
)


@app.command()
def info(
    model: Annotated[
        str | None, typer.Argument(help="Bundled name, folder or hub id (default: list the bundled).")
    ] = None,
) -> None:
    """What a checkpoint is: shape, tokenizer, prompt profile, size. Without a name, the bundled ones.

    Examples:

      rtcontrol models info

      rtcontrol models info lander
    """
    from rtcontrol.models.checkpoint.checkpoint import Checkpoint, resolve, zoo

    names = [model] if model else zoo()
    if not names:
        print("No bundled models in this installation.")
    for name in names:
        checkpoint = Checkpoint.open(name)
        config = checkpoint.config
        size = sum(f.stat().st_size for f in resolve(name).glob("*.safetensors"))
        shape = f"{config.get('num_hidden_layers')} layers of {config.get('hidden_size')}"
        about = f"{name}  {config.get('model_type')}, {shape}, {_parameters(checkpoint.folder):,} parameters"
        print(printable(about))
        vocabulary, profile = checkpoint.tokenizer.size, checkpoint.template.profile
        print(printable(f"    {size / 2**20:.1f} MiB, {vocabulary} tokens, prompt profile {profile}"))
        print(printable(f"    {checkpoint.folder}"))
        if model and (card := checkpoint.folder / "README.md").is_file():
            print(printable(f"    model card: {card}"))


@app.command()
def adopt(
    checkpoint: Annotated[
        str | None, typer.Argument(help="A published SimpleTool checkpoint: folder or hub id.")
    ] = None,
    template_from: Annotated[
        Path | None, typer.Option(help="The authors' server file (.py), or a text file with {tools_json}.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder or file to write to (default: beside the weights).")] = None,
    prompt_format: Annotated[
        str | None, typer.Option("--format", help="v1 (generic header) or v2 (domain prompts). (default: the file's)")
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(help="v2: the domain's prompt: text, a text file, or scenarios.json:NAME. (default: the file's)"),
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Make an ST checkpoint, to be trained, of this model: folder or hub id.")
    ] = None,
) -> None:
    """Give a published SimpleTool checkpoint its prompt template, or make any base model one of the ST format.

    The template goes beside the weights. With --base, the 17 ST tokens are added, embedded as the mean of related
    words, and the compact template; the result is for training: until then its calls are legal, and nonsense.

    Examples:

      rtcontrol models adopt RT-Qwen2.5-0.5B --template-from rt_server.py

      rtcontrol models adopt Cialtion/SimpleTool:RT-Qwen3-4B-AWQ-v2 --template-from 02_server.py --system "You fly."

      rtcontrol models adopt RT-Qwen3-4B-AWQ-v2 --template-from 02_server.py --system prompts/scenarios.json:game

      rtcontrol models adopt --base Qwen/Qwen2.5-0.5B --out my-st-base
    """
    from rtcontrol.models.checkpoint.checkpoint import resolve

    if (checkpoint is None) == (base is None):
        raise UserError("models adopt takes a published checkpoint, or --base.", "Give one of them.")
    if base is not None:
        if out is None or (template_from, prompt_format, system) != (None, None, None):
            raise UserError("--base goes with --out, and with no other option.", "Give a new folder with --out.")
        from rtcontrol.models.train.prepared import adopt_base

        made = adopt_base(resolve(base), out)
        print(
            f"Checkpoint: {made.folder} ({made.tokenizer.size} tokens, profile {made.template.profile}), to be trained."
        )
        return
    if template_from is None:
        raise UserError(
            "The template's text is the authors': it comes from a file of yours.",
            f"Give --template-from FILE; of a base model, --base {checkpoint} --out FOLDER.",
        )
    from rtcontrol.models.train.adopt import adopt as write

    assert checkpoint is not None
    print(f"Template: {write(resolve(checkpoint), template_from, out, prompt_format, system)}")


@app.command()
def quantize(
    model: Annotated[str, typer.Argument(help="Bundled name or checkpoint folder.")],
    scheme: Annotated[
        str, typer.Option(help="awq or gptq (4-bit weights), int8 (weights), w8a8 (weights and activations).")
    ],
    out: Annotated[Path, typer.Option(help="The new folder.")],
    agent: Annotated[
        str | None, typer.Option(help=f"Whose prompts it is calibrated and measured on: {', '.join(agent_names())}.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Observations to calibrate on.")] = 64,
    held_out: Annotated[int, typer.Option(min=1, help="Further observations, to measure the agreement on.")] = 200,
    engine: Annotated[str, typer.Option(help="What runs both when they are measured.")] = "torch",
    python: Annotated[Path | None, typer.Option(help="The interpreter that has llmcompressor.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Quantise a checkpoint with llmcompressor, on an agent's own prompts; then its size, and how often it decides as
    the original does.

    llmcompressor lives in an environment of its own; what was written runs with --engine torch (dequantised when it is
    loaded, activations not rounded) and vllm. What it gains in time on a GPU is not measured on a CPU.

    Example: rtcontrol models quantize lander --scheme gptq --out runs/lander-gptq --python quant/bin/python
    """
    from rtcontrol.bench.quantized import compare
    from rtcontrol.bench.situations import agent_of, schemas, situations
    from rtcontrol.models import quantize as work
    from rtcontrol.models.decider import DeciderSpec
    from rtcontrol.training.controllers import ENVS

    whose = agent_of(model, agent)
    spec = DeciderSpec(model, tuple(schemas(whose)["bundled"]), engine=engine)
    original = spec.build()
    folder = original.checkpoint.folder
    work.new_folder(folder, scheme, out)
    other = work.interpreter(python)
    asked = situations(whose, prompts + held_out)
    console = for_people(json_file)
    with console.status(f"quantising on {prompts} prompts of the {whose}"):
        ids = work.sequences(original, [(s.observation, s.instruction) for s in asked[:prompts]])
        work.quantize(folder, scheme, out, ids, other)
    with console.status("measuring"):
        found = compare(original, replace(spec, model=str(out)), asked[prompts:])
    table = Table("", "original", scheme, title=f"{held_out} other observations, engine {engine}")
    for name in ("mib", "weights"):
        table.add_row(name, *(str(found[side][name]) for side in ("original", "quantized")))
    table.add_row("same calls", "", f"{found['same']}/{found['asked']}")
    table.add_row("differ in a near-tie of the original", "", str(found["ties"]))
    console.print(table)
    save(json_file, {"model": model, "scheme": scheme, "agent": whose, "engine": engine, "prompts": prompts, **found})
    console.print(f"Checkpoint: {out}\nFly it: rtcontrol score --env {ENVS[whose]} --model {out}", soft_wrap=True)


for command in models_train.COMMANDS:
    app.command()(command)


def _parameters(folder: Path) -> int:
    from safetensors import safe_open

    count = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(str(path), framework="pt") as file:
            names = file.keys()  # not a dict
            count += sum(prod(file.get_slice(name).get_shape()) for name in names)
    return count
