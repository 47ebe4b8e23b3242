"""The state of sessions and connections in the sessions' core, and the rules for opening and resuming a session."""

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

# Each hello after a bye makes the server open a session again, so hellos are limited.
HELLOS_PER_S, HELLOS_AT_ONCE = 5.0, 20.0
ENDING = 16  # sessions that may be ending in addition to the limit
GRACE_S = 30.0  # how long a session waits for its lost client
MAX_STOPPED = 256  # remembered tokens of sessions that a person stopped
LOST, BYE, STOPPED, BY_HAND = "client lost", "client said bye", "server stopped", "a person stopped it"
LEAVING = "the server goes away: connect again"


# -- data -------------------------------------------------------------------------------------------------------------


class Connection(Protocol):
    """A connection of a transport. `peer` is for logs (an address, or a key's name; never a secret); `key` is the
    client's Z85 CURVE public key, if there is one. Messages from a `closed` connection are ignored."""

    peer: str
    key: str | None
    closed: bool

    def send(self, message: Message) -> None:
        """Send a message from any thread without blocking. If the peer's queue is full or the peer is gone, the message
        is dropped and counted; for a lost peer the transport calls `SessionManager.disconnected`."""

    def close(self) -> None:
        """Close the connection once sent messages have left; any thread may call this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """Limits of the sessions. At most `limit` sessions run, and as many are parked, each for `grace_ns`. A ping is sent
    every `beat_ns`; after `silent_beats` of them without a message a client counts as lost. All sessions together may
    use `busy_max` of the decoder's time. `messages_per_s` and `errors_per_s` limit a connection, with bursts of one
    second's worth (errors: two). With `outlives`, a session continues while its client is away."""

    limit: int = 64
    grace_ns: int = round(GRACE_S * 1e9)
    beat_ns: int = 1_000_000_000
    silent_beats: int = 3
    messages_per_s: float = 5_000.0
    errors_per_s: float = 10.0
    busy_max: float = 0.8
    outlives: bool = False


class TokenBucket:
    """A rate limit: `rate` tokens a second, at most `burst` at once. Without a lock, threads may get one too many."""

    __slots__ = ("_burst", "_filled_ns", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now_ns: int) -> None:
        self._rate, self._burst = rate / 1e9, burst
        self._tokens, self._filled_ns = burst, now_ns

    def take(self, now_ns: int) -> bool:
        """Take a token if one is left; return whether there was one."""
        if self._tokens < 1.0:
            self._tokens = min(self._burst, self._tokens + (now_ns - self._filled_ns) * self._rate)
            self._filled_ns = now_ns
            if self._tokens < 1.0:
                return False
        self._tokens -= 1.0
        return True


@dataclass(frozen=True)
class Need:
    """The decoder time that a session needs: its rate, and the seconds per decision. Decisions of one batch share the
    batch's time."""

    hz: float
    share_s: float

    @classmethod
    def of(cls, shares: Sequence[float], hz: float) -> Need | None:
        """Return a session's need from the nanoseconds of its decisions; None before the first decision."""
        # The first quartile: other load on the machine makes some of them longer.
        return cls(hz, sorted(shares)[len(shares) // 4] / 1e9) if shares else None

    @property
    def busy(self) -> float:
        """The share of the decoder's time that the session uses."""
        return self.hz * self.share_s


def weigh(need: Need, others: Iterable[Need], most: float) -> WireError | None:
    """Return the refusal of a session that would make calls of the others late, or None. All together may need at most
    `most` of the decoder's time: the rest is for messages, and for ticks that coincide. Sessions that exceed `most`
    alone do not count, as they are late anyway."""
    taken = [other.busy for other in others if 0 < other.busy <= most]
    if not taken or sum(taken) + need.busy <= most:
        return None
    hz = (most - sum(taken)) / need.share_s
    problem = f"Other sessions take {sum(taken):.0%} of the decoder's time; this one needs {need.busy:.0%}"
    rate = f"{need.hz:g} Hz, {1e3 * need.share_s:.2g} ms a decision"
    hint = f"Try again when another session has ended, or ask for at most {max(0.0, hz):.2g} Hz."
    return refusals.busy(f"{problem} ({rate}): calls would be late.", hint=hint)


@dataclass(slots=True, eq=False)
class Life:
    """The lifecycle state of a session. `why`: the reason why the session ends and cannot resume; `lost`: the client
    was lost while the session opened or ran; `attached`: a loop exists; `paused` by a person, even if the client
    reconnects; `leaves_ns`: when the client is to change servers after its next call (0: never); `runs`: so far."""

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
        """Whether the session has no client to open for."""
        return self.why is not None or (self.lost and not self.welcomed)


@dataclass(slots=True, eq=False)
class SessionInstructions:
    """The instructions of a session. `first`: the one the run started with (None: the negotiated one); `next`: the one
    for the next run; `proven`: the last one that the previous run decided by. `refusal`: why an instruction was
    refused, until the client is informed; `shown`: the same, until the tick's error is due; `error`: the last reported
    pair (seq, error)."""

    first: str | None = None
    next: str | None = None
    proven: str | None = None
    refusal: str | None = None
    shown: str | None = None
    error: tuple[int | None, str] = (None, "")

    def ran(self, proven: str, newest: str) -> None:
        """Store the instructions of a run that ended; one that arrived after the end remains `next`."""
        self.proven = proven
        if self.next == self.first:
            self.next = newest

    def give_way(self) -> bool:
        """Fall back to the proven instruction if the decider rejects the newest; return whether there is one."""
        again = self.proven is not None and bool({self.first, self.next} - {None, self.proven})
        if again:
            self.next = self.proven
        return again

    def reports(self, seq: int | None, error: str, connected: bool) -> bool:
        """Return whether to inform the client of an undecided observation: once, and not for a refused instruction,
        which has its own error."""
        shown, self.shown = self.shown, None
        if not connected or error == shown or (seq, error) == self.error:
            return False
        self.error = seq, error
        return True


@dataclass(slots=True, eq=False, repr=False)
class Session:
    """A client's session. Resuming requires the `token` and the CURVE `key` of the first connection. `peer`: the
    connection that owns the session, if any; `crowd`: the session has many members; `agreed`: the settings are
    negotiated; `runner`: the shell's object that runs the session."""

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
        """The session's connection, once the welcome was sent on it."""
        return self.peer if self.peer is not None and self.peer.greeted else None

    def wishes(self, hello: Hello) -> bool:
        """Return whether `hello` asks for the same as the session's hello."""
        volatile = {"t_client_ns", "resume"}
        return hello.model_dump(exclude=volatile) == self.hello.model_dump(exclude=volatile)


@dataclass(slots=True, eq=False)
class Peer:
    """The state of a connection: its session, if any, and the times of the last messages in and out. `greeted`: the
    session's welcome was sent on this connection; `unsent`: errors beyond the rate limit."""

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
        """Return the initial state of a new connection."""
        messages = TokenBucket(rules.messages_per_s, rules.messages_per_s, now_ns)
        hellos = TokenBucket(HELLOS_PER_S, HELLOS_AT_ONCE, now_ns)
        errors = TokenBucket(rules.errors_per_s, 2 * rules.errors_per_s, now_ns)
        return cls(connection, messages, hellos, errors, now_ns, now_ns)

    def join(self, session: Session) -> None:
        """Make this connection the owner of the session, which still has to send its welcome."""
        if session.peer is not None:
            session.peer.session = None
        self.session, session.peer = session, self
        self.greeted = False

    @property
    def live(self) -> bool:
        """Whether the connection has a live session."""
        return self.session is not None and self.session.life.state == "live"


# -- who may enter or return ------------------------------------------------------------------------------------------


class Sessions:
    """All sessions that have not ended, by id."""

    def __init__(self, rules: SessionRules) -> None:
        self._rules = rules
        self._sessions: dict[str, Session] = {}
        self._stopped: deque[str] = deque(maxlen=MAX_STOPPED)  # tokens of sessions that a person stopped

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def states(self) -> dict[str, int]:
        """Return how many sessions are opening, live and parked."""
        count = Counter(session.life.state for session in self)
        return {state: count[state] for state in ("opening", "live", "parked")}

    def add(self, session: Session) -> None:
        """Add a new session."""
        self._sessions[session.id] = session

    def remove(self, session: Session) -> None:
        """Remove a session that has ended."""
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
        """Return the session that a bye ends; None if there is no such session. Raises WireError.

        A client that closes right after its bye may be gone before the bye is read: then the token identifies the
        session, which is parked or ending.
        """
        if peer.session is not None:
            return session_of(peer, token)
        lost = (s for s in self if s.peer is None and s.key == peer.connection.key)
        return next((s for s in lost if token is not None and same(token, s.token)), None)

    def pictured(self, peer: Peer, token: str) -> Session:
        """Return the session that a picture belongs to. The picture may arrive on a separate connection with the
        session's key. Raises WireError."""
        alike = (s for s in self if s.key == peer.connection.key and same(token, s.token))
        session = next(alike, None) if peer.session is None else session_of(peer, token)
        if session is None:
            hint = "Send pictures with the token of the last welcome."
            raise refusals.unknown_token("There is no such session.", hint, "session")
        if PICTURES not in session.hello.capabilities:
            raise refusals.state("hello did not announce pictures.", 'Give hello `capabilities: ["pictures"]`.')
        return session

    def check_room(self, besides: Session | None = None) -> None:
        """Raise WireError (busy) if all places are taken, or too many sessions are still ending."""
        limit = self._rules.limit
        others = [s for s in self if s.life.state != "parked" and s is not besides]
        if sum(s.life.why is None for s in others) >= limit or len(others) >= limit + ENDING:
            raise refusals.busy(f"All {limit} sessions are taken.")

    def claims(self, robot: str | None) -> list[Session]:
        """Return the parked sessions that lose the robot to a new session. Raises WireError (busy) if a running session
        has the robot."""
        if robot is None:
            return []
        others = [s for s in self if s.hello.robot == robot and s.life.why is None]
        if any(other.life.state != "parked" for other in others):
            hint = "End that session, or repeat the same hello, with growing pauses, until it is gone."
            raise refusals.busy(f"The robot {robot!r} is claimed by another session.", "robot", hint)
        return others

    def beyond(self) -> Session | None:
        """Return the session that was parked first if too many are parked, else None."""
        parked = [s for s in self if s.life.state == "parked"]
        return min(parked, key=lambda s: s.life.parked_ns) if len(parked) > self._rules.limit else None

    def expired(self, now_ns: int) -> list[Session]:
        """Return the parked sessions whose client did not return in time."""
        before_ns = now_ns - self._rules.grace_ns
        return [s for s in self if s.life.state == "parked" and s.life.parked_ns < before_ns]


def session_of(peer: Peer, token: str | None) -> Session:
    """Return the connection's session. Raises WireError if there is none, or the token is another session's."""
    session = peer.session
    if session is None:
        hint = "Say hello first, with `resume` if there was a session."
        raise refusals.state("This connection has no session.", hint, retryable=True)
    if token is not None and not same(token, session.token):
        raise refusals.unknown_token("This session token is not this connection's.", "Use the welcome's.", "session")
    return session


def same(a: str, b: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(a.encode("utf-8", "replace"), b.encode("utf-8", "replace"))
