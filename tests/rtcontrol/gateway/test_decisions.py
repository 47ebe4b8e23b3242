"""`/v1/decisions` and `/v1/systemone` in the format of their clients."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gateway_peer import TOKEN, Serve, Served

LEFT: dict[str, Any] = {"type": "predicate", "name": "left", "instructions": "Is the pad to the left?"}
ENGINE: dict[str, Any] = {
    "type": "choice",
    "instructions": [{"type": "input_text", "text": "Which engine"}, {"type": "input_text", "text": "is on?"}],
    "choices": [{"value": "main", "description": "Up."}, {"value": "side"}, {"value": "none"}],
}
SPEED: dict[str, Any] = {
    "type": "score",
    "name": "speed",
    "instructions": "How fast is it?",
    "levels": [{"label": "slow"}, {"label": "fast", "description": "More than 1 m/s."}, {"label": "very fast"}],
}
STATE = "x 0.2 y 1.1 vx -0.3"


def decide(served: Served, *questions: dict[str, Any]) -> Any:
    return served.openai.decisions.create(model="lander", input=STATE, questions=list(questions))  # type: ignore[arg-type]


def test_the_openai_client_gets_typed_answers_in_order(served: Served) -> None:
    created = decide(served, LEFT, ENGINE, SPEED)
    left, engine, speed = created.answers
    assert created.model == "lander"
    assert (left.type, left.name) == ("predicate", "left") and 0 <= left.probability <= 1
    assert (engine.type, engine.name, [p.value for p in engine.probabilities]) == (
        "choice",
        None,
        ["main", "side", "none"],
    )
    shares = [p.probability for p in engine.probabilities]
    assert math.fsum(shares) == 1
    assert engine.choice == ["main", "side", "none"][shares.index(max(shares))]
    assert engine.confidence == pytest.approx((3 * max(shares) - 1) / 2)
    assert [(p.value, p.label) for p in speed.probabilities] == [(0, "slow"), (1, "fast"), (2, "very fast")]
    assert speed.score == pytest.approx(sum(p.value * p.probability for p in speed.probabilities))
    assert (
        created.rtcontrol["forward_passes"] >= 1 and created.rtcontrol["decide_ms"] <= created.rtcontrol["latency_ms"]
    )


def test_boolean_and_string_options_differ(served: Served) -> None:
    values: list[str | bool] = [True, "true", '"true"', False]
    requested = {"type": "choice", "instructions": "Which?", "choices": [{"value": v} for v in values]}
    (answer,) = decide(served, requested).answers
    assert [(type(p.value), p.value) for p in answer.probabilities] == [(type(v), v) for v in values]
    assert type(answer.choice) in (str, bool) and len({p.probability for p in answer.probabilities}) == 4


CHOICES = [{"value": str(i)} for i in range(256)]


@pytest.mark.parametrize(
    ("broken", "param", "words"),
    [
        ({"questions": [LEFT, {**ENGINE, "choices": CHOICES[:1]}]}, "questions[1].choices", "at least 2"),
        (
            {"questions": [{**ENGINE, "choices": [*CHOICES[:2], CHOICES[1]]}]},
            "questions[0].choices",
            "has a value twice",
        ),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions", "required"),
        ({"questions": [{"type": "box", "instructions": "x"}]}, "questions[0].type", "'predicate'"),
        ({"input": 5}, "input", "valid string"),
    ],
)
def test_request_of_wrong_shape_names_its_field(served: Served, broken: Any, param: str, words: str) -> None:
    answer = served.post("v1/decisions", {"model": "default", "input": STATE, "questions": [LEFT], **broken})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert words in error["message"]


def test_bundled_model_warns_of_untrained_questions(serve: Serve) -> None:
    answer = serve(model="lander").post("v1/decisions", {"model": "lander", "input": STATE, "questions": [LEFT]})
    extra = answer.json()["rtcontrol"]
    assert extra["trained"] is False and "not seem to be trained" in extra["warning"]


def test_scripted_decider_answers_no_questions(serve: Serve) -> None:
    body = {"model": "default", "input": STATE, "questions": [LEFT]}
    for model, words in ((None, "--model"), ("random", "random answers no questions")):
        answer = serve(model=model).post("v1/decisions", {**body, "model": model or "default"})
        assert answer.status_code == 400 and words in answer.json()["error"]["message"]


# Otherwise here: OpenAI's shape of models and of errors, which both APIs share, and the field `rtcontrol`.
OTHERWISE = {"http.models", "response.extensions", "errors.validation-shape", "auth.missing", "auth.invalid"}


# The server without a key differs in what the test above looks at.
@pytest.mark.parametrize("key", [pytest.param(None, marks=pytest.mark.slow), TOKEN])
def test_every_must_of_the_specification_is_met(serve: Serve, key: str | None, tmp_path: Path) -> None:
    pytest.importorskip("jevcompat", reason="jevcompat is not installed (the dev extra)")
    # The largest choice is asked for too: on a busy machine that may take its time.
    slow: dict[str, Any] = {"decide_timeout_s": 60.0}
    served = serve(**slow) if key is None else serve(token=key, require_token=True, **slow)
    sentence = tmp_path / "report.json"
    command = [sys.executable, "-m", "jevcompat.cli", "test", served.url, "--json", str(sentence), "--timeout", "100"]
    done = subprocess.run(
        [*command, *(["--key", key] if key else [])], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    report: dict[str, Any] = json.loads(sentence.read_text())
    matches = {single["id"]: (single["level"], single["status"]) for single in report["results"]}
    musts = {single for single, (level, _) in matches.items() if level == "MUST"}
    passed = {single for single, (_, status) in matches.items() if status == "pass"}
    other = {"auth.ignored-when-off" if key else "auth.bearer"}  # the one that is for the other of these two servers
    assert len(musts) >= 33 and musts - passed == other
    assert {single for single, (_, status) in matches.items() if status == "fail"} <= OTHERWISE
