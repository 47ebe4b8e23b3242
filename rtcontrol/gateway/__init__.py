"""The HTTP side of `rtcontrol serve`: protocol 1.0 over WebSocket, two request/response APIs, metrics and a page."""

from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.server import Gateway

__all__ = ["Gateway", "GatewayOptions"]
