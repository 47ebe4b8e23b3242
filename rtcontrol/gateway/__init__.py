"""The HTTP side of `rtcontrol serve`: protocol 1.0 over WebSocket, two request/response APIs, metrics and a page."""

from rtcontrol.gateway.app import Gateway
from rtcontrol.gateway.options import GatewayOptions

__all__ = ["Gateway", "GatewayOptions"]
