"""The state of sessions and connections in `SessionCore`, and the rules for opening and resuming sessions."""

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

# Each hello makes the server open a session, so a client may send 5 hellos per second, and 20 at once.
HELLOS_PER_S, HELLO_BURST = 5.0, 20.0
MAX_ENDING = 16  # maximum number of ending sessions, in addition to the limit of running sessions
# Fractions of the reading thread's time. The sessions divide SESSIONS_SHARE equally. COMMON_SHARE is for
# connections without a session, and for sessions that have used up their part.
SESSIONS_SHARE, COMMON_SHARE = 0.5, 0.25
TIME_BURST_NS = 100_000_000  # maximum unused time that a budget can accumulate
# Receiving a message that is not read costs MESSAGE_NS plus BYTE_NS per byte. Clients that cost too much are cut off.
MESSAGE_NS, BYTE_NS = 10_000, 2
REFUSED_SHARE, REFUSED_BURST_NS = 0.02, 4_000_000
# The processor time that counts as a tick if the client determines the rate, the time between two measurements of the
# rate, and the longest pause that slows a session down.
TICK_NS, LOAD_NS, MAX_PAUSE_S = 250_000, 500_000_000, 0.25
GRACE_S = 30.0  # a session waits this long for its lost client
MAX_STOPPED = 256  # number of stored tokens of sessions that a person stopped; older ones are dropped
KEY_REVOKED = "the client's key was revoked"
FLOODED = "disconnected, because it continues to send more than the server reads; send fewer or smaller messages"
CLIENT_LOST, CLIENT_BYE, SERVER_STOPPED = "client lost", "client said bye", "server stopped"
PERSON_STOPPED = "a person stopped it"
SERVER_LEAVING = "the server is shutting down: connect again"


class Connection(Protocol):
    """A connection of a transport. `peer`: the client's name in logs (an address or a key's name; never a secret).
    `key`: the client's CURVE public key (Z85), or None. Messages from a `closed` connection are ignored."""

    peer: str
    key: str | None
    closed: bool

    def send(self, message: Message) -> None:
        """Send a message without blocking. Any thread may call this. If the client's queue is full or the connection is
        lost, drop and count the message. After a loss, the transport calls `SessionManager.disconnected`."""

    def close(self) -> None:
        """Close the connection, perhaps after the queued messages were sent; any thread may call this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """Limits of the sessions and connections of a server."""

    limit: int = 64  # maximum number of running sessions, and of parked sessions
    grace_ns: int = round(GRACE_S * 1e9)  # a session is parked for this time
    beat_ns: int = 1_000_000_000  # time between two pings to a client
    silent_beats: int = 3  # a client that is silent for this number of `beat_ns` counts as lost
    messages_per_s: float = 5_000.0  # maximum rate per connection; a burst may have the messages of one second
    errors_per_s: float = 10.0  # limit of sent errors per connection; a burst may have those of two seconds
    ticks_per_s: float = 500.0  # limit of all sessions together
    max_decoder_load: float = 0.8  # limit of the decoder's time that all sessions use together (fraction)
    outlives_client: bool = False  # if True, a session continues while its client is disconnected


class TokenBucket:
    """A rate limit of `rate` tokens per second and `burst` tokens at once. There is no lock, so threads that take
    tokens at the same time may get one token too many."""

    __slots__ = ("_burst", "_filled_ns", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now_ns: int) -> None:
        self._rate, self._burst = rate / 1e9, burst
        self._tokens, self._filled_ns = burst, now_ns

    def take(self, now_ns: int) -> bool:
        """Remove a token. Return False if there is no token."""
        if self._tokens < 1.0:
            self._tokens = min(self._burst, self._tokens + (now_ns - self._filled_ns) * self._rate)
            self._filled_ns = now_ns
            if self._tokens < 1.0:
                return False
        self._tokens -= 1.0
        return True


class TimeBudget:
    """A budget of processor time for reading messages. A message is charged after it was read, so the budget may become
    negative; it then admits no message. It accumulates at most `burst_ns`, and at most the time of one second."""

    __slots__ = ("_burst_ns", "_filled_ns", "_left_ns")

    def __init__(self, now_ns: int, burst_ns: int = TIME_BURST_NS) -> None:
        self._left_ns, self._filled_ns, self._burst_ns = burst_ns, now_ns, burst_ns

    def admits(self, share: float, now_ns: int) -> bool:
        """Add the fraction `share` of the time since the last call to the budget. Return whether time is left."""
        most_ns = min(self._burst_ns, int(share * 1e9))
        self._left_ns = min(most_ns, self._left_ns + int(share * (now_ns - self._filled_ns)))
        self._filled_ns = now_ns
        return self._left_ns > 0

    def charge(self, ns: int) -> None:
        self._left_ns -= ns

    @property
    def debt_ns(self) -> int:
        return max(0, -self._left_ns)


class ThreadLoad:
    """The processor time that a session's thread uses. `hz`: the rate of ticks that would use as much."""

    __slots__ = ("_budget", "_cpu_ns", "_measured", "hz", "slowed")

    def __init__(self) -> None:
        self.hz, self.slowed = 0.0, False
        self._cpu_ns, self._measured = 0, (0, 0)  # the last time, and the last time and instant of a measurement
        self._budget: TimeBudget | None = None

    def add(self, cpu_ns: int, now_ns: int) -> int:
        """Store the thread's processor time `cpu_ns`, and update the rate. Return the time since the last call."""
        before_ns, start_ns = self._measured
        took_ns = now_ns - start_ns
        if cpu_ns < self._cpu_ns or not start_ns:  # a new thread
            self._cpu_ns, self._measured = cpu_ns, (cpu_ns, now_ns)
        elif took_ns >= LOAD_NS:
            self.hz = (cpu_ns - before_ns) / TICK_NS * 1e9 / took_ns
            self._measured = cpu_ns, now_ns
        used_ns, self._cpu_ns = cpu_ns - self._cpu_ns, cpu_ns
        return used_ns

    def pause_s(self, used_ns: int, hz: float, now_ns: int) -> float:
        """Return how long the thread must pause so that it uses as much as `hz` ticks a second, at most MAX_PAUSE_S."""
        budget = self._budget = self._budget or TimeBudget(now_ns)
        share = hz * TICK_NS / 1e9
        budget.charge(used_ns)
        return 0.0 if budget.admits(share, now_ns) else min(MAX_PAUSE_S, budget.debt_ns / share / 1e9)


@dataclass(frozen=True)
class DecoderNeed:
    """The decoder time that a session needs."""

    hz: float  # rate in decisions per second
    decision_s: float  # decoder time per decision (for a batch: the batch's time divided by its size)

    @classmethod
    def from_durations(cls, durations_ns: Sequence[float], hz: float) -> DecoderNeed | None:
        """Return a session's need, estimated from the durations of its last decisions, or None without decisions."""
        # Use the first quartile of the durations, because other load on the machine prolongs some decisions.
        return cls(hz, sorted(durations_ns)[len(durations_ns) // 4] / 1e9) if durations_ns else None

    @property
    def decoder_load(self) -> float:
        """Return the fraction of the decoder's time that the session uses."""
        return self.hz * self.decision_s


def overload_error(need: DecoderNeed, others: Iterable[DecoderNeed], limit: float) -> WireError | None:
    """Return an error if a new session with this need would make the calls of `others` late, else None.

    All sessions together may use the fraction `limit` of the decoder's time. The rest is for messages, and for ticks at
    the same instant. A session that alone needs more than `limit` is ignored, because its calls are always late."""
    used = [other.decoder_load for other in others if 0 < other.decoder_load <= limit]
    if not used or sum(used) + need.decoder_load <= limit:
        return None
    hz = (limit - sum(used)) / need.decision_s
    problem = f"Other sessions use {sum(used):.0%} of the decoder's time, and this one needs {need.decoder_load:.0%}"
    rate = f"{need.hz:g} Hz, {1e3 * need.decision_s:.2g} ms a decision"
    hint = f"Try again when another session has ended, or request at most {max(0.0, hz):.2g} Hz."
    return refusals.busy_error(f"{problem} ({rate}). Calls would be late.", hint=hint)


def ticks_error(hz: float, others_hz: float, limit: float) -> WireError | None:
    """Return an error if all sessions together would have more than `limit` ticks a second, else None.

    A tick takes time of the server's threads even without a decision. The only session is never refused."""
    if not others_hz or others_hz + hz <= limit:
        return None
    problem = f"All sessions together may have {limit:g} ticks a second; the others have {others_hz:g}, this one {hz:g}"
    hint = f"Request at most {max(0.0, limit - others_hz):g} Hz, try again later, or raise serve.max_ticks_per_s."
    return refusals.busy_error(f"{problem}. Calls would be late.", hint=hint)


@dataclass(slots=True, eq=False)
class Lifecycle:
    """The lifecycle state of a session. A parked session has no loop and waits for its lost client to resume it."""

    state: Literal["opening", "live", "parked", "over"] = "opening"
    end_reason: str | None = None  # why the session ends for good; None while it may continue
    welcomed: bool = False  # whether the session has ever been live
    client_lost: bool = False  # whether the client was lost while the session was opening or live
    has_loop: bool = False
    paused: bool = False  # whether a person paused the session; it stays paused if its client resumes it
    leaves_ns: int = 0  # after the first call after this time, the client changes the server (0: never)
    parked_ns: int = 0  # when the session was parked
    runs: int = 0  # number of started loops

    @property
    def client_gone(self) -> bool:
        """Return whether the session must not open: its client is lost, or the session has an `end_reason`."""
        return self.end_reason is not None or (self.client_lost and not self.welcomed)


@dataclass(slots=True, eq=False)
class SessionInstructions:
    """The instructions of a session, and the errors about instructions that must still be sent to the client."""

    first: str | None = None  # the current run started with this instruction (None: the negotiated instruction)
    next: str | None = None  # the instruction for the next run (None: the negotiated instruction)
    proven: str | None = None  # the last instruction of the previous run for which a decision was made
    refusal: str | None = None  # why an instruction was refused; sent as an error with the next call
    reported_refusal: str | None = None  # the last sent reason; a tick's error with the same text is not sent
    error: tuple[int | None, str] = (None, "")  # (observation's number, text) of the last error about an observation

    def store_run(self, proven: str, newest: str) -> None:
        """Store the instructions of a run that ended. Keep `next` if it arrived after the run's end."""
        self.proven = proven
        if self.next == self.first:
            self.next = newest

    def fall_back_to_proven(self) -> bool:
        """Use the proven instruction in the next run. Return False if it is missing or is the rejected instruction."""
        possible = self.proven is not None and bool({self.first, self.next} - {None, self.proven})
        if possible:
            self.next = self.proven
        return possible

    def should_report(self, seq: int | None, error: str, connected: bool) -> bool:
        """Return whether to send the client this error about the observation `seq`. Return False if the error was
        already sent, or if it repeats the error about a refused instruction."""
        refusal, self.reported_refusal = self.reported_refusal, None
        if not connected or error == refusal or (seq, error) == self.error:
            return False
        self.error = seq, error
        return True


@dataclass(slots=True, eq=False, repr=False)
class Session:
    """A client's session. To resume the session, the client must send `token`, and use the same CURVE `key`."""

    id: str
    token: str
    hello: Hello  # the client's first message, which requests the session
    key: str | None = None
    crowd: bool = False  # True if the client has many agents (a crowd)
    runner: Any = None  # the `SessionThread` that runs the session
    peer: Peer | None = None  # the session's connection
    negotiated: bool = False  # whether the settings were negotiated
    token_sent: bool = False  # whether a welcome was sent
    hz: float = 0.0  # negotiated ticks a second; 0 before the first welcome
    load: ThreadLoad = field(default_factory=ThreadLoad)
    welcomes: int = 0  # number of repeated welcomes
    life: Lifecycle = field(default_factory=Lifecycle)
    instructions: SessionInstructions = field(default_factory=SessionInstructions)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def client(self) -> Peer | None:
        """Return the session's connection, or None before the welcome was sent on this connection."""
        return self.peer if self.peer is not None and self.peer.welcome_sent else None

    @property
    def is_paced_by_client(self) -> bool:
        """Return whether the client determines how many ticks the session has."""
        return self.crowd or self.hello.pacing == "client"

    @property
    def ticks_per_s(self) -> float:
        """Return the session's rate, or the measured rate if it is higher and the client determines it."""
        return max(self.hz, self.load.hz) if self.is_paced_by_client else self.hz

    def is_same_request(self, hello: Hello) -> bool:
        """Return whether `hello` requests the same settings as the session's hello."""
        volatile = {"t_client_ns", "resume"}
        return hello.model_dump(exclude=volatile) == self.hello.model_dump(exclude=volatile)


@dataclass(slots=True, eq=False)
class Peer:
    """The state of a connection, with its rate limits."""

    connection: Connection
    messages: TokenBucket
    hellos: TokenBucket
    errors: TokenBucket
    budget: TimeBudget  # pays for reading messages of the connection's session
    refused_budget: TimeBudget  # pays for receiving messages that are not read
    charged_budget: TimeBudget  # the current message is charged to this budget
    received_ns: int  # when the last message was received
    sent_ns: int  # when the last message was sent
    session: Session | None = None
    welcome_sent: bool = False  # whether the welcome was sent on this connection
    pings: int = 0  # number of sent pings
    disconnected: bool = False
    unsent_errors: int = 0  # number of errors since the last sent error that the rate limit dropped

    @classmethod
    def for_connection(cls, connection: Connection, rules: SessionRules, now_ns: int) -> Peer:
        """Return the initial state of a new connection."""
        messages = TokenBucket(rules.messages_per_s, rules.messages_per_s, now_ns)
        hellos = TokenBucket(HELLOS_PER_S, HELLO_BURST, now_ns)
        errors = TokenBucket(rules.errors_per_s, 2 * rules.errors_per_s, now_ns)
        budget, refused = TimeBudget(now_ns), TimeBudget(now_ns, REFUSED_BURST_NS)
        return cls(connection, messages, hellos, errors, budget, refused, budget, now_ns, now_ns)

    def join(self, session: Session) -> None:
        """Make this the session's connection, in place of its previous connection. The welcome must be sent again."""
        if session.peer is not None:
            session.peer.session = None
        self.session, session.peer = session, self
        self.welcome_sent = False

    @property
    def live(self) -> bool:
        """Return whether the connection has a live session."""
        return self.session is not None and self.session.life.state == "live"


class SessionRegistry:
    """All sessions that have not ended, by id."""

    def __init__(self, rules: SessionRules) -> None:
        self._rules = rules
        self._sessions: dict[str, Session] = {}
        self._stopped: deque[str] = deque(maxlen=MAX_STOPPED)  # tokens of sessions that a person stopped

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def states(self) -> dict[str, int]:
        """Return the numbers of sessions that are opening, live and parked."""
        count = Counter(session.life.state for session in self)
        return {state: count[state] for state in ("opening", "live", "parked")}

    def add(self, session: Session) -> None:
        """Store a new session by its id."""
        self._sessions[session.id] = session

    def remove(self, session: Session) -> None:
        """Remove a session that has ended."""
        session.life.state = "over"
        if session.life.end_reason == PERSON_STOPPED:
            self._stopped.append(session.token)
        self._sessions.pop(session.id, None)

    def find_resumable(self, token: str, key: str | None) -> Session:
        """Return the session with this token. Raises WireError if the client with this CURVE key may not resume it."""
        session = next((s for s in self if same_secret(token, s.token)), None)
        is_stopped = session is not None and session.life.end_reason == PERSON_STOPPED
        if is_stopped or any(same_secret(token, other) for other in self._stopped):
            raise refusals.stopped_error()
        if session is None or session.life.end_reason is not None or session.key != key or not session.negotiated:
            hint = "Send hello without `resume`."
            raise refusals.unknown_token_error("The session to resume is unknown or has ended.", hint, "resume")
        return session

    def find_for_bye(self, peer: Peer, token: str | None) -> Session | None:
        """Return the session that a bye ends, or None if there is no such session. Raises WireError.

        If the connection was closed before its bye was read, the session is already parked or ending. The token then
        identifies the session.
        """
        if peer.session is not None:
            return session_of_peer(peer, token)
        lost = (s for s in self if s.peer is None and s.key == peer.connection.key)
        return next((s for s in lost if token is not None and same_secret(token, s.token)), None)

    def find_for_picture(self, peer: Peer, token: str) -> Session:
        """Return the session to which a picture belongs. A client may send pictures on a second connection with the
        same CURVE key. Raises WireError."""
        alike = (s for s in self if s.key == peer.connection.key and same_secret(token, s.token))
        session = next(alike, None) if peer.session is None else session_of_peer(peer, token)
        if session is None:
            hint = "Send pictures with the token of the last welcome."
            raise refusals.unknown_token_error("The picture's session is unknown or has ended.", hint, "session")
        if PICTURES not in session.hello.capabilities:
            hint = 'Send hello with `capabilities: ["pictures"]`.'
            raise refusals.state_error("The client's hello did not have the capability pictures.", hint)
        return session

    def check_room(self, besides: Session | None = None) -> None:
        """Raise WireError (busy) if too many sessions, not counting `besides`, are running or still ending."""
        limit = self._rules.limit
        running = [s for s in self if s.life.state != "parked" and s is not besides]
        if sum(s.life.end_reason is None for s in running) >= limit or len(running) >= limit + MAX_ENDING:
            raise refusals.busy_error(f"All {limit} sessions of the server are in use.")

    def parked_with_robot(self, robot: str | None) -> list[Session]:
        """Return the parked sessions with this robot name, which a new session replaces. Raises WireError (busy) if a
        session with this robot name is running."""
        if robot is None:
            return []
        same_robot = [s for s in self if s.hello.robot == robot and s.life.end_reason is None]
        if any(other.life.state != "parked" for other in same_robot):
            hint = "End that session, or send the same hello again, with growing pauses, until that session has ended."
            raise refusals.busy_error(f"Another session has the robot {robot!r}.", "robot", hint)
        return same_robot

    def first_parked_over_limit(self) -> Session | None:
        """Return the session that was parked first if too many are parked, else None."""
        parked = [s for s in self if s.life.state == "parked"]
        return min(parked, key=lambda s: s.life.parked_ns) if len(parked) > self._rules.limit else None

    def expired(self, now_ns: int) -> list[Session]:
        """Return the sessions that have been parked for longer than the grace period."""
        before_ns = now_ns - self._rules.grace_ns
        return [s for s in self if s.life.state == "parked" and s.life.parked_ns < before_ns]


def session_of_peer(peer: Peer, token: str | None) -> Session:
    """Return the connection's session. Raises WireError if it has no session, or if the token is another session's."""
    session = peer.session
    if session is None:
        hint = "Send hello first, with `resume` if there was a session."
        raise refusals.state_error("This connection has no session.", hint, retryable=True)
    if token is not None and not same_secret(token, session.token):
        problem = "The session token is not that of this connection's session."
        raise refusals.unknown_token_error(problem, "Send the token of the welcome.", "session")
    return session


def same_secret(a: str, b: str) -> bool:
    """Return whether two secrets are equal, in constant time."""
    return hmac.compare_digest(a.encode("utf-8", "replace"), b.encode("utf-8", "replace"))
