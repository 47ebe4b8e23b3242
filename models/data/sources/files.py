"""Where a set's files are: a path, or an id of the Hugging Face hub, downloaded when it is read."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rtcontrol.models.checkpoint import hub
from rtcontrol.models.data.row import json_lines
from rtcontrol.models.data.sample import SHAPE_ERRORS, Dropped, Sample, Unusable
from rtcontrol.models.errors import UserError, decoded, strict_json, user_path

KINDS = ("*.json", "*.jsonl", "*.json.gz", "*.jsonl.gz")


def located(given: str, what: str) -> Path:
    """The file or folder of a set: a path that is there, else a hub id (OWNER/NAME), from the local cache where it is
    there, else downloaded. Raises UserError; `what` names the set."""
    path = user_path(given)
    if path.exists():
        return path
    if not hub.is_id(given) or given.endswith((".json", ".jsonl", ".gz")):
        raise UserError(f"There is no {given}.", f"Give the file or folder of {what}, or a hub id OWNER/NAME.")
    return _fetched(given, what)


def _fetched(given: str, what: str) -> Path:
    from huggingface_hub import snapshot_download

    wanted: dict[str, Any] = {"repo_type": "dataset", "allow_patterns": list(KINDS)}
    try:
        folder = Path(snapshot_download(given, local_files_only=True, **wanted))
        if _found(folder):
            return folder
    except Exception:  # whatever it is, the download tells
        pass
    try:
        return Path(snapshot_download(given, **wanted))
    except Exception as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
        raise UserError(
            f"{given} is no path, and the hub does not give it ({line}).",
            f"Give the file or folder of {what}. A gated set needs its terms accepted on its page, then `hf auth "
            f"login`; on a machine with a network: `hf download --repo-type dataset {given}`.",
        ) from None


def _found(folder: Path) -> list[Path]:
    return sorted({path for kind in KINDS for path in folder.glob(kind) if path.is_file()})


def data_file(place: Path, *names: str) -> Path:
    """The file itself, or the first of these names (patterns) in a folder, or the only one there."""
    if place.is_file():
        return place
    for name in names:
        if matches := sorted(place.glob(name)):
            return matches[0]
    if len(found := _found(place)) == 1:
        return found[0]
    listed = ", ".join(path.name for path in found) or "no JSON file"
    raise UserError(f"{place} has none of {', '.join(names)}: {listed}.", "Give the file itself.")


def samples(
    items: Iterable[tuple[str, Any]], read: Callable[[Any, str], Iterator[Sample | Dropped]], source: str, shape: str
) -> Iterator[Sample | Dropped]:
    """Yield what `read` makes of each item of a set and its place; `shape` is the reason for one of another shape."""
    for where, value in items:
        try:
            yield from read(value, where)
        except Unusable as error:
            yield Dropped(error.reason, where, error.detail, source)
        except SHAPE_ERRORS as error:
            yield Dropped(shape, where, repr(error)[:120], source)


def items(path: Path) -> Iterator[tuple[str, Any]]:
    """The items of a file, with their places: a line each (JSONL), or of one JSON list (PATH#3: the third)."""
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        for line, value in json_lines(path):
            yield f"{path}:{line}", value
        return
    try:
        raw = path.read_bytes()
        found = strict_json(decoded(gzip.decompress(raw) if path.suffix == ".gz" else raw, path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}).", "Give the set's file.") from None
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        raise UserError(f"{path} is no JSON ({error}).", "Give the set's file as it was published.") from None
    if not isinstance(found, list):
        raise UserError(f"{path} is no list of samples.", "Give the set's file as it was published.")
    for n, value in enumerate(found, 1):
        yield f"{path}#{n}", value


def version(path: Path) -> str:
    """Which file it was: the hub's revision, else the first digits of its SHA-256."""
    parts = path.absolute().parts
    if "snapshots" in parts[:-1]:
        return f"revision {parts[parts.index('snapshots') + 1][:8]}"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f"sha256 {digest.hexdigest()[:8]}"
