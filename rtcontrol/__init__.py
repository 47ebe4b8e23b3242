"""Real-time LLM function calling: the fixed-rate control loop, its deciders, its record, and the command line."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtcontrol.models import __version__
    from rtcontrol.models.call import Call, Decision
    from rtcontrol.models.decode.protocol import Cancelled, DecodeError
    from rtcontrol.models.errors import UserError
    from rtcontrol.run.api import Model
    from rtcontrol.training.fit import Fitted, fit

__all__ = [
    "Call", "Cancelled", "Decision", "DecodeError", "Fitted", "UserError", "__version__", "fit", "load",
]  # fmt: skip
_MODULES = {
    "__version__": "rtcontrol.models",
    **dict.fromkeys(("Call", "Decision"), "rtcontrol.models.call"),
    **dict.fromkeys(("Cancelled", "DecodeError"), "rtcontrol.models.decode.protocol"),
    **dict.fromkeys(("Fitted", "fit"), "rtcontrol.training.fit"),
    "UserError": "rtcontrol.models.errors",
}

# In a source tree that is not installed, the package `rtcontrol_client` is in the folder `bridges`.
_bridges = Path(__file__).resolve().parent.parent / "bridges"
if _bridges.is_dir() and find_spec("rtcontrol_client") is None:
    sys.path.append(str(_bridges))


def load(
    model: str,
    *,
    dtype: str = "auto",
    device: str | None = None,
    threads: int | None = None,
    engine: str = "torch",
    progress: bool = True,
) -> Model:
    """Load a model for decisions in Python: `rtcontrol.load("lander").session().decide(text, instruction)`.

    `model`: a bundled name, a checkpoint folder or a hub id. For the other arguments see `rtcontrol.run.api.Model`.
    Raises UserError."""
    from rtcontrol.run.api import Model

    return Model(model, dtype, device, threads, engine, progress)


def __getattr__(name: str) -> Any:
    # Import public names at their first use, because bridges (clients) need no model.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
