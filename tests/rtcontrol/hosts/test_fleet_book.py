"""The book of a shared fleet, outside of Ray: who is in it, and who is told what."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rtcontrol.hosts.fleet_book import CHANGE_S, SILENT_S, FleetBook, SeatEntry
from rtcontrol.hosts.fleet_door import FleetDoor
from rtcontrol.hosts.fleet_roster import FleetRoster
from rtcontrol_client.wire.messages import Hello, Program

LEASE_S = 4.0
TERMS = {"rtcontrol": "1.0", "--model": "lander"}
SEAT: SeatEntry = ("decoder-1", "a", "p", 10.0, 0.05, 1.0)


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> FleetBook:
    monkeypatch.setattr(FleetBook, "_watch", lambda self: None)
    return FleetBook("lab", LEASE_S)


def test_who_leaves_counts_no_more_and_with_the_last_one_nobody_comes_in(book: FleetBook) -> None:
    book.beat("one", TERMS, [SEAT])
    assert book.beat("two", TERMS, [])["seats"] == [SEAT]
    assert book.beat("one", TERMS, [SEAT])["seats"] == [], "its own are not told to it"
    assert book.leave("one") == 1
    assert book.beat("two", TERMS, [])["seats"] == []
    assert book.leave("two") == 0
    assert book.beat("three", TERMS, []) == {"ended": True}


def test_who_comes_back_after_its_lease_is_told_so_once(book: FleetBook) -> None:
    book.beat("one", TERMS, [SEAT])
    book.beat("two", TERMS, [])
    assert book._expire(time.monotonic() + LEASE_S - 1) == []
    book._servers["two"].heard_s += LEASE_S
    assert book._expire(time.monotonic() + LEASE_S + 1) == ["one"]
    assert book.beat("one", TERMS, [SEAT])["lapsed"] is True
    assert book.beat("one", TERMS, [SEAT])["lapsed"] is False


def test_what_a_dead_server_had_is_freed_once_the_cluster_answers_again(
    book: FleetBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ray-project/ray#43687: what a client had that is gone stayed taken.
    def away() -> list[Any]:
        raise ConnectionError("no cluster")

    for server in ("one", "two", "three"):
        book.beat(server, TERMS, [])
    for left in ("one", "two"):
        book.leave(left)
    monkeypatch.setattr(book, "_decoders", away)
    with pytest.raises(ConnectionError):
        book._free(book._expire(time.monotonic()))
    book.beat("two", TERMS, [])  # it comes back, with deciders of its own
    monkeypatch.setattr(book, "_decoders", list)
    gone = book._expire(time.monotonic())
    assert gone == ["one"]
    book._free(gone)
    assert book._expire(time.monotonic()) == []


KEPT = {"key": None, "epoch": 3, "seq": 7, "instruction": "go", "paused": False}


def test_session_is_told_to_whoever_claims_it_and_its_server_is_told_that_it_went(book: FleetBook) -> None:
    assert book.beat("one", TERMS, [], {"token": KEPT})["lack"] == ["token"], "its hello was not told yet"
    assert book.claim("two", "token", None) is None
    assert book.beat("one", TERMS, [], {"token": {**KEPT, "hello": {}}})["lack"] == []
    assert book.beat("one", TERMS, [], {"token": {**KEPT, "seq": 8}})["lack"] == [], "it is told once"
    assert book.claim("two", "token", "a key of its own") is None, "another client's"
    assert book.claim("one", "token", None) == {**KEPT, "seq": 8, "hello": {}, "elsewhere": False}
    assert book.claim("two", "token", None) == {**KEPT, "seq": 8, "hello": {}, "elsewhere": True}
    assert book.beat("two", TERMS, [], {})["moved"] == [], "it is just beginning there"
    assert book.beat("one", TERMS, [], {"token": KEPT})["moved"] == ["token"]
    assert book.claim("one", "token", None) == {**KEPT, "seq": 8, "hello": {}, "elsewhere": True}


def test_members_of_a_crowd_are_told_where_they_are_others_than_the_book_has(book: FleetBook) -> None:
    door = FleetDoor("lab", TERMS)
    hello = Hello(protocol=[1, 0], client=Program(name="c"), t_client_ns=1)

    def beat(members: str, seq: int, heard: bool = True) -> list[str]:
        kept = {"token": {**KEPT, "hello": hello, "members": members, "seqs": [seq]}}
        told = door._told(kept)
        answer = book.beat(door.id, TERMS, [], told)
        if heard:
            door._note_written(kept, answer)
        claimed = book.claim(door.id, "token", None)
        assert claimed is not None and (claimed["members"], claimed["seqs"]) == (members, [seq])
        return [name for name in ("hello", "members") if name in told["token"]]

    assert beat("[1]", 1) == ["hello", "members"]
    assert beat("[1]", 2) == [], "they are much to write"
    assert beat("[2]", 3, heard=False) == ["members"]
    assert beat("[1]", 4) == ["hello", "members"], "nobody knows what the book has"
    assert beat("[1]", 5) == []
    book._sessions.clear()  # it was lost
    kept = {"token": {**KEPT, "hello": hello, "members": "[1]", "seqs": [6]}}
    door._note_written(kept, book.beat(door.id, TERMS, [], door._told(kept)))
    assert beat("[1]", 7) == ["hello", "members"]


def test_session_of_a_server_that_was_killed_is_kept_for_a_lease_and_of_one_that_ended_not(book: FleetBook) -> None:
    state = {**KEPT, "hello": {}}
    for server in ("one", "two"):
        book.beat(server, TERMS, [], {server: state})
    book.leave("one")
    assert book.claim("two", "one", None) is None, "it said bye to its client"
    book.beat("three", TERMS, [])
    book._servers["three"].heard_s += LEASE_S
    assert book.claim("three", "two", None) is not None
    book.beat("two", TERMS, [], {"late": state})
    book._servers["three"].heard_s += LEASE_S
    assert book._expire(time.monotonic() + LEASE_S + 1) == ["two", "one"]
    assert book.claim("three", "late", None) is None


def done(book: FleetBook, server: str, what: str, *arguments: object, **options: object) -> Any:
    """What a server does with the list of decoders, which is not refused."""
    answer = book.operate(server, what, *arguments, **options)
    assert "refused" not in answer, answer
    return answer["gives"]


def test_who_comes_after_a_change_may_name_the_model_of_before_or_the_one_now_served(book: FleetBook) -> None:
    book.beat("one", TERMS, [])
    mine, other = {**TERMS, "--model": "mine"}, {**TERMS, "--model": "other"}
    assert book.beat("two", mine, []) == {"terms": TERMS}
    token = done(book, "one", "begin", "one", "changes the model to mine")
    number = done(book, "one", "serve", token, {"lander": "mine", "mine": "mine"})
    name = done(book, "one", "enter", token, number, spare=True)
    done(book, "one", "started", token, name)
    done(book, "one", "drain", token, "decoder-1", name)
    done(book, "one", "remove", token, "decoder-1")
    done(book, "one", "end", token)
    for terms in (TERMS, mine):
        roster = book.beat("two", terms, [])["roster"]
        assert roster["served"][roster["model"]] == {"lander": "mine", "mine": "mine"}
    assert book.beat("three", other, []) == {"terms": TERMS}


def served_in_its_place(book: FleetBook, server: str, before: str, model: str) -> None:
    """The fleet's only decoder is changed for one with another model."""
    token = done(book, server, "begin", server, f"changes the model to {model}")
    number = done(book, server, "serve", token, {before: model, model: model})
    old = book._roster.takes[0]
    name = done(book, server, "enter", token, number, spare=True)
    done(book, server, "started", token, name)
    done(book, server, "drain", token, old, name)
    done(book, server, "remove", token, old)
    done(book, server, "end", token)


def test_book_that_was_lost_after_a_change_lets_in_who_was_in(book: FleetBook) -> None:
    # ray-project/ray#9286: what was lost began anew, and knew no more whose all was.
    book.beat("one", TERMS, [])
    served_in_its_place(book, "one", "lander", "mine")
    mine, strange = {**TERMS, "--model": "mine"}, {**TERMS, "rtcontrol": "0.9"}
    roster = book.beat("two", mine, [])["roster"]
    book = FleetBook("lab", LEASE_S)
    book._blank = True
    assert book.beat("three", strange, []) == {"ended": True}
    assert "roster" in book.beat("two", mine, [], {}, {"roster": roster}), "its terms are not the fleet's first"
    assert "roster" in book.beat("one", TERMS, [], {}, {"version": roster["version"]})
    assert book.beat("three", strange, []) == {"terms": TERMS}


def test_server_that_leaves_soon_after_the_book_was_lost_does_not_end_the_fleet_of_others(book: FleetBook) -> None:
    book.beat("one", TERMS, [])
    roster = book.beat("two", TERMS, [])["roster"]
    again_s = time.monotonic() + LEASE_S
    book = FleetBook("lab", LEASE_S)
    book._blank, book._learns_s = True, again_s
    book.beat("one", TERMS, [], {}, {"roster": roster})
    book.leave("one")  # the other was not heard yet
    assert "roster" in book.beat("two", TERMS, [], {}, {"version": roster["version"]})
    book.leave("two")
    book._expire(again_s + 2 * LEASE_S)
    assert book.beat("three", TERMS, []) == {"ended": True}, "nobody came"


def test_strange_server_that_comes_first_to_a_book_that_was_lost_does_not_say_who_is_let_in(book: FleetBook) -> None:
    book.beat("one", TERMS, [])
    roster = book.beat("one", TERMS, [])["roster"]
    book = FleetBook("lab", LEASE_S)
    book._blank, book._alone_s = True, time.monotonic() - SILENT_S - 1
    assert "roster" in book.beat("three", {**TERMS, "rtcontrol": "0.9"}, []), "nobody else seems to be there"
    assert book.beat("one", TERMS, [], {}, {"version": roster["version"]}) == {"behind": True}
    assert "roster" in book.beat("one", TERMS, [], {}, {"roster": roster})
    assert book.beat("three", {**TERMS, "rtcontrol": "0.9"}, []) == {"terms": TERMS}


def test_who_comes_to_a_fleet_that_began_by_an_agent_may_name_the_model_now_served(book: FleetBook) -> None:
    by_agent = {"rtcontrol": "1.0", "--agent": "mine.py", "--model": None}
    book.beat("one", by_agent, [])
    served_in_its_place(book, "one", "lander", "mine")
    assert "roster" in book.beat("two", {**by_agent, "--model": "mine"}, [])
    assert "roster" in book.beat("three", by_agent, [])
    assert book.beat("four", {**by_agent, "--model": "other"}, []) == {"terms": by_agent}


def test_eldest_server_that_is_heard_operates_and_one_that_begins_does_not(book: FleetBook) -> None:
    begun = {"report": {"version": 1}}

    def operates(server: str, fleet: dict[str, Any]) -> bool:
        found: bool = book.beat(server, TERMS, [], {}, fleet)["operates"]
        return found

    assert not operates("one", {}), "it begins"
    assert operates("two", begun)
    assert operates("one", begun) and not operates("two", begun), "the eldest"
    book._servers["one"].heard_s -= SILENT_S + 1
    assert operates("two", begun)
    assert operates("one", begun) and not operates("two", begun)
    book.leave("one")
    assert operates("two", begun)


def test_change_of_a_server_that_is_silent_or_leaves_is_given_up(book: FleetBook) -> None:
    # knative/serving#2111: of several that act only one may, and another once that one is gone.
    for gone in (lambda: book.leave("one"), lambda: book._expire(time.monotonic() + CHANGE_S + 1)):
        for server in ("one", "two"):
            book.beat(server, TERMS, [])
        token = done(book, "one", "begin", "one", "drains decoder-1")
        assert "refused" in book.operate("two", "begin", "two", "drains decoder-1")
        book._servers["two"].heard_s += CHANGE_S
        gone()
        assert book._roster.change is None
        assert "refused" in book.operate("one", "end", token)
        token = done(book, "two", "begin", "two", "drains decoder-1")
        done(book, "two", "end", token)


def test_change_that_its_server_never_heard_to_have_begun_is_given_up(book: FleetBook) -> None:
    # hazelcast/hazelcast#7343: a lock whose answer did not come was held, and its holder did not know.
    token = ""
    for works in (True, False):
        book.beat("one", TERMS, [])
        token = done(book, "one", "begin", "one", "drains decoder-1")
        book._worked_s -= CHANGE_S + 1
        book.beat("one", TERMS, [], {}, {"change": token if works else None})
        book._expire(time.monotonic())
        assert (book._roster.change is not None) is works
        if works:
            done(book, "one", "end", token)
    assert "refused" in book.operate("one", "end", token)


def test_book_that_was_lost_asks_for_the_list_and_takes_the_newest(book: FleetBook) -> None:
    book._blank = True
    assert book.beat("new", TERMS, []) == {"ended": True}, "it would begin with decoders that are not there"
    older, newer = FleetRoster(1, 2), FleetRoster(1, 2)
    token = newer.begin("one", "starts another one")
    newer.started(token, newer.enter(token), more=True)
    newer.end(token)

    def listed(server: str, **fleet: Any) -> list[str]:
        return list(book.beat(server, TERMS, [], {}, fleet)["roster"]["decoders"])

    assert book.beat("one", TERMS, [], {}, {"version": older.version}) == {"behind": True}
    assert listed("one", roster=older.plain()) == ["decoder-1"]
    first = book._roster.version
    assert listed("one", version=first) == ["decoder-1"]
    assert book.beat("two", TERMS, [], {}, {"version": newer.version}) == {"behind": True}
    assert listed("two", roster=newer.plain()) == ["decoder-1", "decoder-2"] == listed("new")
    assert listed("one", version=first) == listed("two") and book._roster.version > first
