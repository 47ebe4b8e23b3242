"""Decides by a policy server of robots over WebSocket, as openpi has it (`openpi:ws://HOST:PORT`); docs/policies.md.

Whatever is wrong with an answer, and every answer that is not there in time, is a miss, and nothing of it acts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from rtcontrol.agents import InvalidCall, Tools
from rtcontrol.hosts.array_message import MOST_BYTES, MalformedMessage, pack_message, unpack_message
from rtcontrol.hosts.policy_mapping import MOST_ROWS, PolicyMapping
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import LONGEST_S, done_in_steps, endpoint_url, secret, time_of
from rtcontrol.models.call import Decision, Plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import result
from rtcontrol.models.loop_thread import LoopThread
from rtcontrol.models.schema.tool_schema import tool_schemas

OPEN_S = 10.0  # the handshake, and the server's first message
RETRY_S = 0.1  # from a try that failed to the next
LONGEST_TEXT = 300  # characters of a server's words


class _Straight(connect):
    """A redirect is an answer like any other status: the key goes where its owner sent it, and nowhere else."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class PolicyLink:
    """Asks a policy server on a connection that is kept, and made again where it is lost; any thread may ask.

    A connection answers one question after the other. One on which an answer was late, or something came that was not
    requested, is cut and never used again: what it would say next answers an older question. A ping follows each
    answer, and the next question waits for its pong: a second answer that the server sent before it is then there.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url, self._headers = url, headers
        self._connection: ClientConnection | None = None
        self._pong: asyncio.Future[float] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failed: tuple[float, DecisionLost] = (float("-inf"), DecisionLost("connection", "not opened"))
        self._thread = LoopThread("policy link")

    def ask(self, packed: bytes, limit_s: float) -> Future[bytes]:
        """Return the answer's bytes to come; cancelling it cuts the connection. It raises DecisionLost, as this does
        after `close`."""
        if (asked := self._thread.start(self._ask, packed, limit_s)) is None:
            raise DecisionLost("connection", "the link was closed")
        return asked

    async def _ask(self, packed: bytes, limit_s: float) -> bytes:
        connection: ClientConnection | None = None
        good = False
        try:
            async with asyncio.timeout(limit_s):
                connection = await self._quiet()
                await connection.send(packed)
                said = await connection.recv()
                if isinstance(said, str):
                    raise DecisionLost("server_error", f"the policy server failed: {last_line(said)}")
                self._pong = None
                with contextlib.suppress(ConnectionClosed):
                    self._pong = asyncio.ensure_future(await connection.ping())
                    if await _has_more(connection):  # which of them is the answer?
                        raise DecisionLost("malformed", "the policy server sent two answers")
            good = True
            return said
        except TimeoutError:
            what = "no connection" if connection is None else "no answer"
            raise DecisionLost("timeout", f"{what} in time") from None
        except ConnectionClosed as closed:
            raise DecisionLost("connection", f"the connection to the policy server ended: {closed}") from None
        finally:
            if not good and connection is not None:  # whatever it says now is of this question, or of one before
                self._cut(connection)

    async def _quiet(self) -> ClientConnection:
        """Return a connection on which nothing is left of older questions."""
        while True:
            connection = await self._opened()
            if self._pong is not None:
                await asyncio.wait([self._pong])
            with contextlib.suppress(ConnectionClosed):
                if not await _has_more(connection):
                    return connection
            self._cut(connection)

    async def _opened(self) -> ClientConnection:
        if self._connection is None:
            if time.monotonic() >= self._failed[0] + RETRY_S:
                self._open_again()
            if self._opening is not None:
                await asyncio.shield(self._opening)
        if self._connection is None:
            raise DecisionLost(self._failed[1].loss, str(self._failed[1]))
        return self._connection

    def _open_again(self) -> None:
        """Begin to open a connection, unless one is being opened."""
        if not self._thread.ended and (self._opening is None or self._opening.done()):
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(OPEN_S):
                self._connection = await self._greeted()
            self._pong = None
            return
        except TimeoutError:
            lost = DecisionLost("timeout", f"{self.url} accepted no connection within {OPEN_S:g} s")
        except InvalidStatus as refused:
            status = refused.response.status_code
            hint = "; its key is RTCONTROL_POLICY_KEY" if status in (401, 403) else ""
            lost = DecisionLost("http", f"{self.url} answered HTTP {status}{hint}")
        except (OSError, WebSocketException, EOFError) as error:
            why = " ".join(str(error).split())[:LONGEST_TEXT]
            lost = DecisionLost("connection", f"{self.url} cannot be reached ({type(error).__name__}: {why})")
        except DecisionLost as error:
            lost = error
        self._failed = time.monotonic(), lost

    async def _greeted(self) -> ClientConnection:
        """Return a new connection, once the server's first message has come: a map about the policy."""
        connection = await _Straight(
            self.url,
            compression=None,
            max_size=MOST_BYTES,
            additional_headers=dict(self._headers),
            open_timeout=None,
            ping_interval=None,
            close_timeout=0.0,
            proxy=None,
            max_queue=2,
        )
        try:
            first = await connection.recv()
            if isinstance(first, str):
                raise DecisionLost("server_error", f"the policy server failed: {last_line(first)}")
            if not isinstance(unpack_message(first), dict):
                raise MalformedMessage("it is no map")
        except BaseException as error:
            connection.transport.abort()
            if isinstance(error, MalformedMessage):
                what = f"the first message of {self.url} is not a policy server's: {error}"
                raise DecisionLost("malformed", what) from None
            raise
        return connection

    def cut(self) -> None:
        """Read nothing more on this connection: its server's last answer was wrong."""
        if (connection := self._connection) is not None:
            self._thread.call(self._cut, connection)

    def _cut(self, connection: ClientConnection) -> None:
        connection.transport.abort()
        if self._connection is connection:
            self._connection = None
            self._open_again()  # the next question then has one

    def close(self) -> None:
        """Cut the connection; what is under way is cancelled."""
        self._thread.end(self._abort)

    async def _abort(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()


async def _has_more(connection: ClientConnection) -> bool:
    """Whether a message is there that answers no question. Raises ConnectionClosed."""
    await asyncio.sleep(0)  # what came right behind the last one is with its reader
    try:
        async with asyncio.timeout(0):
            await connection.recv()
    except TimeoutError:
        return False
    return True


def last_line(text: str) -> str:
    """Return what a traceback says was raised, in short."""
    return (text.strip().splitlines() or ["it says nothing"])[-1].strip()[:LONGEST_TEXT]


KEY = "RTCONTROL_POLICY_KEY"
FIRST_S = 60.0
READ_S = 0.003  # of a question's time, to unpack and to check the answer
TIMINGS = ("server_timing", "policy_timing")  # no two answers of one server have the same
REMEMBERED = 64  # answers that are recognised
REMEDY = "Check the policy's configuration, or map its actions (docs/policies.md)."


@dataclass(frozen=True)
class PolicySource:
    """`url` is that of the server; `step_ns` is how long an action stands where the mapping does not say it. With
    `late` an answer is waited for beyond its request's time. `answers` are digests of the last ones, of all deciders of
    the source."""

    url: str
    tools: tuple[dict[str, Any], ...]
    mapping: PolicyMapping
    step_ns: int
    late: bool = False
    key: str | None = field(default=None, repr=False)
    answers: deque[bytes] = field(default_factory=lambda: deque(maxlen=REMEMBERED), repr=False, compare=False)

    @classmethod
    def parse(cls, name: str, tools: Sequence[dict[str, Any]], step_ns: int, late: bool = False) -> PolicySource:
        """From `openpi:ws://HOST:PORT#policy.yaml`; the key is in the environment. Raises UserError."""
        form = f"openpi:ws://HOST:PORT, or openpi:ws://HOST:PORT#policy.yaml; a key goes into the environment, as {KEY}"
        url = endpoint_url(name, ("ws", "wss"), form)
        mapping = PolicyMapping.read(url.fragment or None, tool_schemas(list(tools)))
        plain = url._replace(fragment="").geturl()
        return cls(plain, tuple(tools), mapping, mapping.step_ns or step_ns, late, secret(KEY, url))

    def build(self) -> PolicyDecider:
        return PolicyDecider(self)


class PolicyDecider:
    """Asks a policy server, on a connection that is kept open and a thread of its own; one decision at a time."""

    def __init__(self, source: PolicySource) -> None:
        self._source, self._mapping = source, source.mapping
        self._tools = Tools(list(source.tools))
        headers = {"Authorization": f"Api-Key {source.key}"} if source.key is not None else {}
        self._link = PolicyLink(source.url, headers)
        self._first = True
        self._proven = False  # whether an answer was good
        tool = next(schema for schema in self._tools.schemas if schema.name == self._mapping.tool)
        self._heads = ("function", *(f"arg{k}" for k, _ in enumerate(tool.slots(), start=1)))

    def decide(self, request: DecisionRequest) -> Decision:
        """Raises DecisionLost, and UserError for an observation or a policy that is not the mapping's."""
        return result(self.decide_in_steps(request))

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        """`decide`, which may be left alone; where it is given up, the connection is cut. So it is after every answer
        that is not wholly good: what comes next on it may be of this question, too."""
        data = request.data or {}
        self._mapping = self._mapping.fixed(data)
        packed = pack_message(self._mapping.question(data, request.instruction))
        try:
            said = yield from done_in_steps(self._link.ask(packed, self._limit_s(request)))
        except concurrent.futures.CancelledError:
            raise DecisionLost("connection", "the link was closed") from None
        good = False
        try:
            decision = self._decision(said)
            good = decision.plan is not None
            return decision
        finally:
            if not good:
                self._link.cut()

    def _limit_s(self, request: DecisionRequest) -> float:
        """A policy may be compiled with the first question before a run, and with no other."""
        first, self._first = self._first and request.tick < 0, False
        limit_s = None if self._source.late else time_of(request)
        if limit_s is None:
            return FIRST_S if first else LONGEST_S
        return limit_s - min(READ_S, limit_s / 4)

    def _decision(self, said: bytes) -> Decision:
        try:
            answer = unpack_message(said)
        except MalformedMessage as error:
            raise DecisionLost("malformed", f"the policy's answer: {error}") from None
        if not isinstance(answer, dict):
            raise DecisionLost("malformed", "the policy's answer is no map")
        status = answer.get("status", "fresh")
        if not isinstance(status, str) or status != "fresh":
            raise DecisionLost("refused", f"the policy decided nothing: its status is {str(status)[:20]!r}")
        chunk = self._chunk(answer)
        self._check_new(said, answer)
        try:
            calls = tuple(self._mapping.call(row) for row in chunk[: self._mapping.horizon].tolist())
        except OverflowError as error:
            raise DecisionLost("not_finite", f"an action is not finite when it is scaled: {error}") from None
        confidence = self._confidence(answer)
        for call in calls:
            try:
                self._tools.validate(call)
            except InvalidCall:  # the loop says so: nothing of such a plan acts
                return Decision(call, confidence)
        self._proven = True
        return Decision(calls[0], confidence, plan=Plan(calls, self._source.step_ns))

    def _chunk(self, answer: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """The actions, of the shape, dtype and size that the mapping knows, and finite."""
        found, dims = answer.get("actions"), len(self._mapping.dims)
        kind = getattr(found, "dtype", type(found).__name__)
        if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or found.dtype.itemsize > 8:
            raise self._wrong(f"its actions are {kind}, no array of floats")
        if found.ndim != 2 or found.shape[1] != dims:
            raise self._wrong(f"its actions have the shape {found.shape}; [steps, {dims}] are mapped")
        if not 1 <= len(found) <= MOST_ROWS:
            raise DecisionLost("malformed", f"the policy's answer has {len(found)} actions; 1 to {MOST_ROWS} are taken")
        if not np.isfinite(found).all():
            raise DecisionLost("not_finite", "the policy's actions have numbers that are not finite")
        return found

    def _wrong(self, what: str) -> Exception:
        """What is not as it is mapped: before the first good answer a mistake that somebody can mend."""
        if self._proven:
            return DecisionLost("malformed", f"the policy's answer: {what}")
        return UserError(f"The policy at {self._source.url} does not fit the agent: {what}.", REMEDY)

    def _check_new(self, said: bytes, answer: Mapping[str, Any]) -> None:
        """Raises DecisionLost for an answer with a timing that is an earlier one, byte for byte."""
        digest, seen = blake2b(said).digest(), self._source.answers
        if digest in seen and any(isinstance(answer.get(name), dict) and answer[name] for name in TIMINGS):
            raise DecisionLost("repeated", "the policy's answer is an earlier one, byte for byte with its timing")
        seen.append(digest)

    def _confidence(self, answer: Mapping[str, Any]) -> dict[str, float]:
        given = answer.get("confidence", 1.0)
        number = isinstance(given, int | float | np.number) and math.isfinite(given) and 0 <= given <= 1
        return dict.fromkeys(self._heads, float(given) if number else 0.0)

    def close(self) -> None:
        """Cut the connection."""
        self._link.close()

    def info(self) -> dict[str, Any]:
        return {
            "engine": "openpi",
            "url": self._source.url,
            "tool": self._mapping.tool,
            "actions": [dim and dim.name for dim in self._mapping.dims],
            "step_ms": self._source.step_ns / 1e6,
        }
