"""The sessions of a server: who may come in, who may come back. Part of the sessions' core."""

from __future__ import annotations

import hmac
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rtcontrol.serve import refusals
from rtcontrol.serve.session_state import Need, Peer, SessionFacts
from rtcontrol_client.wire import WireError
from rtcontrol_client.wire.messages import Hello
from rtcontrol_client.wire.pictures import PICTURES

# Beside the sessions: those that are just ending.
SPARE = 16
# So many sessions are remembered that a person stopped.
MAX_STOPPED = 256
LOST, BYE, STOPPED, BY_HAND = "client lost", "client said bye", "server stopped", "a person stopped it"
LEAVING = "the server goes away: connect again"
# What a client must bring that takes the place of one that is gone.
SAME = ("agent", "tools", "pacing", "capabilities", "robot", "calls_per_tick")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """`limit`: sessions that run, and as many that wait for their clients, each for `grace_ns`; `beat_ns` between two
    pings, `silent_beats` until a client counts as lost; `busy_max`: of the decoder's time; `outlives`: a session goes
    on while its client is away, and one that says the same hello may take its place."""

    limit: int = 64
    grace_ns: int = 30_000_000_000
    beat_ns: int = 1_000_000_000
    silent_beats: int = 3
    messages_per_s: float = 5_000.0
    errors_per_s: float = 10.0
    busy_max: float = 0.8
    outlives: bool = False


class Sessions:
    """Those that are not over, by their ids; `stopped`: tokens of those that a person stopped."""

    def __init__(self, rules: SessionRules) -> None:
        self._rules = rules
        self._sessions: dict[str, SessionFacts] = {}
        self._stopped: deque[str] = deque(maxlen=MAX_STOPPED)

    def __iter__(self) -> Iterator[SessionFacts]:
        return iter(list(self._sessions.values()))

    def states(self) -> dict[str, int]:
        """Return how many are opening, live and parked."""
        count = Counter(session.life.state for session in self)
        return {state: count[state] for state in ("opening", "live", "parked")}

    def add(self, session: SessionFacts) -> None:
        """It opens."""
        self._sessions[session.id] = session

    def remove(self, session: SessionFacts) -> None:
        """It is over."""
        session.life.state = "over"
        if session.life.why == BY_HAND:
            self._stopped.append(session.token)
        self._sessions.pop(session.id, None)

    def resumed(self, token: str, key: str | None) -> SessionFacts:
        """Return the session that the client with this CURVE key may resume. Raises WireError."""
        session = next((s for s in self if same(token, s.token)), None)
        by_hand = session is not None and session.life.why == BY_HAND
        if by_hand or any(same(token, other) for other in self._stopped):
            raise refusals.stopped()
        if session is None or session.life.why is not None or session.key != key or session.terms is None:
            raise refusals.unknown_token(
                "There is no such session (any more).", "Say hello without `resume`.", "resume"
            )
        return session

    def vacant(self, hello: Hello, key: str | None) -> SessionFacts | None:
        """Return a session that goes on without a client, and lets the one that says this take its place: what was
        agreed with the first one stays."""
        if not self._rules.outlives:
            return None
        vacant = (s for s in self if s.peer is None and s.life.why is None and s.key == key)
        return next((s for s in vacant if all(getattr(hello, n) == getattr(s.hello, n) for n in SAME)), None)

    def left(self, peer: Peer, token: str | None) -> SessionFacts | None:
        """Return the session that a bye ends, None where there is none. Raises WireError.

        A client that closes right after its bye may be gone before the bye is read: the token then names the session,
        which waits for its client or is ending.
        """
        if peer.session is not None:
            return session_of(peer, token)
        lost = (s for s in self if s.peer is None and s.key == peer.connection.key)
        return next((s for s in lost if token is not None and same(token, s.token)), None)

    def pictured(self, peer: Peer, token: str) -> SessionFacts:
        """Return whose picture it is. It may come on a connection of its own, with the session's key. Raises
        WireError."""
        alike = (s for s in self if s.key == peer.connection.key and same(token, s.token))
        session = next(alike, None) if peer.session is None else session_of(peer, token)
        if session is None:
            remedy = "Send pictures with the token of the last welcome."
            raise refusals.unknown_token("There is no such session.", remedy, "session")
        if PICTURES not in session.hello.capabilities:
            raise refusals.state("hello did not announce pictures.", 'Give hello `capabilities: ["pictures"]`.')
        return session

    def check_room(self, besides: SessionFacts | None = None) -> None:
        """Raises WireError (busy) when all places are taken, or too many sessions are just ending."""
        limit = self._rules.limit
        others = [s for s in self if s.life.state != "parked" and s is not besides]
        if sum(s.life.why is None for s in others) >= limit or len(others) >= limit + SPARE:
            raise refusals.busy(f"All {limit} sessions are taken.")

    def claims(self, robot: str | None) -> list[SessionFacts]:
        """Return those that lose the robot to a new session: they only wait for their clients. Raises WireError (busy)
        where it is another's."""
        if robot is None:
            return []
        others = [s for s in self if s.hello.robot == robot and s.life.why is None]
        if any(other.life.state != "parked" for other in others):
            raise refusals.claimed(robot)
        return others

    def beyond(self) -> SessionFacts | None:
        """Return the one that was parked first, where more wait than may."""
        parked = [s for s in self if s.life.state == "parked"]
        return min(parked, key=lambda s: s.life.parked_ns) if len(parked) > self._rules.limit else None

    def expired(self, now_ns: int) -> list[SessionFacts]:
        """Return those that no client came back to."""
        before_ns = now_ns - self._rules.grace_ns
        return [s for s in self if s.life.state == "parked" and s.life.parked_ns < before_ns]


def session_of(peer: Peer, token: str | None) -> SessionFacts:
    """Return the connection's session, if the token is its. Raises WireError."""
    session = peer.session
    if session is None:
        raise refusals.no_session()
    if token is not None and not same(token, session.token):
        raise refusals.unknown_token("This session token is not this connection's.", "Use the welcome's.", "session")
    return session


def same(a: str, b: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(a.encode("utf-8", "replace"), b.encode("utf-8", "replace"))


def weigh(need: Need, others: Iterable[Need], most: float) -> WireError | None:
    """Return the refusal of one more session that would make calls of the others late: where they need more than `most`
    of the decoder's time together. The rest is for messages, and for ticks that fall together; those that need more
    than there is are late anyway."""
    taken = [other.busy for other in others if 0 < other.busy <= most]
    if not taken or sum(taken) + need.busy <= most:
        return None
    hz = (most - sum(taken)) / need.share_s
    slower = f"Ask for at most {hz:.2g} Hz, or come" if hz >= 1 else "Come"
    return refusals.busy(
        f"The decoder is taken for {sum(taken):.0%} of its time by {len(taken)} other session(s), and this one needs "
        f"{need.busy:.0%} ({need.hz:g} Hz, {1e3 * need.share_s:.2g} ms a decision): calls of others would be late.",
        remedy=f"{slower} again when another session has ended: {most:.0%} are given away.",
    )
