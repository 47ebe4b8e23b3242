"""The gateway as a part of a server process."""

from __future__ import annotations

from rtcontrol.gateway.app import build
from rtcontrol.gateway.decide import ToolSets
from rtcontrol.gateway.http import HTTPServer
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.source import source
from rtcontrol.hosts.base import DecoderPool
from rtcontrol.serve.admission import Admission


class Gateway(HTTPServer):
    """HTTP and WebSocket for an admission."""

    def __init__(self, admission: Admission, pool: DecoderPool, options: GatewayOptions) -> None:
        self._tool_sets = ToolSets(
            pool,
            lambda tools: source(options.model, options.engine, tools, options.value_tokens, options.arguments),
            options.tool_sets,
            options.decide_timeout_s,
            options.open_timeout_s,
        )
        metrics = Metrics(admission)
        app = build(admission, self._tool_sets, options, metrics)
        super().__init__(app, options, "--http", lambda code: metrics.refused.labels(code).inc())

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._tool_sets.close()
