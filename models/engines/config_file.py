"""A checkpoint's `config.json`. Apart from the weights, so that reading it does not load torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` as a dict; raises UserError when the folder is no checkpoint."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{folder} is no checkpoint: it has no config.json.",
            "Give --model a name from `rtcontrol models info` or a folder in Hugging Face format.",
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'} cannot be read ({error}).", "Restore the checkpoint.") from None
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} is no JSON object.", "Restore the checkpoint.")
    return config
