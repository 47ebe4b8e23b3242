"""Quantise a checkpoint's weights with llmcompressor, which runs in a separate Python environment."""

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

from rtcontrol.models.checkpoint.checkpoint import is_chat_model, read_config
from rtcontrol.models.decider import STDecider
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.torch_runner import ONE_THREAD_BYTES

SCHEMES = ("awq", "gptq", "int8")
PYTHON = "RTCONTROL_QUANT_PYTHON"
GROUP_SIZES = (128, 64, 32)  # numbers of inputs that share a scale; the first that fits is used
COPIED_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "st_template.json")
INSTALL = (
    "llmcompressor needs other package versions than rtcontrol, so install it in another environment: `python -m venv "
    f"quant && quant/bin/pip install llmcompressor`, then set train.python=quant/bin/python (or {PYTHON})."
)


def calibration_sequences(decider: STDecider, situations: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Return token sequences for calibration: for each (observation, instruction) and each head, the prompt, the head
    token and the value that the model chooses."""
    ids = []
    prefix = decider.template.prefix_ids(decider.plan.tools)
    for observation, instruction in situations:
        call = decider.decide(observation, instruction).call
        prompt = [*prefix, *decider.template.suffix_ids(instruction, observation)]
        for head, text in decider.plan.head_values(call):
            value = [head.null_id] if text is None else [*decider.tokenizer.encode(text), head.end_id]
            ids.append([*prompt, head.head_id, *value])
    return ids


def find_interpreter(option: Path | None) -> Path:
    """Return the path of a Python interpreter with llmcompressor: `option`, else the environment variable PYTHON, else
    the interpreter of this process. Raises UserError if llmcompressor is not installed for it."""
    path = option or Path(os.environ.get(PYTHON) or sys.executable)
    check = "import importlib.util as u, sys; sys.exit(u.find_spec('llmcompressor') is None)"
    try:
        process = subprocess.run([str(path), "-c", check], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{path} is not a working Python interpreter ({error}).", INSTALL) from None
    if process.returncode:
        raise UserError(f"llmcompressor is not installed for {path}.", INSTALL)
    return path


def quantize(folder: Path, scheme: str, out: Path, ids: Sequence[Sequence[int]], python: Path) -> None:
    """Quantise the checkpoint in `folder` and write it to the new folder `out`. `ids` are the token sequences for
    calibration; `python` is the interpreter that has llmcompressor. Raises UserError."""
    group = check_quantization(folder, scheme, out)
    if not ids:
        raise UserError("There are no prompts for calibration.", "Give at least one prompt.")
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        file, fresh = Path(temporary, "job.json"), Path(temporary, "model")
        job = {"model": str(folder), "out": str(fresh), "scheme": scheme, "ids": [list(i) for i in ids], "group": group}
        file.write_text(json.dumps(job))
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        if weight_bytes(folder) < ONE_THREAD_BYTES:
            env.setdefault("OMP_NUM_THREADS", "1")  # one thread: 20 s instead of 203 s on two busy cores
        program = Path(__file__).with_name("quantizer.py")
        process = subprocess.run([str(python), str(program), str(file)], env=env, capture_output=True, text=True)
        if process.returncode:
            last = (process.stderr.strip().splitlines() or ["no message"])[-1]
            log = out.with_name(f"{out.name}.log")
            log.write_text(process.stdout + process.stderr)
            raise UserError(f"llmcompressor could not quantise {folder}: {last}", f"See its output in {log}.")
        for name in COPIED_FILES:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, fresh / name)
        _rewrite_without_nulls(fresh / "config.json")
        fresh.rename(out)


def check_quantization(folder: Path, scheme: str, out: Path) -> int:
    """Check the checkpoint, the scheme and `out`, and create the parent folder of `out`. Return how many inputs of a
    layer share a scale. Raises UserError."""
    config = read_config(folder)
    if scheme not in SCHEMES:
        raise UserError(f"Unknown scheme {scheme!r}.", f"Choose {', '.join(SCHEMES)}.")
    if is_chat_model(str(folder)):
        message = f"{folder} is a chat model, which this command cannot quantise."
        raise UserError(message, "Use another tool (docs/engines.md lists the supported formats), or an ST checkpoint.")
    if config.get("quantization_config"):
        raise UserError(f"{folder} is already quantised.", "Give the original checkpoint.")
    if out.exists():
        raise UserError(f"{out} already exists.", "Give a new folder.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}).", "Give another --out.") from None
    widths = [config[k] for k in ("hidden_size", "intermediate_size") if isinstance(config.get(k), int)]
    group = next((g for g in GROUP_SIZES if all(w % g == 0 for w in widths)), 0)
    if not group and scheme != "int8":
        why = f"its layer widths {', '.join(map(str, widths))} are not multiples of {GROUP_SIZES[-1]}"
        raise UserError(f"{folder} cannot be quantised to 4 bits: {why}.", "Choose the scheme int8.")
    return group


def _rewrite_without_nulls(path: Path) -> None:
    """Remove null fields from a config's quantisation settings, because older programs reject unknown fields."""

    def remove_nulls(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: remove_nulls(v) for k, v in value.items() if v is not None}
        return [remove_nulls(v) for v in value] if isinstance(value, list) else value

    config = json.loads(path.read_text("utf-8"))
    config["quantization_config"] = remove_nulls(config["quantization_config"])
    path.write_text(json.dumps(config, indent=2) + "\n")


def weight_bytes(folder: Path) -> int:
    """Return the size of a checkpoint's weight files in bytes."""
    return sum(p.stat().st_size for p in folder.glob("*.safetensors"))
