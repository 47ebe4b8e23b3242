"""Make one decision over HTTP, with only the Python standard library; any language can do the same.

rtcontrol serve --model lander --http 127.0.0.1:8080
python examples/http_request.py http://127.0.0.1:8080
"""

import json
import sys
from urllib.request import Request, urlopen

ENGINES = {
    "type": "function",
    "function": {
        "name": "engines",
        "description": "Set the engines' power in percent, until told otherwise.",
        "parameters": {
            "type": "object",
            "properties": {
                "main": {"type": "integer", "enum": [0, 50, 100], "description": "Lifts."},
                "side": {"type": "integer", "enum": [-50, 0, 50], "description": "Turns."},
            },
            "required": ["main", "side"],
        },
    },
}


def main(url: str = "http://127.0.0.1:8080") -> None:
    request = {
        "model": "default",
        "messages": [{"role": "user", "content": "hover at 0.7"}],
        "environment": ["x 18 y 105 vx -7 vy -10 angle 42 spin -12 legs 0 0"],
        "tools": [ENGINES],
    }
    head = {"content-type": "application/json"}
    with urlopen(Request(f"{url.rstrip('/')}/v1/chat/completions", json.dumps(request).encode(), head)) as answer:
        reply = json.load(answer)
    call = reply["choices"][0]["message"]["tool_calls"][0]["function"]
    print(call["name"], call["arguments"], f"{reply['rtcontrol']['latency_ms']:.1f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:2])
