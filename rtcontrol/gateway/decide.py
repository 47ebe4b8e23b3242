"""Decisions for requests that stand alone, with tools of their own or questions: the last few tool sets are kept open
in the decoder pool."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtcontrol.gateway.access import WARNING
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.hosts.deciders import PLAIN, NoopSource, QuestionSource, RandomSource, STSource
from rtcontrol.hosts.protocol import (
    DeciderSource,
    DecisionReply,
    DecisionRequest,
    DecoderPool,
    DecoderUnavailable,
    Host,
)
from rtcontrol.hosts.remote_api import EndpointSource, is_endpoint
from rtcontrol.loop.operator import never_taught
from rtcontrol.loop.rules import ConfidenceGate
from rtcontrol.models.call import Decision
from rtcontrol.models.checkpoint.checkpoint import chats
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from rtcontrol.run.api import why_held
from rtcontrol.run.model_compatibility import learnt_of, model_for, trained_on

log = logging.getLogger("rtcontrol.gateway")

MAX_WAITING = 64
MAX_TOLD = 1 << 18  # characters, whatever the model's context: they are counted in tokens first
OPENING_AT_ONCE = threading.Semaphore(2)
READING_AT_ONCE = 2
LOOK_S = 0.2  # so often whoever waits looks whether the decoder is still there
BOUND_IT = "Give it an enum, a range, a maxLength or maxItems."
# A request cannot choose among models: its `model` is that of the server.
START_IT = (
    "Start the server with `rtcontrol serve --model M`: {known}, a checkpoint that was trained on these tools, or a "
    "chat model (docs/chat.md)."
)
Tools = tuple[dict[str, Any], ...]


class Unavailable(Exception):
    """No decision now, through no fault of the request: what, in one line."""


class RequestError(UserError):
    """What is wrong with a request, however often it is sent; `about` its `tools` or its `messages`."""

    def __init__(self, error: UserError, about: str) -> None:
        super().__init__(error.what, error.remedy)
        self.about = about


# -- what decides ------------------------------------------------------------------------------------------------------


def source(options: GatewayOptions, tools: Tools, allow_null: bool = False) -> DeciderSource:
    """Return what decides with these tools; with `allow_null` it may call nothing; without tools it answers questions.
    UserError for a model that cannot serve these."""
    from rtcontrol.models.decider import DeciderSpec

    model = options.model
    if not tools:
        if model is None or model in PLAIN or is_endpoint(model):
            raise UserError(
                "No model here answers questions." if model is None else f"The model {model} answers no questions.",
                "Start the server with one: `rtcontrol serve --model CHECKPOINT --http ADDRESS`.",
            )
        return QuestionSource(DeciderSpec(model=model, engine=options.engine, tools=()))
    model = model_for(tool_schemas(tools), model, START_IT)
    if model == "noop":
        return NoopSource()
    if model == "random":
        return RandomSource(tools)
    if model == "expert":
        raise UserError("The scripted expert knows its own tools only.", "Serve a model: `rtcontrol serve --model M`.")
    if is_endpoint(model):
        return EndpointSource.parse(model, tools, allow_null)
    given: dict[str, Any] = {"allow_null": allow_null, "value_tokens": options.value_tokens}
    return STSource(DeciderSpec(model=model, engine=options.engine, tools=tools, **given), patient=True)


def trained(model: str | None, tools: Sequence[ToolSchema]) -> tuple[bool | None, str | None]:
    """Return whether the model was trained on these tools, and without any on questions (None: not known, or nothing
    that is trained), and the warning for everyone who asks it about what it may not have been trained on."""
    found = True if model is None else trained_on(tools, model)
    if model is not None and found is None and _chats(model):
        found = False
    if found or model in PLAIN or is_endpoint(model):
        return found, None
    name = public_name(model)
    what, given = ("these tools", "calls") if tools else ("questions", "answers")
    told = (
        f"Whether the model {name} was trained on {what} is not known"
        if found is None
        else f"The model {name} was not trained on {what}"
    )
    return found, f"{told}: its {given} are legal, and may be nonsense, however certain they are."


@lru_cache(maxsize=1)  # it reads the tokenizer
def _chats(model: str) -> bool:
    return model not in PLAIN and not is_endpoint(model) and chats(model)


def public_name(model: str | None) -> str:
    """Return the model's name as strangers may see it: without the folders of this machine."""
    return "default" if model is None or is_endpoint(model) else Path(model).name or model


class CheckpointGate:
    """The gate of one set of tools. Without `learnt` (a checkpoint that does not know them, or no checkpoint) it holds
    nothing back. `allow_null`: whether the request itself lets the model call nothing."""

    def __init__(self, learnt: TrainingMetadata | None = None, allow_null: bool = False) -> None:
        self._learnt = learnt
        gate = None if learnt is None else learnt.gate
        # A null function that was learnt with a gate says that the instruction is not understood.
        doubt = learnt is not None and gate is not None and learnt.allow_null and not allow_null
        self.allow_null = allow_null or doubt
        self._gate = ConfidenceGate({} if gate is None else {"function": gate}, (), doubt)

    @classmethod
    def of(cls, model: str | None, tools: Sequence[ToolSchema], allow_null: bool) -> CheckpointGate:
        """Return the gate of a model (None: the bundled one that knows the tools). UserError if it must not decide."""
        learnt = learnt_of(model_for(tools, model, START_IT)) if tools else None
        return cls(learnt if learnt is not None and learnt.knows(tools) else None, allow_null)

    def held(self, decision: Decision) -> str | None:
        """Return why the decision's call must not act; None if it may."""
        if (doubt := self._gate.doubt(decision)) is None:
            return None
        strange = f"; {never_taught(decision.unknown)}" if decision.unknown else ""
        return f"Nothing is called: {why_held(doubt, doubt.head, decision.call)}{strange}."

    def instruction(self, orders: str, said: str) -> str:
        """Return what the model is told: the orders of a system message only if it was not trained on these tools, for
        the sentences of its training have none."""
        return said if self._learnt is not None else "\n".join(filter(None, (orders, said)))


def read_tools(tools: Tools) -> tuple[ToolSchema, ...]:
    """Return the tools of a request; a second time it costs little. Raises RequestError."""
    try:
        return tool_schemas(tools) if tools else ()
    except UserError as error:
        raise RequestError(error, "tools") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        what = f"The tools are no function definitions ({reason})."
        raise RequestError(UserError(what, "Write OpenAI-style function definitions."), "tools") from None


# -- decisions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timed:
    """A decision, and how long it took in all, and in the decider. `trained`: whether the model was on these tools,
    where that is known; `warning`: what there is to say about that. `held`: why its call must not act, by the
    checkpoint's gate; None: it may."""

    decision: Decision
    latency_ms: float
    decide_ms: float
    trained: bool | None = None
    warning: str | None = None
    held: str | None = None

    def headers(self) -> dict[str, str]:
        """Return the header that tells of the warning."""
        # Headers are Latin-1, and a model's name may be anything.
        return {WARNING: self.warning.encode("ascii", "replace").decode()} if self.warning else {}


def timing(timed: Sequence[Timed]) -> dict[str, Any]:
    """Return what all answers tell of their decisions in the field `rtcontrol`."""
    return {
        "latency_ms": round(sum(one.latency_ms for one in timed), 3),
        "decide_ms": round(sum(one.decide_ms for one in timed), 3),
        "forward_passes": sum(one.decision.forward_passes for one in timed),
        "trained": timed[0].trained,
        **({"warning": timed[0].warning} if timed[0].warning else {}),
    }


class ToolSets:
    """Decides with the tools of each request, and without any answers questions. Used on the event loop's thread only.

    At most `options.tool_sets` are open; the one not used for longest is closed when another is needed.
    """

    def __init__(self, pool: DecoderPool, options: GatewayOptions) -> None:
        self._pool, self._options = pool, options
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
        if self._waiting >= MAX_WAITING:
            raise Unavailable(f"{MAX_WAITING} requests wait already")
        self._waiting += 1
        try:
            key, entry = await self._entry(tools, allow_null)
            try:
                told = entry.gate.instruction(orders, instruction)
                decision, decide_ns = await entry.ask(DecisionRequest(0, 0, observation, told, tuple(history)))
            except BaseException:
                if not entry.ready and self._open.get(key) is entry:
                    self._open.pop(key).close()
                raise
        finally:
            self._waiting -= 1
        latency_ms, held = (time.perf_counter() - began) * 1e3, entry.gate.held(decision)
        return Timed(decision, latency_ms, decide_ns / 1e6, *entry.trained, held)

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        while self._open:
            self._open.popitem()[1].close()

    async def _entry(self, tools: Tools, allow_null: bool) -> tuple[str, _ToolSet]:
        """Return the set of these tools, which is opened where it is not; what cannot be read takes the place of no
        other one."""
        key = json.dumps([allow_null, *tools])
        if key not in self._open:
            loop = asyncio.get_running_loop()
            gate = await loop.run_in_executor(self._readers, self._gate_of, tools, allow_null)
        if key in self._open:
            self._open.move_to_end(key)
        else:
            while len(self._open) >= self._options.tool_sets:
                self._open.popitem(last=False)[1].close()
            self._made += 1
            self._open[key] = _ToolSet(self._pool, self._options, tools, gate, f"http-{self._made}")
        return key, self._open[key]

    def _gate_of(self, tools: Tools, allow_null: bool) -> CheckpointGate:
        try:
            return CheckpointGate.of(self._options.model, read_tools(tools), allow_null)
        except RequestError:
            raise
        except UserError as error:
            raise RequestError(error, "tools") from None


class _ToolSet:
    """One open host. It has a thread of its own, since a host is for one thread, and decides one request at a time."""

    def __init__(
        self, pool: DecoderPool, options: GatewayOptions, tools: Tools, gate: CheckpointGate, name: str
    ) -> None:
        self.gate = gate
        self.trained: tuple[bool | None, str | None] = None, None
        self._pool, self._options, self._tools, self._name = pool, options, tools, name
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
        """Return the decision and the nanoseconds that the decider took."""
        limit = self._options.decide_timeout_s + (0 if self.ready else self._options.open_timeout_s)
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
        limit_s = self._options.decide_timeout_s
        give_up = time.monotonic_ns() + round(limit_s * 1e9)
        while (left := give_up - time.monotonic_ns()) > 0:
            reply = host.wait(min(left, round(LOOK_S * 1e9)))
            if reply is not None and reply.tick == self._ticks:
                return self._read(reply)
            if host.incarnation != incarnation or not host.alive():
                self._lost = True
                raise Unavailable("the decoder was lost")
        host.cancel(self._ticks)
        raise Unavailable(f"no decision within {limit_s:g} s")

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
        self.trained = trained(self._options.model, read_tools(self._tools))
        try:
            host = self._pool.open(self._name, source(self._options, self._tools, self.gate.allow_null))
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
