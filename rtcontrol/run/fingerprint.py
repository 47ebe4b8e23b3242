"""What the files held that a score or a training is of: what was made of others is never gone on with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rtcontrol.models.checkpoint.checkpoint import ZOO, zoo
from rtcontrol.models.errors import user_path

LARGE = 1 << 26  # bytes; of a larger file its size and time of change stand for what it holds


def contents(
    files: Iterable[str | None], models: Sequence[str] = (), phrasings: Sequence[Sequence[str | None]] = ()
) -> dict[str, str]:
    """A digest by the name of each of the files and of each checkpoint that are on this disk, and of the phrasings."""
    found = {name: _of([Path(name)]) for name in files if name is not None}
    found |= {name: _of(_checkpoint(ZOO / name if name in zoo() else user_path(name))) for name in models}
    if phrasings:
        found["phrasings"] = hashlib.sha256(json.dumps(list(phrasings)).encode()).hexdigest()[:16]
    return {name: digest for name, digest in found.items() if digest}


def _checkpoint(folder: Path) -> list[Path]:
    """What decides: beside it lie logs, cards and scores."""
    names = ("config.json", "rtcontrol.json", "st_template.json", "tokenizer.json", "*.safetensors")
    return sorted(path for name in names for path in folder.glob(name)) if folder.is_dir() else []


def _of(files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    read = 0
    for path in files:
        if not path.is_file():
            continue
        state = path.stat()
        told = path.read_bytes() if state.st_size <= LARGE else f"{state.st_size} {state.st_mtime_ns}".encode()
        found.update(f"{path.name} {len(told)} ".encode() + told)
        read += 1
    return found.hexdigest()[:16] if read else ""
