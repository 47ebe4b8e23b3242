"""`POST /pair`: a device exchanges the code that the server shows for an access token of its own (`serve --pair`).

A code is good for one device and some minutes. Six digits can be guessed: so a few wrong ones end the code, whoever
sent them, and then nobody pairs for a pause that doubles each time.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import secrets
import shlex
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, Field, field_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rtcontrol.gateway import body
from rtcontrol.gateway.access import FORWARDED, Refusal
from rtcontrol.gateway.devices import DevicesFullError, PairedDevices
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire.endpoint import is_public

VALID_S = 300.0
WRONG = 5  # codes, until there is a pause
PAUSE_S = 30.0
LONGEST_S = 3600.0
MAX_BODY_BYTES = 4096
SHOW = "Type the six digits that the server shows in its terminal."

Say = Callable[[str], None]


class PairRequest(BaseModel):
    """What a device sends: the code (none: it only wants one to be shown), and its name for people."""

    code: Annotated[str | None, Field(max_length=64)] = None
    name: Annotated[str | None, Field(min_length=1, max_length=64)] = None

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str | None) -> str | None:
        if name is not None and (not name.isprintable() or not name.strip()):
            raise ValueError("a name of characters that can be printed")
        return None if name is None else name.strip()


class Pairing:
    """The code that is valid now, and who may still try. `clock` gives seconds that never go back; `page` is where a
    person opens the page, once that is known."""

    def __init__(
        self, devices: PairedDevices, say: Say, page: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._devices, self._say, self._page, self._clock = devices, say, page, clock
        self._code: str | None = None
        self._ends_s = self._pause_ends_s = clock()
        self._wrong, self._pause_s = 0, PAUSE_S

    def show(self) -> None:
        """Show a code, where none is valid. Raises Refusal during a pause."""
        self._check_pause()
        if self._code is not None and self._clock() < self._ends_s:
            return
        self._code, self._ends_s = f"{secrets.randbelow(10**6):06}", self._clock() + VALID_S
        self._say(
            f"pair a device: open {self._page()} there, and type {self._code[:3]} {self._code[3:]} "
            f"(for one device, within {VALID_S / 60:.0f} minutes)"
        )

    def exchange(self, code: str, name: str, peer: str) -> tuple[str, str]:
        """The name and token of a device that sent the code; `peer` is its address, for people. Raises Refusal."""
        self._check_pause()
        if self._code is None or self._clock() >= self._ends_s:
            # No code could be the right one: this is no guess.
            self.show()
            raise Refusal(403, "wrong_code", "This code was used, or is too old.", SHOW)
        if not hmac.compare_digest(code.encode("utf-8", "surrogatepass"), self._code.encode()):
            self._note_wrong(peer)
            raise Refusal(403, "wrong_code", "This is not the code.", SHOW)
        try:
            device, token = self._devices.add(name)
        except DevicesFullError:
            raise Refusal(
                409, "full", "As many devices as may be are paired.", "Revoke one: rtcontrol devices revoke NAME."
            ) from None
        except UserError as error:
            raise Refusal(503, "unavailable", error.what, error.remedy) from None
        self._code, self._wrong, self._pause_s = None, 0, PAUSE_S
        file, listed = shlex.quote(str(self._devices.token_file)), shlex.quote(device.name)
        back = f"rtcontrol devices revoke {listed} --token-file {file}"
        self._say(f"{device.name} is paired, from {peer} (to take that back: {back})")
        return device.name, token

    def _note_wrong(self, peer: str) -> None:
        self._wrong += 1
        if self._wrong < WRONG:
            return
        self._say(f"{WRONG} wrong codes, the last one from {peer}: nobody can pair for {self._pause_s:.0f} s")
        self._code, self._wrong = None, 0
        self._pause_ends_s = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_S)

    def _check_pause(self) -> None:
        if self.pause_left_s > 0:
            raise Refusal(429, "locked", "Too many wrong codes.", f"Try again in {self.pause_left_s} s.")

    @property
    def pause_left_s(self) -> int:
        """Whole seconds until somebody may try again; 0 where there is no pause."""
        return max(0, math.ceil(self._pause_ends_s - self._clock()))


def route(pairing: Pairing, options: GatewayOptions, metrics: Metrics) -> Route:
    """`POST /pair`, behind the gate, which has checked Host and Origin."""
    small = replace(options, max_body_bytes=MAX_BODY_BYTES)

    async def pair(request: Request) -> Response:
        try:
            # A form of another site cannot send this type; a script of one is asked for its origin.
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                what = "The body's type is not application/json."
                raise Refusal(415, "content_type", what, "Send the header `content-type: application/json`.")
            wanted = await body.read(request, PairRequest, small)
            peer = "" if request.client is None else request.client.host
            _check_peer(request, peer)
            if not wanted.code:
                pairing.show()
                raise Refusal(403, "code", "There is no code in the request.", SHOW)
            name, token = pairing.exchange(wanted.code, wanted.name or "device", peer)
        except Refusal as refusal:
            metrics.refused.labels(refusal.code).inc()
            told = {"success": False, "error": f"{refusal.what} {refusal.remedy}", "code": refusal.code}
            wait = {"retry-after": str(pairing.pause_left_s)} if refusal.status == 429 else {}
            return JSONResponse(told, refusal.status, {"cache-control": "no-store", **wait})
        return JSONResponse({"token": token, "name": name}, headers={"cache-control": "no-store"})

    return Route("/pair", pair, methods=["POST"])


def _check_peer(request: Request, peer: str) -> None:
    """Codes and tokens go as plain text: not over the internet."""
    passed_on = any(name in request.headers for name in FORWARDED)
    if request.url.scheme != "https" and (passed_on or is_public(peer)):
        where = "by a proxy" if passed_on else f"from {peer}"
        raise Refusal(
            403,
            "public",
            f"The code came {where}, by plain HTTP.",
            "Pair within the local network, or type the access token of --token-file.",
        )


def address_of_page(url: str, host: str) -> str:
    """The page's address for another machine: where the server listens everywhere, the one that its network uses."""
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return url
    if not everywhere:
        return url
    six = ":" in host
    try:
        # Of a datagram socket `connect` sends nothing: it only chooses the way. Both are documentation's addresses.
        with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.connect(("2001:db8::1" if six else "192.0.2.1", 9))
            own = line.getsockname()[0]
    except OSError:
        return url
    return url.replace(f"[{host}]" if six else host, f"[{own}]" if six else own, 1)
