"""The packages that fine-tuning needs besides the core's."""

from __future__ import annotations

from importlib.util import find_spec

from rtcontrol.models.errors import UserError

NEEDED = ("accelerate", "peft")


def check(tensorboard: bool = False) -> None:
    """Raises UserError where one is missing, before anything is read or written."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(
            f"Fine-tuning needs {' and '.join(missing)}, not installed here.",
            "Install them: pip install 'rtcontrol[train]'.",
        )
    if tensorboard and find_spec("tensorboard") is None:
        raise UserError("tensorboard is not installed here.", "Install it: pip install tensorboard; or leave it out.")
