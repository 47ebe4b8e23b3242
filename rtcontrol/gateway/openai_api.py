"""The shapes in which OpenAI's client libraries read answers, models and errors."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rtcontrol.gateway import openai_api
from rtcontrol.gateway.access import WARNING, Refusal
from rtcontrol.gateway.chat import Answer, WrittenContent
from rtcontrol.gateway.chat_request import ChatRequest
from rtcontrol.gateway.decide import Timed, Unavailable
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError


def completion(request: ChatRequest, answer: Answer, written: WrittenContent | None = None) -> dict[str, Any]:
    """The whole answer, with what was `written` beside the call."""
    calls = _tool_calls(answer.calls)
    text = answer.content if written is None or written.text is None else written.text
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        **_envelope(request, "chat.completion"),
        "choices": [
            {
                "index": 0,
                "message": {**message, **({"tool_calls": calls} if calls else {})},
                "finish_reason": _finish(answer),
                "logprobs": None,
            }
        ],
        "usage": _usage(answer.timed),
        "rtcontrol": _extra(answer, written),
    }


async def chunks(
    request: ChatRequest, answer: Answer, writing: Callable[[], Awaitable[WrittenContent]] | None = None
) -> AsyncIterator[str]:
    """The answer as server-sent events; what `writing` gives is begun when the call is sent, and a chunk of its own."""
    envelope, written = _envelope(request, "chat.completion.chunk"), None

    def event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return f"data: {json.dumps({**envelope, 'choices': [choice], **more}, ensure_ascii=False)}\n\n"

    yield event({"role": "assistant", "content": None if writing is not None else answer.content, "refusal": None})
    for i, call in enumerate(_tool_calls(answer.calls)):
        yield event({"tool_calls": [{"index": i, **call}]})
    if writing is not None:
        written = await writing()
        yield event({"content": answer.content if written.text is None else written.text})
    yield event({}, _finish(answer), rtcontrol=_extra(answer, written))
    if request.stream_options is not None and request.stream_options.include_usage:
        yield f"data: {json.dumps({**envelope, 'choices': [], 'usage': _usage(answer.timed)})}\n\n"
    yield "data: [DONE]\n\n"


def model(name: str, since: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": since, "owned_by": "rtcontrol"}


def warning(*told: str | None) -> dict[str, str]:
    """The header that tells of them."""
    # Headers are Latin-1, and a model's name may be anything.
    text = " ".join(one for one in told if one)
    return {WARNING: text.encode("ascii", "replace").decode()} if text else {}


def error(status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _envelope(request: ChatRequest, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": request.model}


def _tool_calls(calls: Sequence[Call]) -> list[dict[str, Any]]:
    functions = [{"name": c.name, "arguments": json.dumps(dict(c.arguments), ensure_ascii=False)} for c in calls]
    return [{"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": f} for f in functions]


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


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


def _extra(answer: Answer, written: WrittenContent | None) -> dict[str, Any]:
    """`confidence` is the first call's; `confidences` are all, where there are several."""
    timed = answer.timed
    confidences = [dict(one.decision.confidence) for one in timed[-max(1, len(answer.calls)) :]]
    return {
        "confidence": confidences[0],
        **({"confidences": confidences} if len(confidences) > 1 else {}),
        "latency_ms": round(sum(one.latency_ms for one in timed), 3),
        "decide_ms": round(sum(one.decide_ms for one in timed), 3),
        "forward_passes": sum(one.decision.forward_passes for one in timed),
        "trained": timed[0].trained,
        **({"warning": timed[0].warning} if timed[0].warning else {}),
        **({"stopped": answer.stopped} if answer.stopped else {}),
        **({"no_content": written.lacking} if written is not None and written.lacking else {}),
    }


Endpoint = Callable[[Request], Awaitable[Response]]


def error_boundary(route: str, made: Endpoint, metrics: Metrics) -> Endpoint:
    """What `made` gives or, in OpenAI's shape, what it raises; all are counted."""

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
    return JSONResponse(openai_api.error(status, code, message, param), status, headers)
