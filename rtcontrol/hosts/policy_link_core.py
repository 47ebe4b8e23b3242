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


@dataclass(slots=True)
class Open:
    """Open a connection."""


@dataclass(slots=True)
class Send:
    """Send the question."""

    packed: bytes


@dataclass(slots=True)
class Ping:
    """Send a ping."""


@dataclass(slots=True)
class Cut:
    """Abort the connection, or the try to make one; nothing more is read on it."""


@dataclass(slots=True)
class Answer:
    """Answer the question."""

    message: bytes


@dataclass(slots=True)
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
    """Asks the policy server at `url`, one question at a time. Takes an event by a method; returns what to do."""

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

    def requested(self, packed: bytes, limit_ns: int, now_ns: int) -> list[Action]:
        """A question, which waits so long for its answer."""
        self._question = PolicyQuestion(packed, now_ns + limit_ns)
        if self._open:
            return self._send()
        if self._opening_ns is not None:
            return []
        if now_ns < self._retry_ns:
            return self._lose(*self._refused)
        return self._begin(now_ns)

    def opened(self, first: bytes | str, now_ns: int) -> list[Action]:
        """A connection is open; its server's first message."""
        if isinstance(first, str):
            return [Cut(), *self.refused("server_error", f"the policy server failed: {last_line(first)}", now_ns)]
        try:
            what = None if isinstance(unpack_message(first), dict) else "it is no map"
        except MalformedMessage as error:
            what = str(error)
        if what is not None:
            why = f"the first message of {self._url} is not a policy server's: {what}"
            return [Cut(), *self.refused("malformed", why, now_ns)]
        self._open, self._opening_ns, self._pinged = True, None, False
        return self._send()

    def refused(self, loss: str, why: str, now_ns: int) -> list[Action]:
        """No connection was made: the question is lost by that, and so are those of the time until the next try."""
        self._opening_ns, self._retry_ns, self._refused = None, now_ns + RETRY_NS, (loss, why)
        return [] if self._question is None else self._lose(loss, why)

    def received(self, message: bytes | str, more: bool, now_ns: int) -> list[Action]:
        """A message came; `more`: another one with it."""
        if self._question is None or not self._question.sent:
            return self._again(now_ns)  # it answers no question
        if isinstance(message, str):
            what = f"the policy server failed: {last_line(message)}"
            return self._lose("server_error", what) + self._again(now_ns)
        if more:  # which of them is the answer?
            return self._lose("malformed", TWO_ANSWERS) + self._again(now_ns)
        self._question, self._pinged = None, True
        return [Ping(), Answer(message)]

    def pong(self, now_ns: int) -> list[Action]:
        """The ping is answered: all that the server sent before is here."""
        self._pinged = False
        return self._send()

    def closed(self, why: str, now_ns: int) -> list[Action]:
        """The connection ended."""
        self._open = False
        if self._question is None:
            return []
        # A question that was not sent waits for the next connection.
        lost = self._question.sent
        what = f"the connection to the policy server ended: {why}"
        return (self._lose("connection", what) if lost else []) + self._begin(now_ns)

    def given_up(self, now_ns: int) -> list[Action]:
        """No one waits for the question any more."""
        question, self._question = self._question, None
        return self._again(now_ns) if question is not None and question.sent else []

    def distrusted(self, now_ns: int) -> list[Action]:
        """The last answer was wrong: what follows it may answer the same question."""
        return self._again(now_ns) if self._open else []

    def woke(self, now_ns: int) -> list[Action]:
        """`wake_ns` has come."""
        actions: list[Action] = []
        question = self._question
        if question is not None and now_ns >= question.until_ns:
            actions += self._lose("timeout", "no answer in time" if question.sent else "no connection in time")
            if question.sent:
                actions += self._again(now_ns)
        if self._opening_ns is not None and now_ns >= self._opening_ns:
            why = f"{self._url} accepted no connection within {OPEN_NS / 1e9:g} s"
            actions += [Cut(), *self.refused("timeout", why, now_ns)]
        return actions

    def _begin(self, now_ns: int) -> list[Action]:
        self._opening_ns = now_ns + OPEN_NS
        return [Open()]

    def _again(self, now_ns: int) -> list[Action]:
        """Cut the connection, and open another one: the next question then has one."""
        self._open = False
        return [Cut(), *self._begin(now_ns)]

    def _send(self) -> list[Action]:
        """Send the question, where one waits and nothing is left of older ones."""
        question = self._question
        if question is None or question.sent or not self._open or self._pinged:
            return []
        question.sent = True
        return [Send(question.packed)]

    def _lose(self, loss: str, why: str) -> list[Action]:
        self._question = None
        return [Lose(DecisionLost(loss, why))]


def last_line(text: str) -> str:
    """Return what a traceback says was raised, in short."""
    return (text.strip().splitlines() or ["it says nothing"])[-1].strip()[:LONGEST_TEXT]
