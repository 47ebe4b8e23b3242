"""Quantise a checkpoint's weights with llmcompressor in another environment, calibrated on the checkpoint's prompts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rtcontrol.models.checkpoint.checkpoint import chats, read_config
from rtcontrol.models.decider import STDecider
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.torch_runner import ONE_THREAD

SCHEMES = ("awq", "gptq", "int8")
PYTHON = "RTCONTROL_QUANT_PYTHON"
GROUPS = (128, 64, 32)  # inputs that share a scale: the most that divides all widths
COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "st_template.json")
INSTALL = (
    "It pins other versions than rtcontrol and needs another environment: `python -m venv quant && "
    f"quant/bin/pip install llmcompressor`, then train.python=quant/bin/python (or {PYTHON})."
)


def sequences(decider: STDecider, situations: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Return the model's inputs for each (observation, instruction): the prompt with each head and its chosen value."""
    ids = []
    prefix = decider.template.prefix_ids(decider.plan.tools)
    for observation, instruction in situations:
        call = decider.decide(observation, instruction).call
        prompt = [*prefix, *decider.template.suffix_ids(instruction, observation)]
        for head, text in decider.plan.head_values(call):
            value = [head.null_id] if text is None else [*decider.tokenizer.encode(text), head.end_id]
            ids.append([*prompt, head.head_id, *value])
    return ids


def interpreter(option: Path | None) -> Path:
    """Return the interpreter with llmcompressor: from the option, the environment, or this one. Raises UserError."""
    path = option or Path(os.environ.get(PYTHON) or sys.executable)
    check = "import importlib.util as u, sys; sys.exit(u.find_spec('llmcompressor') is None)"
    try:
        done = subprocess.run([str(path), "-c", check], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{path} is not an interpreter that runs ({error}).", INSTALL) from None
    if done.returncode:
        raise UserError(f"{path} has no llmcompressor.", INSTALL)
    return path


def quantize(folder: Path, scheme: str, out: Path, ids: Sequence[Sequence[int]], python: Path) -> None:
    """Write the checkpoint `folder`, quantised and calibrated on the token sequences `ids`, to the new folder `out`.
    Raises UserError."""
    group = new_folder(folder, scheme, out)
    if not ids:
        raise UserError("There is nothing to calibrate on.", "Give at least one prompt.")
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        file, fresh = Path(temporary, "job.json"), Path(temporary, "model")
        job = {"model": str(folder), "out": str(fresh), "scheme": scheme, "ids": [list(i) for i in ids], "group": group}
        file.write_text(json.dumps(job))
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        if size(folder) < ONE_THREAD:
            env.setdefault("OMP_NUM_THREADS", "1")  # of 203 s with two of two busy cores 20 were left
        program = Path(__file__).with_name("quantizer.py")
        done = subprocess.run([str(python), str(program), str(file)], env=env, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            log = out.with_name(f"{out.name}.log")
            log.write_text(done.stdout + done.stderr)
            raise UserError(f"llmcompressor could not quantise {folder}: {last}", f"Its output: {log}")
        for name in COPIED:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, fresh / name)
        _without_nulls(fresh / "config.json")
        fresh.rename(out)


def new_folder(folder: Path, scheme: str, out: Path) -> int:
    """Return how many inputs share a scale. Raises UserError for what cannot be quantised, or written."""
    config = read_config(folder)
    if scheme not in SCHEMES:
        raise UserError(f"Unknown scheme {scheme!r}.", f"Choose {', '.join(SCHEMES)}.")
    if chats(str(folder)):
        message = f"{folder} is a chat model: its prompts cannot be calibrated on here."
        raise UserError(message, "Quantise it elsewhere (docs/engines.md has what is read), or give an ST checkpoint.")
    if config.get("quantization_config"):
        raise UserError(f"{folder} is quantised already.", "Give the original.")
    if out.exists():
        raise UserError(f"{out} is there already.", "Give a folder that is not.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}).", "Give another --out.") from None
    widths = [config[k] for k in ("hidden_size", "intermediate_size") if isinstance(config.get(k), int)]
    fits = next((g for g in GROUPS if all(w % g == 0 for w in widths)), 0)
    if not fits and scheme != "int8":
        why = f"its widths {', '.join(map(str, widths))} are not multiples of {GROUPS[-1]}"
        raise UserError(f"{folder} has no groups of inputs for 4 bits: {why}.", "Choose int8.")
    return fits


def _without_nulls(path: Path) -> None:
    """Remove null fields, since older readers refuse unknown fields."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: kept(v) for k, v in value.items() if v is not None}
        return [kept(v) for v in value] if isinstance(value, list) else value

    config = json.loads(path.read_text("utf-8"))
    config["quantization_config"] = kept(config["quantization_config"])
    path.write_text(json.dumps(config, indent=2) + "\n")


def size(folder: Path) -> int:
    """Return the bytes of its weights."""
    return sum(p.stat().st_size for p in folder.glob("*.safetensors"))
