"""Read the bodies of /v1 requests: limit the size, parse strict JSON, and validate the values by pydantic models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from rtcontrol.gateway.gate import MAX_BODY_BYTES, Refusal, too_large_refusal
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.models.errors import object_without_repeated_keys
from rtcontrol_client.wire.errors import WireError
from rtcontrol_client.wire.limits import LIMITS, check_value

Model = TypeVar("Model", bound=BaseModel)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


DECODER = json.JSONDecoder(parse_constant=_reject_constant, object_pairs_hook=object_without_repeated_keys)


async def read_body(request: Request, model: type[Model], options: GatewayOptions, invalid: int = 422) -> Model:
    """Return a request's body as an object of class `model`. Raises Refusal with status 408 (too slow), 413 (too large)
    or the status `invalid` (not valid JSON, or not valid for the class)."""
    body = bytearray()
    try:
        async with asyncio.timeout(options.body_timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise too_large_refusal()
    except (TimeoutError, ClientDisconnect):
        raise Refusal(408, "timeout", "The body did not arrive in time.", "Send the body faster.") from None
    value: Any = None
    try:
        value = DECODER.decode(body.decode())
        check_value(value, LIMITS)
        return model.model_validate(value)
    except WireError as error:
        raise Refusal(invalid, str(error.code), error.message, error.remedy) from None
    except ValidationError as error:
        first = max(error.errors(include_url=False), key=lambda item: len(item["loc"]))
        field = _field_path(first["loc"], value)
        problem, hint = f"{field or 'body'}: {first['msg']}.", "Correct this field."
        if first["type"] == "extra_forbidden":
            problem, hint = f"The parameter {field} is not supported.", "Leave it out: it would change the answer."
        raise Refusal(invalid, "invalid", problem, hint, field or None) from None
    except (ValueError, RecursionError) as error:
        raise Refusal(invalid, "malformed", f"The body is not JSON ({error}).", "Send a JSON object.") from None


def _field_path(places: Sequence[int | str], value: Any) -> str:
    """Return the path of an invalid field, such as `messages[0].role`, from pydantic's location. Omit parts that are
    not in `value` (pydantic also lists union types), except for the last part, which may be a missing field."""
    path = ""
    for k, place in enumerate(places, start=1):
        if isinstance(place, int):
            path, value = f"{path}[{place}]", value[place] if isinstance(value, list) else None
        elif isinstance(value, dict) and (place in value or k == len(places)):
            path, value = f"{path}.{place}", value.get(place)
    return path.removeprefix(".")
