"""Conformance tests for clients in every language (docs/protocol.md, section 13): the vectors (completed by
`python -m tests.conformance.generate`), and a check over sockets (`python -m tests.conformance.check`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "vectors"
NAMES = ("valid", "invalid", "ttl", "clock", "control", "several", "pictures", "crowd", "phase", "connect")


def load(name: str) -> Any:
    """Return the parsed vector file of one of `NAMES`."""
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def expand(part: str | list[list[Any]]) -> str:
    """Return the text (or hex) of a part, which may be written as runs: `[[text, times], ...]`."""
    return part if isinstance(part, str) else "".join(text * times for text, times in part)
