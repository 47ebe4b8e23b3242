"""Download a checkpoint of the Hugging Face hub, or find it in the local cache: one folder of a repository."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError

NAME_PART = r"[\w-][\w.-]*"
HUB_ID = re.compile(rf"({NAME_PART}/{NAME_PART})(?::({NAME_PART}(?:/{NAME_PART})*))?")
FILE_TYPES = ("json", "safetensors", "jinja", "txt", "md", "model")


def is_hub_id(model: str) -> bool:
    """Return whether a name has the form OWNER/NAME or OWNER/NAME:SUBFOLDER."""
    return HUB_ID.fullmatch(model) is not None


def fetch_checkpoint(model: str, problem: str, hint: str) -> Path:
    """Return the local folder of the hub id `model`.

    If the cache has all files, the network is not used; otherwise the files are downloaded. Raises UserError if the
    download fails. The error starts with `problem` (where else the model was searched), and its hint with `hint`.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    match = HUB_ID.fullmatch(model)
    assert match is not None, "the caller has checked this"
    repository, subfolder = match[1], match[2] or ""
    # A repository may have several checkpoints. Download only the named folder, or only the root if no folder is named.
    allowed = [f"{subfolder}/*.{kind}" if subfolder else f"*.{kind}" for kind in FILE_TYPES]
    ignored = [f"{subfolder}/*/*" if subfolder else "*/*"]
    patterns: dict[str, Any] = {"allow_patterns": allowed, "ignore_patterns": ignored}
    with contextlib.suppress(Exception):  # if the files are not cached, they are downloaded below
        folder = Path(snapshot_download(repository, local_files_only=True, **patterns)) / subfolder
        if _is_complete(folder):
            return folder
    try:
        folder = Path(snapshot_download(repository, **patterns)) / subfolder
        if _is_complete(folder):
            return folder
        names = [file.rfilename for file in HfApi().model_info(repository).siblings or ()]
    except Exception as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
        why = "is not used, as HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"failed: {line}"
        include = f" --include '{subfolder}*'" if subfolder else ""
        raise UserError(
            f"{problem}; the cache ({constants.HF_HUB_CACHE}) has no complete copy, and the hub "
            f"({constants.ENDPOINT}) {why}.",
            f"{hint} For a private or gated model run `hf auth login`. Without a network, run `hf download {repository}"
            f"{include}` on a machine with network, and copy its ~/.cache/huggingface to this machine ($HF_HOME).",
        ) from None
    subfolders = sorted(name.rpartition("/")[0] for name in names if name.endswith("/config.json"))
    raise UserError(
        f"{model}: {repository} on the hub has no complete checkpoint in {subfolder or 'its root'} (config.json, "
        "tokenizer.json, safetensors).",
        f"Write OWNER/NAME:SUBFOLDER; its subfolders with a checkpoint: {', '.join(subfolders) or 'none'}.",
    )


def _is_complete(folder: Path) -> bool:
    """Return whether a folder has all files of a checkpoint. After an interrupted download some are missing."""
    if not ((folder / "config.json").is_file() and (folder / "tokenizer.json").is_file()):
        return False
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
        return all((folder / name).is_file() for name in index["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return (folder / "model.safetensors").is_file()
