"""A disk cache for the keys and values of prompt prefixes: safetensors files, verified by key and checksum."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rtcontrol.models.errors import home_folder

LAYOUT = 1  # version of the stored tensors; increase it when their meaning changes
DAYS, MIB = 30, 2048  # files that are unused for 30 days are deleted, and the oldest ones beyond 2 GiB


def cache_folder() -> Path:
    """Return `$RTCONTROL_CACHE`, or else the user's cache folder. If the user has no home folder, return a path that
    cannot be written, so nothing is cached."""
    base = os.environ.get("RTCONTROL_CACHE")
    if base:
        return Path(base)
    user_folder = os.environ.get("XDG_CACHE_HOME") or (home_folder() or Path(os.devnull, "no HOME")) / ".cache"
    return Path(user_folder) / "rtcontrol"


def prefix_key(weights: str, ids: Sequence[int], dtype: torch.dtype, settings: str) -> str:
    """Return a hash of the weights, tokens, dtype and settings that determine the keys and values of a prefix."""
    fields = json.dumps([weights, list(ids), str(dtype), settings, LAYOUT])
    return hashlib.sha256(fields.encode()).hexdigest()


@contextlib.contextmanager
def saving_disabled() -> Iterator[None]:
    """Save no prefixes within a `with` block. Evaluations that use each set of tools only once need this."""
    global _saving
    before, _saving = _saving, False
    try:
        yield
    finally:
        _saving = before


_saving = True


class PrefixStore:
    """Saves and restores the keys and values of prefixes by key. Errors are returned as texts, and never raised."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "prefix"

    def path(self, key: str) -> Path:
        return self.folder / f"{key[:32]}.safetensors"

    def load(self, key: str, shape: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor] | str | None:
        """Return (keys, values) of this `shape`; None if there is no file; or the reason why the file is not used."""
        path = self.path(key)
        try:
            if not path.is_file():
                return None
            with safe_open(str(path), framework="pt") as file:
                meta = file.metadata() or {}
                keys, values = file.get_tensor("keys"), file.get_tensor("values")
        except FileNotFoundError:  # another process has evicted the file
            return None
        except Exception as error:  # safetensors raises various exceptions for a damaged file
            return f"{path} is unreadable ({error})"
        if meta.get("key") != key:
            return f"{path} is for another model, prompt or setting"
        if list(keys.shape) != list(shape) or list(values.shape) != list(shape):
            return f"{path} has shape {list(keys.shape)}, not {list(shape)}"
        if meta.get("sha256") != _checksum(keys, values):
            return f"{path} has a wrong checksum"
        with contextlib.suppress(OSError):  # fails on a read-only disk
            os.utime(path)
        return keys, values

    def save(self, key: str, keys: torch.Tensor, values: torch.Tensor) -> str | None:
        """Write a file atomically, and evict old files. Return None, or the reason why writing failed."""
        if not _saving:
            return None
        keys, values = keys.cpu().contiguous(), values.cpu().contiguous()
        path = self.path(key)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            meta = {"key": key, "sha256": _checksum(keys, values)}
            save_file({"keys": keys, "values": values}, str(temporary), metadata=meta)
            os.replace(temporary, path)
        except Exception as error:  # an OSError, or any exception of safetensors
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return f"{path} could not be written ({error})"
        return self._evict_old_files(path)

    def _evict_old_files(self, written: Path) -> str | None:
        """Remove files that were not used for DAYS, and the least recently used files if the folder is larger than
        `$RTCONTROL_CACHE_MB`, but never the file just `written`. Other processes may remove files at the same time."""
        limit = os.environ.get("RTCONTROL_CACHE_MB") or MIB
        try:
            room, oldest = float(limit) * 2**20, time.time() - DAYS * 86400
        except ValueError:
            return f"RTCONTROL_CACHE_MB={limit} is not a number of MiB: old prefixes are not removed"
        files = []
        for path in (p for end in ("safetensors", "tmp") for p in self.folder.glob(f"*.{end}")):
            with contextlib.suppress(OSError):
                files.append((path == written, path.stat().st_mtime, path.stat().st_size, path))
        for is_written, used_s, size, path in sorted(files, reverse=True):
            room -= size
            if not is_written and (used_s < oldest or (room < 0 and path.suffix != ".tmp")):
                with contextlib.suppress(OSError):
                    path.unlink()
        return None


def _checksum(keys: torch.Tensor, values: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in (keys, values):
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
