"""Find a checkpoint of the Hugging Face hub: one folder of a repository, from the local cache if that copy is
complete."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError

PART = r"[\w-][\w.-]*"
NAME = re.compile(rf"({PART}/{PART})(?::({PART}(?:/{PART})*))?")
KINDS = ("json", "safetensors", "jinja", "txt", "md", "model")


def is_id(model: str) -> bool:
    """Return whether a name has the form OWNER/NAME or OWNER/NAME:SUBFOLDER."""
    return NAME.fullmatch(model) is not None


def fetch(model: str, nowhere: str, others: str) -> Path:
    """Return the local folder of a hub id.

    A complete folder of the cache is used without network access, so that a start in the field changes nothing;
    anything else is downloaded, with progress. Raises UserError if that fails. The error starts with `nowhere` (the
    places already searched), and the hint with `others` (other ways to name a model).
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    match = NAME.fullmatch(model)
    assert match is not None, "it was looked at before"
    repository, inside = match[1], match[2] or ""
    # Download only one folder of a repository with several checkpoints: the named one, or the root.
    allowed = [f"{inside}/*.{kind}" if inside else f"*.{kind}" for kind in KINDS]
    patterns: dict[str, Any] = {"allow_patterns": allowed, "ignore_patterns": [f"{inside}/*/*" if inside else "*/*"]}
    with contextlib.suppress(Exception):  # the download reports any error
        folder = Path(snapshot_download(repository, local_files_only=True, **patterns)) / inside
        if _complete(folder):
            return folder
    try:
        folder = Path(snapshot_download(repository, **patterns)) / inside
        if _complete(folder):
            return folder
        names = [file.rfilename for file in HfApi().model_info(repository).siblings or ()]
    except Exception as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
        why = "is not asked, as HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"does not give it ({line})"
        include = f" --include '{inside}*'" if inside else ""
        raise UserError(
            f"{nowhere}; the hub ({constants.ENDPOINT}) {why}, nor is it whole in the cache "
            f"({constants.HF_HUB_CACHE}).",
            f"{others} For a private or gated one: `hf auth login`. Without a network: `hf download {repository}"
            f"{include}` on a machine that has one, and its ~/.cache/huggingface copied here ($HF_HOME).",
        ) from None
    have = sorted(name.rpartition("/")[0] for name in names if name.endswith("/config.json"))
    raise UserError(
        f"{model}: the hub's {repository} has no whole checkpoint in {inside or 'its root'} (config.json, "
        "tokenizer.json, safetensors).",
        f"Write OWNER/NAME:SUBFOLDER; it has: {', '.join(have) or 'none'}.",
    )


def _complete(folder: Path) -> bool:
    """Return whether all files of a checkpoint are there: a download may have been interrupted."""
    if not ((folder / "config.json").is_file() and (folder / "tokenizer.json").is_file()):
        return False
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
        return all((folder / name).is_file() for name in index["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return (folder / "model.safetensors").is_file()
