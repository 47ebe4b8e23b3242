"""The book of a shared fleet, outside of Ray: who is in it, and who is told what."""

from __future__ import annotations

import time

import pytest

from rtcontrol.hosts.fleet_book import FleetBook, SeatEntry

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
