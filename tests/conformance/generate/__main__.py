"""Writes the conformance vectors: `python -m tests.conformance.generate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.conformance import FOLDER
from tests.conformance.generate.invalid import invalid
from tests.conformance.generate.rules import clock, ttl
from tests.conformance.generate.valid import valid

SOURCES: dict[str, Callable[[], Any]] = {"valid": valid, "invalid": invalid, "ttl": ttl, "clock": clock}


def files() -> Iterator[tuple[str, str]]:
    """(file name, text), the same bytes every time."""
    for name, source in SOURCES.items():
        yield f"{name}.json", _text(source())


def _text(value: Any) -> str:
    # A vector a line: differences stay readable.
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f'"{k}": {_text(v).rstrip()}' for k, v in value.items()) + "\n}\n"
    return "[\n" + ",\n".join(json.dumps(v, ensure_ascii=True) for v in value) + "\n]\n"


if __name__ == "__main__":
    for file, text in files():
        (FOLDER / file).write_text(text, "utf-8")
        print(f"{file}: {len(text)} bytes")
