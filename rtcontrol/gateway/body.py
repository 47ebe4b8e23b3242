"""A request's JSON body, bounded in bytes, time, depth and items before anything is built from it; and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from rtcontrol.gateway.access import Refusal, error_body, too_large
from rtcontrol.gateway.decide import Unavailable
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.models.errors import UserError, each_once
from rtcontrol_client.wire.errors import WireError
from rtcontrol_client.wire.limits import LIMITS, check_value

Model = TypeVar("Model", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]


async def read(request: Request, model: type[Model], options: GatewayOptions, invalid: int = 422) -> Model:
    """Return the body as `model`. Raises Refusal: 408, 413, and `invalid` for one of another shape."""
    if (packed := request.headers.get("content-encoding", "identity").strip().lower()) not in ("identity", ""):
        what = f"The body is compressed ({packed[:40]})."
        raise Refusal(invalid, "unsupported", what, "Send JSON as it is, without `content-encoding`.")
    try:
        async with asyncio.timeout(options.body_timeout_s):
            body = await _bytes(request, options.max_body_bytes)
    except TimeoutError:
        raise Refusal(408, "timeout", "The body did not come in time.", "Send it at once.") from None
    except ClientDisconnect:
        raise Refusal(400, "incomplete", "The body did not come whole.", "Send all of it.") from None
    try:
        value: Any = DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
        check_value(value, LIMITS)
        return model.model_validate(value)
    except WireError as error:
        raise Refusal(invalid, str(error.code), error.message, error.remedy) from None
    except ValidationError as error:
        found = [
            (_field(e["loc"], value, e["type"] == "missing"), e["msg"].removeprefix("Value error, "))
            for e in error.errors(include_url=False)
        ]
        # Of alternatives, the one that was followed furthest.
        field, said = max((f for f in found if f[0].startswith(found[0][0])), key=lambda one: len(one[0]))
        what = f"{field or 'body'}: {said}."
        raise Refusal(invalid, "invalid", what, "Correct this field.", field or None) from None
    except RecursionError:
        what = f"The body is nested deeper than {LIMITS.max_depth}."
        raise Refusal(invalid, "too_large", what, "Send less.") from None
    except UnicodeDecodeError as error:
        raise Refusal(invalid, "malformed", f"The body is no {error.encoding}.", "Send JSON as UTF-8.") from None
    except ValueError as error:
        raise Refusal(invalid, "malformed", f"The body is no JSON ({error}).", "Send one JSON object.") from None


def _field(places: Sequence[int | str], value: Any, missing: bool) -> str:
    """Return `messages[0].role`: where the value is wrong, without the names of the alternatives that were tried there.
    What is `missing` is the last place."""
    found = ""
    for place in places:
        if isinstance(place, int):
            found, value = f"{found}[{place}]", value[place] if isinstance(value, list) else None
        elif isinstance(value, dict) and (place in value or (missing and place == places[-1])):
            found, value = f"{found}.{place}", value.get(place)
    return found.removeprefix(".")


async def _bytes(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise too_large(limit)
    return bytes(body)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is none of its numbers")


DECODER = json.JSONDecoder(parse_constant=_constant, object_pairs_hook=each_once)


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
    return JSONResponse(error_body(status, code, message, param), status, headers)
