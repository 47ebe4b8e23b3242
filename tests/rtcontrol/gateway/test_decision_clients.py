"""The clients that people have for decision APIs, each in an environment of its own, against a real gateway.

`RTCONTROL_SDK_PYTHON` and `RTCONTROL_LITELLM_PYTHON` name the interpreters with `simthinkd` and with `litellm`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from functools import partial
from typing import Any

import pytest
from gateway_served import Served

pytestmark = pytest.mark.slow

LITELLM = """
import json, sys, litellm
url = sys.argv[1] + "v1"
state = "x 0.2 y 1.1"
listed = [
    {"type": "predicate", "name": "left", "instructions": "Is the pad to the left?"},
    {"type": "choice", "name": "engine", "instructions": "Which?", "choices": [{"value": "main"}, {"value": True}]},
    {"type": "score", "name": "speed", "instructions": "How fast?", "levels": [{"label": "slow"}, {"label": "fast"}]},
]
named = {
    "left": {"type": "noul", "instructions": "Is the pad to the left?"},
    "engine": {"type": "choice", "instructions": "Which?", "criteria": {"main": None, "side": "Sideways."}},
    "speed": {"type": "score", "instructions": "How fast?", "criteria": ["slow", "fast"]},
}
told = {"api_base": url, "api_key": "none"}
ours = litellm.decisions(model="openai/lander", input=state, questions=listed, **told)
theirs = litellm.systemone(model="hosted_vllm/lander", state=state, questions=named, **told)
crossed = litellm.systemone(model="openai/lander", state=state, questions=named, **told)
try:
    litellm.decisions(model="openai/nowhere", input=state, questions=listed, **told)
except litellm.NotFoundError as error:
    refused = str(error)
print(json.dumps([ours.model_dump(), theirs.model_dump(), crossed.model_dump(), refused]))
"""


def python(variable: str, *arguments: str) -> str:
    """What a program in the environment that a variable names prints last."""
    interpreter = os.environ.get(variable)
    if not interpreter:
        pytest.skip(f"{variable} names no interpreter")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run([interpreter, *arguments], capture_output=True, text=True, timeout=110, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


def test_litellm_reads_both_routes(served: Served) -> None:
    ours, theirs, crossed, refused = json.loads(python("RTCONTROL_LITELLM_PYTHON", "-c", LITELLM, served.url))
    left, engine, speed = ours["answers"]
    assert (left["type"], engine["type"], speed["type"]) == ("predicate", "choice", "score")
    assert engine["choice"] in ("main", True) and {p["value"] for p in engine["probabilities"]} == {"main", True}
    named: dict[str, Any] = theirs["answers"]
    near = partial(pytest.approx, rel=1e-5)  # another request's pass rounds otherwise
    assert named["left"]["noul"] == near(left["probability"])
    assert named["engine"]["choice"] in ("main", "side")
    assert math.fsum(named["engine"]["probabilities"].values()) == 1
    assert named["speed"]["score"] == near(speed["score"]) and named["speed"]["legend"] == {"0": "slow", "1": "fast"}
    assert crossed["answers"]["left"]["noul"] == near(left["probability"])
    assert "There is no model 'nowhere' here" in refused


def test_simthinkd_benches_this_server(served: Served) -> None:
    told = ("-m", "simthinkd.cli", "bench", "--url", f"{served.url}v1/systemone", "--limit", "10", "--json")
    found = json.loads(python("RTCONTROL_SDK_PYTHON", *told))
    assert found["states"] == 10 and found["p50_ms"] > 0
