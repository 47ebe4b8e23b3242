"""Checkpoints of the Hugging Face hub: one folder of a repository, from the local cache where it is complete there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError

PART = r"[\w-][\w.-]*"
NAME = re.compile(rf"({PART}/{PART})(?::({PART}(?:/{PART})*))?")
KINDS = ("json", "safetensors", "jinja", "txt", "md", "model")


def is_id(model: str) -> bool:
    """Whether it is written as OWNER/NAME or OWNER/NAME:SUBFOLDER."""
    return NAME.fullmatch(model) is not None


def fetch(model: str, nowhere: str, others: str) -> Path:
    """The local folder of a hub id. What the cache has whole is used as it is, without a look at the network, so that a
    start in the field changes nothing; anything else is downloaded, with progress. Raises UserError, which begins with
    `nowhere`, where else it was looked for, and whose remedy names the `others` ways to give a model."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    found = NAME.fullmatch(model)
    assert found is not None, "it was looked at before"
    repository, inside = found[1], found[2] or ""
    # Of a repository with several checkpoints one folder alone, as its root alone where none is named.
    allowed = [f"{inside}/*.{kind}" if inside else f"*.{kind}" for kind in KINDS]
    wanted: dict[str, Any] = {"allow_patterns": allowed, "ignore_patterns": [f"{inside}/*/*" if inside else "*/*"]}
    try:
        folder = Path(snapshot_download(repository, local_files_only=True, **wanted)) / inside
        if _complete(folder):
            return folder
    except Exception:  # whatever it is, the download tells
        pass
    hub = f"{nowhere}; the hub"
    try:
        folder = Path(snapshot_download(repository, **wanted)) / inside
        if _complete(folder):
            return folder
        names = [one.rfilename for one in HfApi().model_info(repository).siblings or ()]
        have = sorted(name.rpartition("/")[0] for name in names if name.endswith("/config.json"))
    except GatedRepoError:
        problem = f"The hub gives {repository} to those alone whom its owner allows."
        raise UserError(problem, "Ask for access on its page, then `hf auth login`.") from None
    except RepositoryNotFoundError:
        problem = f"{hub} has no {repository}, or keeps it private."
        raise UserError(problem, f"{others} For a private one: `hf auth login`.") from None
    except Exception as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
        why = "is not asked, as HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"does not give it ({line})"
        one = f" --include '{inside}*'" if inside else ""
        raise UserError(
            f"{hub} ({constants.ENDPOINT}) {why}, nor is it whole in the cache ({constants.HF_HUB_CACHE}).",
            f"{others} Without a network: `hf download {repository}{one}` on a machine that has one, and its "
            "~/.cache/huggingface copied here ($HF_HOME).",
        ) from None
    raise UserError(
        f"{model}: the hub's {repository} has no whole checkpoint in {inside or 'its root'} (config.json, "
        "tokenizer.json, safetensors).",
        f"Write OWNER/NAME:SUBFOLDER; it has: {', '.join(have) or 'none'}.",
    )


def _complete(folder: Path) -> bool:
    """Whether all files of a checkpoint are there: a download may have been interrupted."""
    if not ((folder / "config.json").is_file() and (folder / "tokenizer.json").is_file()):
        return False
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
        return all((folder / name).is_file() for name in index["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return (folder / "model.safetensors").is_file()
