"""One server with a chat model, as a hub has it: calls and answers for the `openai` client, a session of the wire."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import openai

from tests.bridges.client.worlds import free_port
from tests.models.chat.families import hub_snapshot
from tests.rtcontrol.serve.wire_peer import WirePeer

MOVE = {"name": "move", "parameters": {"properties": {"dx": {"enum": [-1, 1]}, "fast": {"type": "boolean"}}}}


def test_a_chat_model_of_the_hub_serves_calls_answers_and_sessions(process: Any, data: Path, tmp_path: Path) -> None:
    folder, web = hub_snapshot(tmp_path / "cache", data), free_port()
    served = process("--model", str(folder), "--http", f"127.0.0.1:{web}")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{web}/v1", api_key="none", max_retries=0)
    tools: Any = [{"type": "function", "function": {**MOVE, "description": "Move sideways."}}]
    said: Any = [{"role": "system", "content": "Be quick."}, {"role": "user", "content": "Go left."}]
    chat: Any = client.chat.completions.create(model="default", messages=said, tools=tools)
    (call,) = chat.choices[0].message.tool_calls
    given = json.loads(call.function.arguments)
    assert call.function.name == "move" and given.get("dx", 1) in (-1, 1) and set(given) <= {"dx", "fast"}
    assert chat.rtcontrol["trained"] is False and "not trained on these tools" in chat.rtcontrol["warning"]

    questions: Any = [
        {"type": "predicate", "instructions": "Is the pad to the left?"},
        {"type": "choice", "instructions": "Which engine?", "choices": [{"value": "main"}, {"value": "side"}]},
        {"type": "score", "instructions": "How fast?", "levels": [{"label": "slow"}, {"label": "fast"}]},
    ]
    made: Any = client.decisions.create(model="default", input="x 0.2 y 1.1", questions=questions)
    assert [answer.type for answer in made.answers] == ["predicate", "choice", "score"]
    assert math.fsum(p.probability for p in made.answers[1].probabilities) == 1
    assert made.rtcontrol["forward_passes"] == 1 and made.usage.output_tokens == 0

    with WirePeer(served.endpoint) as peer:
        peer.enter(tools=[MOVE], instruction="go left", pacing="client")
        assert {peer.ask(f"x {i}").call.name for i in range(3)} == {"move"}
