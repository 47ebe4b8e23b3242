"""The per-tick record: JSON lines, each written with one unbuffered write, readable after SIGKILL."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rtcontrol.config import RunConfig
from rtcontrol.machine import describe
from rtcontrol.models.errors import UserError

SCHEMA_VERSION = 1


class Recorder:
    """Appends lines to `path`. A disk that takes no more never stops the loop: lost lines are counted.

    The first line is the run's header (`{"header": ..., "schema_version": 1}`). A `provisional` record has another
    name (`record.jsonl.part`) until `keep`: a run that never starts takes nothing of an earlier one, and `discard`
    leaves no trace of it.
    """

    def __init__(self, path: Path, header: dict[str, Any], provisional: bool = False) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part") if provisional else None
        self._made = [p for p in (path.parent, *path.parent.parents) if not p.exists()]
        self.lines = 0
        self.lost = 0
        self.error: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(
                self._part or path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise UserError(
                f"The record {path} cannot be written ({error.strerror}).", "Give another --out."
            ) from error
        self._torn = False
        self.write({"header": header, "schema_version": SCHEMA_VERSION})

    def write(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n"
        if self._torn:
            # A write cut short by a full disk left half a line: end it, so that this one can be read.
            data = b"\n" + data
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            self.lost += 1
            self.error = error.strerror
            return
        if written < len(data):
            self.lost += 1
            self.error = "a line was cut short"
            self._torn = True
            return
        self._torn = False
        self.lines += 1

    def keep(self) -> None:
        """The run has begun: from now on the record stands under its own name. Twice does no harm."""
        if self._part is not None:
            try:
                os.replace(self._part, self._path)
            except OSError as error:
                self.error = error.strerror
            self._part = None

    def discard(self) -> None:
        """The run never began: take away what was made for it. Does nothing after `keep`."""
        if self._part is not None:
            with contextlib.suppress(OSError):
                self._part.unlink()
                for folder in self._made:
                    folder.rmdir()
            self._part = None

    def close(self) -> None:
        os.close(self._fd)


def run_header(config: RunConfig, hold_ms: float) -> dict[str, Any]:
    """What a record begins with: the run's settings, `hold_ms` being the agent's, and the machine."""
    return {
        **config.to_dict(),
        "period_ms": config.period_ns / 1e6,
        "deadline_ms": config.deadline_ns / 1e6,
        "max_age_ms": config.max_age_ns / 1e6,
        "hold_ms": hold_ms if config.hold_ms is None else config.hold_ms,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(),
    }


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """The record's lines, one at a time; lines that were cut short are left out. UserError when there is none."""
    try:
        with path.open("rb") as file:
            for raw in file:
                try:
                    line = json.loads(raw)
                except ValueError:
                    continue
                if isinstance(line, dict):
                    yield line
    except OSError as error:
        raise UserError(f"No record at {path} ({error.strerror}).", "Give a run's directory.") from error
