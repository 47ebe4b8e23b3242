"""One conversation with a policy server, without socket and clock: what is sent when, and what answers which question.

A connection answers one question after the other. One on which an answer was late, or something came that was not
requested, is cut and never used again: what it would say next answers an older question. A ping follows each answer,
and the next question waits for its pong: a second answer that the server sent before it is then there.
"""

from __future__ import annotations

from dataclasses import dataclass

from rtcontrol.hosts.array_message import MalformedMessage, unpack_message
from rtcontrol.hosts.protocol import DecisionLost

OPEN_NS = 10_000_000_000  # the handshake, and the server's first message
RETRY_NS = 100_000_000  # from a try that failed to the next
LONGEST_TEXT = 300  # characters of a server's words
TWO_ANSWERS = "the policy server sent two answers"


@dataclass(frozen=True, slots=True)
class Requested:
    """A question, which waits so long for its answer."""

    packed: bytes
    limit_ns: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection is open; its server's first message."""

    first: bytes | str


@dataclass(frozen=True, slots=True)
class Refused:
    """No connection was made."""

    loss: str
    why: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message came; `more`: another one with it."""

    message: bytes | str
    more: bool = False


@dataclass(frozen=True, slots=True)
class Pong:
    """The ping is answered: all that the server sent before is here."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection ended."""

    why: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """No one waits for the question any more."""


@dataclass(frozen=True, slots=True)
class Distrusted:
    """The last answer was wrong: what follows it may answer the same question."""


@dataclass(frozen=True, slots=True)
class Woke:
    """The core's `wake_ns` has come."""


Event = Requested | Opened | Refused | Received | Pong | Closed | GivenUp | Distrusted | Woke


@dataclass(frozen=True, slots=True)
class Open:
    """Open a connection."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send the question."""

    packed: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """Send a ping."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Abort the connection, or the try to make one; nothing more is read on it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the question."""

    message: bytes


@dataclass(frozen=True, slots=True)
class Lose:
    """The question has no answer."""

    lost: DecisionLost


Action = Open | Send | Ping | Cut | Answer | Lose


@dataclass(slots=True)
class PolicyQuestion:
    """What is asked, until when its answer is waited for, and whether it was sent."""

    packed: bytes
    until_ns: int
    sent: bool = False


class LinkCore:
    """Asks the policy server at `url`, one question at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._question: PolicyQuestion | None = None
        self._open = self._pinged = False
        self._opening_ns: int | None = None  # until when a try to open a connection may take
        self._retry_ns = 0
        self._refused = "connection", "not opened"

    @property
    def wake_ns(self) -> int | None:
        """When a question, or a try to open a connection, is given up."""
        until_ns = None if self._question is None else self._question.until_ns
        return min((t for t in (until_ns, self._opening_ns) if t is not None), default=None)

    def advance(self, event: Event, now_ns: int) -> list[Action]:
        """Take an event; return what to do."""
        if isinstance(event, Requested):
            return self._requested(event, now_ns)
        if isinstance(event, Opened):
            return self._opened(event.first, now_ns)
        if isinstance(event, Refused):
            return self._fail(event.loss, event.why, now_ns)
        if isinstance(event, Received):
            return self._received(event, now_ns)
        if isinstance(event, Pong):
            self._pinged = False
            return self._send()
        if isinstance(event, Closed):
            return self._closed(event.why, now_ns)
        if isinstance(event, Woke):
            return self._expire(now_ns)
        if isinstance(event, GivenUp):
            return self._give_up(now_ns)
        return self._again(now_ns) if self._open else []

    def _requested(self, event: Requested, now_ns: int) -> list[Action]:
        self._question = PolicyQuestion(event.packed, now_ns + event.limit_ns)
        if self._open:
            return self._send()
        if self._opening_ns is not None:
            return []
        if now_ns < self._retry_ns:
            return self._lose(*self._refused)
        return self._begin(now_ns)

    def _begin(self, now_ns: int) -> list[Action]:
        self._opening_ns = now_ns + OPEN_NS
        return [Open()]

    def _opened(self, first: bytes | str, now_ns: int) -> list[Action]:
        if isinstance(first, str):
            return [Cut(), *self._fail("server_error", f"the policy server failed: {last_line(first)}", now_ns)]
        try:
            what = None if isinstance(unpack_message(first), dict) else "it is no map"
        except MalformedMessage as error:
            what = str(error)
        if what is not None:
            why = f"the first message of {self._url} is not a policy server's: {what}"
            return [Cut(), *self._fail("malformed", why, now_ns)]
        self._open, self._opening_ns, self._pinged = True, None, False
        return self._send()

    def _send(self) -> list[Action]:
        """Send the question, where one waits and nothing is left of older ones."""
        question = self._question
        if question is None or question.sent or not self._open or self._pinged:
            return []
        question.sent = True
        return [Send(question.packed)]

    def _received(self, event: Received, now_ns: int) -> list[Action]:
        if self._question is None or not self._question.sent:
            return self._again(now_ns)  # it answers no question
        if isinstance(event.message, str):
            what = f"the policy server failed: {last_line(event.message)}"
            return self._lose("server_error", what) + self._again(now_ns)
        if event.more:  # which of them is the answer?
            return self._lose("malformed", TWO_ANSWERS) + self._again(now_ns)
        self._question, self._pinged = None, True
        return [Ping(), Answer(event.message)]

    def _give_up(self, now_ns: int) -> list[Action]:
        question, self._question = self._question, None
        return self._again(now_ns) if question is not None and question.sent else []

    def _closed(self, why: str, now_ns: int) -> list[Action]:
        self._open = False
        if self._question is None:
            return []
        # A question that was not sent waits for the next connection.
        lost = self._question.sent
        what = f"the connection to the policy server ended: {why}"
        return (self._lose("connection", what) if lost else []) + self._begin(now_ns)

    def _again(self, now_ns: int) -> list[Action]:
        """Cut the connection, and open another one: the next question then has one."""
        self._open = False
        return [Cut(), *self._begin(now_ns)]

    def _fail(self, loss: str, why: str, now_ns: int) -> list[Action]:
        """No connection was made: the question is lost by that, and so are those of the time until the next try."""
        self._opening_ns, self._retry_ns, self._refused = None, now_ns + RETRY_NS, (loss, why)
        return [] if self._question is None else self._lose(loss, why)

    def _lose(self, loss: str, why: str) -> list[Action]:
        self._question = None
        return [Lose(DecisionLost(loss, why))]

    def _expire(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        question = self._question
        if question is not None and now_ns >= question.until_ns:
            what = "no answer in time" if question.sent else "no connection in time"
            actions += self._lose("timeout", what)
            if question.sent:
                actions += self._again(now_ns)
        if self._opening_ns is not None and now_ns >= self._opening_ns:
            why = f"{self._url} accepted no connection within {OPEN_NS / 1e9:g} s"
            actions += [Cut(), *self._fail("timeout", why, now_ns)]
        return actions


def last_line(text: str) -> str:
    """Return what a traceback says was raised, in short."""
    return (text.strip().splitlines() or ["it says nothing"])[-1].strip()[:LONGEST_TEXT]
