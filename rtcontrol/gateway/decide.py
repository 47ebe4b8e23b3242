"""Make decisions for /v1 requests: a call of one of the request's tools, or answers to the request's questions.

The most recently used tool sets stay open in the decoder pool, so later requests with these tools need no compilation.
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
from rtcontrol.loop.rules import ConfidenceGate
from rtcontrol.models.call import Decision
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from rtcontrol.run.api import low_confidence_text
from rtcontrol.run.model_compatibility import metadata_of, model_for, trained_on

log = logging.getLogger("rtcontrol.gateway")

MAX_WAITING = 64
OPEN_TIMEOUT_S, MAX_OPENING = 60.0, 2
ALIVE_CHECK_NS = 200_000_000  # time between two checks whether the decoder is alive
# This hint names only options of the server, because a request cannot choose a model.
START_HINT = (
    "Start the server with `rtcontrol serve --model M`: {known}, a checkpoint that was trained on these tools, or a "
    "chat model (docs/engines.md)."
)
Tools = tuple[dict[str, Any], ...]


class UnavailableRefusal(Refusal):
    """The refusal of a request that the decoder cannot answer at the moment (status 503)."""

    def __init__(self, reason: str) -> None:
        super().__init__(503, "unavailable", f"The decoder cannot answer: {reason}.", "Try again later.")


def tools_refusal(problem: str, hint: str) -> Refusal:
    """Return the refusal of a request with tools that the decoder cannot use (status 400)."""
    return Refusal(400, "invalid_request", problem, hint, "tools")


def decider_source(options: GatewayOptions, tools: Tools, allow_null: bool = False) -> DeciderSource:
    """Return the source of the decider for a request. With tools, the decider calls a tool, or, if `allow_null`,
    perhaps none. Without tools, it answers questions. Raises UserError if the server's model cannot do this."""
    from rtcontrol.models.decider import DeciderSpec

    model = options.model
    if not tools:
        if model is None or model in SCRIPTED or is_endpoint(model):
            hint = "Start the server with a checkpoint: `rtcontrol serve --model CHECKPOINT --http ADDRESS`."
            raise UserError(f"The model {public_name(model)} cannot answer questions.", hint)
        return QuestionSource(DeciderSpec(model=model, engine=options.engine, tools=()))
    model = model_for(tool_schemas(tools), model, START_HINT)
    if model == "noop":
        return NoopSource()
    if model == "random":
        return RandomSource(tools)
    if is_endpoint(model):
        return EndpointSource.parse(model, tools, allow_null)
    spec = DeciderSpec(model, tools, engine=options.engine, allow_null=allow_null, value_tokens=options.value_tokens)
    return STSource(spec, patient=True)


def public_name(model: str | None) -> str:
    """Return the model's name to show to clients, without the path on this machine."""
    return "default" if model is None or is_endpoint(model) else Path(model).name or model


class CheckpointGate:
    """The confidence gate of a checkpoint for a list of tools, or for questions if there are no tools.

    `allow_null`: the model may decide to make no call. `trained`: whether the model was trained on the tools (None:
    unknown). If it was not, `warning` is set, and the gate withholds no call. Raises UserError if the model cannot be
    used."""

    def __init__(self, model: str | None, tools: Sequence[ToolSchema], allow_null: bool) -> None:
        metadata = metadata_of(model_for(tools, model, START_HINT)) if tools else None
        metadata = metadata if metadata is not None and metadata.knows(tools) else None
        gate = None if metadata is None else metadata.gate
        doubt = metadata is not None and metadata.null_is_doubt and not allow_null
        self.allow_null = allow_null or doubt
        self._gate = ConfidenceGate({} if gate is None else {"function": gate}, (), doubt)
        plain = model is not None and (model in SCRIPTED or is_endpoint(model))
        self.trained = None if plain else model is None or trained_on(tools, model)
        self.warning: str | None = None
        if not (plain or self.trained):
            notice = f"The model {public_name(model)} does not seem to be trained on "
            subject = "these tools" if tools else "questions"
            self.warning = f"{notice}{subject}: its answers may be wrong even with high confidence."

    def hold_reason(self, decision: Decision) -> str | None:
        """Return why the decision's call must be withheld, or None if the call may be executed."""
        if (doubt := self._gate.doubt(decision)) is None:
            return None
        return f"No call: {low_confidence_text(doubt, doubt.head, decision)}."

    def instruction(self, system_text: str, sentence: str) -> str:
        """Return the instruction for the model: `sentence`, preceded by `system_text` if the model was not trained on
        the tools."""
        return sentence if self.trained else "\n".join(filter(None, (system_text, sentence)))


@dataclass(frozen=True, slots=True)
class TimedDecision:
    """A decision with its duration, and the results of `CheckpointGate`."""

    decision: Decision
    latency_ms: float  # time from the request's body to the decision
    decide_ms: float  # time in the decider
    trained: bool | None = None  # whether the model was trained on the tools (None: unknown)
    warning: str | None = None
    hold_reason: str | None = None  # why the call is withheld; None if it may be executed

    def timing(self) -> dict[str, Any]:
        """Return the entries of the response field `rtcontrol` that all formats have."""
        return {
            "latency_ms": round(self.latency_ms, 3),
            "decide_ms": round(self.decide_ms, 3),
            "forward_passes": self.decision.forward_passes,
            "trained": self.trained,
            **({"warning": self.warning} if self.warning else {}),
        }


class ToolSetCache:
    """A cache of open tool sets. Only the event loop's thread may use it.

    At most `options.tool_sets` tool sets are open. If another is needed, the least recently used tool set is closed.
    """

    def __init__(self, pool: DecoderPool, options: GatewayOptions) -> None:
        self._pool, self._options = pool, options
        self._open: OrderedDict[str, ToolSet] = OrderedDict()
        self._opening: dict[str, asyncio.Task[ToolSet]] = {}
        self._openers = ThreadPoolExecutor(MAX_OPENING, thread_name_prefix="opening")
        self._waiting = self._count = 0

    async def decide(
        self,
        tools: Tools,
        instruction: str,
        observation: str,
        history: Sequence[str] = (),
        allow_null: bool = False,
        system_text: str = "",
    ) -> TimedDecision:
        """Make a decision. `system_text`: the text of the system messages. Raises UnavailableRefusal, or another
        Refusal if the tools are invalid, or if the prompt or a value is too long."""
        started_s = time.perf_counter()
        if self._waiting >= MAX_WAITING:
            raise UnavailableRefusal(f"{MAX_WAITING} requests are already waiting")
        self._waiting += 1
        try:
            tool_set = await self._get_tool_set(tools, allow_null)
            gate = tool_set.gate
            text = gate.instruction(system_text, instruction)
            decision, decide_ns = await tool_set.decide(observation, text, tuple(history))
        finally:
            self._waiting -= 1
        latency_ms = (time.perf_counter() - started_s) * 1e3
        reason = gate.hold_reason(decision)
        return TimedDecision(decision, latency_ms, decide_ns / 1e6, gate.trained, gate.warning, reason)

    def close(self) -> None:
        self._openers.shutdown(wait=False, cancel_futures=True)
        while self._open:
            self._open.popitem()[1].close()

    async def _get_tool_set(self, tools: Tools, allow_null: bool) -> ToolSet:
        key = json.dumps([allow_null, *tools])
        if key in self._open and not self._open[key].lost:
            self._open.move_to_end(key)
            return self._open[key]
        if key not in self._opening:
            self._opening[key] = asyncio.create_task(self._open_set(key, tools, allow_null))
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                return await asyncio.shield(self._opening[key])
        except TimeoutError:
            raise UnavailableRefusal(f"the tools were not compiled within {OPEN_TIMEOUT_S:g} s") from None

    async def _open_set(self, key: str, tools: Tools, allow_null: bool) -> ToolSet:
        """Open a tool set. If too many are open, close the least recently used tool set."""
        self._count += 1
        parts = self._pool, self._options, tools, allow_null, f"http-{self._count}"
        try:
            tool_set = await asyncio.get_running_loop().run_in_executor(self._openers, open_tool_set, *parts)
        finally:
            del self._opening[key]
        if key in self._open:
            self._open.pop(key).close()
        while len(self._open) >= self._options.tool_sets:
            self._open.popitem(last=False)[1].close()
        self._open[key] = tool_set
        return tool_set


def open_tool_set(pool: DecoderPool, options: GatewayOptions, tools: Tools, allow_null: bool, name: str) -> ToolSet:
    """Parse the tools, start a decoder host for them, and return the tool set. Raises Refusal."""
    try:
        schemas = tool_schemas(tools) if tools else ()
        gate = CheckpointGate(options.model, schemas, allow_null)
        host = pool.open(name, decider_source(options, tools, gate.allow_null))
        host.start()
        return ToolSet(host, gate, options.decide_timeout_s)
    except DecoderUnavailable as error:
        raise UnavailableRefusal(error.what.rstrip(".")) from None
    except UserError as error:
        raise tools_refusal(error.what, error.remedy) from None
    except Exception as error:
        log.exception("opening a tool set")
        problem = f"The tools cannot be compiled ({type(error).__name__})."
        raise tools_refusal(problem, "Send function definitions in OpenAI's format.") from None


class ToolSet:
    """A decoder host for a list of tools, and the only thread that uses it. It decides one request at a time."""

    def __init__(self, host: Host, gate: CheckpointGate, timeout_s: float) -> None:
        self.gate = gate
        self.lost = False  # True if the decoder has died
        self._host, self._timeout_s = host, timeout_s
        self._ticks = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=host.name)

    async def decide(self, observation: str, instruction: str, history: tuple[str, ...]) -> tuple[Decision, int]:
        """Return the decision, and the decider's time in ns. Raises Refusal, for example after a timeout."""
        give_up_ns = time.monotonic_ns() + round(self._timeout_s * 1e9)
        parts = give_up_ns, observation, instruction, history
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._decide, *parts)

    def close(self) -> None:
        """Close the host after its pending requests."""
        self._thread.submit(self._close_host)
        self._thread.shutdown(wait=False)

    def _decide(self, give_up_ns: int, *prompt: Any) -> tuple[Decision, int]:
        self._ticks += 1
        host, tick = self._host, self._ticks
        host.submit(DecisionRequest(tick, 0, *prompt))
        incarnation = host.incarnation  # a standby also takes over the pending request; then it changes
        while (remaining_ns := give_up_ns - time.monotonic_ns()) > 0:
            reply = host.wait(min(remaining_ns, ALIVE_CHECK_NS))
            if reply is not None and reply.tick == tick:
                return decision_of(reply)
            if host.incarnation != incarnation or not host.alive():
                self.lost = True
                raise UnavailableRefusal("the decoder was lost")
        host.cancel(tick)
        raise UnavailableRefusal(f"no decision within {self._timeout_s:g} s")

    def _close_host(self) -> None:
        try:
            self._host.close()
        except Exception:
            log.exception("closing a tool set")


def decision_of(reply: DecisionReply) -> tuple[Decision, int]:
    """Return the decision of a reply, and the decider's time in ns. Raises Refusal if the reply has no decision."""
    if reply.user_error is not None:
        raise Refusal(400, "context_length_exceeded", *reply.user_error, "messages")
    if reply.decision is None:
        kind, _, detail = str(reply.error).partition(": ")
        if kind == DecodeError.__name__:  # the tools cause this error, so a retry would fail, too
            raise tools_refusal(
                f"{detail}.", "Add an enum, a range, a maxLength or maxItems to the parameter's schema."
            )
        raise UnavailableRefusal(f"the decoder failed ({reply.error})")
    return reply.decision, reply.decide_ns
