"""`rtcontrol serve --neuro`: games that speak the Neuro API are played, each force by its deadline."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from neuro_game import PLAY, WAIT, Game, Playing, playing
from websockets.exceptions import ConnectionClosed

from rtcontrol.bench.load import unnamed
from rtcontrol.gateway.neuro import NeuroOptions, player
from rtcontrol.gateway.neuro.player import QUEUED
from rtcontrol.models.checkpoint.checkpoint import ZOO
from tests.helpers.processes import until
from tests.rtcontrol.hosts.standin_endpoint import standin

FOREIGN = Path(__file__).with_name("neuro_foreign.py")


# -- forces ------------------------------------------------------------------------------------------------------------


def test_a_foreign_client_is_answered_a_thousand_times_and_each_is_in_the_report(chance: Playing) -> None:
    pytest.importorskip("neuro_api", reason="the foreign client (neuro-api) is not installed")
    done = subprocess.run(
        [sys.executable, str(FOREIGN), chance.url, "1000"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["answered"] == 1000 and told["illegal"] == 0
    report = chance.report()
    assert report["releases"] == report["on_time"] == 1000 and report["skipped_releases"] == 0
    assert report["acknowledged"] == {"executed": 1000}


def test_a_force_is_answered_with_one_of_its_actions_and_its_own_arguments(game: Game) -> None:
    seen = {json.dumps(game.act("play")) for _ in range(40)}
    assert seen == {json.dumps(["play", {"cell": cell}]) for cell in ("a1", "b2", "c3")}
    assert game.act("wait") == ("wait", None), "an action without a schema has no data"


def test_a_decision_that_takes_too_long_gives_way_to_the_safe_choice_at_the_deadline(tmp_path: Path) -> None:
    slow = NeuroOptions(deadlines={"low": 5000.0, "medium": 5000.0, "high": 5000.0, "critical": 200.0})
    with (
        standin(lambda n: (3.0 if n == 1 else 0.0, None)) as endpoint,
        playing(tmp_path, f"decisions:{endpoint.url}", slow) as made,
    ):
        game = Game(made.url)
        game.begin(PLAY, WAIT)
        assert game.act("play", "wait", state="first")[0] == "play"
        assert game.act("play", "wait", priority="critical", state="second") == ("wait", None)
        assert game.act("play", "wait", state="third")[0] == "play", "what came too late is no answer to another"
        game.close()
        report = made.report()
    assert (report["releases"], report["on_time"], report["misses_by_cause"]) == (3, 2, {"decide": 1})
    assert report["wire"]["safe"] == 1 and report["wire"]["decided"] == 2


def test_none_is_lost_to_a_foreign_client_where_half_of_the_decisions_take_too_long(tmp_path: Path) -> None:
    pytest.importorskip("neuro_api", reason="the foreign client (neuro-api) is not installed")
    quick = NeuroOptions(deadlines=dict.fromkeys(("low", "medium", "high", "critical"), 60.0))
    with (
        standin(lambda n: (0.2 * (n % 2), None)) as endpoint,
        playing(tmp_path, f"decisions:{endpoint.url}", quick) as made,
    ):
        command = [sys.executable, str(FOREIGN), made.url, "60"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"answered": 60, "illegal": 0}
        report = made.report()
    assert report["releases"] == 60 and report["misses"] > 10
    assert report["wire"]["safe"] + report["wire"]["decided"] == 60


def test_an_endpoint_that_refuses_costs_no_time_the_safe_choice_comes_at_once(tmp_path: Path) -> None:
    with standin(lambda n: (0.0, 500)) as endpoint, playing(tmp_path, f"decisions:{endpoint.url}") as made:
        game = Game(made.url)
        game.begin(PLAY, WAIT)
        began = time.monotonic()
        assert game.act("play", "wait")[0] == "wait"
        assert time.monotonic() - began < 4, "it did not wait for its deadline of 5 s"
        game.close()
        assert made.report()["misses_by_subcause"] == {"decide.http": 1}


def test_actions_that_no_model_here_knows_get_the_safe_choice_and_people_are_told_why(tmp_path: Path) -> None:
    with playing(tmp_path, None, NeuroOptions(safe=("play",))) as made:
        game = Game(made.url)
        game.begin(PLAY, WAIT)
        assert game.act("wait", "play") == ("play", {"cell": "a1"}), "the user's own safe choice comes first"
        assert made.said("rtcontrol serve --model")
        game.close()
        assert made.report()["misses_by_cause"] == {"decide": 1}


def test_people_are_warned_once_of_a_model_that_may_not_know_these_actions(tmp_path: Path) -> None:
    with playing(tmp_path, str(unnamed(ZOO / "lander", tmp_path / "copy"))) as made:
        game = Game(made.url)
        game.begin(PLAY, WAIT)
        for names in (("play",), ("wait",), ("play", "wait")):
            assert game.act(*names)[0] in names
        game.close()
        made.report()
    assert sum("trained on these tools is not known" in line for line in made.lines) == 1, made.lines


def test_two_forces_at_once_are_answered_one_after_the_other(game: Game) -> None:
    # neuro-sdk#31: forces wait until the result of the one before is there.
    game.force("play", state="one")
    game.force("wait", state="two")
    first = game.hear("action")
    assert first["name"] == "play" and game.silent()
    game.result(first)
    assert game.hear("action")["name"] == "wait"


def test_an_action_that_failed_is_tried_again_and_in_the_end_in_turn(chance: Playing, game: Game) -> None:
    game.force("play", "wait")
    tried = []
    for _ in range(5):
        action = game.hear("action")
        tried.append(action["name"])
        game.result(action, False, "not now")
    game.result(action := game.hear("action"))
    assert {*tried[3:], action["name"]} == {"play", "wait"}, "after three of the model's, each in turn"
    game.close()
    report = chance.report()
    assert report["releases"] == 3 and report["acknowledged"] == {"refused": 3}
    assert report["wire"]["refused"] == 5 and report["wire"]["forced"] == 1


def test_a_force_that_the_game_always_refuses_is_given_up_and_the_next_one_is_taken(
    chance: Playing, game: Game
) -> None:
    game.force("wait")
    for _ in range(12):
        game.result(game.hear("action"), False)
    chance.wait_for("it is given up")
    assert game.act("wait")[0] == "wait"


def test_a_failure_after_the_actions_were_unregistered_ends_the_force(chance: Playing, game: Game) -> None:
    # neuro-pokemon-platinum#24: the turn's actions are unregistered before their result is told to have failed.
    game.force("play")
    action = game.hear("action")
    game.say("actions/unregister", action_names=["play"])
    game.result(action, False, "too late")
    chance.wait_for("the force is over")
    assert game.silent()
    assert game.act("wait")[0] == "wait"


def test_actions_that_are_unregistered_while_they_are_forced_are_not_chosen(tmp_path: Path) -> None:
    # neuro-sdk#14
    with standin(lambda n: (1.0, None)) as endpoint, playing(tmp_path, f"decisions:{endpoint.url}") as made:
        game = Game(made.url)
        game.begin(PLAY, WAIT)
        game.force("play")
        game.say("actions/unregister", action_names=["play"])
        assert game.silent(2.0)
        assert game.act("wait")[0] == "wait"
        assert made.said("unregistered before one was chosen")
        game.close()


def test_a_force_of_nothing_that_is_registered_is_told_and_harms_nothing(chance: Playing, game: Game) -> None:
    game.force("dance")
    game.force()  # neuropilot#224: a force with no action
    chance.wait_for("(dance)")
    chance.wait_for("(none)")
    assert game.act("play")[0] == "play"


def test_a_result_that_never_comes_does_not_hold_up_the_game_that_began_anew(game: Game) -> None:
    game.force("play")
    game.hear("action")
    game.begin(WAIT)
    assert game.act("wait")[0] == "wait"


def test_more_forces_than_may_wait_are_dropped_and_told(chance: Playing, game: Game) -> None:
    for number in range(QUEUED + 2):
        game.force("wait", state=str(number))
    chance.wait_for(f"{QUEUED} forces wait already")
    for _ in range(QUEUED + 1):
        game.result(game.hear("action"))
    assert game.silent()


def test_a_game_that_never_tells_a_result_is_asked_no_more_and_the_next_force_is_answered(
    chance: Playing, game: Game, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "RESULT_S", 0.3)
    game.force("play")
    game.force("wait")
    assert game.hear("action")["name"] == "play"
    assert game.hear("action")["name"] == "wait"
    assert chance.said("what became of")


def test_a_result_of_another_action_is_told_and_changes_nothing(chance: Playing, game: Game) -> None:
    game.force("play")
    action = game.hear("action")
    game.say("action/result", id="someone-else", success=True)
    chance.wait_for("waits for none")
    game.result(action)
    assert game.act("wait")[0] == "wait"


# -- actions -----------------------------------------------------------------------------------------------------------


def test_an_action_that_is_registered_twice_stays_as_it_was_until_it_is_unregistered(
    chance: Playing, game: Game
) -> None:
    other = {**PLAY, "schema": {"type": "object", "properties": {"cell": {"enum": ["z9"]}}, "required": ["cell"]}}
    game.say("actions/register", actions=[PLAY, other])
    chance.wait_for("stays as it was")
    assert game.act("play")[1]["cell"] != "z9"
    game.say("actions/unregister", action_names=["play", "never-there"])
    game.say("actions/register", actions=[other])
    assert game.act("play")[1] == {"cell": "z9"}


def test_a_game_that_names_its_actions_in_another_order_needs_no_other_decoder(chance: Playing, game: Game) -> None:
    made, pool = [], chance.admission.pool
    opens = pool.open
    pool.open = lambda name, source: (made.append(name), opens(name, source))[1]  # type: ignore[method-assign]
    for names in itertools.permutations(("play", "wait")):
        assert game.act(*names)[0] in names
    assert len(made) <= 1, made


def test_a_new_startup_clears_what_was_registered(chance: Playing, game: Game) -> None:
    game.begin(WAIT)
    game.force("play")
    chance.wait_for("names no action that is registered")
    assert game.act("wait", "play")[0] == "wait"


def test_a_game_that_goes_on_after_the_server_was_started_anew_is_asked_for_its_actions(chance: Playing) -> None:
    game = Game(chance.url)
    game.say("context", message="I was here before you.", silent=True)
    game.hear("actions/reregister_all")
    game.close()


def test_a_force_after_the_server_was_started_anew_waits_for_the_games_actions(chance: Playing) -> None:
    game = Game(chance.url)
    game.force("play")
    game.hear("actions/reregister_all")
    game.say("actions/register", actions=[PLAY, WAIT])
    game.result(action := game.hear("action"))
    assert action["name"] == "play"
    game.force("dance")
    until(lambda: chance.said("(dance)") or chance.said("its actions are not registered"), 20)
    assert game.act("wait")[0] == "wait"
    game.close()


def test_a_game_that_connects_again_and_says_nothing_is_asked_for_its_actions_once(chance: Playing) -> None:
    # The SDKs for Unity and Godot send `startup` with their first connection alone, and then wait.
    game = Game(chance.url)
    game.hear("actions/reregister_all")
    game.say("actions/register", actions=[WAIT])
    assert game.act("wait")[0] == "wait"
    assert game.silent(1.5)
    game.close()


def test_a_game_for_which_there_is_no_room_is_sent_away_to_come_again(tmp_path: Path) -> None:
    with playing(tmp_path, most=1) as made:
        game = Game(made.url)
        game.begin(WAIT)
        other = Game(made.url, "Other")
        other.say("startup")
        with pytest.raises(ConnectionClosed) as closed:
            other.hear("startup")
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013
        assert game.act("wait")[0] == "wait"
        game.close()
        made.report()
        again = Game(made.url, "Other")
        again.begin(WAIT)
        assert again.act("wait")[0] == "wait"
        again.close()


def test_an_action_whose_schema_no_model_can_be_offered_is_told_and_the_others_play_on(chance: Playing) -> None:
    game = Game(chance.url)
    odd = {"name": "odd", "description": "", "schema": {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}}}
    game.begin(odd, WAIT)
    chance.wait_for("action odd")
    assert game.act("odd", "wait")[0] == "wait"
    game.close()


def test_a_schema_that_is_nested_without_end_costs_its_action_alone(chance: Playing) -> None:
    game = Game(chance.url)
    inner: dict[str, Any] = {}
    for _ in range(480):
        inner = {"x": inner}
    deep = {"name": "deep", "description": "", "schema": {"type": "object", "properties": {"x": inner}}}
    game.begin(deep, WAIT)
    chance.wait_for("action deep is offered to no model")
    assert game.act("deep", "wait")[0] == "wait"
    game.close()


def test_null_stands_for_what_is_not_there(chance: Playing) -> None:
    game = Game(chance.url)
    game.begin({"name": "nod", "description": None, "schema": None})
    game.say("context", message="Look.", silent=None)
    game.say("actions/force", state=None, query="?", priority=None, ephemeral_context=None, action_names=["nod"])
    action = game.hear("action")
    game.say("action/result", id=action["id"], success=True, message=None)
    assert game.act("nod")[0] == action["name"] == "nod" and not chance.said("not understood")
    game.close()


def test_half_a_character_of_a_text_that_was_cut_costs_no_answer_and_no_record(chance: Playing, game: Game) -> None:
    assert game.act("wait", state="cut \ud83d", query="\ude00 here")[0] == "wait"
    game.close()
    assert chance.report()["releases"] == 1
    assert [one["data"]["state"] for one in chance.events() if "observation" in one] == ["cut ?"]


schemas = st.dictionaries(
    st.text("abcdefgh_", min_size=1, max_size=8),
    st.one_of(
        st.lists(st.text("xyz ", max_size=4), min_size=1, max_size=4, unique=True).map(lambda v: {"enum": v}),
        st.tuples(st.integers(-50, 50), st.integers(0, 60)).map(
            lambda v: {"type": "integer", "minimum": v[0], "maximum": v[0] + v[1]}
        ),
        st.just({"type": "boolean"}),
        # neuro-sdk#60: whether `uniqueItems` is kept was not known.
        st.just({"type": "array", "items": {"enum": ["p", "q"]}, "minItems": 1, "maxItems": 2, "uniqueItems": True}),
    ),
    max_size=4,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(properties=schemas, some=st.booleans())
def test_all_that_is_chosen_is_what_the_actions_schema_allows(
    game: Game, properties: dict[str, Any], some: bool
) -> None:
    required = list(properties)[: 1 if some else None]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    game.begin({"name": "drawn", "description": "Anything.", "schema": schema})
    for _ in range(3):
        name, arguments = game.act("drawn")
        assert name == "drawn"
        jsonschema.validate(arguments or {}, schema)


# -- what the player knows ---------------------------------------------------------------------------------------------


def test_the_model_reads_what_the_game_told_and_what_became_of_what_it_did(tmp_path: Path) -> None:
    with (
        standin(lambda n: (0.0, None)) as endpoint,
        playing(tmp_path, f"decisions:{endpoint.url}", NeuroOptions("Win.")) as made,
    ):
        game = Game(made.url)
        game.begin(PLAY, WAIT)
        game.say("context", message="The board is empty.", silent=True)
        game.force("play", "wait", state="x to move", query="Choose a cell.")
        game.result(game.hear("action"), True, "Good choice.")
        game.act("play", "wait", state="o to move")
        game.close()
        told = made.report()
    first, second = (json.dumps(body["input"]) for body in endpoint.bodies)
    assert all(part in first for part in ("Win.", "The board is empty.", "x to move", "Choose a cell."))
    assert "Good choice." in second and "o to move" in second and "x to move" not in second
    assert "play(" in second, "the call that was done is in its history"
    assert told["on_time"] == 2


def test_texts_that_are_too_long_are_cut_and_their_force_is_answered(chance: Playing, game: Game) -> None:
    game.say("context", message="x" * 100_000, silent=True)
    game.force("wait", state="y" * 100_000)
    game.result(action := game.hear("action"), True, "z" * 100_000)
    assert action["name"] == "wait" and chance.said("the first 65536 characters are read")
    game.act("wait")
    game.close()
    chance.report()
    first, second = (one["data"] for one in chance.events() if "observation" in one)
    assert set(first["state"]) == {"y"} and sum(map(len, second["remarks"])) <= 8_000


def test_a_game_that_speaks_to_the_player_may_be_answered_unforced(game: Game) -> None:
    for number in range(40):  # chance may choose nothing
        game.say("context", message=f"Look! {number}", silent=False)
        if not game.silent(0.2):
            action = game.hear("action")
            assert action["name"] in ("play", "wait")
            game.result(action)
            return
    raise AssertionError("nothing was ever done")


def test_with_a_rate_actions_are_taken_that_nobody_forced_and_a_force_comes_before_them(tmp_path: Path) -> None:
    with playing(tmp_path, play=NeuroOptions(hz=20)) as made:
        game = Game(made.url)
        game.begin(PLAY, WAIT)
        counted: Counter[str] = Counter()
        for _ in range(5):
            action = game.hear("action")
            counted[action["name"]] += 1
            game.result(action)
        game.force("wait")
        names = [game.hear("action")]
        while names[-1]["name"] != "wait":
            game.result(names[-1])
            names.append(game.hear("action"))
        assert sum(counted.values()) == 5
        game.close()
        assert made.report()["wire"]["unforced"] >= 5


def test_a_force_does_not_wait_for_a_decision_that_nobody_forced(tmp_path: Path) -> None:
    with (
        standin(lambda n: (8.0 if n == 0 else 0.0, None)) as endpoint,
        playing(tmp_path, f"decisions:{endpoint.url}") as made,
    ):
        game = Game(made.url)
        game.begin(PLAY, WAIT)
        game.say("context", message="Look!", silent=False)
        until(lambda: bool(endpoint.bodies), 20)
        assert game.act("play", "wait", priority="medium")[0] == "play", "the safe choice would wait"
        game.close()
        report = made.report()
    assert report["wire"] | {"decided": 1, "safe": 0, "unforced": 1} == report["wire"]
