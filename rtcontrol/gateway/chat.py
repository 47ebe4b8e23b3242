"""The decision of one chat request, and the shapes in which OpenAI's client libraries read answers and errors."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rtcontrol.gateway.access import WARNING, Refusal
from rtcontrol.gateway.chat_request import ChatRequest, Offer
from rtcontrol.gateway.decide import RequestError, Timed, Unavailable
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.models.call import Call
from rtcontrol.models.conversation import Made
from rtcontrol.models.errors import UserError

Decide = Callable[..., Awaitable[Timed]]
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Answer:
    """All decisions that were made, the call that they came to, or the text. `stopped`: why nothing is called."""

    timed: Sequence[Timed]
    call: Call | None
    content: str | None
    stopped: str | None = None


async def decided(request: ChatRequest, offer: Offer, decide: Decide) -> Answer:
    """Return one call, or why there is none. Raises Refusal and Unavailable."""
    timed = await _decisions(request, offer, decide)
    if (held := timed[-1].held) is not None:
        return Answer(timed, None, held, held)
    call, answered = timed[-1].decision.call, request.answered()
    if call is not None and call.name == offer.answer:
        return Answer(timed, None, json.dumps(dict(call.arguments), ensure_ascii=False))
    again = _result(call, answered)
    if call is None or (again is not None and not offer.must):
        result = again or (answered[-1].result if answered else None)
        why = "The model calls nothing." if call is None else f"{call.text()} was called, and its result is known."
        return Answer(timed, None, result or "", why)
    return Answer(timed, call, None)


async def _decisions(request: ChatRequest, offer: Offer, decide: Decide) -> list[Timed]:
    """Decide until there is a call whose result is not known. Where something must be called, a function whose result
    is known is left out: the same question again would get the same answer, for ever."""
    answered, history, timed = request.answered(), [one.text() for one in request.made()], list[Timed]()
    may_be_null = bool(answered) and not offer.must
    while True:
        told = request.instruction(), request.observation(), history, may_be_null, request.orders()
        try:
            timed.append(await decide(offer.tools, *told))
        except RequestError as error:
            param = offer.param(error)
            code = "context_length_exceeded" if param == "messages" else "invalid_request"
            raise Refusal(400, code, error.what, error.remedy, param) from None
        call = timed[-1].decision.call
        if call is None or timed[-1].held or not offer.must or _result(call, answered) is None:
            return timed
        offer = offer.without(call.name)
        if not offer.tools:
            return timed


def _result(call: Call | None, answered: Sequence[Made]) -> str | None:
    """Return the result of this very call, the last one."""
    return next((one.result for one in reversed(answered) if one.call == call), None)


def completion(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """Return the whole answer."""
    calls = _tool_calls(answer)
    message = {"role": "assistant", "content": answer.content, "refusal": None}
    choice = {
        "index": 0,
        "message": {**message, **({"tool_calls": calls} if calls else {})},
        "finish_reason": "tool_calls" if calls else "stop",
        "logprobs": None,
    }
    envelope = _envelope(request, "chat.completion")
    return {**envelope, "choices": [choice], "usage": _usage(answer.timed), "rtcontrol": _extra(answer)}


def chunks(request: ChatRequest, answer: Answer) -> Iterator[str]:
    """Return the answer as server-sent events."""
    envelope, calls = _envelope(request, "chat.completion.chunk"), _tool_calls(answer)

    def event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return f"data: {json.dumps({**envelope, 'choices': [choice], **more}, ensure_ascii=False)}\n\n"

    yield event({"role": "assistant", "content": answer.content, "refusal": None})
    for call in calls:
        yield event({"tool_calls": [{"index": 0, **call}]})
    yield event({}, "tool_calls" if calls else "stop", rtcontrol=_extra(answer))
    if request.stream_options is not None and request.stream_options.include_usage:
        yield f"data: {json.dumps({**envelope, 'choices': [], 'usage': _usage(answer.timed)})}\n\n"
    yield "data: [DONE]\n\n"


def model(name: str, since: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": since, "owned_by": "rtcontrol"}


def warning(text: str | None) -> dict[str, str]:
    """Return the header that tells of it."""
    # Headers are Latin-1, and a model's name may be anything.
    return {WARNING: text.encode("ascii", "replace").decode()} if text else {}


def _envelope(request: ChatRequest, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": request.model}


def _tool_calls(answer: Answer) -> list[dict[str, Any]]:
    if (call := answer.call) is None:
        return []
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    return [{"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}]


def _usage(timed: Sequence[Timed]) -> dict[str, Any]:
    decisions = [one.decision for one in timed]
    cached = sum(d.reused_tokens for d in decisions)
    prompt = cached + sum(d.tokens for d in decisions)
    # Values are chosen, not written: a head is what comes nearest to a token of an answer.
    heads = sum(len(d.confidence) for d in decisions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": heads,
        "total_tokens": prompt + heads,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _extra(answer: Answer) -> dict[str, Any]:
    return {
        "confidence": dict(answer.timed[-1].decision.confidence),
        **timing(answer.timed),
        **({"stopped": answer.stopped} if answer.stopped else {}),
    }


def timing(timed: Sequence[Timed]) -> dict[str, Any]:
    """Return what all answers tell of their decisions in the field `rtcontrol`."""
    return {
        "latency_ms": round(sum(one.latency_ms for one in timed), 3),
        "decide_ms": round(sum(one.decide_ms for one in timed), 3),
        "forward_passes": sum(one.decision.forward_passes for one in timed),
        "trained": timed[0].trained,
        **({"warning": timed[0].warning} if timed[0].warning else {}),
    }


def error_boundary(route: str, made: Endpoint, metrics: Metrics) -> Endpoint:
    """Return what `made` gives or, in OpenAI's shape, what it raises; all are counted."""

    async def respond(request: Request) -> Response:
        try:
            response = await made(request)
        except Refusal as error:
            metrics.refused.labels(error.code).inc()
            response = error_response(error.status, error.code, f"{error.what} {error.remedy}", error.param)
        except UserError as error:
            response = error_response(400, "invalid_request", str(error))
        except Unavailable as error:
            response = error_response(503, "unavailable", f"The decoder cannot answer: {error}. Try again.")
        metrics.requests.labels(route, response.status_code).inc()
        return response

    return respond


def error_response(
    status: int, code: str, message: str, param: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": error}, status, headers)
