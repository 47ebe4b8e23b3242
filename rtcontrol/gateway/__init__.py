"""The HTTP side of `rtcontrol serve`: the protocol over WebSocket, request/response APIs, metrics and pages."""
