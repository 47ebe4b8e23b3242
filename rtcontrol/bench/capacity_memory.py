"""What a model's process grows to with its sessions, and with the length of their prefix: in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __name__ != "__main__":  # they bring the libraries that the process of its own measures
    from rtcontrol.bench.capacity import ModelCost, fitted
    from rtcontrol.bench.situations import schemas, situations
    from rtcontrol.models.errors import UserError

EACH = 2  # decisions of a session
# Sessions of the agent's own tools that are fitted, and that are a check; and of long ones, for the prefix's length.
FIT, CHECK = (4, 12), 24
LONG = (2, 8)


def runs(model: str, agent: str, check: bool) -> dict[str, Any]:
    """By list of tools {"prefix_tokens", "mib": by sessions}; with `check` also of every third of the long list."""
    lists = {"own": schemas(agent)["bundled"], "long": schemas(agent)["long"]}
    if check:
        lists["shorter"] = lists["long"][::3]
    return {name: _run(model, agent, tools, (*FIT, CHECK) if name == "own" else LONG) for name, tools in lists.items()}


def _run(model: str, agent: str, tools: list[dict[str, Any]], counts: Sequence[int]) -> dict[str, Any]:
    asked = [(one.observation, one.instruction) for one in situations(agent, EACH * max(counts))]
    command = [sys.executable, "-m", "rtcontrol.bench.capacity_memory"]
    given = json.dumps([model, tools, asked, list(counts)])
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(
            f"The process that measures the memory of {model} ended with {done.returncode}: {last}",
            "Try the model with `rtcontrol run` first.",
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def costs(found: Mapping[str, Any]) -> dict[str, Any]:
    """MiB of the process with the model, of a session, and of a token of its prefix."""
    own, long = found["own"], found["long"]
    model, sequence = fitted([(1, count) for count in FIT], [own["mib"][str(count)] for count in FIT])
    tokens = long["prefix_tokens"] - own["prefix_tokens"]
    token = max(0.0, (_slope(long) - sequence) / tokens) if tokens > 0 else 0.0
    session = max(0.0, sequence - token * own["prefix_tokens"])
    return {"model_mib": model, "session_mib": session, "token_mib": token, "prefix_tokens": own["prefix_tokens"]}


def _slope(one: Mapping[str, Any]) -> float:
    few, many = LONG
    return float((one["mib"][str(many)] - one["mib"][str(few)]) / (many - few))


def checks(found: Mapping[str, Any], cost: ModelCost) -> list[tuple[str, float, float]]:
    """What was measured beside that: (what, predicted, measured) in MiB."""
    whole = cost.model_mib + CHECK * cost.sequence_mib
    made = [(f"a process with {CHECK} sessions", whole, float(found["own"]["mib"][str(CHECK)]))]
    if (shorter := found.get("shorter")) is not None:
        tokens = shorter["prefix_tokens"]
        predicted = cost.session_mib + tokens * cost.token_mib
        made.append((f"a session with a prefix of {tokens} tokens", predicted, _slope(shorter)))
    return made


def _measure(model: str, tools: list[dict[str, Any]], asked: Sequence[Any], counts: Sequence[int]) -> dict[str, Any]:
    from rtcontrol.bench.memory import used
    from rtcontrol.models.decider import DeciderSpec

    spec, held, mib = DeciderSpec(model, tuple(tools), threads=1), list[Any](), dict[str, float]()
    left = iter(asked)
    for count in counts:
        while len(held) < count:
            made = spec.build()
            held.append(made)
            for one in islice(left, EACH):
                made.decide(*one)
        mib[str(count)] = used()["rss"]
    return {"prefix_tokens": held[0].prefix.tokens, "mib": mib}


if __name__ == "__main__":
    print(json.dumps(_measure(*json.load(sys.stdin))))
