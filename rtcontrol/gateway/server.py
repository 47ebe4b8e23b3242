"""The gateway as a part of a server process."""

from __future__ import annotations

from rtcontrol.gateway.app import build
from rtcontrol.gateway.content import ContentHeads
from rtcontrol.gateway.decide import ToolSets
from rtcontrol.gateway.http import HTTPServer
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.source import content, no_content, source, trained
from rtcontrol.hosts.base import DecoderPool
from rtcontrol.serve.admission import Admission


class Gateway(HTTPServer):
    """HTTP and WebSocket for an admission."""

    def __init__(self, admission: Admission, pool: DecoderPool, options: GatewayOptions) -> None:
        limits = (options.tool_sets, options.decide_timeout_s, options.open_timeout_s)
        self._tool_sets = ToolSets(
            pool,
            lambda tools, allow_null: source(
                options.model, options.engine, tools, options.value_tokens, allow_null, options.arguments
            ),
            *limits,
            lambda tools: trained(options.model, tools),
            admission.reading,
        )
        texts = ToolSets(
            pool,
            lambda tools, _: content(options.model, options.engine, tools, options.value_tokens),
            *limits,
            reading=admission.reading,
        )
        self._content = ContentHeads(texts, lambda: no_content(options.model))
        metrics = Metrics(admission)
        app = build(admission, self._tool_sets, self._content, options, metrics)
        super().__init__(app, options, "--http", lambda code: metrics.refused.labels(code).inc())

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._tool_sets.close()
            self._content.close()
