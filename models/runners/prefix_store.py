"""The prefix cache on disk: KV tensors in safetensors files, verified by key and checksum."""

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

from rtcontrol.models.errors import home

LAYOUT = 1  # version of the stored keys and values: raise it when their meaning changes
DAYS, MIB = 30, 2048  # days that an unused file is kept, and the size of all files


def cache_folder() -> Path:
    """Return `$RTCONTROL_CACHE`, else the user's cache folder. Without a home folder, the path is one that cannot be
    written."""
    base = os.environ.get("RTCONTROL_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or (home() or Path(os.devnull, "no HOME")) / ".cache") / "rtcontrol"


def prefix_key(weights: str, ids: Sequence[int], dtype: torch.dtype, settings: str) -> str:
    """Return one hash of everything that the KV of a prefix depends on."""
    what = json.dumps([weights, list(ids), str(dtype), settings, LAYOUT])
    return hashlib.sha256(what.encode()).hexdigest()


@contextlib.contextmanager
def nothing_kept() -> Iterator[None]:
    """Disable the writing of prefixes within a `with` block. An evaluation uses each set of tools once, and a file of a
    large model takes a hundred megabytes."""
    global _keeps
    before, _keeps = _keeps, False
    try:
        yield
    finally:
        _keeps = before


_keeps = True


class PrefixStore:
    """A store that saves and restores the KV of prefixes by key. Failures are returned as a reason and never raised."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "prefix"

    def path(self, key: str) -> Path:
        return self.folder / f"{key[:32]}.safetensors"

    def load(self, key: str, shape: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor] | str | None:
        """Return (keys, values) of exactly `shape`, None without a file, or the reason why the file is refused."""
        path = self.path(key)
        try:
            if not path.is_file():
                return None
            with safe_open(str(path), framework="pt") as file:
                meta = file.metadata() or {}
                keys, values = file.get_tensor("keys"), file.get_tensor("values")
        except FileNotFoundError:  # another process has dropped it
            return None
        except Exception as error:  # for torn files the library raises its own exceptions and plain ones
            return f"{path} is unreadable ({error})"
        if meta.get("key") != key:
            return f"{path} belongs to another model, prompt or setting"
        if list(keys.shape) != list(shape) or list(values.shape) != list(shape):
            return f"{path} has shape {list(keys.shape)}, not {list(shape)}"
        if meta.get("sha256") != _checksum(keys, values):
            return f"{path} fails its checksum"
        with contextlib.suppress(OSError):  # a read-only disk
            os.utime(path)
        return keys, values

    def save(self, key: str, keys: torch.Tensor, values: torch.Tensor) -> str | None:
        """Write a file atomically and evict old ones; return the reason if writing failed, for example on a full
        disk."""
        if not _keeps:
            return None
        keys, values = keys.cpu().contiguous(), values.cpu().contiguous()
        path = self.path(key)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            meta = {"key": key, "sha256": _checksum(keys, values)}
            save_file({"keys": keys, "values": values}, str(temporary), metadata=meta)
            os.replace(temporary, path)
        except Exception as error:  # OSError or the library's own
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return f"{path} could not be written ({error})"
        return self._evict(path)

    def _evict(self, written: Path) -> str | None:
        """Remove files not used for DAYS and, above `$RTCONTROL_CACHE_MB`, the least recently used ones, except the one
        just `written`. Other processes may do the same at the same time."""
        limit = os.environ.get("RTCONTROL_CACHE_MB") or MIB
        try:
            room, oldest = float(limit) * 2**20, time.time() - DAYS * 86400
        except ValueError:
            return f"RTCONTROL_CACHE_MB={limit} is not a number of MiB: no old prefix is dropped"
        found = []
        for path in (p for end in ("safetensors", "tmp") for p in self.folder.glob(f"*.{end}")):
            with contextlib.suppress(OSError):
                found.append((path == written, path.stat().st_mtime, path.stat().st_size, path))
        for newest, used, size, path in sorted(found, reverse=True):
            room -= size
            if not newest and (used < oldest or (room < 0 and path.suffix != ".tmp")):
                with contextlib.suppress(OSError):
                    path.unlink()
        return None


def _checksum(keys: torch.Tensor, values: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in (keys, values):
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
