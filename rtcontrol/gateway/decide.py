"""Decisions for requests that stand alone: the last few tool sets are kept open in the decoder pool."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rtcontrol.gateway.source import CheckpointGate
from rtcontrol.hosts.protocol import (
    DeciderSource,
    DecisionReply,
    DecisionRequest,
    DecoderPool,
    DecoderUnavailable,
    Host,
)
from rtcontrol.models.call import Decision
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

log = logging.getLogger("rtcontrol.gateway")

MAX_WAITING = 64
MAX_TOLD = 1 << 18  # characters, whatever the model's context: they are counted in tokens first
OPENING_AT_ONCE = threading.Semaphore(2)
READING_AT_ONCE = 2
LOOK_S = 0.2  # so often whoever waits looks whether the decoder is still there
BOUND_IT = "Give it an enum, a range, a maxLength or maxItems."
Tools = tuple[dict[str, Any], ...]
Trained = Callable[[Sequence[ToolSchema]], tuple[bool | None, str | None]]
Gates = Callable[[Sequence[ToolSchema], bool], CheckpointGate]


class Unavailable(Exception):
    """No decision now, through no fault of the request: what, in one line."""


class RequestError(UserError):
    """What is wrong with a request, however often it is sent; `about` its `tools` or its `messages`."""

    def __init__(self, error: UserError, about: str) -> None:
        super().__init__(error.what, error.remedy)
        self.about = about


@dataclass(frozen=True, slots=True)
class Timed:
    """A decision, the tools it chose among, and how long it took in all, and in the decider. `trained`: whether
    the model was on these tools, where that is known; `warning`: what there is to say about that. `held`: why its call
    must not act, by the checkpoint's gate; None: it may."""

    decision: Decision
    schemas: tuple[ToolSchema, ...]
    latency_ms: float
    decide_ms: float
    trained: bool | None = None
    warning: str | None = None
    held: str | None = None


class ToolSets:
    """Decides with the tools of each request, and without any answers questions. Used on the event loop's thread only.

    At most `limit` tool sets are open; the one not used for longest is closed when another is needed. Each has a
    thread of its own, since a host is for one thread, and decides one request at a time.
    """

    def __init__(
        self,
        pool: DecoderPool,
        source: Callable[[Tools, bool], DeciderSource],
        limit: int,
        decide_timeout_s: float,
        open_timeout_s: float,
        trained: Trained = lambda schemas: (None, None),
        gates: Gates = lambda schemas, allow_null: CheckpointGate(allow_null=allow_null),
    ) -> None:
        self._gates = gates
        self._pool, self._source, self._limit, self._trained = pool, source, limit, trained
        self._decide_timeout_s, self._open_timeout_s = decide_timeout_s, open_timeout_s
        self._open: OrderedDict[str, _ToolSet] = OrderedDict()
        self._readers = ThreadPoolExecutor(READING_AT_ONCE, thread_name_prefix="reading")
        self._waiting = 0
        self._made = 0

    @property
    def open(self) -> int:
        return len(self._open)

    async def decide(
        self,
        tools: Tools,
        instruction: str,
        observation: str,
        history: Sequence[str] = (),
        allow_null: bool = False,
        orders: str = "",
    ) -> Timed:
        """`orders`: the text of system messages. Raises RequestError (tools that cannot be compiled, a prompt that does
        not fit, a value that does not end) and Unavailable."""
        began = time.perf_counter()
        if (size := len(orders) + len(instruction) + len(observation) + sum(map(len, history))) > MAX_TOLD:
            what = f"The request tells {size} characters; {MAX_TOLD} is the most."
            raise RequestError(UserError(what, "Shorten the messages, or the environment."), "messages")
        key = json.dumps([allow_null, *tools])
        if self._waiting >= MAX_WAITING:
            raise Unavailable(f"{MAX_WAITING} requests wait already")
        self._waiting += 1
        try:
            gate = None
            if key not in self._open:  # what cannot be read takes the place of no other set
                loop = asyncio.get_running_loop()
                gate = await loop.run_in_executor(self._readers, self._gate_of, tools, allow_null)
            entry = self._entry(key, tools, gate)
            try:
                told = entry.gate.instruction(orders, instruction)
                request = DecisionRequest(0, 0, observation, told, tuple(history))
                decision, decide_ns = await entry.ask(request)
            except BaseException:
                if not entry.ready:
                    self._forget(key, entry)
                raise
        finally:
            self._waiting -= 1
        latency_ms, held = (time.perf_counter() - began) * 1e3, entry.gate.held(decision)
        return Timed(decision, entry.schemas, latency_ms, decide_ns / 1e6, *entry.trained, held)

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        while self._open:
            self._open.popitem()[1].close()

    def _gate_of(self, tools: Tools, allow_null: bool) -> CheckpointGate:
        try:
            return self._gates(read_tools(tools) if tools else (), allow_null)
        except RequestError:
            raise
        except UserError as error:
            raise RequestError(error, "tools") from None

    def _entry(self, key: str, tools: Tools, gate: CheckpointGate | None) -> _ToolSet:
        entry = self._open.get(key)
        if entry is not None:
            self._open.move_to_end(key)
            return entry
        assert gate is not None, "a new set was read"
        while len(self._open) >= self._limit:
            self._open.popitem(last=False)[1].close()
        self._made += 1
        name = f"http-{self._made}"

        def make() -> Host:
            return self._pool.open(name, self._source(tools, gate.allow_null))

        entry = _ToolSet(tools, make, self._trained, name, self._decide_timeout_s, self._open_timeout_s)
        entry.gate = gate
        self._open[key] = entry
        return entry

    def _forget(self, key: str, entry: _ToolSet) -> None:
        if self._open.get(key) is entry:
            del self._open[key]
            entry.close()


def read_tools(tools: Tools) -> tuple[ToolSchema, ...]:
    """Read the tools of a request; a second time it costs little. Raises RequestError."""
    try:
        return tool_schemas(tools)
    except UserError as error:
        raise RequestError(error, "tools") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        what = f"The tools are no function definitions ({reason})."
        raise RequestError(UserError(what, "Write OpenAI-style function definitions."), "tools") from None


class _ToolSet:
    """One open host and its thread."""

    def __init__(
        self,
        tools: Tools,
        make: Callable[[], Host],
        trained: Trained,
        name: str,
        decide_timeout_s: float,
        open_timeout_s: float,
    ) -> None:
        self.gate = CheckpointGate()
        self.schemas: tuple[ToolSchema, ...] = ()
        self.trained: tuple[bool | None, str | None] = None, None
        self._tools, self._make, self._is_trained = tools, make, trained
        self._decide_timeout_s, self._open_timeout_s = decide_timeout_s, open_timeout_s
        self._host: Host | None = None
        self._lost = False  # with its decoder
        self._ticks = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._under_way = 0

    @property
    def ready(self) -> bool:
        """Whether it may be used again."""
        return self._host is not None and not self._lost

    async def ask(self, request: DecisionRequest) -> tuple[Decision, int]:
        """The decision and the nanoseconds that the decider took."""
        limit = self._decide_timeout_s + (0 if self.ready else self._open_timeout_s)
        self._under_way += 1
        try:
            async with asyncio.timeout(limit):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._decide, request)
        except TimeoutError:
            raise Unavailable(f"no decision within {limit:g} s") from None
        finally:
            self._under_way -= 1

    def close(self) -> None:
        """What waits is decided first."""
        self._thread.submit(self._end)
        self._thread.shutdown(wait=False)

    def _decide(self, request: DecisionRequest) -> tuple[Decision, int]:
        if (host := self._host) is None:
            with OPENING_AT_ONCE:
                if not self._under_way:
                    raise Unavailable("the caller has gone")
                host = self._host = self._begin()
        if not host.alive():
            self._lost = True
            raise Unavailable("the decoder is not there")
        self._ticks += 1
        host.submit(DecisionRequest(self._ticks, 0, request.observation, request.instruction, request.history))
        incarnation = host.incarnation  # a standby's takes over when it is asked
        give_up = time.monotonic_ns() + round(self._decide_timeout_s * 1e9)
        while (left := give_up - time.monotonic_ns()) > 0:
            reply = host.wait(min(left, round(LOOK_S * 1e9)))
            if reply is not None and reply.tick == self._ticks:
                return self._read(reply)
            if host.incarnation != incarnation or not host.alive():
                self._lost = True
                raise Unavailable("the decoder was lost")
        host.cancel(self._ticks)
        raise Unavailable(f"no decision within {self._decide_timeout_s:g} s")

    def _read(self, reply: DecisionReply) -> tuple[Decision, int]:
        if reply.mistake is not None:
            raise RequestError(UserError(*reply.mistake), "messages")
        if reply.decision is None:
            kind, _, what = str(reply.error).partition(": ")
            if kind == DecodeError.__name__:  # and so it would be the next time
                raise RequestError(UserError(f"{what}.", BOUND_IT), "tools")
            raise Unavailable(f"the decoder failed ({reply.error})")
        return reply.decision, reply.decide_ns

    def _begin(self) -> Host:
        self.schemas = read_tools(self._tools) if self._tools else ()
        self.trained = self._is_trained(self.schemas)
        try:
            host = self._make()
            host.start()
        except DecoderUnavailable as error:
            raise Unavailable(error.what.rstrip(".")) from None
        except UserError as error:
            raise RequestError(error, "tools") from None
        except Exception as error:
            log.exception("opening a tool set")
            raise Unavailable(f"these tools cannot be opened ({type(error).__name__})") from None
        return host

    def _end(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            try:
                host.close()
            except Exception:
                log.exception("closing a tool set")
