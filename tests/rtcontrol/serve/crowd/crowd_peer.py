"""A test client with a crowd, which sends raw messages without the client library."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from rtcontrol_client.wire.messages import CallMany, CrowdWish, Join, Leave, Member, MemberCall, MemberLook, ObserveMany
from tests.rtcontrol.serve.wire_peer import TEXT, WAIT_S, WirePeer


class CrowdPeer:
    """A client with a crowd; `calls` has all received calls in order."""

    def __init__(self, peer: WirePeer, **hello: Any) -> None:
        self.peer, self.calls, self.seq = peer, list[MemberCall](), 0
        peer.enter(**{"crowd": CrowdWish(), "hz": 20, **hello})

    def join(self, *members: str | Mapping[str, Any]) -> None:
        fields = [{"id": item} if isinstance(item, str) else item for item in members]
        self.peer.send(Join(session=self.peer.token, members=[Member(**item) for item in fields]))

    def leave(self, *ids: str) -> None:
        self.peer.send(Leave(session=self.peer.token, ids=list(ids)))

    def see(self, texts: Mapping[str, str] | Iterable[str]) -> int:
        """Send observations of members; return the sequence number, which is the same for all."""
        shown = texts if isinstance(texts, Mapping) else dict.fromkeys(texts, TEXT)
        self.seq += 1
        now = time.monotonic_ns()
        looks = [MemberLook(id=name, seq=self.seq, t_ns=now, text=text) for name, text in shown.items()]
        self.peer.send(ObserveMany(session=self.peer.token, looks=looks))
        return self.seq

    def take(self, timeout_s: float = WAIT_S) -> list[MemberCall]:
        """Return the calls of the next message."""
        calls = self.peer.expect(CallMany, timeout_s).calls
        self.calls += calls
        return calls

    def until_fresh(self, ids: Iterable[str], texts: Mapping[str, str] | None = None) -> dict[str, MemberCall]:
        """Observe until each member has received a new fresh call; return the last call of each."""
        wanted, matches, end = set(ids), dict[str, MemberCall](), time.monotonic() + WAIT_S
        while set(matches) < wanted and time.monotonic() < end:
            self.see(texts or wanted)
            matches |= {call.id: call for call in self.take() if call.status == "fresh" and call.id in wanted}
        assert set(matches) >= wanted, f"no fresh calls of {sorted(wanted - set(matches))[:5]}"
        return matches
