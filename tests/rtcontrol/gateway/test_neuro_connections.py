"""`rtcontrol serve --neuro`: who connects, what ends, what is not understood, and what people say to it."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path

import chromium
import pytest
from neuro_game import PLAY, WAIT, Game, Playing, playing
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rtcontrol.gateway import view
from rtcontrol.gateway.decide import Unavailable
from rtcontrol.gateway.neuro import NeuroOptions, server
from rtcontrol.models.errors import UserError
from tests.helpers.processes import until

# -- connections -------------------------------------------------------------------------------------------------------


def test_two_games_are_played_apart_each_with_its_own_report(chance: Playing, game: Game) -> None:
    other = Game(chance.url, "Other")
    other.begin({**PLAY, "name": "jump"})
    for _ in range(3):
        assert game.act("play")[0] == "play"
        assert other.act("jump")[0] == "jump"
    other.force("play")
    chance.wait_for("names no action that is registered (play)")
    game.close()
    other.close()
    assert (chance.report("neuro-0001")["agent"], chance.report("neuro-0002")["agent"]) == ("Board", "Other")


def test_a_game_that_is_lost_in_the_midst_of_a_force_leaves_a_report_and_can_come_back(chance: Playing) -> None:
    game = Game(chance.url)
    game.begin(PLAY)
    game.force("play")
    action = game.hear("action")
    game.socket.socket.close()
    assert chance.report()["releases"] == 1
    again = Game(chance.url)
    again.begin(PLAY)
    again.force("play")
    other = again.hear("action")
    again.result(action)  # of the connection before
    chance.wait_for("waits for none")
    again.result(other)
    assert again.act("play")[0] == "play"
    again.close()
    assert chance.report("neuro-0002")["releases"] == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no JSON object"),
        ('{"command": "dance", "game": "Board"}', "no command 'dance'"),
        ('{"command": "startup"}', "`game` is no name"),
        ('{"command": "actions/force", "game": "Board", "data": {"query": "?"}}', "data.action_names"),
        (
            '{"command": "actions/register", "game": "Board", "data": {"actions": [{"description": "x"}]}}',
            "actions.0.name",
        ),
    ],
)
def test_what_is_not_understood_is_told_and_the_game_goes_on(chance: Playing, game: Game, text: str, why: str) -> None:
    game.socket.send(text)
    chance.wait_for(why)
    assert game.act("play")[0] == "play"


def test_a_game_that_talks_without_end_is_heard_more_slowly_and_stays(game: Game) -> None:
    for number in range(3000):
        game.say("context", message=f"Look! {number}", silent=True)
    assert game.act("wait")[0] == "wait"


def test_a_game_that_brings_many_schemas_that_cannot_be_read_is_read_no_further(
    chance: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    async def refuse(reading: object, tools: tuple[object, ...], timeout_s: float = 0) -> None:
        tried.append(len(tools))
        raise Unavailable("it takes too long")

    monkeypatch.setattr(server, "read_tools", refuse)
    game = Game(chance.url)
    odd = [{"name": f"odd{i}", "schema": {"type": "object", "properties": {"x": {"anyOf": []}}}} for i in range(64)]
    game.begin(*odd, WAIT)
    assert game.act("wait", "odd0")[0] == "wait"
    assert tried.count(1) == server.UNREADABLE and chance.said("could not be read")
    game.close()


def test_binary_messages_are_read_as_well(game: Game) -> None:
    # The specification warns of SDKs that send these.
    told = {"command": "actions/force", "game": "Board", "data": {"query": "?", "action_names": ["wait"]}}
    game.socket.send(json.dumps(told).encode())
    assert game.hear("action")["name"] == "wait"


def test_when_the_server_ends_the_game_may_save_first(tmp_path: Path) -> None:
    with playing(tmp_path) as made:
        game = Game(made.url)
        game.begin(PLAY)
        game.act("play")
        closing = threading.Thread(target=made.server.close)
        closing.start()
        assert game.hear("shutdown/graceful") == {"wants_shutdown": True}
        game.say("shutdown/ready")
        with pytest.raises(ConnectionClosed):
            game.hear("shutdown/immediate")
        closing.join()
        made.wait_for("over (server stopped)")
        assert json.loads((tmp_path / "neuro-0001" / "report.json").read_text())["releases"] == 1


def test_games_that_do_not_know_of_an_end_hold_it_up_together_not_each(tmp_path: Path) -> None:
    with playing(tmp_path) as made:
        games = [Game(made.url, f"Game {number}") for number in range(32)]
        for game in games:
            game.begin(WAIT)
            game.act("wait")
        began = time.monotonic()
        made.server.close()
        assert time.monotonic() - began < 25, "a second for each would be 32"
    for number in range(1, 33):
        assert (tmp_path / f"neuro-{number:04d}" / "report.json").exists()


def test_pages_of_other_sites_need_to_be_allowed_and_to_show_the_token(tmp_path: Path) -> None:
    token, site = "a-token-of-the-tests-0123456789", "https://games.example"
    with playing(tmp_path / "a") as made:
        with pytest.raises(InvalidStatus, match="403"):
            Game(made.url, origin=site)
        made.wait_for("was not let in (origin)")
    with playing(tmp_path / "b", origins=frozenset([site]), token=token) as made:
        with pytest.raises(InvalidStatus, match="401"):
            Game(made.url, origin=site)
        game = Game(f"{made.url}?token={token}", origin=site)
        game.begin(PLAY)
        assert game.act("play")[0] == "play"
        game.close()


@pytest.mark.slow
def test_a_browsers_game_is_played_and_the_page_has_no_errors(chance: Playing, tmp_path: Path) -> None:
    if chromium.BINARY is None:
        pytest.skip("there is no Chromium")
    with chromium.Chromium(tmp_path / "profile") as page:
        page.open(chance.server.url)
        page.until("rtcontrol.counts.answers >= 8")
        page.open("about:blank")
        report = chance.report()
        assert page.errors == []
    assert report["agent"] == "Coins" and report["releases"] >= 8 and report["wire"]["refused"] == 0


# -- people ------------------------------------------------------------------------------------------------------------


def test_people_look_on_pause_and_instruct_a_game_as_they_do_a_session(chance: Playing, game: Game) -> None:
    game.act("play", "wait")
    assert [one["client"] for one in view.listed(chance.admission)] == ["Board"]
    watched = view.find(chance.admission, "neuro-0001")
    assert watched is not None
    watched.instruct("Lose.")
    until(lambda: bool(watched.snapshot(0)["ticks"]), 20)
    watched.say("pause", None)
    assert {game.act("play", "wait")[0] for _ in range(12)} == {"wait"}, "the safe choice alone"
    watched.say("resume", None)
    assert "play" in {game.act("play", "wait")[0] for _ in range(40)}
    game.close()
    chance.report()
    assert "Lose." in {one.get("instruction") for one in chance.events()}


def test_a_stop_is_told_to_the_game_and_is_final_until_it_connects_again(chance: Playing, game: Game) -> None:
    game.act("wait")
    watched = view.find(chance.admission, "neuro-0001")
    assert watched is not None
    watched.say("stop", None)
    assert game.hear("shutdown/graceful") == {"wants_shutdown": True}
    game.force("wait", priority="critical")
    assert game.silent(1.5)
    again = Game(chance.url)
    again.begin(WAIT)
    assert again.act("wait")[0] == "wait"
    again.close()
    game.close()
    report = chance.report()
    assert report["ended_by"] == "stop" and report["releases"] == 1
    assert chance.said("2 forced, 1 decided, 1 withdrawn")


def test_a_game_whose_record_cannot_be_made_has_the_safe_choice_at_once_and_a_record_when_it_can(
    chance: Playing, game: Game
) -> None:
    folder = chance.out / "neuro-0001"
    folder.write_text("in the way")
    began = time.monotonic()
    assert {game.act("play", "wait")[0] for _ in range(4)} == {"wait"}
    assert time.monotonic() - began < 5, "none waited for its deadline of 5 s"
    assert chance.said("cannot be written")
    folder.unlink()
    assert game.act("play")[0] == "play"
    game.close()
    assert chance.report()["releases"] == 1


def test_each_deadline_is_that_of_its_priority(chance: Playing, game: Game) -> None:
    for priority in ("low", "medium", "high", "critical", "urgent"):
        game.act("wait", priority=priority)
    assert chance.said("no priority 'urgent'")
    game.close()
    chance.report()
    looks = [one["data"] for one in chance.events() if "observation" in one]
    assert [one["priority"] for one in looks] == ["low", "medium", "high", "critical", "low"]


@pytest.mark.parametrize("text", ["soon", "low=0", "urgent=5", "low=5000,", "-1"])
def test_deadlines_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="no list of deadlines"):
        NeuroOptions.parse(None, text, (), 0.0)


def test_an_instruction_that_is_too_long_is_refused_at_the_start() -> None:
    with pytest.raises(UserError, match="instruction"):
        NeuroOptions.parse("x" * 1_000_000, None, (), 0.0)


def test_deadlines_are_one_for_all_or_by_priority() -> None:
    assert set(NeuroOptions.parse(None, "800", (), 0.0).deadlines.values()) == {800.0}
    by_name = NeuroOptions.parse(None, "critical=50, low=9000", (), 0.0).deadlines
    assert (by_name["critical"], by_name["low"], by_name["high"]) == (50.0, 9000.0, 1000.0)


def test_records_go_on_after_those_that_lie_in_the_folder(tmp_path: Path) -> None:
    for number in itertools.islice(itertools.count(1), 2):
        with playing(tmp_path) as made:
            game = Game(made.url)
            game.begin(WAIT)
            game.act("wait")
            game.close()
            assert made.report(f"neuro-{number:04d}")["releases"] == 1
