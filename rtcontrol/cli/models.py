"""`rtcontrol models`: inspect, adopt, train and quantise checkpoints."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer

from rtcontrol.cli.figures import Device, JsonFile, for_people, group, interrupted, save, say
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import printable

TOLD_EVERY = 10  # steps
CALIBRATED, COMPARED = 64, 200  # situations that quantised weights are calibrated and compared on
app = group(help="Inspect, adopt, train and quantise controller models.")
Rows = Annotated[list[Path], typer.Option("--rows", help="JSONL rows; may stand several times.", show_default=False)]


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
    system: Annotated[
        str | None,
        typer.Option(help="Format v2: the domain's prompt, text or a text file. (default: the file's)"),
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

      rtcontrol models adopt --base Qwen/Qwen2.5-0.5B --out my-st-base

    """
    from rtcontrol.models.checkpoint.checkpoint import resolve

    if (checkpoint is None) == (base is None):
        raise UserError("models adopt takes a published checkpoint, or --base.", "Give one of them.")
    if base is not None:
        if out is None or (template_from, system) != (None, None):
            raise UserError("--base goes with --out, and with no other option.", "Give a new folder with --out.")
        _make_base(base, out)
        return
    if template_from is None:
        raise UserError(
            "The template's text is the authors': it comes from a file of yours.",
            f"Give --template-from FILE; of a base model, --base {checkpoint} --out FOLDER.",
        )
    from rtcontrol.models.train.adopt import adopt as write

    assert checkpoint is not None
    print(f"Template: {write(resolve(checkpoint), template_from, out, system)}")


def _make_base(base: str, out: Path) -> None:
    """Adopt a base model, and say what was made of it."""
    from rtcontrol.models.checkpoint.checkpoint import resolve
    from rtcontrol.models.train.adopt import adopt_base

    checkpoint = adopt_base(resolve(base), out)
    config = checkpoint.config
    shape = f"{config.get('model_type')}, {config.get('num_hidden_layers')} layers of {config.get('hidden_size')}"
    tokens = f"{checkpoint.tokenizer.size:,} tokens, profile {checkpoint.template.profile}"
    console = Terminal()
    say(console, f"Checkpoint: {checkpoint.folder}, to be trained")
    say(console, f"    {shape}, {_parameters(checkpoint.folder):,} parameters of {config.get('dtype')}, {tokens}")
    say(console, f"Train it: rtcontrol models train --base {checkpoint.folder} --rows ROWS.jsonl --out RUN")


@app.command()
def quantize(
    model: Annotated[str, typer.Argument(help="Bundled name or checkpoint folder.")],
    scheme: Annotated[str, typer.Option(help="awq or gptq (4-bit weights), int8 (8-bit weights).")],
    out: Annotated[Path, typer.Option(help="The new folder.")],
    agent: Annotated[str | None, typer.Option(help="Whose prompts calibrate it. (default: the model's)")] = None,
    python: Annotated[Path | None, typer.Option(help="The interpreter that has llmcompressor.")] = None,
) -> None:
    """Quantise a checkpoint with llmcompressor on an agent's own prompts; then count how often it decides as before.

    llmcompressor lives in an environment of its own. What it writes runs with --engine torch, which dequantises it on
    loading, and with vllm.

    Example: rtcontrol models quantize lander --scheme gptq --out runs/lander-gptq --python quant/bin/python
    """
    from rtcontrol.bench.situations import agent_of, schemas, situations
    from rtcontrol.models import quantize as work
    from rtcontrol.models.decider import DeciderSpec

    whose = agent_of(model, agent)
    spec = DeciderSpec(model, tuple(schemas(whose)["bundled"]))
    original = spec.build()
    folder = original.checkpoint.folder
    work.new_folder(folder, scheme, out)
    other = work.interpreter(python)
    requests = [(one.observation, one.instruction) for one in situations(whose, CALIBRATED + COMPARED)]
    console = for_people(None)
    with console.status(f"quantising on {CALIBRATED} prompts of the {whose}"):
        ids = work.sequences(original, requests[:CALIBRATED])
        work.quantize(folder, scheme, out, ids, other)
    with console.status("comparing"):
        quantised = replace(spec, model=str(out)).build()
        pairs = ((original.decide(*each).call, quantised.decide(*each).call) for each in requests[CALIBRATED:])
        same = sum(first == second for first, second in pairs)
    before, after = (work.size(path) / 2**20 for path in (folder, out))
    say(console, f"Checkpoint: {out}, {after:.1f} MiB ({model}: {before:.1f})")
    say(console, f"The same call in {same} of {COMPARED} other situations.")


@app.command()
def train(
    base: Annotated[
        str, typer.Option(help="Bundled name, folder or hub id, with ST tokens or without.", show_default=False)
    ],
    rows: Rows,
    out: Annotated[
        Path, typer.Option(help="The run's folder; one that was stopped goes on there.", show_default=False)
    ],
    config: Annotated[Path | None, typer.Option(help="A TOML or JSON file of settings of the recipe.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, in place of epochs.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Times that all rows are seen. (default: 3)")] = None,
    rank: Annotated[int | None, typer.Option(help="Of LoRA; alpha is twice that. (default: 512)")] = None,
    device: Device = None,
    dtype: Annotated[str | None, typer.Option(help="fp32 or bf16. (default: bf16)")] = None,
    seed: Annotated[int | None, typer.Option(help="Of LoRA's start, dropout and the rows' order. (default: 0)")] = None,
    drop_bad: Annotated[
        bool, typer.Option("--drop-bad", help="Leave out rows that cannot be represented, and count them.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Fine-tune a pretrained model (Qwen2, 2.5, 3, Llama, Gemma 3) to the ST format by the recipe of docs/finetune.md.

    Gives a merged checkpoint for our engines, vLLM and SimpleTool's server. The same command again
    goes on where it was stopped. Needs `pip install 'rtcontrol[train]'`.

    Examples:

      rtcontrol models train --base Qwen/Qwen2.5-0.5B-Instruct --rows xlam.jsonl --out runs/st-qwen

      rtcontrol models train --base runs/st-qwen/model --rows mobile.jsonl --rank 64 --out runs/st-mobile
    """
    from rtcontrol.models.checkpoint.checkpoint import resolve
    from rtcontrol.models.train.recipe import check_extras, recipe

    given = {"steps": steps, "epochs": epochs, "rank": rank, "device": device, "dtype": dtype, "seed": seed}
    made = recipe(config, **given)
    check_extras()
    resolve(base)  # what is not there is told before all else is loaded, which takes seconds

    from rtcontrol.models.train.finetune import TRAINING, Job, finetune

    console = for_people(json_file)

    def told(line: dict[str, Any]) -> None:
        if "resumed" in line:
            console.print(f"Goes on from step {line['resumed']} of {line['steps']}.", highlight=False)
        elif line["step"] % TOLD_EVERY == 0 or line["step"] in (1, line["steps"]):
            console.print(f"step {line['step']}/{line['steps']}  loss {line['loss']:.4f}", highlight=False)

    with interrupted(out, TRAINING):
        outcome = finetune(Job(base, tuple(rows), out, made, drop_bad), told)
    for reason, count in outcome.rows.dropped.items():
        console.print(f"left out: {count} rows, {reason}", soft_wrap=True, markup=False)
    save(json_file, outcome.to_dict())
    console.print(f"Checkpoint: {outcome.model} ({outcome.steps} steps on {len(outcome.rows)} rows)", soft_wrap=True)


def _parameters(folder: Path) -> int:
    from safetensors import safe_open

    count = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(str(path), framework="pt") as file:
            names = file.keys()  # not a dict
            count += sum(prod(file.get_slice(name).get_shape()) for name in names)
    return count
