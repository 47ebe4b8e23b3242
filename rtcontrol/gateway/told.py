"""What goes wrong with a request, as OpenAI's client libraries read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rtcontrol.gateway import openai_api
from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.decide import Unavailable
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.models.errors import UserError

Endpoint = Callable[[Request], Awaitable[Response]]


def told(route: str, made: Endpoint, metrics: Metrics) -> Endpoint:
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
