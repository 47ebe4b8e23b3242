"""`--hysteresis` as people give it: on the command line, from Python, flown and decided again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused

import rtcontrol
from rtcontrol.models.call import Call, Decision, Steadied
from rtcontrol.models.errors import UserError
from rtcontrol.run.steady_session import GivenCall
from rtcontrol.telemetry.record_reader import read_record
from tests.models.chat.families import checkpoint

LEFT = "x -0.60 y 0.70 vx -0.50 vy -0.20 angle -0.30 spin -0.20 legs 0 0"
RIGHT = "x 0.60 y 0.70 vx 0.50 vy -0.20 angle 0.30 spin 0.20 legs 0 0"
STEADY = (
    "--env",
    "lander",
    "--host",
    "inprocess",
    "--no-live",
    "--clock",
    "lockstep",
    "--episodes",
    "1",
    "--seed",
    "7",
)


def test_a_session_keeps_what_it_gave_until_it_is_told_otherwise() -> None:
    model = rtcontrol.load("lander")
    plain, steady, other = model.session(), model.session(hysteresis="margin=1"), model.session(hysteresis="margin=1")
    first, free = steady.decide(LEFT, "land on the pad"), plain.decide(RIGHT, "land on the pad")
    assert first.call == plain.decide(LEFT, "land on the pad").call != free.call
    again = steady.decide(RIGHT, "land on the pad")
    assert again.call == first.call and again.steadied is not None and again.steadied.kept
    assert other.decide(RIGHT, "land on the pad").call == free.call, "another session has its own"
    assert steady.decide(RIGHT, "hover at 0.7").call == plain.decide(RIGHT, "hover at 0.7").call, "another instruction"
    steady.decide(LEFT, "land on the pad")
    steady.forget()
    assert steady.decide(RIGHT, "land on the pad").call == free.call


def test_a_value_that_is_preferred_for_long_enough_is_given() -> None:
    session = rtcontrol.load("lander").session(hysteresis="ticks=3")
    calls = [session.decide(seen, "land on the pad").call for seen in (LEFT, *[RIGHT] * 4)]
    assert calls[0] == calls[1] == calls[2] != calls[3] == calls[4]


def test_sessions_that_decide_in_one_pass_keep_each_their_own() -> None:
    model = rtcontrol.load("lander")
    sessions = [model.session(hysteresis="margin=1") for _ in range(2)]
    given = [[one.call for one in model.decide([(s, seen, "land on the pad") for s, seen in
              zip(sessions, looks, strict=True)]) if isinstance(one, Decision)]
             for looks in ((LEFT, RIGHT), (RIGHT, LEFT))]  # fmt: skip
    assert given[0] == given[1] and given[0][0] != given[0][1]


def test_what_was_not_given_is_not_in_force() -> None:
    go, stop = Call("go"), Call("stop")
    steady = GivenCall()
    assert steady.standing("a") is None
    steady.given(Decision(go, steadied=Steadied({"function": ("stop", 1)})), False, None)
    standing = steady.standing("a")
    assert standing is not None and standing.call == go and standing.preferred == {"function": ("stop", 1)}
    steady.given(Decision(None), False, None)  # null: what is in force stays
    steady.given(Decision(stop), True, None)  # held, and nothing in its place
    steady.given(None, False, None)  # missed
    standing = steady.standing("a")
    assert standing is not None and standing.call == go
    for decision, held in ((Decision(go), True), (None, False)):
        steady.given(Decision(go), False, stop)
        steady.given(decision, held, stop)
        assert steady.standing("a") is None, "the safe call is in force"


@pytest.mark.parametrize("value", ["0.2", "margin=2", "ticks=1", "", 0.2, 3, True, ["ticks=3"], b"ticks=3"])
def test_python_is_told_what_is_no_hysteresis(value: Any) -> None:
    with pytest.raises(UserError) as told:
        rtcontrol.load("lander").session(hysteresis=value)
    assert "hysteresis" in told.value.what and told.value.remedy


def test_a_flight_says_what_was_kept_and_is_decided_again_the_same(tmp_path: Path) -> None:
    out, again = tmp_path / "run", tmp_path / "replay.json"
    assert call("run", *STEADY, "--hysteresis", "margin=0.6,ticks=4", "--out", str(out)) == 0
    events = list(read_record(out / "record.mcap"))
    kept = [event for event in events if "kept" in event]
    told = json.loads((out / "report.json").read_text())
    assert kept and told["steadiness"]["kept_by_hysteresis"] == len(kept)
    assert call("replay", str(out), "--json", str(again)) == 0
    found = json.loads(again.read_text())
    assert found["agreement"] == 1.0 and found["compared"] > 40
    for model in ("expert", "random"):  # they have no heads: decided as they decide
        assert call("replay", str(out), "--model", model, "--json", str(again)) == 0


def test_off_a_flight_is_what_it_was(tmp_path: Path) -> None:
    flown = []
    for name, more in (("off", ()), ("on", ("--hysteresis", "margin=0.0000001"))):
        assert call("run", *STEADY, *more, "--out", str(tmp_path / name)) == 0
        events = list(read_record(tmp_path / name / "record.mcap"))
        flown.append([(e["k"], e["call"], e["confidence"]) for e in events if e.get("kind") == "call"])
        if name == "off":
            assert not any("kept" in e or ("observation" in e and "in_force" in e) for e in events)
            assert events[0]["header"]["hysteresis"] is None
    # A margin that nothing is within keeps nothing, and the calls and their confidence stay.
    assert flown[0] == flown[1]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("run", "--env", "lander", "--hysteresis", "0.2"), "margin=0.2,ticks=3"),
        (("run", "--env", "lander", "--hysteresis", ""), "margin=0.2,ticks=3"),
        (("run", "--env", "lander", "--hysteresis", "ticks=1"), "leave --hysteresis out"),
        (("run", "--env", "lander", "--hysteresis", "margin=nan"), "above 0 to 1"),
        (("run", "--env", "lander", "--hysteresis", "ticks=3", "--model", "expert"), "tells none"),
        (("run", "--env", "lander", "--hysteresis", "ticks=3", "--model", "decisions:http://127.0.0.1:9/v1#m"), "none"),
        (("run", "--env", "lander", "--hysteresis", "ticks=3", "--backup", "noop"), "model noop tells none"),
        (("run", "--env", "lander", "--hysteresis", "ticks=3", "--calls-per-tick", "2"), "exclude each other"),
        (("serve", "--hysteresis", "margin=2"), "above 0 to 1"),
        (("serve", "--hysteresis", "ticks=3", "--calls-per-tick", "2"), "exclude each other"),
        (("serve", "--hysteresis", "ticks=3", "--model", "random"), "tells none"),
        (("score", "--env", "lander", "--hysteresis", "ticks=2000"), "2 to 1000"),
        (
            ("score", "--env", "lander", "--hysteresis", "ticks=3", "--model", "decisions:http://127.0.0.1:9/v1#m"),
            "none",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_the_start_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], told: str
) -> None:
    out = () if given[0] == "score" else ("--out", str(tmp_path / "out"))
    assert told in refused(capsys, *given, *out)
    assert not (tmp_path / "out" / "record.mcap").exists()


def test_a_chat_model_is_refused_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = str(checkpoint(tmp_path / "chat", "hermes"))
    for command in (("run", "--env", "lander"), ("serve",)):
        out = "--out", str(tmp_path / "out")
        assert "tells none" in refused(capsys, *command, "--model", chat, "--hysteresis", "ticks=3", *out)
    with pytest.raises(UserError, match="chat model"):
        rtcontrol.load(chat).session([{"name": "go", "parameters": {}}], hysteresis="ticks=3")


def test_a_file_of_options_may_say_it(tmp_path: Path) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text('hysteresis = "ticks=3"\n')
    assert call("run", "--config", str(file), *STEADY, "--duration", "1", "--out", str(out)) == 0
    assert next(iter(read_record(out / "record.mcap")))["header"]["hysteresis"] == "ticks=3"
