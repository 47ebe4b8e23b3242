"""Complete the conformance vectors after lines were added by hand: `python -m tests.conformance.generate`.

A vector is a line of `vectors/*.json`; rules (ttl, clock) are written down whole, not taken from the code. A valid
message needs `name`, `from` and `json`; one to be refused `json` (its text), `msgpack` (its parts as hex) or `header`,
which becomes a vector of either; long texts are runs: `[[text, times], ...]`.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

import msgpack

from tests.conformance import FOLDER, NAMES, load

Vector = dict[str, Any]


def files() -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of each vector file."""
    for name in NAMES:
        result = load(name)
        if name == "valid":
            result = [_valid(vector) for vector in result]
        elif name == "invalid":
            result = [each for vector in result for each in _invalid(**vector)]
        elif name in ("control", "several", "pictures", "crowd"):
            refused = [each for vector in result["invalid"] for each in _invalid(**vector)]
            result = {"valid": [_valid(vector) for vector in result["valid"]], "invalid": refused}
        yield f"{name}.json", _text(result)


def _valid(vector: Vector) -> Vector:
    header, buffers = copy.deepcopy(vector["json"]), []
    for entry in [*(header.get("arrays") or ()), *filter(None, [header.get("image")])]:
        buffers.append(base64.b64decode(entry.pop("base64")).hex())
        entry["part"] = len(buffers)
    order = {**dict.fromkeys(("name", "from", "json", "msgpack")), "canonical": True}
    return {**order, **vector, "msgpack": [msgpack.packb(header).hex(), *buffers]}


def _invalid(name: str, header: Any = None, **vector: Any) -> Iterator[Vector]:
    if header is None:
        yield {"name": name, **vector}
    else:
        yield {"name": f"{name} (msgpack)", "msgpack": [msgpack.packb(header).hex()], **vector}
        yield {"name": f"{name} (json)", "json": json.dumps(header), **vector}


def _text(value: Any) -> str:
    # A vector a line: differences stay readable.
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f'"{k}": {_text(v).rstrip()}' for k, v in value.items()) + "\n}\n"
    return "[\n" + ",\n".join(json.dumps(v, ensure_ascii=True) for v in value) + "\n]\n"


if __name__ == "__main__":
    for file, text in files():
        (FOLDER / file).write_text(text, "utf-8")
        print(f"{file}: {len(text)} bytes")
