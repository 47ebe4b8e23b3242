"""`/v1/fleet`: the server's decoders, and what an operator does with them: end one, or serve another model."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rtcontrol.gateway import body
from rtcontrol.gateway.access import Refusal, check_token
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.openai_api import error_boundary
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.serve.operators import change_model, decoders_of, drain, served_model
from rtcontrol.serve.session_manager import SessionManager


class FleetRequest(BaseModel):
    """`drain`: a decoder's name; `model`: what is served from now on."""

    model_config = ConfigDict(extra="forbid")

    drain: Annotated[str | None, Field(max_length=64)] = None
    model: Annotated[str | None, Field(max_length=4096)] = None


def routes(admission: SessionManager, options: GatewayOptions, metrics: Metrics) -> list[Route]:
    def shown() -> Response:
        figures: dict[str, Any] = {"model": served_model(admission.options), "decoders": decoders_of(admission.pool)}
        return JSONResponse(figures)

    async def fleet(request: Request) -> Response:
        if request.method != "POST":
            return shown()
        # Also from this machine: it names what is loaded from its disk.
        if options.token is None:
            what = "The decoders are changed with the access token only, and this server has none."
            raise Refusal(403, "token", what, "Start it with `--token-file FILE`.")
        check_token(request.scope, options)
        wanted = await body.read(request, FleetRequest, options, 400)
        if (wanted.drain is None) == (wanted.model is None):
            raise Refusal(400, "invalid", "The body has neither or both of `drain` and `model`.", "Give one of them.")
        if wanted.drain is not None:
            await asyncio.to_thread(drain, admission, wanted.drain)
        elif wanted.model is not None:
            await asyncio.to_thread(change_model, admission, wanted.model)
        return shown()

    return [Route("/v1/fleet", error_boundary("fleet", fleet, metrics), methods=["GET", "POST"])]
