"""Make the decisions of /v1 requests: a call of one of the request's tools, or answers to its questions.

The last few tool sets stay open in the decoder pool.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.gateway.gate import Refusal
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.hosts.deciders import SCRIPTED, NoopSource, QuestionSource, RandomSource, STSource
from rtcontrol.hosts.protocol import (
    DeciderSource,
    DecisionReply,
    DecisionRequest,
    DecoderPool,
    DecoderUnavailable,
    Host,
)
from rtcontrol.hosts.remote_api import EndpointSource, is_endpoint
from rtcontrol.loop.operator import unknown_words_text
from rtcontrol.loop.rules import ConfidenceGate
from rtcontrol.models.call import Decision
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from rtcontrol.run.api import held_reason
from rtcontrol.run.model_compatibility import metadata_of, model_for, trained_on

log = logging.getLogger("rtcontrol.gateway")

MAX_WAITING = 64
OPEN_S, OPENING_AT_ONCE = 60.0, 2
LOOK_NS = 200_000_000  # between two checks whether the decoder is alive
# A request cannot choose a model: the server's model always decides.
START_IT = (
    "Start the server with `rtcontrol serve --model M`: {known}, a checkpoint that was trained on these tools, or a "
    "chat model (docs/engines.md)."
)
Tools = tuple[dict[str, Any], ...]


class Unavailable(Refusal):
    """A refusal because the decoder cannot answer at the moment."""

    def __init__(self, why: str) -> None:
        super().__init__(503, "unavailable", f"The decoder cannot answer: {why}.", "Try again.")


def bad_tools(problem: str, hint: str) -> Refusal:
    """Return the refusal of tools that the decoder cannot use."""
    return Refusal(400, "invalid_request", problem, hint, "tools")


# -- deciders ----------------------------------------------------------------------------------------------------------


def source(options: GatewayOptions, tools: Tools, allow_null: bool = False) -> DeciderSource:
    """Return the decider for a request: with tools, one that calls a tool (or nothing, with `allow_null`), else one
    that answers questions. Raises UserError if the model cannot do that."""
    from rtcontrol.models.decider import DeciderSpec

    model = options.model
    if not tools:
        if model is None or model in SCRIPTED or is_endpoint(model):
            hint = "Start the server with a model that does: `rtcontrol serve --model CHECKPOINT --http ADDRESS`."
            raise UserError(f"The model {public_name(model)} answers no questions.", hint)
        return QuestionSource(DeciderSpec(model=model, engine=options.engine, tools=()))
    model = model_for(tool_schemas(tools), model, START_IT)
    if model == "noop":
        return NoopSource()
    if model == "random":
        return RandomSource(tools)
    if is_endpoint(model):
        return EndpointSource.parse(model, tools, allow_null)
    spec = DeciderSpec(model, tools, engine=options.engine, allow_null=allow_null, value_tokens=options.value_tokens)
    return STSource(spec, patient=True)


def public_name(model: str | None) -> str:
    """Return the model's name as clients may see it, without folders of this machine."""
    return "default" if model is None or is_endpoint(model) else Path(model).name or model


class CheckpointGate:
    """The gate that a checkpoint has for a tool set, or for questions if there are no tools. `trained` says whether the
    model was trained on the tools (None: not known); otherwise there is a `warning`, and no call is held back.

    `allow_null`: the request allows the model to call nothing. Raises UserError if the model cannot be used.
    """

    def __init__(self, model: str | None, tools: Sequence[ToolSchema], allow_null: bool) -> None:
        learnt = metadata_of(model_for(tools, model, START_IT)) if tools else None
        learnt = learnt if learnt is not None and learnt.knows(tools) else None
        gate = None if learnt is None else learnt.gate
        # If a model with a gate learnt null, a null call means that the instruction was not understood.
        doubt = learnt is not None and gate is not None and learnt.allow_null and not allow_null
        self.allow_null = allow_null or doubt
        self._gate = ConfidenceGate({} if gate is None else {"function": gate}, (), doubt)
        plain = model is not None and (model in SCRIPTED or is_endpoint(model))
        self.trained = None if plain else model is None or trained_on(tools, model)
        self.warning: str | None = None
        if not (plain or self.trained):
            known = f"The model {public_name(model)} does not seem to be trained on "
            subject = "these tools" if tools else "questions"
            self.warning = f"{known}{subject}: its answers may be wrong even with high confidence."

    def held(self, decision: Decision) -> str | None:
        """Return why the decision's call must not act; None if the call may act."""
        if (doubt := self._gate.doubt(decision)) is None:
            return None
        unknown = f"; {unknown_words_text(decision.unknown)}" if decision.unknown else ""
        return f"Nothing is called: {held_reason(doubt, doubt.head, decision.call)}{unknown}."

    def instruction(self, orders: str, sentence: str) -> str:
        """Return the instruction for the model, with the system's orders if the model was not trained on the tools."""
        return sentence if self.trained else "\n".join(filter(None, (orders, sentence)))


@dataclass(frozen=True, slots=True)
class Timed:
    """A decision with its total latency and the decider's time. `trained` and `warning` are from `CheckpointGate`;
    `held`: why the gate holds the call back (None: the call may act)."""

    decision: Decision
    latency_ms: float
    decide_ms: float
    trained: bool | None = None
    warning: str | None = None
    held: str | None = None

    def timing(self) -> dict[str, Any]:
        """Return the fields about the decision that every answer has in `rtcontrol`."""
        return {
            "latency_ms": round(self.latency_ms, 3),
            "decide_ms": round(self.decide_ms, 3),
            "forward_passes": self.decision.forward_passes,
            "trained": self.trained,
            **({"warning": self.warning} if self.warning else {}),
        }


# -- sets of tools -----------------------------------------------------------------------------------------------------


class ToolSets:
    """The open tool sets, which decide with a request's tools or answer questions; for the event loop's thread only.

    At most `options.tool_sets` sets stay open; the least recently used one is closed after another was opened.
    """

    def __init__(self, pool: DecoderPool, options: GatewayOptions) -> None:
        self._pool, self._options = pool, options
        self._open: OrderedDict[str, ToolSet] = OrderedDict()
        self._opening: dict[str, asyncio.Task[ToolSet]] = {}
        self._openers = ThreadPoolExecutor(OPENING_AT_ONCE, thread_name_prefix="opening")
        self._waiting = self._count = 0

    async def decide(
        self,
        tools: Tools,
        instruction: str,
        observation: str,
        history: Sequence[str] = (),
        allow_null: bool = False,
        orders: str = "",
    ) -> Timed:
        """Make a decision; `orders` is the text of system messages. Raises Refusal for tools that cannot be compiled,
        a prompt that is too long or a value that does not end, and Unavailable."""
        started_s = time.perf_counter()
        if self._waiting >= MAX_WAITING:
            raise Unavailable(f"{MAX_WAITING} requests are already waiting")
        self._waiting += 1
        try:
            tool_set = await self._tool_set(tools, allow_null)
            gate = tool_set.gate
            text = gate.instruction(orders, instruction)
            decision, decide_ns = await tool_set.ask(observation, text, tuple(history))
        finally:
            self._waiting -= 1
        latency_ms = (time.perf_counter() - started_s) * 1e3
        return Timed(decision, latency_ms, decide_ns / 1e6, gate.trained, gate.warning, gate.held(decision))

    def close(self) -> None:
        self._openers.shutdown(wait=False, cancel_futures=True)
        while self._open:
            self._open.popitem()[1].close()

    async def _tool_set(self, tools: Tools, allow_null: bool) -> ToolSet:
        key = json.dumps([allow_null, *tools])
        if key in self._open and not self._open[key].lost:
            self._open.move_to_end(key)
            return self._open[key]
        if key not in self._opening:
            self._opening[key] = asyncio.create_task(self._open_set(key, tools, allow_null))
        try:
            async with asyncio.timeout(OPEN_S):
                return await asyncio.shield(self._opening[key])
        except TimeoutError:
            raise Unavailable(f"the tools did not open within {OPEN_S:g} s") from None

    async def _open_set(self, key: str, tools: Tools, allow_null: bool) -> ToolSet:
        """Open a tool set, and only then close the set that it replaces."""
        self._count += 1
        parts = self._pool, self._options, tools, allow_null, f"http-{self._count}"
        try:
            tool_set = await asyncio.get_running_loop().run_in_executor(self._openers, open_set, *parts)
        finally:
            del self._opening[key]
        if key in self._open:
            self._open.pop(key).close()
        while len(self._open) >= self._options.tool_sets:
            self._open.popitem(last=False)[1].close()
        self._open[key] = tool_set
        return tool_set


def open_set(pool: DecoderPool, options: GatewayOptions, tools: Tools, allow_null: bool, name: str) -> ToolSet:
    """Read the tools and open a host that decides with them. Raises Refusal."""
    try:
        schemas = tool_schemas(tools) if tools else ()
        gate = CheckpointGate(options.model, schemas, allow_null)
        host = pool.open(name, source(options, tools, gate.allow_null))
        host.start()
        return ToolSet(host, gate, options.decide_timeout_s)
    except DecoderUnavailable as error:
        raise Unavailable(error.what.rstrip(".")) from None
    except UserError as error:
        raise bad_tools(error.what, error.remedy) from None
    except Exception as error:
        log.exception("opening a tool set")
        problem = f"These tools cannot be opened ({type(error).__name__})."
        raise bad_tools(problem, "Write OpenAI-style function definitions.") from None


class ToolSet:
    """An open host with the only thread that may use the host; decides one request at a time."""

    def __init__(self, host: Host, gate: CheckpointGate, limit_s: float) -> None:
        self.gate = gate
        self.lost = False  # the decoder was lost
        self._host, self._limit_s = host, limit_s
        self._ticks = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=host.name)

    async def ask(self, observation: str, instruction: str, history: tuple[str, ...]) -> tuple[Decision, int]:
        """Return the decision and the decider's nanoseconds. Raises Refusal, also after `limit_s`."""
        give_up = time.monotonic_ns() + round(self._limit_s * 1e9)
        parts = give_up, observation, instruction, history
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._decide, *parts)

    def close(self) -> None:
        """Close the host after the waiting requests are decided."""
        self._thread.submit(self._end)
        self._thread.shutdown(wait=False)

    def _decide(self, give_up: int, *prompt: Any) -> tuple[Decision, int]:
        self._ticks += 1
        host, tick = self._host, self._ticks
        host.submit(DecisionRequest(tick, 0, *prompt))
        incarnation = host.incarnation  # a standby takes over together with the pending request
        while (left := give_up - time.monotonic_ns()) > 0:
            reply = host.wait(min(left, LOOK_NS))
            if reply is not None and reply.tick == tick:
                return decision_of(reply)
            if host.incarnation != incarnation or not host.alive():
                self.lost = True
                raise Unavailable("the decoder was lost")
        host.cancel(tick)
        raise Unavailable(f"no decision within {self._limit_s:g} s")

    def _end(self) -> None:
        try:
            self._host.close()
        except Exception:
            log.exception("closing a tool set")


def decision_of(reply: DecisionReply) -> tuple[Decision, int]:
    """Return the decision of a reply and the decider's nanoseconds. Raises Refusal if there is no decision."""
    if reply.user_error is not None:
        raise Refusal(400, "context_length_exceeded", *reply.user_error, "messages")
    if reply.decision is None:
        kind, _, detail = str(reply.error).partition(": ")
        if kind == DecodeError.__name__:  # a repeated request would fail the same way
            raise bad_tools(f"{detail}.", "Give the value an enum, a range, a maxLength or maxItems.")
        raise Unavailable(f"the decoder failed ({reply.error})")
    return reply.decision, reply.decide_ns
