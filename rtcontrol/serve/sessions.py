"""Sessions and connections as the sessions' core knows them, and who may enter or return. Pure."""

from __future__ import annotations

import hmac
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rtcontrol.serve import refusals
from rtcontrol_client.wire import Message, WireError
from rtcontrol_client.wire.messages import Hello
from rtcontrol_client.wire.pictures import PICTURES

# A client that says hello and bye in turns makes the server open and end a session each time.
HELLOS_PER_S, HELLOS_AT_ONCE = 5.0, 20.0
ENDING = 16  # sessions that may be ending, in addition to the limit
GRACE_S = 30.0  # how long a session waits for its lost client
MAX_STOPPED = 256  # remembered tokens of sessions that a person stopped
LOST, BYE, STOPPED, BY_HAND = "client lost", "client said bye", "server stopped", "a person stopped it"
LEAVING = "the server goes away: connect again"


# -- data -------------------------------------------------------------------------------------------------------------


class Connection(Protocol):
    """One connection of a transport. `peer` is for logs (an address, or a key's name; never a secret), `key` the
    client's Z85 CURVE public key if it has one. What a `closed` one still delivers is ignored."""

    peer: str
    key: str | None
    closed: bool

    def send(self, message: Message) -> None:
        """Send from any thread without blocking. A peer that is full or gone loses the message; the transport counts
        it, and calls `SessionManager.disconnected` for one that is gone."""

    def close(self) -> None:
        """Forget the peer, after what was sent; from any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """`limit`: sessions that run, and as many that wait for their clients, each for `grace_ns`; `beat_ns` between two
    pings, `silent_beats` until a client counts as lost; `busy_max`: the share of the decoder's time that sessions
    may ask for together; `messages_per_s` and `errors_per_s` of a connection, each with a burst of a second's worth
    (errors: two); `outlives`: a session continues while its client is away."""

    limit: int = 64
    grace_ns: int = round(GRACE_S * 1e9)
    beat_ns: int = 1_000_000_000
    silent_beats: int = 3
    messages_per_s: float = 5_000.0
    errors_per_s: float = 10.0
    busy_max: float = 0.8
    outlives: bool = False


class TokenBucket:
    """`rate` tokens a second, at most `burst` of them at once. Not locked: two threads may get one token too many."""

    __slots__ = ("_burst", "_filled_ns", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now_ns: int) -> None:
        self._rate, self._burst = rate / 1e9, burst
        self._tokens, self._filled_ns = burst, now_ns

    def take(self, now_ns: int) -> bool:
        """Take a token; return whether there was one."""
        if self._tokens < 1.0:
            self._tokens = min(self._burst, self._tokens + (now_ns - self._filled_ns) * self._rate)
            self._filled_ns = now_ns
            if self._tokens < 1.0:
                return False
        self._tokens -= 1.0
        return True


@dataclass(frozen=True)
class Need:
    """A session's rate, and the seconds of the decoder that one of its decisions takes; those that are decided together
    share theirs."""

    hz: float
    share_s: float

    @classmethod
    def of(cls, shares: Sequence[float], hz: float) -> Need | None:
        """Return the need of a session whose decisions took so many nanoseconds; None before its first decision."""
        # The first quartile: other load on the machine makes some of them longer.
        return cls(hz, sorted(shares)[len(shares) // 4] / 1e9) if shares else None

    @property
    def busy(self) -> float:
        """The part of the decoder's time that it takes."""
        return self.hz * self.share_s


def weigh(need: Need, others: Iterable[Need], most: float) -> WireError | None:
    """Return the refusal of another session that would make calls of the others late: where they need more than `most`
    of the decoder's time together. The rest is for messages, and for ticks that coincide; sessions that need more than
    there is are late anyway."""
    taken = [other.busy for other in others if 0 < other.busy <= most]
    if not taken or sum(taken) + need.busy <= most:
        return None
    hz = (most - sum(taken)) / need.share_s
    problem = f"Other sessions take {sum(taken):.0%} of the decoder's time; this one needs {need.busy:.0%}"
    rate = f"{need.hz:g} Hz, {1e3 * need.share_s:.2g} ms a decision"
    hint = f"Come again when another session has ended, or ask for at most {max(0.0, hz):.2g} Hz."
    return refusals.busy(f"{problem} ({rate}): calls would be late.", hint=hint)


@dataclass(slots=True, eq=False)
class Life:
    """How far a session is. `why` it ends, and cannot be resumed; `lost`: its client went while it opened or ran;
    `attached`: there is a loop; `paused` by a person, whatever becomes of its client; `leaves_ns`: from then on its
    client goes to another server after its next call (0: it stays); `runs` so far."""

    state: Literal["opening", "live", "parked", "over"] = "opening"
    why: str | None = None
    welcomed: bool = False
    lost: bool = False
    attached: bool = False
    paused: bool = False
    leaves_ns: int = 0
    parked_ns: int = 0
    runs: int = 0

    @property
    def gone(self) -> bool:
        """Whether there is no client to open it for."""
        return self.why is not None or (self.lost and not self.welcomed)


@dataclass(slots=True, eq=False)
class SessionInstructions:
    """`first`: what the run started with (None: the terms'), `next`: what the next run starts with, `proven`: the last
    that the run before decided by. `refusal`: why one was refused, until the client knows; `shown`: the same, until its
    tick's error is due; `error`: what was reported last (seq, error)."""

    first: str | None = None
    next: str | None = None
    proven: str | None = None
    refusal: str | None = None
    shown: str | None = None
    error: tuple[int | None, str] = (None, "")

    def ran(self, proven: str, newest: str) -> None:
        """Note how a run ended; an instruction that came after its end stays the next."""
        self.proven = proven
        if self.next == self.first:
            self.next = newest

    def give_way(self) -> bool:
        """Return whether the next run may start with the one before this, which the decider cannot take."""
        again = self.proven is not None and bool({self.first, self.next} - {None, self.proven})
        if again:
            self.next = self.proven
        return again

    def reports(self, seq: int | None, error: str, connected: bool) -> bool:
        """Return whether the client is to be informed of an undecided observation: once, and not of a refused
        instruction, which it knows of."""
        shown, self.shown = self.shown, None
        if not connected or error == shown or (seq, error) == self.error:
            return False
        self.error = seq, error
        return True


@dataclass(slots=True, eq=False, repr=False)
class Session:
    """One client's session. `token` resumes it, with the CURVE `key` of its first connection; `peer`: the connection
    that owns it, None while there is none; `crowd`: it has many members; `agreed`: its hello became terms; `runner`:
    what the shell runs it with."""

    id: str
    token: str
    hello: Hello
    key: str | None = None
    crowd: bool = False
    runner: Any = None
    peer: Peer | None = None
    agreed: bool = False
    life: Life = field(default_factory=Life)
    instructions: SessionInstructions = field(default_factory=SessionInstructions)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def client(self) -> Peer | None:
        """Its connection, once it was welcomed there."""
        return self.peer if self.peer is not None and self.peer.greeted else None

    def wishes(self, hello: Hello) -> bool:
        """Return whether this is the same hello, at another time."""
        volatile = {"t_client_ns", "resume"}
        return hello.model_dump(exclude=volatile) == self.hello.model_dump(exclude=volatile)


@dataclass(slots=True, eq=False)
class Peer:
    """A connection, its session if it has one, when either side last spoke. `greeted`: that session's welcome was sent
    here; `unsent`: errors beyond the rate."""

    connection: Connection
    messages: TokenBucket
    hellos: TokenBucket
    errors: TokenBucket
    in_ns: int
    out_ns: int
    session: Session | None = None
    greeted: bool = False
    pings: int = 0
    gone: bool = False
    unsent: int = 0

    @classmethod
    def of(cls, connection: Connection, rules: SessionRules, now_ns: int) -> Peer:
        """Return what is known of a new connection."""
        messages = TokenBucket(rules.messages_per_s, rules.messages_per_s, now_ns)
        hellos = TokenBucket(HELLOS_PER_S, HELLOS_AT_ONCE, now_ns)
        errors = TokenBucket(rules.errors_per_s, 2 * rules.errors_per_s, now_ns)
        return cls(connection, messages, hellos, errors, now_ns, now_ns)

    def join(self, session: Session) -> None:
        """Own the session from now on, and still wait for its welcome."""
        if session.peer is not None:
            session.peer.session = None
        self.session, session.peer = session, self
        self.greeted = False

    @property
    def live(self) -> bool:
        """Whether its session runs."""
        return self.session is not None and self.session.life.state == "live"


# -- who may enter or return ------------------------------------------------------------------------------------------


class Sessions:
    """The sessions that are not over, by their ids."""

    def __init__(self, rules: SessionRules) -> None:
        self._rules = rules
        self._sessions: dict[str, Session] = {}
        self._stopped: deque[str] = deque(maxlen=MAX_STOPPED)  # tokens of those that a person stopped

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def states(self) -> dict[str, int]:
        """Return how many are opening, live and parked."""
        count = Counter(session.life.state for session in self)
        return {state: count[state] for state in ("opening", "live", "parked")}

    def add(self, session: Session) -> None:
        """Keep a new session."""
        self._sessions[session.id] = session

    def remove(self, session: Session) -> None:
        """Forget a session that is over."""
        session.life.state = "over"
        if session.life.why == BY_HAND:
            self._stopped.append(session.token)
        self._sessions.pop(session.id, None)

    def resumed(self, token: str, key: str | None) -> Session:
        """Return the session that the client with this CURVE key may resume. Raises WireError."""
        session = next((s for s in self if same(token, s.token)), None)
        by_hand = session is not None and session.life.why == BY_HAND
        if by_hand or any(same(token, other) for other in self._stopped):
            raise refusals.stopped()
        if session is None or session.life.why is not None or session.key != key or not session.agreed:
            hint = "Say hello without `resume`."
            raise refusals.unknown_token("There is no such session (any more).", hint, "resume")
        return session

    def left(self, peer: Peer, token: str | None) -> Session | None:
        """Return the session that a bye ends, None where there is none. Raises WireError.

        A client that closes right after its bye may be gone before the bye is read: the token then names the session,
        which waits for its client or is ending.
        """
        if peer.session is not None:
            return session_of(peer, token)
        lost = (s for s in self if s.peer is None and s.key == peer.connection.key)
        return next((s for s in lost if token is not None and same(token, s.token)), None)

    def pictured(self, peer: Peer, token: str) -> Session:
        """Return whose picture it is. It may come on a connection of its own, with the session's key. Raises
        WireError."""
        alike = (s for s in self if s.key == peer.connection.key and same(token, s.token))
        session = next(alike, None) if peer.session is None else session_of(peer, token)
        if session is None:
            hint = "Send pictures with the token of the last welcome."
            raise refusals.unknown_token("There is no such session.", hint, "session")
        if PICTURES not in session.hello.capabilities:
            raise refusals.state("hello did not announce pictures.", 'Give hello `capabilities: ["pictures"]`.')
        return session

    def check_room(self, besides: Session | None = None) -> None:
        """Raises WireError (busy) when all places are taken, or too many sessions are just ending."""
        limit = self._rules.limit
        others = [s for s in self if s.life.state != "parked" and s is not besides]
        if sum(s.life.why is None for s in others) >= limit or len(others) >= limit + ENDING:
            raise refusals.busy(f"All {limit} sessions are taken.")

    def claims(self, robot: str | None) -> list[Session]:
        """Return those that lose the robot to a new session: they only wait for their clients. Raises WireError (busy)
        where it is another's."""
        if robot is None:
            return []
        others = [s for s in self if s.hello.robot == robot and s.life.why is None]
        if any(other.life.state != "parked" for other in others):
            hint = "End that one, or say the same hello again, with growing pauses, until it is gone."
            raise refusals.busy(f"The robot {robot!r} is claimed by another session.", "robot", hint)
        return others

    def beyond(self) -> Session | None:
        """Return the one that was parked first, where more wait than may."""
        parked = [s for s in self if s.life.state == "parked"]
        return min(parked, key=lambda s: s.life.parked_ns) if len(parked) > self._rules.limit else None

    def expired(self, now_ns: int) -> list[Session]:
        """Return those whose client did not return in time."""
        before_ns = now_ns - self._rules.grace_ns
        return [s for s in self if s.life.state == "parked" and s.life.parked_ns < before_ns]


def session_of(peer: Peer, token: str | None) -> Session:
    """Return the connection's session, if the token is its. Raises WireError."""
    session = peer.session
    if session is None:
        hint = "Say hello first, with `resume` where there was one."
        raise refusals.state("This connection has no session.", hint, retryable=True)
    if token is not None and not same(token, session.token):
        raise refusals.unknown_token("This session token is not this connection's.", "Use the welcome's.", "session")
    return session


def same(a: str, b: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(a.encode("utf-8", "replace"), b.encode("utf-8", "replace"))
