"""A request's JSON body, bounded in bytes, time, depth and items before anything is built from it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from rtcontrol.bridges.wire.errors import WireError
from rtcontrol.bridges.wire.limits import LIMITS, check_value
from rtcontrol.gateway.access import Refusal, too_large
from rtcontrol.gateway.options import GatewayOptions

Model = TypeVar("Model", bound=BaseModel)


async def read(request: Request, model: type[Model], options: GatewayOptions) -> Model:
    """The body as `model`. Raises Refusal: 408, 413, 422."""
    try:
        async with asyncio.timeout(options.body_timeout_s):
            body = await _bytes(request, options.max_body_bytes)
    except TimeoutError:
        raise Refusal(408, "timeout", "The body did not come in time.", "Send it at once.") from None
    try:
        value: Any = json.loads(body, parse_constant=_constant)
        check_value(value, LIMITS)
        return model.model_validate(value)
    except WireError as error:
        raise Refusal(422, str(error.code), error.message, error.remedy) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(p) for p in first["loc"]) or "body"
        raise Refusal(422, "invalid", f"{field}: {first['msg']}.", "Correct this field.", field) from None
    except (ValueError, RecursionError):
        raise Refusal(422, "malformed", "The body is no JSON.", "Send one JSON object.") from None


async def _bytes(request: Request, limit: int) -> bytes:
    parts: list[bytes] = []
    seen = 0
    async for part in request.stream():
        seen += len(part)
        if seen > limit:
            raise too_large(limit)
        parts.append(part)
    return b"".join(parts)


def _constant(name: str) -> NoReturn:
    raise ValueError(name)
