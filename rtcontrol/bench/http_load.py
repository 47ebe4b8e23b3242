"""`python -m rtcontrol.bench.http_load URL`: requests one after the other, each with new tools and a long prompt, until
it is ended; a line a request, with its seconds."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

WORDS = tuple("the rover has seen a red door on the left and goes on along a wall".split())  # noqa: SIM905
PROMPT_WORDS = 1200


def body(number: int) -> dict[str, Any]:
    """A request whose tools nobody has sent before."""
    directions = {"type": "string", "enum": [f"way {number} {i}" for i in range(8)]}
    level = {"type": "integer", "minimum": 0, "maximum": 100 + number % 50}
    properties = {"to": directions, "speed": level, "gently": {"type": "boolean"}}
    tools = [
        {"name": f"{verb}_{number}", "parameters": {"type": "object", "properties": properties, "required": ["to"]}}
        for verb in ("go", "look", "fetch", "bring")
    ]
    prompt = " ".join(itertools.islice(itertools.cycle((*WORDS[number % len(WORDS) :], *WORDS)), PROMPT_WORDS))
    functions = [{"type": "function", "function": tool} for tool in tools]
    return {"messages": [{"role": "user", "content": prompt}], "tools": functions, "environment": [f"x {number}"]}


def main(url: str) -> None:
    import httpx

    with httpx.Client(base_url=url, timeout=60.0) as client:
        for number in itertools.count():
            began = time.monotonic()
            answer = client.post("/v1/function_call", json=body(number)).json()
            if not answer.get("success"):
                raise SystemExit(f"refused: {answer}")
            print(f"{time.monotonic() - began:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
