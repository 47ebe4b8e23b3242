"""Crowds over real sockets: decisions, refusals and returning clients, and whether the accounts add up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgpack

from rtcontrol.telemetry.record_reader import read_record
from rtcontrol_client.wire import encode_msgpack
from rtcontrol_client.wire.messages import (
    CallMany,
    CrowdRequest,
    ErrorMessage,
    Join,
    Member,
    MemberCall,
    ObservationPart,
    ObserveMany,
    Welcome,
)
from tests.helpers.processes import until
from tests.rtcontrol.serve.wire_peer import TEXT, WAIT_S, WirePeer

Bench = Callable[..., Any]


class CrowdPeer:
    """A client with a crowd; `calls` has all received calls in order."""

    def __init__(self, peer: WirePeer, **hello: Any) -> None:
        self.peer, self.calls, self.seq = peer, list[MemberCall](), 0
        peer.enter(**{"crowd": CrowdRequest(), "hz": 20, **hello})

    def join(self, *members: str | Mapping[str, Any]) -> None:
        fields = [{"id": item} if isinstance(item, str) else item for item in members]
        self.peer.send(Join(session=self.peer.token, members=[Member(**item) for item in fields]))

    def see(self, names: Iterable[str]) -> None:
        """Send an observation of each member."""
        self.seq += 1
        now = time.monotonic_ns()
        looks = [ObservationPart(id=name, seq=self.seq, t_ns=now, text=TEXT) for name in names]
        self.peer.send(ObserveMany(session=self.peer.token, looks=looks))

    def take(self) -> list[MemberCall]:
        """Return the calls of the next message."""
        calls = self.peer.expect(CallMany).calls
        self.calls += calls
        return calls

    def until_fresh(self, *ids: str) -> dict[str, MemberCall]:
        """Observe until each member has received a new fresh call; return the last call of each."""
        wanted, matches, end = set(ids), dict[str, MemberCall](), time.monotonic() + WAIT_S
        while set(matches) < wanted and time.monotonic() < end:
            self.see(wanted)
            matches |= {call.id: call for call in self.take() if call.status == "fresh" and call.id in wanted}
        assert set(matches) >= wanted, f"no fresh calls of {sorted(wanted - set(matches))[:5]}"
        return matches


def raw(crowd: CrowdPeer, header: dict[str, Any]) -> None:
    crowd.peer.socket.send_multipart([msgpack.packb({"session": crowd.peer.token, **header})])


def refused(crowd: CrowdPeer) -> list[tuple[str | None, str, str | None]]:
    members = crowd.peer.expect(ErrorMessage).members or []
    return [(item.id, item.code, item.field) for item in members]


def test_members_calls_match_the_record(bench: Bench) -> None:
    running = bench()
    crowd = CrowdPeer(running.peer())
    assert crowd.peer.welcome is not None and crowd.peer.welcome.crowd is not None
    crowd.join("anna", {"id": "bert", "ttl_ms": 900, "epoch": 3, "every_tick": True})
    matches = crowd.until_fresh("anna", "bert")
    assert matches["bert"].ttl_ms == 900 and matches["bert"].epoch == 3 and matches["anna"].epoch == 0
    for _ in range(5):
        crowd.until_fresh("bert")
    result = running.report(crowd.peer)
    assert result["releases"] == result["ticks"] + result["skipped_releases"]
    assert result["ticks"] == result["on_time"] + result["misses"]
    members = result["crowd"]["by_member"]
    assert sum(item["releases"] for item in members.values()) == result["releases"]
    assert sum(item["misses"] for item in members.values()) == result["misses"] + result["skipped_releases"]
    assert members["bert"]["releases"] >= 6
    record = list(read_record(running.out / "session-0001" / "record.mcap"))
    calls = {(e["member"], e["k"]): e for e in record if e.get("called")}
    looks = {(e["member"], e["k"]): e for e in record if "observation" in e}
    fresh = [call for call in crowd.calls if call.status == "fresh" and call.call is not None]
    assert fresh
    for call in fresh:
        assert call.call is not None
        event = calls[call.id, call.tick]
        assert (event["called"], event["arguments"]) == (call.call.name, call.call.arguments)
        assert looks[call.id, call.tick]["observation"] == TEXT


def test_wrong_part_is_refused_and_the_others_accepted(bench: Bench) -> None:
    crowd = CrowdPeer(bench(hz_max=50.0).peer())
    bad = [
        {"id": "hasty", "hz": 60},
        {"id": "late", "deadline_ms": 5000},
        {"id": "mute", "instruction": "  "},
        {"id": "unsafe", "safe_calls": [{"name": "explode"}]},
        {"id": "odd", "priority": 10},
        {"id": 7},
        {"id": "fine"},
    ]
    raw(crowd, {"type": "join", "members": bad})
    result = refused(crowd)
    assert set(result) == {
        ("hasty", "invalid", "hz"),
        ("late", "invalid", "deadline_ms"),
        ("mute", "instruction", "instruction"),
        ("unsafe", "tools", "safe_calls"),
        ("odd", "invalid", "priority"),
        (None, "invalid", "id"),
    }
    look = {"t_ns": 1, "text": TEXT}
    looks = [
        {"id": "fine", "seq": 1, **look, "text": None, "data": {"x": float("nan")}},
        {"id": "fine", "seq": 2, **look},
        {"id": "fine", "seq": 2, **look},
        {"id": "fine", "seq": 3, "t_ns": 1},
        {"id": "fine", "seq": 4, "t_ns": 1, "data": {"warmth": 3}},
        {"id": "stranger", "seq": 1, **look},
        "x",
    ]
    raw(crowd, {"type": "observe_many", "looks": looks})
    assert Counter(refused(crowd)) == Counter(
        [
            ("fine", "invalid", "data.x"),
            ("fine", "sequence", "seq"),
            ("fine", "invalid", "text"),
            ("fine", "invalid", "data"),
            ("stranger", "state", "id"),
            (None, "invalid", None),
        ]
    )
    assert crowd.take()[0].seq_obs == 2


def test_thousand_members_get_calls_within_message_limits(bench: Bench) -> None:
    running = bench(model="noop")
    crowd = CrowdPeer(running.peer(), hz=1)
    names = [f"m{i:04d}" for i in range(1000)]
    for start in range(0, 1000, 250):
        crowd.join(*names[start : start + 250])
    for start in range(0, 1000, 250):
        crowd.see(names[start : start + 250])
    received: set[str] = set()
    end = time.monotonic() + WAIT_S
    while len(received) < 1000 and time.monotonic() < end:
        message = crowd.peer.expect(CallMany)
        assert len(message.calls) <= 1024 and sum(map(len, encode_msgpack(message))) < 1 << 20
        received |= {call.id for call in message.calls}
    assert received == set(names)
    result = running.report(crowd.peer)
    assert result["crowd"]["members"] == 1000 and result["releases"] == result["ticks"] + result["skipped_releases"]


def test_resumed_client_keeps_its_members(bench: Bench) -> None:
    running = bench()
    crowd = CrowdPeer(running.peer())
    crowd.join({"id": "anna", "ttl_ms": 901})
    tick = crowd.until_fresh("anna")["anna"].tick
    token, seq = crowd.peer.token, crowd.seq
    crowd.peer.close()
    until(lambda: running.sessions.health()["sessions"]["parked"] == 1, "it is not parked")
    again = running.peer()
    again.hello(resume=token, crowd=CrowdRequest())
    welcome = again.expect(Welcome)
    assert welcome.resumed and welcome.crowd is not None
    again.welcome, crowd.peer = welcome, again
    crowd.seq = seq
    matches = crowd.until_fresh("anna")["anna"]
    assert matches.ttl_ms == 901 and matches.tick > tick
