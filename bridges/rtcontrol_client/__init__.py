"""The client of rtcontrol, for programs that connect to a server; it does not need torch, ray or transformers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtcontrol_client.client.active import Standing
    from rtcontrol_client.client.client import Client
    from rtcontrol_client.client.crowd import Crowd
    from rtcontrol_client.client.errors import ClientError, Closed, Declined, Refused
    from rtcontrol_client.client.options import Options

__version__ = "0.1.0"
__all__ = ["Client", "ClientError", "Closed", "Crowd", "Declined", "Options", "Refused", "Standing"]
_PLACES = {
    "Client": "client",
    "Crowd": "crowd",
    "Options": "options",
    "Standing": "active",
    **dict.fromkeys(("ClientError", "Closed", "Declined", "Refused"), "errors"),
}


def __getattr__(name: str) -> Any:
    # Import on first use: a program that only needs the wire format must not load the client.
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rtcontrol_client.client.{_PLACES[name]}"), name)
